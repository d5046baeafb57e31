//! Why the demo could not be shown to its end.

use std::io;

/// What went wrong, and what helps.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Ctrl-C, SIGTERM or SIGHUP.
    #[error("interrupted")]
    Interrupted,
    /// Not root.
    #[error("the demo makes network namespaces, which takes root: run it with sudo")]
    NotRoot,
    /// Programs are missing.
    #[error("not installed: {0} (./dev setup installs what the demo needs)")]
    MissingTools(String),
    /// Programs of netvm itself are missing.
    #[error(
        "not built: {programs} (looked in {folder}): build with `cargo build --release --workspace --bins`"
    )]
    NotBuilt {
        /// Their names.
        programs: String,
        /// Where they should be.
        folder: String,
    },
    /// A file, socket or process.
    #[error("{what}: {source}")]
    Io {
        /// What was to be done.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A program that sets something up said no.
    #[error("`{command}` failed: {said}")]
    Command {
        /// The command line.
        command: String,
        /// What it printed.
        said: String,
    },
    /// netvmd ended when it had just been started.
    #[error("netvmd ended with {status}\n{log}")]
    DaemonEnded {
        /// How.
        status: std::process::ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// netvmd runs, but not all of its NFs take packets.
    #[error("netvmd did not have all of its NFs within {seconds} s\n{log}")]
    NotReady {
        /// How long it had.
        seconds: u64,
        /// The last lines of its log.
        log: String,
    },
    /// netvmd's API.
    #[error(transparent)]
    Api(#[from] netvm_api::ClientError),
    /// Something did not happen in time.
    #[error("{what} did not happen within {seconds} s")]
    TooLate {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
    },
}

/// For `map_err`: names what was to be done.
pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::Io { what: what.into(), source }
}
