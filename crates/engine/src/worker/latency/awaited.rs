// SPDX-License-Identifier: Apache-2.0
//! The measured packets that are with programs. A packet that comes back from a program is another one for the engine,
//! perhaps received by another worker, so it is known by its digest: each worker notes the one that it waits for, and
//! the worker that receives a packet of this digest by the program's other port takes the note.
//!
//! ```text
//!  its worker                       the worker of the other port
//!   FREE ── put ──▶ a digest ── take ──▶ TAKEN ──▶ FREE
//!     ▲                │
//!     └──── cancel ────┘
//! ```
//!
//! A note is written while its state is `FREE`, which only its own worker changes, and read while it is `TAKEN`, which
//! only the worker that has taken it changes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use netvm_ids::MAX_WORKERS;

use crate::ids::{ChainId, PortId, WorkerId};

const FREE: u64 = 0;
const TAKEN: u64 = 1;

/// A packet that a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AwaitedPacket {
    /// Its digest: at least 2.
    pub(super) digest: u64,
    /// The port by which it should come back.
    pub(super) by: PortId,
    /// The port that received it.
    pub(super) from: PortId,
    pub(super) received: u64,
    /// Its chain, and when it entered that.
    pub(super) chain: (ChainId, u64),
    /// The program's hop, and when the packet entered the program.
    pub(super) hop: (u8, u64),
    /// Packets that would have been chosen since this one was.
    pub(super) missed: u32,
}

/// The note of one worker, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Note {
    /// `FREE`, `TAKEN` or a digest.
    state: AtomicU64,
    /// Port by which, port from which, chain and hop: 16 bits each.
    place: AtomicU64,
    received: AtomicU64,
    entered_chain: AtomicU64,
    entered_hop: AtomicU64,
    missed: AtomicU32,
}

/// The notes of all workers.
#[derive(Debug, Default)]
pub(crate) struct AwaitedPackets {
    /// A bit for each worker that waits.
    waiting: AtomicU32,
    notes: [Note; MAX_WORKERS],
}

const _: () = assert!(MAX_WORKERS <= 32);

impl AwaitedPackets {
    /// Notes the packet that a worker waits for. Returns false if it waits for another one.
    pub(super) fn put(&self, own: WorkerId, packet: &AwaitedPacket) -> bool {
        let Some(note) = self.notes.get(own.index()) else { return false };
        if note.state.load(Ordering::Acquire) != FREE {
            return false;
        }
        let place = u64::from(packet.by.0)
            | u64::from(packet.from.0) << 16
            | u64::from(packet.chain.0.0) << 32
            | u64::from(packet.hop.0) << 48;
        note.place.store(place, Ordering::Relaxed);
        note.received.store(packet.received, Ordering::Relaxed);
        note.entered_chain.store(packet.chain.1, Ordering::Relaxed);
        note.entered_hop.store(packet.hop.1, Ordering::Relaxed);
        note.missed.store(packet.missed, Ordering::Relaxed);
        note.state.store(packet.digest, Ordering::Release);
        self.waiting.fetch_or(1 << own.0, Ordering::Relaxed);
        true
    }

    /// Whether a worker waits for a packet.
    pub(super) fn waits(&self, own: WorkerId) -> bool {
        self.notes.get(own.index()).is_some_and(|note| note.state.load(Ordering::Relaxed) != FREE)
    }

