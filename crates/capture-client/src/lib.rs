// SPDX-License-Identifier: Apache-2.0
//! The reader of a packet capture, for `netvm capture` and `netvm-extcap`.
//!
//! In come records from the workers' rings, out goes a pcapng file, text, or an interface at which programs listen, on
//! the client's side of the API: netvmd opens no file and waits for no other process. [`Session`] starts a capture,
//! [`run`] reads it to its end.
#![deny(unsafe_code)]

mod clock;
mod describe;
mod filter;
mod held_packets;
#[allow(unsafe_code)]
mod libpcap;
mod output;
mod pump;
mod session;

pub use filter::{FilterError, compile};
pub use held_packets::write_held_packets;
pub use output::{Files, Output, Target};
pub use pump::{Limits, Summary, run};
pub use session::{Session, SessionError};

/// Why a capture ended early.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The output.
    #[error("cannot write {to}: {source}. {packets} packets are in it; the traffic is not affected")]
    Write {
        /// The file, or standard output.
        to: String,
        /// Packets that it has.
        packets: u64,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The interface that shows the packets.
    #[error(
        "cannot show packets at interface {interface}: {source} (somebody has taken it down?). {packets} packets were shown; the traffic is not affected"
    )]
    Show {
        /// Its name.
        interface: String,
        /// Packets that it has shown.
        packets: u64,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// netvmd ended.
    #[error("netvmd has ended the capture: see its log. {0} packets were captured")]
    Ended(u64),
}

impl CaptureError {
    /// Whether the reader of a pipe has closed it.
    #[must_use]
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}
