// SPDX-License-Identifier: Apache-2.0
//! Interfaces: loads and attaches the XDP program, and binds sockets to queues.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netvm_bpf::{Attach, Link, Program};

use crate::errors::{Holders, OpenError, QueueError, kernel_release, lock_limit_kib};
use crate::kernel::cores::CoreMap;
use crate::kernel::program::{SocketMap, load};
use crate::kernel::sys::{self, Mapping};
use crate::options::{CopyMode, Mode, XskOptions};
use crate::private::PrivateXsk;
use crate::socket::{REGISTER, Setup, Xsk};
use crate::umem::{KERNEL_HEADROOM, Umem};

/// Bytes of a frame beyond the MTU: Ethernet header and one VLAN tag.
const FRAME_OVERHEAD: u32 = 14 + 4;

/// How long to wait for a queue whose last socket was just closed.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

/// The hook that the program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// In the driver (native mode).
    Native,
    /// In the kernel's generic hook.
    Generic,
}

/// An interface with netvm's XDP program attached. The kernel detaches the program when this is dropped or the process
/// ends. Its remaining sockets then receive nothing more.
#[derive(Debug)]
pub struct Interface {
    name: String,
    c_name: CString,
    ifindex: u32,
    queues: u32,
    attached: Attached,
    fallback: Option<io::Error>,
    options: XskOptions,
    /// Dropped first, which detaches the program.
    _link: Link,
    sockets: SocketMap,
    cores: CoreMap,
    /// For requests in the interface's network namespace.
    control: OwnedFd,
    /// Cookie of that namespace, if the kernel supports it (Linux 5.14).
    namespace: Option<u64>,
    /// Keeps the interface promiscuous.
    _promiscuous: Option<OwnedFd>,
}

impl Interface {
    /// Attaches the program to an interface in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`OpenError`] names the remedy. The interface is unchanged then.
    pub fn open(name: &str, options: XskOptions) -> Result<Self, OpenError> {
        let interface = || name.to_owned();
        options.rings.check()?;
        if options.copy == CopyMode::ForceZeroCopy && options.mode == Mode::Generic {
            return Err(OpenError::GenericZeroCopy { interface: interface() });
        }
        let no_interface = || OpenError::NoInterface { interface: interface() };
        let c_name = CString::new(name).map_err(|_| no_interface())?;
        let ifindex = sys::interface_index(&c_name).map_err(|_| no_interface())?;
        let failed = |step| move |source| open_error(name, ifindex, step, source);

        let (control, queues) = find_queues(name, ifindex, &c_name, options.queues)?;
        // Fails early if the process lacks CAP_NET_RAW, not at the first queue.
        let first = sys::socket(libc::AF_XDP, libc::SOCK_RAW).map_err(failed("create an AF_XDP socket"))?;
        let namespace = sys::option(first.as_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).ok();

        let sockets = SocketMap::new(queues).map_err(failed(MAP))?;
        let cores = CoreMap::new(queues).map_err(failed(CORES))?;
        let program = load(&sockets, &cores, queues).map_err(|error| failed(LOAD)(error.source))?;
        let (link, attached, fallback) = attach(name, ifindex, &program, options.mode)?;
        let promiscuous = if options.promiscuous {
            Some(promiscuous(ifindex).map_err(failed("make the interface promiscuous"))?)
        } else {
            None
        };
        Ok(Self {
            name: interface(),
            c_name,
            ifindex,
            queues,
            attached,
            fallback,
            options,
            _link: link,
            sockets,
            cores,
            control,
            namespace,
            _promiscuous: promiscuous,
        })
    }

    /// Binds a socket to a queue, with `umem` as its memory. Waits up to half a second for a queue whose socket was
    /// just closed.
    ///
    /// # Errors
    /// [`QueueError`] names the remedy.
    pub fn queue(&self, queue: u32, umem: &Umem) -> Result<Xsk, QueueError> {
        self.socket(queue, umem)
    }

    /// Like [`Interface::queue`], with memory of its own for as many packets as its rings hold.
    ///
    /// # Errors
    /// [`QueueError`] names the remedy.
    pub fn private_queue(&self, queue: u32) -> Result<PrivateXsk, QueueError> {
        const SMALL: u32 = 2048;
        let system = |step| {
            let interface = self.name.clone();
            move |source| QueueError::System { interface, queue, step, source }
        };
        let mtu = sys::mtu(self.control.as_fd(), &self.c_name).map_err(system("read the MTU"))?;
        let is_small = mtu.saturating_add(FRAME_OVERHEAD + u32::from(KERNEL_HEADROOM)) <= SMALL;
        let stride = if is_small { SMALL } else { sys::page_size() as u32 };
        let rings = &self.options.rings;
        let bytes = PrivateXsk::buffers(rings) as usize * stride as usize;
        let memory = Mapping::anonymous(bytes).map_err(system("map memory for packets"))?;
        let xsk = self.socket(queue, &Umem::filling(&memory, stride))?;
        Ok(PrivateXsk::new(xsk, memory, stride, rings))
    }

