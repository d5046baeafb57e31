// SPDX-License-Identifier: Apache-2.0
//! Why ports cannot be opened, and whether waiting helps.

use std::path::PathBuf;
use std::time::Duration;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("port {name}: {problem}")]
pub struct OpenError {
    /// The port.
    pub name: String,
    /// What is wrong, and the remedy.
    pub problem: OpenProblem,
}

/// What is wrong with a port.
#[derive(Debug, thiserror::Error)]
pub enum OpenProblem {
    /// The DPDK device.
    #[error(transparent)]
    Eth(#[from] dpdk::PortError),
    /// A malformed PCI address.
    #[error(transparent)]
    Pci(#[from] dpdk::PciAddressError),
    /// The TAP device or the interface of a packet socket.
    #[error(transparent)]
    Kernel(#[from] netvm_vnet::OpenError),
    /// The AF_XDP interface.
    #[error(transparent)]
    Interface(#[from] netvm_xsk::OpenError),
    /// One of the interface's queues.
    #[error(transparent)]
    Queue(#[from] netvm_xsk::QueueError),
    /// No file descriptor is free for its counters.
    #[error("{0} (raise the limit of open files)")]
    Counter(std::io::Error),
    /// The socket of an e1000 card.
    #[error(transparent)]
    E1000(#[from] netvm_guest_socket::ServeError),
    /// The memif socket.
    #[error(transparent)]
    Memif(#[from] netvm_memif::OpenError),
    /// The vhost-user socket.
    #[error(transparent)]
    Vhost(#[from] dpdk::VhostError),
    /// Owner or mode of its socket.
    #[error("cannot set owner and mode of {}: {error}: netvmd must be root to give its socket to another user", path.display())]
    SocketRights {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// The dmadev channel that copies to a guest.
    #[error(transparent)]
    DmaChannel(#[from] dpdk::DmaChannelError),
    /// The group's memory does not suit AF_XDP.
    #[error(transparent)]
    Umem(#[from] netvm_xsk::UmemError),
    /// The capture to read from.
    #[error(transparent)]
    Read(#[from] netvm_capture::OpenError),
    /// The capture to write to.
    #[error(transparent)]
    Write(#[from] netvm_capture::CreateError),
    /// Frames that do not fit a buffer.
    #[error(
        "frames of {wanted} bytes do not fit the group's buffers, which hold {room}: raise `buffer_size` or lower the size"
    )]
    TooLong {
        /// Bytes of a frame.
        wanted: u32,
        /// Bytes that a buffer holds.
        room: u32,
    },
    /// The shaper.
    #[error(transparent)]
    Shaper(#[from] netvm_switch::qos::QosError),
    /// The configuration names a NUMA node without a worker.
    #[error(
        "`node = {node}`, but no worker runs on that NUMA node (workers run on {have}): add one of its cores to `cores` \
         of [engine], or leave `node` out"
    )]
    NoWorkerOnNode {
        /// The configured node.
        node: u32,
        /// The nodes with workers.
        have: String,
    },
    /// More queues than this kind of port has.
    #[error("{wanted} queues, but a port of this kind has one: set `queues = 1`")]
    OneQueue {
        /// The configured number.
        wanted: u16,
    },
    /// While it closes, to be opened again.
    #[error("a worker has not returned its queue within {} s", within.as_secs())]
    NotReturned {
        /// The time.
        within: Duration,
    },
}

impl OpenProblem {
    /// Whether the container that the port is for is not there: it has not come yet, or has gone. The port waits.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Kernel(error) if error.is_absent())
    }

    /// Whether only another configuration helps. Everything else can change while the port waits: an interface appears,
    /// a program ends, a driver is loaded.
    pub(crate) const fn is_in_configuration(&self) -> bool {
        matches!(
            self,
            Self::Pci(_)
                | Self::SocketRights { .. }
                | Self::DmaChannel(_)
                | Self::Umem(_)
                | Self::TooLong { .. }
                | Self::Shaper(_)
                | Self::OneQueue { .. }
                | Self::NoWorkerOnNode { .. }
                | Self::Memif(netvm_memif::OpenError::Memory { .. })
                | Self::Interface(netvm_xsk::OpenError::Queues { .. })
        )
    }
}
