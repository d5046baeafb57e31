// SPDX-License-Identifier: Apache-2.0
//! Start and exit of an NF's program.

use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use netlib::{NetworkFunction, Options, ThreadContext};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::ConfigError;

/// An NF's program ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file or an option cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Options contradict each other.
    #[error("{0}")]
    Usage(&'static str),
    /// The NF cannot attach or cannot continue.
    #[error(transparent)]
    Netlib(#[from] netlib::Error),
    /// A part of this NF alone cannot start.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// Signals cannot be handled, or a report cannot be written.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The arguments of an NF's program. Prints the man page instead, and ends, if the only argument is `--man`; ends with
/// a message if the arguments are wrong.
#[must_use]
pub fn arguments<A: Parser>() -> A {
    if std::env::args_os().skip(1).eq(["--man"]) {
        let printed = clap_mangen::Man::new(A::command()).render(&mut io::stdout());
        std::process::exit(i32::from(printed.is_err()));
    }
    A::parse()
}

/// Attaches and runs the function until the engine or a signal stops it. SIGTERM and SIGINT stop the NF in order, a
/// second one at once; SIGHUP sets `reload`.
///
/// # Errors
/// As for [`netlib::run`]; [`Failure::Io`] if signals cannot be handled.
pub fn run<F: NetworkFunction>(
    options: &Options,
    reload: Option<Arc<AtomicBool>>,
    make: impl Fn(&ThreadContext<'_>) -> F + Sync,
) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let handle = || -> io::Result<()> {
        for signal in [SIGTERM, SIGINT] {
            // In this order: the flag that the first signal sets makes the second one end the process.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        if let Some(reload) = reload {
            signal_hook::flag::register(SIGHUP, reload)?;
        }
        Ok(())
    };
    handle().map_err(|source| Failure::Io { what: "handling of signals".to_owned(), source })?;
    let options = Options { stop: stop.into(), ..options.clone() };
    Ok(netlib::run(&options, make)?)
}

/// Prints an error with the program's name on standard error and returns the exit status.
#[must_use]
pub fn exit_code(name: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}{}", hint(&error));
            ExitCode::FAILURE
        }
    }
}

/// What helps if the kernel refuses access to a file; empty for other errors.
fn hint(error: &(dyn Error + 'static)) -> String {
    let mut cause = Some(error);
    let mut kind = None;
    while let (Some(error), None) = (cause, kind) {
        kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        cause = error.source();
    }
    if !matches!(kind, Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)) {
        return String::new();
    }
    format!(
        "; this NF runs as {}, which must be able to reach the file. An NF that netvmd starts may write only in the folders that \
         `writable` of its [[nf]] names, and `netvm replay` lets NFs write no files",
        account()
    )
}

/// The user of this process: its name, if there is one, and its number.
fn account() -> String {
    let Ok(process) = std::fs::metadata("/proc/self") else { return "another user".to_owned() };
    let uid = process.uid().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of = |line: &&str| line.split(':').nth(2) == Some(&uid);
    match users.lines().find(of).and_then(|line| line.split(':').next()) {
        Some(name) => format!("user {name} ({uid})"),
        None => format!("user {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_files_name_the_account_and_the_remedy() {
        let failure =
            |kind| Failure::Io { what: "eve file /var/log/x".to_owned(), source: io::Error::from(kind) };
        assert_eq!(hint(&failure(io::ErrorKind::NotFound)), "");
        let text = hint(&failure(io::ErrorKind::PermissionDenied));
        assert!(text.contains("runs as user ") && text.contains("`writable` of its [[nf]]"), "{text}");
        // As the cause of another error.
        let nested = Failure::Other(Box::new(failure(io::ErrorKind::PermissionDenied)));
        assert_eq!(hint(&nested), text);
    }
}