    fn socket(&self, queue: u32, umem: &Umem) -> Result<Xsk, QueueError> {
        let interface = || self.name.clone();
        let failed = |(step, source)| self.queue_error(queue, umem, step, source);
        if queue >= self.queues {
            return Err(QueueError::NoQueue { interface: interface(), queue, queues: self.queues });
        }
        let socket =
            sys::socket(libc::AF_XDP, libc::SOCK_RAW).map_err(|e| failed(("create an AF_XDP socket", e)))?;
        let cookie = sys::option::<u64>(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).ok();
        if cookie != self.namespace {
            return Err(QueueError::Namespace { interface: interface() });
        }
        self.check_mtu(umem).map_err(|e| e.unwrap_or_else(|source| failed(("read the MTU", source))))?;
        let (name, ifindex) = (self.name.as_str(), self.ifindex);
        let XskOptions { rings, busy_poll, .. } = self.options;
        let kernel_core = self.cores.of_queue(queue);
        let setup = Setup { interface: name, ifindex, queue, umem, rings, busy_poll };
        let mut xsk = Xsk::new(socket, &setup, kernel_core).map_err(failed)?;
        self.bind(queue, &mut xsk)?;
        self.sockets.insert(queue, xsk.as_fd()).map_err(|e| failed(("put the socket in the BPF map", e)))?;
        Ok(xsk)
    }

    /// Name of the interface when it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index of the interface.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Number of queues that can have a socket.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// The hook that the program is attached to.
    #[must_use]
    pub fn mode(&self) -> Attached {
        self.attached
    }

    /// The driver's error, if it refused native mode and the program runs in generic mode instead.
    #[must_use]
    pub fn fallback(&self) -> Option<&io::Error> {
        self.fallback.as_ref()
    }

    fn check_mtu(&self, umem: &Umem) -> Result<(), Result<QueueError, io::Error>> {
        let mtu = sys::mtu(self.control.as_fd(), &self.c_name).map_err(Err)?;
        let (frame, room) = (mtu.saturating_add(FRAME_OVERHEAD), umem.room());
        if frame <= room {
            return Ok(());
        }
        let (interface, stride) = (self.name.clone(), umem.stride());
        let largest = room.saturating_sub(FRAME_OVERHEAD);
        Err(Ok(QueueError::Mtu { interface, mtu, frame, stride, room, largest }))
    }

    fn bind(&self, queue: u32, xsk: &mut Xsk) -> Result<(), QueueError> {
        let copy = match self.options.copy {
            CopyMode::ForceCopy => libc::XDP_COPY,
            _ if self.attached == Attached::Generic => libc::XDP_COPY,
            CopyMode::ForceZeroCopy => libc::XDP_ZEROCOPY,
            CopyMode::Auto => 0,
        };
        let end = Instant::now() + BUSY_TIMEOUT;
        loop {
            let bound = xsk.bind(self.ifindex, queue, copy | libc::XDP_USE_NEED_WAKEUP);
            let Err(source) = bound else { return Ok(()) };
            let interface = self.name.clone();
            return Err(match source.raw_os_error() {
                Some(libc::EBUSY) if Instant::now() < end => {
                    sleep(Duration::from_millis(2));
                    continue;
                }
                Some(libc::EBUSY) => QueueError::Busy { interface, queue, holders: Holders::of_sockets() },
                Some(libc::ENODEV) => QueueError::Gone { interface },
                _ if copy == libc::XDP_ZEROCOPY => {
                    QueueError::ZeroCopyRefused { interface, queue, reason: source }
                }
                _ => QueueError::System { interface, queue, step: "bind the socket", source },
            });
        }
    }

    fn queue_error(&self, queue: u32, umem: &Umem, step: &'static str, source: io::Error) -> QueueError {
        let interface = self.name.clone();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => QueueError::Permission { interface, step },
            Some(libc::ENODEV) => QueueError::Gone { interface },
            Some(libc::ENOBUFS) if step == REGISTER => {
                let mib = umem.registered().div_ceil(1 << 20);
                QueueError::Locked { interface, mib, limit_kib: lock_limit_kib() }
            }
            Some(libc::EFAULT) if step == REGISTER => QueueError::NotMapped { interface },
            Some(libc::EINVAL) if step == REGISTER => {
                QueueError::Buffers { interface, stride: umem.stride(), release: kernel_release() }
            }
            _ => QueueError::System { interface, queue, step, source },
        }
    }
}

/// Checks that an interface can be opened with a number of queues, and opens nothing.
///
/// # Errors
/// [`OpenError::NoInterface`] and [`OpenError::Queues`].
pub fn check_queues(name: &str, queues: u32) -> Result<(), OpenError> {
    let no_interface = || OpenError::NoInterface { interface: name.to_owned() };
    let c_name = CString::new(name).map_err(|_| no_interface())?;
    let ifindex = sys::interface_index(&c_name).map_err(|_| no_interface())?;
    find_queues(name, ifindex, &c_name, Some(queues)).map(drop)
}

