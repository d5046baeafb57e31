//! Why the program cannot receive.

use std::io;

/// Why packets cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum WayError {
    /// The kernel refused.
    #[error("{what}: {source}")]
    System {
        /// What failed.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// libpcap refused.
    #[error("libpcap on {interface}: {source}")]
    Pcap {
        /// The interface.
        interface: String,
        /// The error.
        source: pcap::Error,
    },
    /// AF_XDP cannot be used.
    #[error("AF_XDP: {0}")]
    Umem(#[from] netvm_xsk::UmemError),
    /// The interface cannot be used by AF_XDP.
    #[error(transparent)]
    Open(#[from] netvm_xsk::OpenError),
    /// Its queue cannot.
    #[error(transparent)]
    Queue(#[from] netvm_xsk::QueueError),
    /// The kernel refused the XDP program.
    #[error("XDP program: {0}")]
    Load(#[from] aya::EbpfError),
    /// It cannot be attached.
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

impl WayError {
    /// A [`WayError::System`] of a kernel's error.
    pub fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |error| Self::System { what, source: error.into() }
    }
}
