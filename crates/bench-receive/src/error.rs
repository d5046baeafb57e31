// SPDX-License-Identifier: Apache-2.0
//! Why the program cannot receive.

use std::io;

/// Why packets cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum MethodError {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What failed.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// libpcap reports an error.
    #[error("libpcap on {interface}: {source}")]
    Pcap {
        /// The interface.
        interface: String,
        /// The error.
        source: pcap::Error,
    },
    /// The AF_XDP socket cannot be set up.
    #[error("AF_XDP: {0}")]
    Umem(#[from] netvm_xsk::UmemError),
    /// AF_XDP cannot use the interface.
    #[error(transparent)]
    Open(#[from] netvm_xsk::OpenError),
    /// AF_XDP cannot use the interface's queue.
    #[error(transparent)]
    Queue(#[from] netvm_xsk::QueueError),
    /// The kernel refused the XDP program.
    #[error("XDP program: {0}")]
    Load(#[from] aya::EbpfError),
    /// The XDP program cannot be attached to the interface.
    #[error("XDP program on {interface}: {source}")]
    Attach {
        /// The interface.
        interface: String,
        /// The error.
        source: aya::programs::ProgramError,
    },
    /// A map of the XDP program is missing or unreadable.
    #[error("maps of the XDP program: {0}")]
    Map(#[from] aya::maps::MapError),
    /// netlib cannot attach.
    #[error("netvm NF: {0}")]
    Nf(#[from] netlib::Error),
}

impl MethodError {
    /// For `map_err`: a [`MethodError::System`] with the step that failed.
    pub fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |error| Self::System { what, source: error.into() }
    }
}
