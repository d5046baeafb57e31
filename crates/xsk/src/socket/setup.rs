// SPDX-License-Identifier: Apache-2.0
//! Setup of a socket: registers memory and rings, maps the rings, and binds the socket to its queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::xdp_desc;

use super::Xsk;
use super::release::Probe;
use super::stats::MisuseCounters;
use crate::buffers::BufferSet;
use crate::kernel::cores::QueueCore;
use crate::kernel::ring::{Consumer, Producer};
use crate::kernel::sys::{self, Mapping};
use crate::options::{BusyPoll, RingSizes};
use crate::umem::Umem;

/// A failed step and its error.
pub(crate) type Failed = (&'static str, io::Error);

pub(crate) const REGISTER: &str = "register the packet memory";

/// Parameters of a new socket.
pub(crate) struct Setup<'a> {
    pub(crate) interface: &'a str,
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
    pub(crate) umem: &'a Umem,
    pub(crate) rings: RingSizes,
    pub(crate) busy_poll: Option<BusyPoll>,
}

impl Xsk {
    /// Registers memory and rings with a new socket and maps the rings (a kernel before 6.6 maps them only now). The
    /// caller then binds the socket.
    pub(crate) fn new(socket: OwnedFd, setup: &Setup<'_>, kernel_core: QueueCore) -> Result<Self, Failed> {
        let &Setup { interface, ifindex, queue, umem, rings, busy_poll } = setup;
        let step = |step| move |e| (step, e);
        let fd = socket.as_fd();
        umem.register(fd).map_err(step(REGISTER))?;
        for (_, option, entries) in rings.each() {
            sys::set_option(fd, libc::SOL_XDP, option, &entries).map_err(step("create the rings"))?;
        }
        if let Some(busy_poll) = busy_poll {
            set_busy_poll(fd, busy_poll).map_err(step("set up busy polling"))?;
        }
        lift_limits(fd, rings.tx, umem.stride());

        let offsets: libc::xdp_mmap_offsets = sys::option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
            .map_err(step("read the layout of the rings"))?;
        let map = |place, entries_at: u64, entries: u32, entry: usize| {
            let bytes = entries_at.saturating_add(u64::from(entries) * entry as u64);
            Mapping::ring(fd, place, bytes as usize)
        };
        let (address, descriptor) = (size_of::<u64>(), size_of::<xdp_desc>());
        let failed = step("map the rings");
        let fill = map(sys::FILL_RING, offsets.fr.desc, rings.fill, address)
            .and_then(|m| Producer::new(m, &offsets.fr, rings.fill))
            .map_err(failed)?;
        let completion = map(sys::COMPLETION_RING, offsets.cr.desc, rings.completion, address)
            .and_then(|m| Consumer::new(m, &offsets.cr, rings.completion))
            .map_err(failed)?;
        let rx = map(libc::XDP_PGOFF_RX_RING, offsets.rx.desc, rings.rx, descriptor)
            .and_then(|m| Consumer::new(m, &offsets.rx, rings.rx))
            .map_err(failed)?;
        let tx = map(libc::XDP_PGOFF_TX_RING, offsets.tx.desc, rings.tx, descriptor)
            .and_then(|m| Producer::new(m, &offsets.tx, rings.tx))
            .map_err(failed)?;
        let probe = Probe::new(ifindex, queue).map_err(step("create the probe socket for closing"))?;
        Ok(Self {
            fill,
            rx,
            tx,
            completion,
            layout: umem.layout(),
            held: BufferSet::new(umem.buffers()),
            refused: Vec::with_capacity(rings.tx as usize),
            in_flight: 0,
            zero_copy: false,
            busy_poll: busy_poll.is_some(),
            misuse: MisuseCounters::default(),
            kernel_core,
            socket,
            probe,
            interface: interface.to_owned(),
        })
    }

    /// Binds the socket to its queue, with flags such as `XDP_COPY`, and reads the resulting mode.
    pub(crate) fn bind(&mut self, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
        sys::bind(self.as_fd(), ifindex, queue, flags)?;
        let options: libc::xdp_options = sys::option(self.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS)?;
        self.zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(())
    }
}

fn set_busy_poll(socket: BorrowedFd<'_>, BusyPoll { micros, budget }: BusyPoll) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1u32)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &budget)
}

/// Raises two limits of copy mode as far as the kernel allows: a wake-up sends 32 frames (configurable since Linux
/// 6.17), and the socket's send buffer holds about 90.
fn lift_limits(socket: BorrowedFd<'_>, frames: u32, stride: u32) {
    /// Frames per wake-up: at about a microsecond each, a worker can afford these.
    const BUDGET: u32 = 256;
    let _ = sys::set_option(socket, libc::SOL_XDP, sys::XDP_MAX_TX_SKB_BUDGET, &frames.min(BUDGET));
    let bytes = frames.saturating_mul(stride + 1024).min(1 << 29);
    let _ = sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
}
