// SPDX-License-Identifier: Apache-2.0
//! Errors, each with its remedy.

mod holders;

use std::io;

pub use holders::{Holder, Holders};

/// Kernel requirements, for messages.
const REQUIREMENTS: &str = "Linux 5.11 or later with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL";

/// Why [`crate::Interface::open`] failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum OpenError {
    /// The kernel does not support the ring size.
    #[error("the {ring} ring cannot have {entries} entries: set a power of two from 1 to 65536")]
    RingSize { ring: &'static str, entries: u32 },
    /// Zero copy was requested in generic mode, where the kernel always copies.
    #[error("{interface}: zero copy needs native mode: set mode to native or auto, or copy to auto")]
    GenericZeroCopy { interface: String },
    /// The interface does not exist.
    #[error("there is no interface {interface:?} in this network namespace: `ip link` lists the interfaces")]
    NoInterface { interface: String },
    /// More queues were requested than the interface has, or none.
    #[error(
        "{interface} has {rx} receive and {tx} transmit queues in use, not {asked}: lower the number, or raise theirs \
         with `ethtool -L {interface}`"
    )]
    Queues { interface: String, asked: u32, rx: u32, tx: u32 },
    /// The process lacks a capability.
    #[error(
        "{interface}: no permission to {step}: AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (run as root, or \
         `setcap cap_net_admin,cap_net_raw,cap_bpf+ep` the program)"
    )]
    Permission { interface: String, step: &'static str },
    /// Another XDP program is attached.
    #[error(
        "{interface} has another XDP program attached; held by {holders}: stop the holder, or detach the program with \
         `ip link set dev {interface} xdp off` and `xdpgeneric off`"
    )]
    ProgramAttached {
        interface: String,
        /// Processes with an XDP link on it.
        holders: Holders,
    },
    /// The driver refused native mode, and generic mode was not allowed.
    #[error("{interface}: its driver refuses native XDP: {reason}: {remedy}, or use generic mode")]
    NativeRefused { interface: String, reason: io::Error, remedy: &'static str },
    /// The kernel lacks a feature.
    #[error("{interface}: this kernel ({release}) cannot {step}: it needs {REQUIREMENTS}")]
    TooOld { interface: String, step: &'static str, release: String },
    /// Another system error.
    #[error("{interface}: cannot {step}: {source}")]
    System { interface: String, step: &'static str, source: io::Error },
}

/// Why [`crate::Interface::queue`] failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum QueueError {
    /// [`crate::Interface::open`] set up fewer queues.
    #[error("{interface}: there is no queue {queue}: the interface was opened with {queues} queues")]
    NoQueue {
        interface: String,
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
    /// Frames of the interface's MTU do not fit in a buffer.
    #[error(
        "{interface} has an MTU of {mtu}, so frames of up to {frame} bytes with a VLAN tag; buffers of {stride} bytes hold \
         {room}: lower the MTU (`ip link set dev {interface} mtu {largest}`), or make the buffers larger (up to a page), \
         or use af_packet"
    )]
    Mtu {
        interface: String,
        mtu: u32,
        /// Bytes of its longest frame.
        frame: u32,
        stride: u32,
        /// Bytes of a buffer after the headroom.
        room: u32,
        /// The largest MTU that fits.
        largest: u32,
    },
    /// The memory exceeds what the process may lock.
    #[error(
        "{interface}: {mib} MiB of packet memory cannot be locked: the limit is {limit_kib} KiB: give the process \
         CAP_IPC_LOCK, or raise the limit (`ulimit -l`, LimitMEMLOCK= of systemd)"
    )]
    Locked { interface: String, mib: u64, limit_kib: u64 },
    /// The packet memory differs from the caller's description.
    #[error("{interface}: the packet memory is not mapped for reading and writing at the given address")]
    NotMapped { interface: String },
    /// The buffers need unaligned mode, which the kernel lacks.
    #[error(
        "{interface}: this kernel ({release}) cannot use buffers of {stride} bytes at this offset: use buffers of 2048 \
         or 4096 bytes, the first one on a multiple of that"
    )]
    Buffers { interface: String, stride: u32, release: String },
    /// Another socket is bound to the queue.
    #[error(
        "queue {queue} of {interface} is bound to another AF_XDP socket; processes with such sockets: {holders}: stop \
         the one that uses this queue, or use another queue"
    )]
    Busy {
        interface: String,
        queue: u32,
        /// Processes with AF_XDP sockets.
        holders: Holders,
    },
    /// The driver refused zero copy, and copying was not allowed.
    #[error("{interface}: its driver refuses zero copy on queue {queue}: {reason}: set copy to auto")]
    ZeroCopyRefused { interface: String, queue: u32, reason: io::Error },
    /// The calling thread is in another network namespace than the interface.
    #[error("{interface} was opened in another network namespace than this thread's: open its queues there")]
    Namespace { interface: String },
    /// The interface was removed, renamed or moved.
    #[error("{interface} is gone (removed, renamed or moved to another network namespace): open it again")]
    Gone { interface: String },
    /// The process lacks a capability.
    #[error("{interface}: no permission to {step}: AF_XDP needs CAP_NET_ADMIN and CAP_NET_RAW")]
    Permission { interface: String, step: &'static str },
    /// Another system error.
    #[error("queue {queue} of {interface}: cannot {step}: {source}")]
    System { interface: String, queue: u32, step: &'static str, source: io::Error },
}

/// Why [`crate::Xsk::kick`] could not wake the kernel. A busy kernel is not an error.
#[derive(Debug, thiserror::Error)]
pub enum KickError {
    /// The interface is down. The socket stays valid: retry when it is up again.
    #[error("the interface is down: frames wait in the ring until it is up")]
    Down,
    /// The interface was removed. Close the socket, which returns all buffers.
    #[error("the interface is gone: close the socket")]
    Gone,
    /// Another system error.
    #[error("cannot wake the kernel: {0}")]
    System(#[from] io::Error),
}

/// Version of the running kernel.
pub(crate) fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "of unknown version".to_owned(), |text| text.trim_end().to_owned())
}

/// Soft limit of locked memory in KiB.
pub(crate) fn lock_limit_kib() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
