// SPDX-License-Identifier: Apache-2.0
//! The commands: each sends requests to netvmd or reads a file, and prints the result.

mod access;
mod capture;
mod change;
mod connections;
mod counters;
mod docker;
mod events;
mod explain;
mod fleet;
mod inspect;
mod policy;
mod router;
mod stats;
mod stop;
mod top;
mod trace;
mod vm;

pub use access::{cert, passwd};
pub use capture::{capture, held_packets};
pub use change::{apply, check, history, plan, rollback, show_config};
pub use connections::connections;
pub use docker::docker;
pub use events::events;
pub use explain::explain;
pub use fleet::fleet;
pub use inspect::{chain, group, live_port, nf, port, status};
pub use policy::{addresses, flows, import, multicast, policy, top_talkers};
pub use router::{lookup, router};
pub use stats::stats;
pub use stop::stop;
pub use top::top;
pub use trace::trace;
pub use vm::vm;
