// SPDX-License-Identifier: Apache-2.0
//! Errors of the demo.

use std::io;

/// The demo failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Ctrl-C, SIGTERM or SIGHUP arrived.
    #[error("interrupted")]
    Interrupted,
    /// The user is not root.
    #[error("the demo creates network namespaces, which needs root: run it with sudo")]
    NotRoot,
    /// Programs are missing.
    #[error("not installed: {0} (./dev setup installs what the demo needs)")]
    MissingTools(String),
    /// Programs of netvm itself are missing.
    #[error(
        "not built: {programs} (searched {folder}): build with `cargo build --release --workspace --bins`"
    )]
    NotBuilt {
        /// Their names.
        programs: String,
        /// The folder searched.
        folder: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A setup command failed.
    #[error("`{command}` failed: {output}")]
    Command {
        /// The command line.
        command: String,
        /// Its output.
        output: String,
    },
    /// netvmd ended at its start.
    #[error("netvmd ended with {status}\n{log}")]
    DaemonEnded {
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// Not all NFs run.
    #[error("not all NFs ran within {seconds} s\n{log}")]
    NotReady {
        /// The limit.
        seconds: u64,
        /// The last lines of its log.
        log: String,
    },
    /// A request to netvmd failed.
    #[error(transparent)]
    Api(#[from] netvm_api::ClientError),
    /// A timeout.
    #[error("timeout: {what} took more than {seconds} s")]
    TooLate {
        /// The event.
        what: String,
        /// The limit.
        seconds: u64,
    },
}

/// For `map_err`: adds the failed step.
pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::Io { what: what.into(), source }
}
