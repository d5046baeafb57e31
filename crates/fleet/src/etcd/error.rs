// SPDX-License-Identifier: Apache-2.0
//! Errors of etcd, with what helps.

use std::io;
use std::path::PathBuf;

use netvm_tls::TlsError;

/// A request to etcd failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No address.
    #[error("no etcd: give its addresses with --etcd, such as https://etcd-1.example:2379")]
    NoAddress,
    /// An address is wrong.
    #[error("`{0}` is no address of etcd: give http://NAME:PORT or https://NAME:PORT")]
    Address(String),
    /// An address needs TLS, and there is no authority.
    #[error("{0} is https: give the certificate of its authority with --etcd-ca")]
    NoAuthority(String),
    /// A file of TLS is wrong.
    #[error(transparent)]
    Files(#[from] TlsError),
    /// The file of the password cannot be read.
    #[error("cannot read the password in {}: {source}", path.display())]
    Password {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Everybody may read the password.
    #[error("every user may read the password in {path}: `chmod 600 {path}`", path = .0.display())]
    OpenPassword(PathBuf),
    /// No connection.
    #[error("cannot reach etcd at {server}: {source}")]
    Unreachable {
        /// The address.
        server: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// No TLS.
    #[error("no TLS with etcd at {server}: {why}")]
    Handshake {
        /// The address.
        server: String,
        /// Why.
        why: String,
    },
    /// No answer in time.
    #[error("etcd at {server} does not answer within {seconds} s: is it overloaded, or without a majority?")]
    Timeout {
        /// The address.
        server: String,
        /// The limit.
        seconds: u64,
    },
    /// The connection broke.
    #[error("etcd at {server} has ended the connection: {why}")]
    Broken {
        /// The address.
        server: String,
        /// Why.
        why: String,
    },
    /// What answers is not etcd, or too old.
    #[error("what answers at {server} is no etcd of version 3.4 or later with its JSON gateway: {why}")]
    Protocol {
        /// The address.
        server: String,
        /// What is wrong.
        why: String,
    },
    /// Wrong user or password.
    #[error("etcd refuses user `{user}`: {why}: correct --etcd-user and --etcd-password-file")]
    Credentials {
        /// The user.
        user: String,
        /// etcd's words.
        why: String,
    },
    /// The user may not do this.
    #[error(
        "etcd does not permit `{path}` to {who}: {why}: grant its role the keys (etcdctl role grant-permission)"
    )]
    Denied {
        /// The request.
        path: String,
        /// The user.
        who: String,
        /// etcd's words.
        why: String,
    },
    /// The revision has been compacted.
    #[error("etcd has compacted the revision")]
    Compacted,
    /// etcd refused the request.
    #[error("etcd refuses `{path}`: {why}")]
    Refused {
        /// The request.
        path: String,
        /// etcd's words.
        why: String,
    },
}
