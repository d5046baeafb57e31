// SPDX-License-Identifier: Apache-2.0
//! AF_XDP sockets over netvm's shared buffers.
//!
//! The caller's packet memory, one mapping of equal buffers, is registered with the kernel as the UMEM, so packets land
//! in the buffers that NFs map. The crate uses the kernel's interface directly: a short XDP program, its maps, a
//! BPF link, and the four rings of each socket. The caller passes and receives buffer numbers.
//!
//! ```no_run
//! use netvm_xsk::{Interface, Memory, RxFrame, Umem, XskOptions};
//! # fn region() -> Memory { unimplemented!() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // SAFETY: the region stays mapped, and no reference points into buffers that the kernel has.
//! let umem = unsafe { Umem::new(&region()) }?;
//! let interface = Interface::open("eth0", XskOptions::default())?;
//! let mut xsk = interface.queue(0, &umem)?;
//! let all: Vec<u32> = (0..umem.buffers()).collect();
//! let mut free = all[xsk.fill(&all)..].to_vec();
//! let (mut frames, mut sent) = ([RxFrame::default(); 32], [0; 32]);
//! for _ in 0..1_000_000 {
//!     let received = xsk.rx(&mut frames);
//!     let taken = xsk.tx(&frames[..received]); // reflect the frames
//!     free.extend(frames[taken..received].iter().map(|frame| frame.buffer)); // drop the rest
//!     let completed = xsk.completed(&mut sent);
//!     free.extend(&sent[..completed]);
//!     let filled = xsk.fill(&free);
//!     free.drain(..filled);
//!     xsk.kick()?;
//! }
//! free.extend(xsk.close()?);
//! assert_eq!(free.len(), all.len());
//! # Ok(()) }
//! ```
//!
//! # Requirements
//!
//! Linux 5.11 or later; CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, which root has; and CAP_IPC_LOCK for more memory than
//! `ulimit -l` allows. The thread that calls [`Interface::open`] and [`Interface::queue`] must be in the network
//! namespace of the interface; it may leave afterwards. However the process ends, the kernel detaches the program and
//! frees the queues.
//!
//! A frame takes one buffer (no multi-buffer). [`KERNEL_HEADROOM`] and a frame of the interface's MTU must fit in a
//! buffer, and a buffer is at most a page, even on huge pages (Linux 6.18 refuses more). So buffers of 2048 bytes fit
//! an MTU of 1500 (up to 1774), and buffers of 4096 bytes an MTU of 3822; jumbo frames need another kind of port. If
//! the MTU is raised later, the kernel drops the long frames ([`XskStats::rx_dropped`]).
//!
//! # Buffer ownership
//!
//! [`Xsk::fill`] and [`Xsk::tx`] give buffers to the kernel; [`Xsk::rx`] and [`Xsk::completed`] return them;
//! [`Xsk::close`] returns the rest, among them buffers that the kernel took from the fill ring and did not use. After
//! `close(2)` the kernel may use buffers for a while; `close` waits until it stops. Dropping the socket closes it
//! without returning buffers.
//!
//! In copy mode a frame completes when its *receiver* frees it: the other end of a veth, or the NIC's driver. Sent
//! frames bypass the interface's qdisc.
//!
//! # All interfaces
//!
//! - Packets of queues without a socket go to the kernel's network stack. By default the caller can open a socket for
//!   every queue with [`Interface::queue`].
//! - VLAN tags that the NIC strips (`ethtool -k`: `rx-vlan-offload`) are missing from the packet: turn the offload off
//!   with `ethtool -K DEV rxvlan off`. In generic mode also turn `gro` off, as merged packets do not fit in a buffer.
//! - A NIC filters by MAC address before XDP: see [`XskOptions::promiscuous`].
//! - Checksums are neither verified nor completed, in either direction.
//!
//! # veth
//!
//! Observed on Linux 6.18; `tests/veth.rs` checks what is visible from outside. `near` has the socket and `far` is its
//! peer. All settings apply to `far`, the end that sends with offloads.
//!
//! - **Checksums**: packets of local sockets arrive with a partial checksum (of the pseudo header only), in native and
//!   generic mode. `ethtool -K far tx off` makes the kernel complete them, and turns segmentation offload off as well;
//!   no setting on `near` does.
//! - **Segmentation**: in native mode the kernel disables segmentation offload on `far`. In generic mode it does not:
//!   packets of up to 64 KiB arrive, do not fit and are dropped ([`XskStats::rx_dropped`]). `ethtool -K far tx off`
//!   prevents this.
//! - **VLAN tags** that `far` leaves to its offload (from a bridge or a VLAN device) are lost.
//!   `ethtool -K far txvlan off` puts them into the packet. Tags already in the packet always pass.
//! - **Queues**: queue n of `near` receives what `far` sends on its transmit queue n. The kernel refuses native mode if
//!   `far` has more transmit queues than `near` has receive queues (`ethtool -L`). In generic mode packets of queue n
//!   appear on queue n - 1 (those of queue 0 on 0), so use one queue there.
//! - **MTU**: the kernel refuses native mode if `far` has an MTU above about 3500, and refuses to raise the MTU of
//!   `far` above that while the program is attached.
//! - **Sending** to `far` needs no setting there: frames take the path of ordinary packets. (`far` needs NAPI, and so a
//!   program or GRO, only for frames that an XDP program redirects to it.)
//! - There is no zero copy: the kernel copies each packet into the buffer on receive and out of it on send.
//! - In native mode each queue has a ring of 256 packets between the ends. The receiving softirq empties it, mostly on
//!   the sender's core and at once. When the ring is full, the kernel drops the packet (`far` without a qdisc) or stops
//!   `far` (with a qdisc, since Linux 6.16; `tc qdisc add dev far root pfifo`).
//! - Packets dropped for lack of buffers count in [`XskStats::rx_dropped`] and [`XskStats::fill_empty`], and as
//!   `rx_queue_N_drops` of `near` (`ethtool -S`).
//!
//! # Files
//!
//! `kernel` has the system calls, the mapped rings and the BPF program. With `umem`, whose constructor is the caller's
//! promise about the memory, and `private`, which copies packets out of memory of its own, it has all unsafe code.
//! `buffers` computes addresses and tracks which buffers the kernel has. `interface` sets up an interface, `socket` is
//! the packet path of a queue, and `errors` explains failures. The kernel's side:
//! `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`, `net/xdp/`.

mod buffers;
mod errors;
mod interface;
/// The kernel's interface: system calls, mapped rings, and the BPF program.
mod kernel {
    pub(crate) mod cores;
    pub(crate) mod program;
    pub(crate) mod ring;
    pub(crate) mod sys;
}
mod options;
mod private;
mod socket;
mod umem;

pub use buffers::{RxFrame, TxFrame};
pub use errors::{Holder, Holders, KickError, OpenError, QueueError};
pub use interface::{Attached, Interface, check_queues};
pub use options::{BusyPoll, CopyMode, Mode, RingSizes, XskOptions};
pub use private::PrivateXsk;
pub use socket::{DropCounter, StillHeld, Xsk, XskStats};
pub use umem::{KERNEL_HEADROOM, Memory, Umem, UmemError};
