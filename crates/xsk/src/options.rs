//! What an interface is opened with.

use crate::errors::OpenError;

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, or in the kernel's generic hook when the driver refuses ([`crate::Interface::fallback`] says why).
    #[default]
    Auto,
    /// In the driver only.
    Native,
    /// In the generic hook: works with every driver, after the kernel has made an skb of the packet.
    Generic,
}

/// Whether the kernel may copy packets between the buffers and buffers of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// No copy with drivers that can do without ([`crate::Xsk::zero_copy`] says which it is).
    #[default]
    Auto,
    /// Always copy.
    ForceCopy,
    /// Never; an error with drivers that must.
    ForceZeroCopy,
}

/// Entries of the four rings of a socket, each a power of two up to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Buffers that wait to be received into.
    pub fill: u32,
    /// Frames received that wait for the worker.
    pub rx: u32,
    /// Frames that wait for the kernel.
    pub tx: u32,
    /// Buffers sent that wait for the worker; as many frames can be under way.
    pub completion: u32,
}

impl Default for RingSizes {
    /// 2048 each: as many as the descriptors of a common NIC's queue.
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

/// Polling of the driver by the thread that calls [`crate::Xsk::kick`], in place of interrupts (Linux 5.11; also set
/// `napi_defer_hard_irqs` and `gro_flush_timeout` of the interface). Every `kick` is a system call then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`: microseconds; any value but 0 turns it on.
    pub micros: u32,
    /// `SO_BUSY_POLL_BUDGET`: packets handled in one call, at most 65,535.
    pub budget: u32,
}

/// How to open an interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct XskOptions {
    /// Queues that get sockets, from 0 on; `None`: all that the interface has in use. Packets of other queues go to the
    /// kernel's stack.
    pub queues: Option<u32>,
    /// Where the program runs.
    pub mode: Mode,
    /// Whether the kernel may copy.
    pub copy: CopyMode,
    /// Sizes of the rings of each queue.
    pub rings: RingSizes,
    /// Busy polling, when wanted.
    pub busy_poll: Option<BusyPoll>,
    /// Receive frames for any MAC address, while the interface is open. NICs filter by address before XDP sees a packet;
    /// veth and TAP do not.
    pub promiscuous: bool,
}