    /// Counts a packet that a worker would have chosen if it did not wait.
    pub(super) fn miss(&self, own: WorkerId) {
        if let Some(note) = self.notes.get(own.index()) {
            note.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has a worker wait no longer.
    pub(super) fn cancel(&self, own: WorkerId) {
        let Some(note) = self.notes.get(own.index()) else { return };
        let state = note.state.load(Ordering::Relaxed);
        // If another worker has just taken it, that one ends it.
        if state != FREE
            && state != TAKEN
            && note.state.compare_exchange(state, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.waiting.fetch_and(!(1 << own.0), Ordering::Relaxed);
        }
    }

    /// Takes the note of the first of these packets that a worker waits for at a port. `digests`: of the packets, in
    /// order. Returns its position and the note.
    pub(super) fn take<I: Iterator<Item = u64>>(
        &self,
        by: PortId,
        digests: impl Fn() -> I,
    ) -> Option<(usize, AwaitedPacket)> {
        let mut waiting = self.waiting.load(Ordering::Relaxed);
        while waiting != 0 {
            let worker = waiting.trailing_zeros();
            waiting &= waiting - 1;
            let note = &self.notes[worker as usize];
            let digest = note.state.load(Ordering::Acquire);
            if digest == FREE || digest == TAKEN || note.place.load(Ordering::Relaxed) as u16 != by.0 {
                continue;
            }
            let Some(position) = digests().position(|one| one == digest) else { continue };
            let taken = note.state.compare_exchange(digest, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            let packet = note.read(digest);
            // Before its worker may write the next one.
            self.waiting.fetch_and(!(1 << worker), Ordering::Relaxed);
            note.state.store(FREE, Ordering::Release);
            return Some((position, packet));
        }
        None
    }
}

impl Note {
    fn read(&self, digest: u64) -> AwaitedPacket {
        let place = self.place.load(Ordering::Relaxed);
        AwaitedPacket {
            digest,
            by: PortId(place as u16),
            from: PortId((place >> 16) as u16),
            received: self.received.load(Ordering::Relaxed),
            chain: (ChainId((place >> 32) as u16), self.entered_chain.load(Ordering::Relaxed)),
            hop: ((place >> 48) as u8, self.entered_hop.load(Ordering::Relaxed)),
            missed: self.missed.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn packet(digest: u64) -> AwaitedPacket {
        AwaitedPacket {
            digest,
            by: PortId(260),
            from: PortId(3),
            received: digest + 1,
            chain: (ChainId(9), digest + 2),
            hop: (7, digest + 3),
            missed: 4,
        }
    }

    #[test]
    fn a_note_is_taken_once_by_its_digest_and_port() {
        let all = AwaitedPackets::default();
        assert!(all.put(WorkerId(1), &packet(50)) && !all.put(WorkerId(1), &packet(51)));
        all.miss(WorkerId(1));
        let digests = || [7, 50, 50].into_iter();
        assert_eq!(all.take(PortId(4), digests), None, "another port");
        assert_eq!(all.take(PortId(260), || [51].into_iter()), None, "another packet");
        assert_eq!(all.take(PortId(260), digests), Some((1, AwaitedPacket { missed: 5, ..packet(50) })));
        assert_eq!(all.take(PortId(260), digests), None);
        assert!(!all.waits(WorkerId(1)) && all.put(WorkerId(1), &packet(52)));
        all.cancel(WorkerId(1));
        assert_eq!(all.take(PortId(260), || [52].into_iter()), None);
    }

    #[test]
    fn several_threads_take_whole_notes_and_each_once() {
        let all = Arc::new(AwaitedPackets::default());
        let last = 20_000;
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let all = Arc::clone(&all);
                std::thread::spawn(move || {
                    let mut taken = Vec::new();
                    // The last one is put again until both have seen it.
                    while taken.last() != Some(&last) {
                        if let Some((_, found)) = all.take(PortId(260), || 2..=last) {
                            assert_eq!(found, packet(found.digest));
                            taken.push(found.digest);
                        }
                    }
                    taken
                })
            })
            .collect();
        for digest in 2..last {
            while !all.put(WorkerId(0), &packet(digest)) {
                std::hint::spin_loop();
            }
            if digest % 7 == 0 {
                all.cancel(WorkerId(0));
            }
        }
        while takers.iter().any(|taker| !taker.is_finished()) {
            all.put(WorkerId(0), &packet(last));
            std::thread::yield_now();
        }
        let mut taken: Vec<u64> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        taken.retain(|digest| *digest != last);
        taken.sort_unstable();
        let count = taken.len();
        taken.dedup();
        assert!(taken.len() == count && count > 0, "{count}");
    }
}
