//! The daemon: it runs the engine on a thread of its own, starts NFs in sandboxes and lets others attach, and serves the
//! HTTP API. `netvmd` is this with a command line.

mod apart;
mod api;
mod apply;
mod attach_server;
mod daemon;
mod engine_thread;
mod eval;
mod load;
mod logging;
mod notices;
mod notify;
mod policy;
mod readiness;
mod replay;
mod routers;
mod rundir;
mod session;
mod signals;
mod supervisor;
mod vms;

pub use daemon::{DaemonError, Options, run};
pub use eval::{EvalError, HeaderError, PolicyEvalError, Summary, eval, policy_eval};
pub use logging::start as start_logging;
pub use replay::{Replay, ReplayError, ReplayNf, ReplayReport, replay};
