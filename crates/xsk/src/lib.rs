//! AF_XDP sockets over netvm's shared buffers.
//!
//! The packet memory of the caller, one mapping cut into equal buffers, is registered with the kernel as it is (the UMEM),
//! so packets land in the buffers that NFs map. The crate speaks to the kernel itself: a six-instruction XDP program, a
//! map of sockets, a BPF link, and the four rings of each socket. What goes in and out are numbers of buffers.
//!
//! ```no_run
//! use netvm_xsk::{Interface, Memory, RxFrame, Umem, XskOptions};
//! # fn region() -> Memory { unimplemented!() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // SAFETY: the region stays mapped, and nobody makes references into buffers that the kernel has.
//! let umem = unsafe { Umem::new(&region()) }?;
//! let interface = Interface::open("eth0", XskOptions::default())?;
//! let mut xsk = interface.queue(0, &umem)?;
//! let all: Vec<u32> = (0..umem.buffers()).collect();
//! let mut free = all[xsk.fill(&all)..].to_vec();
//! let (mut frames, mut sent) = ([RxFrame::default(); 32], [0; 32]);
//! for _ in 0..1_000_000 {
//!     let received = xsk.rx(&mut frames);
//!     let taken = xsk.tx(&frames[..received]); // reflect them
//!     free.extend(frames[taken..received].iter().map(|frame| frame.buffer)); // the rest is dropped
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
//! # Needs
//!
//! Linux 5.11 or later; CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (root has them); for more memory than `ulimit -l` allows
//! also CAP_IPC_LOCK. The thread that calls [`Interface::open`] and [`Interface::queue`] must be in the network namespace
//! of the interface; after that it may leave. The process ends in whichever way: the kernel takes the program off and
//! frees the queues.
//!
//! Frames are at most one buffer long (no multi-buffer): [`KERNEL_HEADROOM`] and a frame of the interface's MTU must fit in
//! a buffer, and a buffer is at most a page, also over huge pages (Linux 6.18 refuses more). So an MTU of 1500 (to 1774) fits buffers
//! of 2048 bytes, and one of 3822 buffers of 4096; jumbo frames need another kind of port. An MTU that is raised later makes the
//! kernel drop the long frames ([`XskStats::rx_dropped`]).
//!
//! # Who has a buffer
//!
//! [`Xsk::fill`] and [`Xsk::tx`] give buffers to the kernel; [`Xsk::rx`] and [`Xsk::completed`] bring them back;
//! [`Xsk::close`] brings back all that are out. The kernel also keeps buffers that it took from the fill ring and did not
//! use, which only `close` returns. After `close(2)` of the socket the kernel can go on using buffers for a while; `close`
//! waits for the end of that. Dropping the socket closes it too and returns nothing.
//!
//! In copy mode a frame completes when the *receiver* has freed it: the other end of a veth, or the NIC's driver. Frames sent
//! bypass the qdisc of the interface.
//!
//! # Any interface
//!
//! - Packets of queues without a socket go on to the kernel's stack. By default there is a socket for each queue, once
//!   [`Interface::queue`] was called for each.
//! - Tags that the NIC strips (`ethtool -k`: `rx-vlan-offload`) are not in the packet: put that off with
//!   `ethtool -K DEV rxvlan off`. In generic mode also `gro off`, since joined packets do not fit in a buffer.
//! - A NIC filters by MAC address before XDP: see [`XskOptions::promiscuous`].
//! - Nothing checks or completes checksums, in either direction.
//!
//! # veth
//!
//! What follows was found out on Linux 6.18; `tests/veth.rs` holds what can be seen from outside. `near` has the socket,
//! `far` is its peer; all settings are those of `far`, the end that sends with the help of offloads.
//!
//! - **Checksums**: packets of local sockets arrive with a partial checksum (of the pseudo-header only), in native and
//!   generic mode. `ethtool -K far tx off` makes the kernel complete them; nothing on `near` does. This also puts segmentation
//!   offload off.
//! - **Segmentation**: a program in native mode takes segmentation offload from `far` by itself. In generic mode it
//!   stays: packets of up to 64 KiB arrive, do not fit and are dropped ([`XskStats::rx_dropped`]), until
//!   `ethtool -K far tx off`.
//! - **VLAN tags** that `far` leaves to be inserted by its offload (a bridge's, a VLAN device's) are lost.
//!   `ethtool -K far txvlan off` puts them in the packet. Tags that are in the packet already pass in any case.
//! - **Queues**: queue n of `near` gets what `far` sends on its transmit queue n. Native mode is refused when `far` has more
//!   transmit queues than `near` has receive queues (`ethtool -L`). In generic mode packets of queue n show up on queue
//!   n - 1 (of 0, on 0), so one queue is the right number there.
//! - **MTU**: native mode is refused when `far` has an MTU above about 3500, and `far` cannot have a larger one as long as the
//!   program is on.
//! - **Sending** to `far` needs nothing there: frames take the path of ordinary packets. (`far` needs NAPI, so a program or
//!   GRO of its own, only for frames that an XDP program redirects to it.)
//! - There is no zero copy: the kernel copies each packet once into the buffer, and once out of it to send.
//! - Between the ends is a ring of 256 packets per queue in native mode; the receiving softirq empties it, mostly on the
//!   sender's core and at once. When it is full the packet is dropped (`far` without a qdisc) or `far` is stopped (with
//!   one, since Linux 6.16; `tc qdisc add dev far root pfifo`).
//! - Packets dropped for want of buffers count in [`XskStats::rx_dropped`] and [`XskStats::fill_empty`], and as
//!   `rx_queue_N_drops` of `near` (`ethtool -S`).
//!
//! # Files
//!
//! `sys` has the system calls, `ring` the mapped rings, `program` the BPF part: with `umem`, whose constructor is the
//! caller's promise about the memory, all unsafe code. `buffers` has address arithmetic and the account of buffers,
//! `socket` the packet path, `release` the wait for the kernel, `interface` the set-up, `holders` and `errors` what is said when
//! it fails. The kernel's side: `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`, `net/xdp/`.

mod buffers;
mod errors;
mod holders;
mod interface;
mod options;
mod program;
mod release;
mod ring;
mod socket;
mod sys;
mod umem;

pub use buffers::{RxFrame, TxFrame};
pub use errors::{KickError, OpenError, QueueError};
pub use holders::{Holder, Holders};
pub use interface::{Attached, Interface};
pub use options::{BusyPoll, CopyMode, Mode, RingSizes, XskOptions};
pub use release::StillHeld;
pub use socket::{DropCounter, Xsk, XskStats};
pub use umem::{KERNEL_HEADROOM, Memory, Umem, UmemError};
