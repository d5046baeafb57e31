// SPDX-License-Identifier: Apache-2.0
//! An AF_XDP socket, opened with netvm's `xsk` crate but without its engine.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use netvm_xsk::{Interface, Memory, RingSizes, RxFrame, Umem, XskOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::{Consumer, IDLE};
use crate::error::MethodError;
use crate::monitor::Monitor;

/// Bytes of a buffer.
const STRIDE: usize = 2048;
/// Buffers; the kernel owns all of them until packets arrive.
const BUFFERS: usize = 2048;
const BURST: usize = 64;
/// Bursts between two readings of the kernel's drop counter.
const STATS_EVERY: u32 = 256;

pub(super) fn run<M: Monitor>(interface: &str, mut consumer: Consumer<'_, M>) -> Result<(), MethodError> {
    let base = map().map_err(MethodError::system("cannot map packet memory"))?;
    let memory = Memory {
        base,
        len: STRIDE * BUFFERS,
        first_buffer: 0,
        stride: STRIDE as u32,
        buffers: BUFFERS as u32,
        headroom: netvm_xsk::KERNEL_HEADROOM,
    };
    // SAFETY: the mapping lives until the process ends. A reference to a buffer exists only from `rx`, which takes it
    // from the kernel, to `fill`, which gives it back.
    let umem = unsafe { Umem::new(&memory) }?;
    let rings = RingSizes { fill: 2048, rx: 2048, ..RingSizes::default() };
    let options = XskOptions { rings, promiscuous: true, ..XskOptions::default() };
    let open = Interface::open(interface, options)?;
    let mut xsk = open.queue(0, &umem)?;
    let all: Vec<u32> = (0..BUFFERS as u32).collect();
    xsk.fill(&all);
    consumer.counters.ready.set(1);
    let (mut frames, mut free) = ([RxFrame::default(); BURST], Vec::with_capacity(BURST));
    let mut unchecked = 0;
    loop {
        let count = xsk.rx(&mut frames);
        for frame in &frames[..count] {
            let offset = frame.buffer as usize * STRIDE + usize::from(frame.offset);
            let length = usize::from(frame.len);
            // SAFETY: `rx` returns only frames inside a buffer that the kernel had, and nobody writes to it before
            // `fill`.
            let bytes = unsafe { std::slice::from_raw_parts(base.as_ptr().add(offset), length) };
            consumer.packet(bytes, length);
            free.push(frame.buffer);
        }
        consumer.publish();
        let filled = xsk.fill(&free);
        free.drain(..filled);
        unchecked += 1;
        if count == 0 {
            wait(&xsk).map_err(MethodError::system("cannot wait for packets"))?;
            unchecked = STATS_EVERY;
        }
        if unchecked >= STATS_EVERY {
            unchecked = 0;
            let stats = xsk.stats().map_err(MethodError::system("AF_XDP statistics"))?;
            consumer.counters.dropped.set(stats.rx_dropped + stats.rx_ring_full);
        }
    }
}

fn map() -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of a new mapping, which nothing else uses.
    let base = unsafe {
        mmap_anonymous(null_mut(), STRIDE * BUFFERS, access, MapFlags::SHARED | MapFlags::POPULATE)
    }?;
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped address 0"))
}

/// Waits for a packet, at most [`IDLE`].
pub(super) fn wait(socket: &impl AsFd) -> io::Result<()> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: IDLE.as_nanos() as i64 };
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
