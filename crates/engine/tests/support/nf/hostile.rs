// SPDX-License-Identifier: Apache-2.0
//! NFs that attack: one writes random bytes over all that it maps, one forges the owner table.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use netvm_region::Mapping;
use netvm_ring::Descriptor;
use rustix::fs::{FallocateFlags, fallocate};

use super::raw::{Attached, attach, ends};

/// xorshift64*: fast, and the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn scribble(random: &mut Random, mapping: &Mapping, bytes: Range<usize>, words: usize) {
    for _ in 0..words {
        let at = bytes.start + random.below(bytes.len() / 8) * 8;
        // SAFETY: within the mapping; what it does to others is the point.
        unsafe { mapping.base().add(at).cast::<u64>().as_ptr().write_volatile(random.next()) };
    }
}

/// Sets the backpressure bits of all chains for NF thread `first` and all after it, also those that do not exist.
pub fn set_backpressure(first: u32) -> ! {
    let Attached { region, control: _control, socket: _socket, .. } = attach("backpressure");
    for chain in 0..netvm_region::MAX_CHAINS as u16 {
        region.backpressure(chain).fetch_or(u64::MAX << first, Ordering::Relaxed);
    }
    loop {
        std::thread::park();
    }
}

/// Removes all pages of its region, and takes all huge pages so that no new ones replace them.
pub fn punch_holes() -> ! {
    let Attached { region, control: _control, socket: _socket, .. } = attach("punch");
    let length = 2 << 20;
    for _ in 0..512 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
        // SAFETY: new mappings at addresses of the kernel's choice, never unmapped. Those that fail are of no interest.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            break;
        }
    }
    loop {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fallocate(region.as_fd(), flags, 0, region.geometry().bytes);
        let free = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
        // SAFETY: as above: takes the page that the hole has freed.
        unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, free, -1, 0) };
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

pub fn be_hostile() -> ! {
    let Attached { fds, mut rings, control, region, socket: _socket } = attach("hostile");
    let geometry = *region.geometry();
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()));
    loop {
        let worker = random.below(rings.len());
        let (consumer, producer) = &mut rings[worker];
        match random.below(8) {
            // Plays along for a while, so that there is something out to lie about.
            0..3 => {
                let mut burst = [Descriptor::default(); 32];
                let count = consumer.pop(&mut burst);
                for descriptor in &mut burst[..count] {
                    let [low, high] = descriptor.to_words();
                    let flip = 1 << random.below(64);
                    *descriptor = match random.below(6) {
                        0 => Descriptor::from_words([low ^ flip, high]),
                        1 => Descriptor::from_words([low, high ^ flip]),
                        2 => Descriptor::from_words([random.next(), random.next()]),
                        _ => *descriptor,
                    };
                }
                producer.push(&burst[..count]);
                // And returns some a second time.
                if random.below(4) == 0 {
                    producer.push(&burst[..count]);
                }
            }
            3 => {
                let made_up: Vec<Descriptor> = (0..32)
                    .map(|_| {
                        let place = Descriptor::new(
                            random.next() as u32 % (geometry.buffers * 2),
                            random.next() as u16,
                            random.next() as u16,
                        );
                        place
                            .on_path(
                                random.below(3) as u16,
                                random.below(3) as u8,
                                random.below(4) as u16,
                                random.below(2) as u8,
                            )
                            .with_raw_verdict(random.below(6) as u8)
                    })
                    .collect();
                producer.push(&made_up);
            }
            // Rings, indexes and counters; the owner table and the direct rings; the packets.
            4 => scribble(&mut random, control.mapping(), 0..control.mapping().len(), 256),
            5 => scribble(&mut random, region.mapping(), 0..geometry.buffers_at as usize, 256),
            6 => scribble(
                &mut random,
                region.mapping(),
                geometry.buffers_at as usize..geometry.bytes as usize,
                256,
            ),
            _ => {
                // Claims to sleep, wakes everybody, and starts over with its own idea of the indexes.
                let _ = consumer.prepare_wait();
                for fd in fds.workers.iter().chain(&fds.nf_threads) {
                    let _ = rustix::io::write(fd.as_fd(), &u64::MAX.wrapping_sub(1).to_ne_bytes());
                }
                // SAFETY: as above; the old ends are not used again.
                rings[worker] = unsafe { ends(&control, worker as u16) };
            }
        }
    }
}

/// Writes into the owner table that another NF thread has this NF's buffers.
pub fn be_a_liar() -> ! {
    let Attached { mut rings, control: _control, region, socket: _socket, .. } = attach("liar");
    loop {
        for (consumer, _) in &mut rings {
            let mut burst = [Descriptor::default(); 32];
            let count = consumer.pop(&mut burst);
            for descriptor in &burst[..count] {
                // The first that attached has NF thread 1.
                region.set_owner(descriptor.buffer(), 1);
            }
        }
    }
}
