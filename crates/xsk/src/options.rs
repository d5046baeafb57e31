// SPDX-License-Identifier: Apache-2.0
//! Options for opening an interface.

use crate::errors::OpenError;

/// The hook for the XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The driver, or the kernel's generic hook if the driver refuses ([`crate::Interface::fallback`] has the reason).
    #[default]
    Auto,
    /// The driver only.
    Native,
    /// The generic hook, which works with every driver but runs after the kernel has built an skb.
    Generic,
}

/// Whether the kernel may copy packets between the UMEM and its own buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero copy if the driver supports it ([`crate::Xsk::zero_copy`] tells).
    #[default]
    Auto,
    /// Always copy.
    ForceCopy,
    /// Never copy; an error if the driver cannot.
    ForceZeroCopy,
}

/// Entries of the four rings of a socket, each a power of two up to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Buffers to receive into.
    pub fill: u32,
    /// Received frames for the worker.
    pub rx: u32,
    /// Frames to send.
    pub tx: u32,
    /// Buffers of sent frames; bounds the frames in flight.
    pub completion: u32,
}

impl Default for RingSizes {
    /// 2048 each, as many descriptors as a queue of a common NIC has.
    fn default() -> Self {
        Self { fill: 2048, rx: 2048, tx: 2048, completion: 2048 }
    }
}

impl RingSizes {
    /// Name, socket option and entries of each ring.
    pub(crate) fn each(&self) -> [(&'static str, libc::c_int, u32); 4] {
        [
            ("fill", libc::XDP_UMEM_FILL_RING, self.fill),
            ("completion", libc::XDP_UMEM_COMPLETION_RING, self.completion),
            ("rx", libc::XDP_RX_RING, self.rx),
            ("tx", libc::XDP_TX_RING, self.tx),
        ]
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        for (ring, _, entries) in self.each() {
            if !entries.is_power_of_two() || entries > 1 << 16 {
                return Err(OpenError::RingSize { ring, entries });
            }
        }
        Ok(())
    }
}

/// Busy polling: the thread that calls [`crate::Xsk::kick`] polls the driver, instead of interrupts (Linux 5.11; also
/// set `napi_defer_hard_irqs` and `gro_flush_timeout` of the interface). Every `kick` is then a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL` in microseconds; any value but 0 turns it on.
    pub micros: u32,
    /// `SO_BUSY_POLL_BUDGET`: packets per call, at most 65,535.
    pub budget: u32,
}

/// How to open an interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct XskOptions {
    /// Number of queues that get sockets, from queue 0; `None`: all queues in use. Packets of other queues go to the
    /// kernel's network stack.
    pub queues: Option<u32>,
    /// The hook for the XDP program.
    pub mode: Mode,
    /// Whether the kernel may copy.
    pub copy: CopyMode,
    /// Ring sizes of each queue.
    pub rings: RingSizes,
    /// Busy polling, if requested.
    pub busy_poll: Option<BusyPoll>,
    /// Receive frames for any MAC address while the interface is open. NICs filter by address before XDP sees a packet;
    /// veth and TAP do not.
    pub promiscuous: bool,
}
