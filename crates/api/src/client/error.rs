// SPDX-License-Identifier: Apache-2.0
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
    /// The address of another machine is malformed.
    #[error("`{0}` is no address of a netvmd: write https://NAME:PORT")]
    Address(String),
    /// This client's certificate, key or authority cannot be used.
    #[error("{0} (see --cert, --key and --ca)")]
    Files(#[from] netvm_tls::TlsError),
    /// The other machine cannot be reached.
    #[error(
        "cannot reach netvmd at {server}: {source}. Has its configuration [api.remote], and does a firewall let it pass?"
    )]
    Unreachable {
        /// Its address.
        server: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// One side refuses the other's certificate.
    #[error("no secure connection with netvmd at {server}: {why}")]
    Handshake {
        /// Its address.
        server: String,
        /// Why.
        why: String,
    },
    /// What was asked for needs the Unix socket.
    #[error("{what} works only on the machine where netvmd runs: log in there")]
    NotRemote {
        /// What was asked for.
        what: &'static str,
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
    #[error("the answer to `{request}` is not netvmd's: {what}. Is {server} its address, and does it have the version of this program ({})?", env!("CARGO_PKG_VERSION"))]
    Protocol {
        /// The request.
        request: String,
        /// The socket, or the address.
        server: String,
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
        matches!(self, Self::NotRunning { .. } | Self::Unreachable { .. } | Self::Broken { .. })
    }
}
