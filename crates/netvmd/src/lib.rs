// SPDX-License-Identifier: Apache-2.0
//! The daemon as a library: it runs the engine on its own thread, starts NFs and VMs in sandboxes, lets other NFs
//! attach, keeps virtual routers in step with the kernel and serves the HTTP API. The program `netvmd` adds the command
//! line.

mod account;
mod api;
mod attach;
mod audit;
mod daemon;
mod engine_thread;
mod events;
mod fleet;
mod grace;
mod lookup;
mod messages;
mod names;
mod offline;
mod process;
mod programs;
mod routers;
mod run;
mod runtime;
mod supervisor;
mod telemetry;
mod vms;

pub use daemon::{FleetOptions, Options};
pub use fleet::FleetError;
pub use grace::expedite_exit;
pub use lookup::check;
pub use offline::{
    CutFrames, EvalError, EvalInput, HeaderError, PolicyEvalError, Replay, ReplayError, ReplayNf,
    ReplayReport, Summary, eval, policy_eval, replay,
};
pub use run::{DaemonError, Logging, keep_files, protect_new_files, run, start_logging};
