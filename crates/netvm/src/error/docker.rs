// SPDX-License-Identifier: Apache-2.0
//! Errors of `netvm docker`.

use std::io;
use std::path::PathBuf;

use netvm_api::ClientError;

/// Why Docker's requests fail, and why they are not served.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// The socket.
    #[error("cannot listen on {}: {source} (see --socket-folder and --name)", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another one serves it.
    #[error("{} is served already: stop that `netvm docker`, or choose another --name", .0.display())]
    Served(PathBuf),
    /// The folder of the state.
    #[error("cannot use {}: {source} (--state names another folder)", path.display())]
    State {
        /// The file or folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A request is not the driver's.
    #[error("Docker's request {request} cannot be read: {source}")]
    Request {
        /// Its path.
        request: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// An ID that is no name of a file.
    #[error("`{0}` is no ID of a network or an endpoint")]
    Id(String),
    /// A network or an endpoint is not known.
    #[error(
        "netvm docker does not know {what} {id}: it was removed, or --state names another folder than before"
    )]
    Unknown {
        /// What.
        what: &'static str,
        /// Its ID.
        id: String,
    },
    /// An option of a network or endpoint.
    #[error("option {option}: {why}")]
    Option {
        /// Its name.
        option: String,
        /// What is wrong with it.
        why: String,
    },
    /// netvmd refused, or cannot be reached.
    #[error("{}", refusal(.0))]
    Client(#[from] ClientError),
}

/// netvmd's reason, with the first thing that is wrong.
fn refusal(error: &ClientError) -> String {
    let first = match error {
        ClientError::Refused { error, .. } => error.diagnostics.first(),
        _ => None,
    };
    first.map_or_else(|| error.to_string(), |first| format!("{error}: {}", first.message))
}
