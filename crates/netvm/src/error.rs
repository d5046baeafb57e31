//! Why a command failed, in the words that the user sees.

use std::io;

use netvm_api::{ApiError, ClientError};
use netvm_config::ConfigError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// netvmd, or the way to it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A name that there is not.
    #[error("there is no {what} `{name}`: {}", list(.known))]
    Unknown {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A packet that was described wrongly.
    #[error(transparent)]
    Packet(#[from] crate::commands::PacketError),
    /// A guest's console.
    #[error(transparent)]
    Console(#[from] crate::commands::ConsoleError),
    /// Rules of others.
    #[error(transparent)]
    Import(#[from] crate::commands::ImportError),
    /// A plan with changes that only a restart makes.
    #[error(
        "this cannot be applied while netvmd runs. Put the file where netvmd reads it and restart netvmd, or leave what needs that as it is"
    )]
    NeedsRestart,
    /// The user said no.
    #[error("not applied")]
    Declined,
    /// No program netvmd.
    #[error(
        "the program netvmd is neither beside {beside} nor in PATH: install it, or build it with `cargo build -p netvmd`"
    )]
    NoDaemon {
        /// Where it was looked for.
        beside: String,
    },
    /// The program netvmd does not start.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No event loop.
    #[error("cannot wait for netvmd: {0}")]
    Runtime(io::Error),
    /// Standard output or input.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// A value that JSON does not have.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl CliError {
    /// Whether the reader of our output has gone.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The error as the API would say it.
    pub fn to_api(&self) -> ApiError {
        match self {
            Self::Client(ClientError::Refused { error, .. }) => error.clone(),
            Self::Config(error) => ApiError::of_config(error),
            other => ApiError::new(other.to_string()),
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "there are none".to_owned() } else { format!("there are {}", names.join(", ")) }
}
