//! What can go wrong, and what to do about it.

use std::io;

use crate::holders::Holders;

/// What this crate needs of the kernel, for messages.
const NEEDS: &str = "Linux 5.11 or later with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL";

/// Why [`crate::Interface::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A ring size that the kernel does not take.
    #[error("a {ring} ring of {entries} entries: a power of two from 1 to 65536 is possible")]
    RingSize {
        /// Which ring.
        ring: &'static str,
        /// Its size.
        entries: u32,
    },
    /// Zero copy asked for where the kernel copies in any case.
    #[error("{interface}: zero copy needs native mode: set mode to native or auto, or copy to auto")]
    GenericZeroCopy {
        /// The interface.
        interface: String,
    },
    /// There is no such interface here.
    #[error("there is no interface {interface:?} in this network namespace: `ip link` lists those there are")]
    NoInterface {
        /// The name given.
        interface: String,
    },
    /// More queues than the interface has, or none.
    #[error(
        "{interface} has {rx} receive and {tx} transmit queues in use, {asked} wanted: lower the number, or raise theirs \
         with `ethtool -L {interface}`"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// Queues asked for.
        asked: u32,
        /// Receive queues in use.
        rx: u32,
        /// Transmit queues in use.
        tx: u32,
    },
    /// The process may not.
    #[error(
        "{interface}: no permission to {step}: AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (run as root, or \
         `setcap cap_net_admin,cap_net_raw,cap_bpf+ep` the program)"
    )]
    Permission {
        /// The interface.
        interface: String,
        /// What was refused.
        step: &'static str,
    },
    /// Another program is there.
    #[error(
        "{interface} has another XDP program attached; held by {holders}: stop that, or take the program off with \
         `ip link set dev {interface} xdp off` and `xdpgeneric off`"
    )]
    ProgramAttached {
        /// The interface.
        interface: String,
        /// Processes with an XDP link on it.
        holders: Holders,
    },
    /// The driver refused native mode, and only native mode was asked for.
    #[error("{interface}: its driver refuses native XDP: {reason}: {remedy}, or use generic mode")]
    NativeRefused {
        /// The interface.
        interface: String,
        /// The driver's error.
        reason: io::Error,
        /// What to try.
        remedy: &'static str,
    },
    /// The kernel lacks something.
    #[error("{interface}: this kernel ({release}) cannot {step}: {NEEDS} is needed")]
    TooOld {
        /// The interface.
        interface: String,
        /// What it cannot do.
        step: &'static str,
        /// Its version.
        release: String,
    },
    /// Any other error of the system.
    #[error("{interface}: cannot {step}: {source}")]
    System {
        /// The interface.
        interface: String,
        /// The step that failed.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Why [`crate::Interface::queue`] failed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// A queue that [`crate::Interface::open`] was not asked for.
    #[error("{interface}: there is no queue {queue}: it was opened with {queues}")]
    NoQueue {
        /// The interface.
        interface: String,
        /// The queue asked for.
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
    /// Packets of the interface do not fit in a buffer.
    #[error(
        "{interface} has an MTU of {mtu}, its frames up to {frame} bytes with a VLAN tag; buffers of {stride} bytes take \
         {room}: lower the MTU (`ip link set dev {interface} mtu {largest}`), or make the buffers larger (up to a page), \
         or use af_packet"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: u32,
        /// Bytes of its longest frame.
        frame: u32,
        /// Bytes of a buffer.
        stride: u32,
        /// Bytes of a buffer behind the headroom.
        room: u32,
        /// The largest MTU that fits.
        largest: u32,
    },
    /// More memory than the process may lock.
    #[error(
        "{interface}: {mib} MiB of packet memory cannot be locked, the limit is {limit_kib} KiB: give the process \
         CAP_IPC_LOCK, or raise the limit (`ulimit -l`, LimitMEMLOCK= of systemd)"
    )]
    Locked {
        /// The interface.
        interface: String,
        /// MiB to be locked.
        mib: u64,
        /// The limit in KiB.
        limit_kib: u64,
    },
    /// The packet memory is not what the caller said.
    #[error("{interface}: the packet memory is not mapped there, or not for reading and writing")]
    NotMapped {
        /// The interface.
        interface: String,
    },
    /// Buffers that need unaligned mode, which the kernel does not have.
    #[error(
        "{interface}: this kernel ({release}) takes buffers of {stride} bytes at this place in no mode: use buffers of 2048 \
         or 4096 bytes, the first one on a multiple of that"
    )]
    Buffers {
        /// The interface.
        interface: String,
        /// Bytes of a buffer.
        stride: u32,
        /// Version of the kernel.
        release: String,
    },
    /// The queue has another socket.
    #[error(
        "queue {queue} of {interface} is bound to another AF_XDP socket; processes with such sockets: {holders}: stop \
         the one that has it, or use another queue"
    )]
    Busy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Processes with AF_XDP sockets.
        holders: Holders,
    },
    /// The driver cannot do without copying, and that was asked for.
    #[error("{interface}: its driver refuses zero copy on queue {queue}: {reason}: set copy to auto")]
    ZeroCopyRefused {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The driver's error.
        reason: io::Error,
    },
    /// Called in another network namespace than the interface was opened in.
    #[error(
        "{interface} was opened in another network namespace than this thread is in: make its queues there"
    )]
    Namespace {
        /// The interface.
        interface: String,
    },
    /// The interface went away.
    #[error("{interface} is gone (removed, renamed or moved to another network namespace): open it anew")]
    Gone {
        /// The interface.
        interface: String,
    },
    /// The process may not.
    #[error("{interface}: no permission to {step}: CAP_NET_ADMIN and CAP_NET_RAW are needed")]
    Permission {
        /// The interface.
        interface: String,
        /// What was refused.
        step: &'static str,
    },
    /// Any other error of the system.
    #[error("queue {queue} of {interface}: cannot {step}: {source}")]
    System {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The step that failed.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Why [`crate::Xsk::kick`] could not wake the kernel. A kernel that is merely busy is not an error.
#[derive(Debug, thiserror::Error)]
pub enum KickError {
    /// The interface is down. The socket stays good: retry when it is up again.
    #[error("the interface is down: frames wait in the ring until it is up")]
    Down,
    /// The interface was removed. Close the socket; it gives back all buffers.
    #[error("the interface is gone: close the socket")]
    Gone,
    /// Any other error.
    #[error("the kernel cannot be woken: {0}")]
    System(#[from] io::Error),
}

/// Version of the running kernel.
pub(crate) fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "of unknown version".to_owned(), |text| text.trim_end().to_owned())
}

/// Soft limit of locked memory in KiB.
pub(crate) fn lock_limit_kib() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