/// The socket that controls the interface, and the number of queues to use.
fn find_queues(
    name: &str,
    ifindex: u32,
    c_name: &CStr,
    asked: Option<u32>,
) -> Result<(OwnedFd, u32), OpenError> {
    let failed = |step| move |source| open_error(name, ifindex, step, source);
    let control = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM).map_err(failed("create a control socket"))?;
    let channels = sys::channels(control.as_fd(), c_name).map_err(failed("read the number of queues"))?;
    let queues = count_queues(name, asked, channels)?;
    Ok((control, queues))
}

/// Checks the number of queues against the receive and transmit queues in use; `None` if the driver does not report
/// them.
fn count_queues(name: &str, asked: Option<u32>, channels: Option<(u32, u32)>) -> Result<u32, OpenError> {
    let Some((rx, tx)) = channels else {
        return match asked {
            Some(0) => Err(OpenError::Queues { interface: name.to_owned(), asked: 0, rx: 1, tx: 1 }),
            asked => Ok(asked.unwrap_or(1)),
        };
    };
    let asked = asked.unwrap_or(rx);
    // A socket on a queue that cannot send would accept frames and never complete them.
    if asked == 0 || asked > rx.min(tx) {
        return Err(OpenError::Queues { interface: name.to_owned(), asked, rx, tx });
    }
    Ok(asked)
}

/// Attaches the program as `mode` requests. Returns the driver's error if that made it generic.
fn attach(
    name: &str,
    ifindex: u32,
    program: &Program,
    mode: Mode,
) -> Result<(Link, Attached, Option<io::Error>), OpenError> {
    let mut fallback = None;
    if mode != Mode::Generic {
        match Link::attach(program, ifindex, Attach::XdpNative) {
            Ok(link) => return Ok((link, Attached::Native, None)),
            Err(e) if is_final(&e) => return Err(open_error(name, ifindex, ATTACH, e)),
            Err(reason) if mode == Mode::Native => {
                let interface = name.to_owned();
                return Err(OpenError::NativeRefused { interface, remedy: remedy(&reason), reason });
            }
            Err(e) => fallback = Some(e),
        }
    }
    let link = Link::attach(program, ifindex, Attach::XdpGeneric)
        .map_err(|e| open_error(name, ifindex, ATTACH, e))?;
    Ok((link, Attached::Generic, fallback))
}

const MAP: &str = "create a BPF map of sockets";
const CORES: &str = "create a BPF map of cores";
const LOAD: &str = "load a BPF program";
const ATTACH: &str = "attach a BPF program";

/// Errors of native mode that generic mode would meet too.
fn is_final(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EBUSY | libc::EEXIST | libc::ENODEV))
}

/// The remedy for the error that a driver uses to refuse native mode.
fn remedy(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::ERANGE | libc::EINVAL | libc::E2BIG) => {
            "lower the MTU (of a veth: that of its peer) to 1500"
        }
        Some(libc::ENOSPC) => "give it as many receive queues as its peer has transmit queues (`ethtool -L`)",
        Some(libc::ENOMEM) => "free memory or use fewer queues",
        _ => "the driver may not support it",
    }
}

fn open_error(name: &str, ifindex: u32, step: &'static str, source: io::Error) -> OpenError {
    let interface = name.to_owned();
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::Permission { interface, step },
        Some(libc::ENODEV) => OpenError::NoInterface { interface },
        Some(libc::EBUSY | libc::EEXIST) if step == ATTACH => {
            OpenError::ProgramAttached { interface, holders: Holders::of_link(ifindex) }
        }
        Some(libc::EAFNOSUPPORT | libc::ENOSYS) => {
            OpenError::TooOld { interface, step, release: kernel_release() }
        }
        Some(libc::EINVAL) if [MAP, CORES, LOAD, ATTACH].contains(&step) => {
            OpenError::TooOld { interface, step, release: kernel_release() }
        }
        _ => OpenError::System { interface, step, source },
    }
}

/// A packet socket that receives nothing and keeps the interface promiscuous while it is open.
fn promiscuous(ifindex: u32) -> io::Result<OwnedFd> {
    let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW)?;
    let membership = libc::packet_mreq {
        mr_ifindex: ifindex.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_must_receive_and_send() {
        let count = |asked, channels| count_queues("eth0", asked, channels);
        assert_eq!(count(None, Some((4, 4))).unwrap(), 4);
        assert_eq!(count(Some(2), Some((4, 4))).unwrap(), 2);
        assert_eq!(count(Some(2), Some((4, 2))).unwrap(), 2);
        assert_eq!(count(Some(8), None).unwrap(), 8);
        assert_eq!(count(None, None).unwrap(), 1);
        for (asked, channels) in
            [(None, Some((4, 1))), (Some(5), Some((4, 4))), (Some(0), Some((4, 4))), (Some(0), None)]
        {
            assert!(
                matches!(count(asked, channels), Err(OpenError::Queues { .. })),
                "{asked:?} {channels:?}"
            );
        }
    }
}
