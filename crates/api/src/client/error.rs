//! Why requests fail.

use std::io;
use std::path::PathBuf;

use crate::{ApiError, SOCKET_VARIABLE};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No netvmd listens on the socket.
    #[error("no netvmd answers on {}: {source}. Is it running? Start it with `netvmd --config FILE`; for another socket, use --socket or {SOCKET_VARIABLE}", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// This user may not connect.
    #[error("cannot use {}: {source} (run as root, or as a user whom the socket's owner and mode admit: see `ls -l {}`)", path.display(), path.display())]
    Denied {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another failure to connect.
    #[error("cannot connect to {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// No answer in time.
    #[error(
        "netvmd did not answer `{request}` within {seconds} s. It may be busy starting NFs: see its log, and try again"
    )]
    Timeout {
        /// The request.
        request: String,
        /// The time limit.
        seconds: u64,
    },
    /// The connection broke.
    #[error("netvmd closed the connection during `{request}`: {source}. See its log")]
    Broken {
        /// The request.
        request: String,
        /// The error of HTTP.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer does not belong to this API.
    #[error("the answer to `{request}` is not netvmd's: {what}. Is {} its socket, and does it have the version of this program ({})?", path.display(), env!("CARGO_PKG_VERSION"))]
    Protocol {
        /// The request.
        request: String,
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The request has no JSON form.
    #[error("the request cannot be written as JSON: {0}")]
    Request(#[source] serde_json::Error),
    /// netvmd refused the request.
    #[error("{error}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its reason.
        error: ApiError,
    },
}

impl ClientError {
    /// Whether no netvmd is there now, or it ended during the request: it may be starting again.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        matches!(self, Self::NotRunning { .. } | Self::Broken { .. })
    }
}
