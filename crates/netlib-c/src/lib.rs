// SPDX-License-Identifier: Apache-2.0
//! netlib for C: the functions and types of `netlib.h`.
//!
//! Panics never cross into C: every function catches them and returns `NETLIB_ERR_PANIC`. A required argument that is
//! NULL is an error. The library cannot check two preconditions, which are up to the caller: a pointer that is not NULL
//! is valid for its type, and only one thread at a time uses an endpoint.
// The types have C names.
#![allow(non_camel_case_types)]

mod attach;
mod burst;
mod callback;
mod endpoint;
mod options;
mod packet;
mod sim;
mod status;

pub use attach::{netlib_attach, netlib_detach, netlib_get_endpoint, netlib_stop, netlib_t, netlib_threads};
pub use burst::{netlib_receive, netlib_send, netlib_set_verdicts};
pub use callback::{netlib_callback, netlib_run, netlib_serve};
pub use endpoint::messages::{
    NETLIB_MAX_PAYLOAD, NETLIB_ROLE_ROOM, netlib_message, netlib_message_kind, netlib_next_message,
    netlib_send_message,
};
pub use endpoint::{
    netlib_chain, netlib_count, netlib_endpoint, netlib_epoch, netlib_port, netlib_role, netlib_thread,
    netlib_withdraw,
};
pub use options::{netlib_options, netlib_options_init, netlib_waiting};
pub use packet::{
    NETLIB_BURST, NETLIB_DROP, NETLIB_NEXT, NETLIB_STEER_BACK, netlib_alloc, netlib_alloc_for, netlib_append,
    netlib_clone, netlib_headroom, netlib_hold, netlib_may_hold, netlib_now, netlib_packet, netlib_prepend,
    netlib_release, netlib_send_packet, netlib_set_hash, netlib_set_ingress, netlib_set_verdict,
    netlib_tailroom, netlib_trim_front, netlib_truncate,
};
pub use sim::{
    netlib_sim, netlib_sim_counter, netlib_sim_endpoint, netlib_sim_free, netlib_sim_name_chains,
    netlib_sim_new, netlib_sim_put, netlib_sim_run, netlib_sim_set_time, netlib_sim_take, netlib_sim_tell,
    netlib_sim_told,
};
pub use status::{netlib_last_error, netlib_status, netlib_strerror, netlib_version};
