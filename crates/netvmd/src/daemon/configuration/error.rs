// SPDX-License-Identifier: Apache-2.0
//! Why a configuration was not applied.

use netvm_config::ConfigError;

use super::MAX_CONFIRM_SECONDS;
use super::saving::SaveError;
use crate::engine_thread::EngineGone;
use crate::process::ProcessSpecError;
use crate::programs::ProgramPlaceError;
use crate::routers::RouterError;
use crate::vms::VmSpecError;

/// A configuration was not applied; the previous one is in force.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It cannot be read or is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An NF cannot be started.
    #[error(transparent)]
    ProcessSpec(#[from] ProcessSpecError),
    /// A VM cannot be started.
    #[error(transparent)]
    Vm(#[from] VmSpecError),
    /// A virtual router cannot be set up.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// A program with two ports has no network namespace.
    #[error(transparent)]
    Program(#[from] ProgramPlaceError),
    /// A change needs a restart.
    #[error("{} (restart netvmd with the new file)", .0.join("; "))]
    NeedsRestart(Vec<String>),
    /// The engine refused it.
    #[error(transparent)]
    Engine(#[from] netvm_engine::ApplyError),
    /// An NF did not start.
    #[error("nf {role} did not start: {reason}; restored the previous configuration")]
    NfFailed {
        /// Its role.
        role: String,
        /// The reason.
        reason: String,
    },
    /// A VM did not start.
    #[error("vm {vm} did not start: {reason}; restored the previous configuration")]
    VmFailed {
        /// Its name.
        vm: String,
        /// The reason.
        reason: String,
    },
    /// The change failed, and undoing it failed too.
    #[error(
        "{error}; restoring the previous configuration failed, too: {undo}; restart netvmd to get a consistent state"
    )]
    NotUndone {
        /// The error of the change.
        error: Box<ApplyError>,
        /// The error of the undo.
        undo: Box<ApplyError>,
    },
    /// Another apply is in progress.
    #[error("another configuration is being applied: try again later")]
    Busy,
    /// The last change has not been confirmed yet.
    #[error(
        "the last change waits for its confirmation, for {left} s more: confirm it (netvm config confirm), or undo it \
         (netvm config revert)"
    )]
    Unconfirmed {
        /// Seconds that are left.
        left: u64,
    },
    /// The limit for a confirmation is out of range.
    #[error("the time limit for a confirmation must be from 1 to {MAX_CONFIRM_SECONDS} s")]
    ConfirmLimit,
    /// The state directory cannot be written.
    #[error(
        "cannot save the previous configuration in the state directory: {0} (choose another with --state-dir)"
    )]
    State(std::io::Error),
    /// The configuration cannot be saved.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The configuration is in force, but not saved.
    #[error("applied, but not saved: {0}")]
    NotSaved(SaveError),
    /// The engine has ended.
    #[error(transparent)]
    Gone(#[from] EngineGone),
}
