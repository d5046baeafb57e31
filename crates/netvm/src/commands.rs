//! The commands: each asks, and prints what it got.

mod change;
mod import;
mod inspect;
mod packet;
mod policy;
mod replay;
mod router;
mod stats;
mod vm;

pub use change::{apply, check, plan, show_config};
pub use import::{ImportError, import};
pub use inspect::{chain, group, nf, port, status};
pub use packet::PacketError;
pub use policy::{addresses, flows, policy, policy_eval};
pub use replay::{find_daemon, replay};
pub use router::router;
pub use stats::stats;
pub use vm::{ConsoleError, vm};

use crate::error::CliError;
use crate::output::Output;

/// Prints what this machine can do.
pub fn doctor(output: &Output) -> Result<(), CliError> {
    let report = crate::doctor::examine();
    if output.json { output.value(&report) } else { output.text(&crate::doctor::draw(&report, output)) }
}
