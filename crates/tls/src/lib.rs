// SPDX-License-Identifier: Apache-2.0
//! Mutual TLS of the remote API: certificates and keys in files, the settings of both sides, and a small CA.
//!
//! Only TLS 1.3, without early data and without resumption: every connection proves anew who its client is, and nothing
//! that was recorded can be sent again. Cryptography is ring's.
#![forbid(unsafe_code)]

mod certificate;
mod explain;
mod files;
mod issue;
mod sides;

pub use certificate::Certificate;
pub use explain::explain;
pub use files::TlsError;
pub use issue::{Authority, IssueError, Issued, Lifetime};
pub use sides::{ClientFiles, ServerFiles, ServerSide, TrustFiles};

/// The only protocol above TLS (RFC 7301).
const PROTOCOL: &[u8] = b"http/1.1";
