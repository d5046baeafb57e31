// SPDX-License-Identifier: Apache-2.0
//! Counters of a socket, from the kernel and from this end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Xsk;
use crate::kernel::sys;

/// Errors in buffers and frames from either side; [`XskStats`] describes each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MisuseCounters {
    pub fill_refused: u64,
    pub tx_refused: u64,
    pub rx_unknown: u64,
    pub completed_unknown: u64,
}

/// Counters of a socket since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskStats {
    /// Packets that the kernel dropped: too long for a buffer, or no buffer in the fill ring (copy mode).
    pub rx_dropped: u64,
    /// Packets that the kernel dropped because the rx ring was full: the worker is too slow.
    pub rx_ring_full: u64,
    /// How often the kernel found the fill ring empty: it has too few buffers.
    pub fill_empty: u64,
    /// Addresses in the fill ring that the kernel refused.
    pub rx_invalid: u64,
    /// Frames in the tx ring that the kernel refused. Only [`Xsk::close`] returns their buffers.
    pub tx_invalid: u64,
    /// How often the kernel found the tx ring empty.
    pub tx_empty: u64,
    /// Buffers passed to [`Xsk::fill`] that do not exist or that the kernel already had.
    pub fill_refused: u64,
    /// Frames passed to [`Xsk::tx`] that are empty, exceed their buffer, or whose buffer does not exist or is with the
    /// kernel.
    pub tx_refused: u64,
    /// Received frames outside every buffer, or in a buffer that the kernel did not have; dropped.
    pub rx_unknown: u64,
    /// Completions of a buffer that does not exist or that the kernel did not have; ignored.
    pub completed_unknown: u64,
}

/// Reads the number of packets that the kernel dropped at a socket, from any thread.
///
/// It keeps the socket open: drop it before [`Xsk::close`], which otherwise times out.
#[derive(Debug)]
pub struct DropCounter(OwnedFd);

impl DropCounter {
    /// [`XskStats::rx_dropped`] plus [`XskStats::rx_ring_full`].
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn get(&self) -> io::Result<u64> {
        let kernel = kernel_stats(self.0.as_fd())?;
        Ok(kernel.rx_dropped.saturating_add(kernel.rx_ring_full))
    }
}

fn kernel_stats(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    sys::option(socket, libc::SOL_XDP, libc::XDP_STATISTICS)
}

impl Xsk {
    /// Counters of the kernel and of this end.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn stats(&self) -> io::Result<XskStats> {
        let kernel = kernel_stats(self.as_fd())?;
        let MisuseCounters { fill_refused, tx_refused, rx_unknown, completed_unknown } = self.misuse;
        Ok(XskStats {
            rx_dropped: kernel.rx_dropped,
            rx_ring_full: kernel.rx_ring_full,
            fill_empty: kernel.rx_fill_ring_empty_descs,
            rx_invalid: kernel.rx_invalid_descs,
            tx_invalid: kernel.tx_invalid_descs,
            tx_empty: kernel.tx_ring_empty_descs,
            fill_refused,
            tx_refused,
            rx_unknown,
            completed_unknown,
        })
    }

    /// A drop counter that another thread can read while this one uses the socket.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn drop_counter(&self) -> io::Result<DropCounter> {
        self.socket.try_clone().map(DropCounter)
    }
}
