// SPDX-License-Identifier: Apache-2.0
//! What a thread does while a ring that it writes to is full.

use std::time::Duration;

use netvm_clock::{self as clock, CoreSharing};
use netvm_region::TableReader;

use super::TxRings;

/// How long a packet waits for room in a direct ring, if the rings form a loop, before it takes a detour through the
/// engine. The engine never waits, so NFs that wait for each other in a loop do not deadlock. Without a loop a packet
/// waits until there is room: the last NF of the line always makes progress.
const DETOUR_AFTER_MICROS: u64 = 2000;

/// How long a thread that waits for room yields its core before it sleeps: the ring's reader, which may share the core,
/// has a full ring before it. A scheduler that is fair gives a thread that only yields half of the core.
const YIELD_MICROS: u64 = 20;
/// The same while others run during its yields. A sleep would end when the timer says, not when there is room.
const YIELD_TO_OTHERS_MICROS: u64 = 2000;
/// The first sleep, and the longest. Each is twice the one before.
const FIRST_SLEEP: Duration = Duration::from_micros(50);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// The times above in cycles.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitTimes {
    detour_after: u64,
    yield_for: u64,
    yield_to_others_for: u64,
}

impl WaitTimes {
    pub(super) fn new() -> Self {
        let micros = [DETOUR_AFTER_MICROS, YIELD_MICROS, YIELD_TO_OTHERS_MICROS];
        let [detour_after, yield_for, yield_to_others_for] = micros.map(clock::cycles_in_micros);
        Self { detour_after, yield_for, yield_to_others_for }
    }
}

impl TxRings {
    /// Waits for room: a slot at first, and once it has slept half of the ring, so that it seldom wakes. Gives up when
    /// a new table is published, because the NF thread may be gone.
    #[cold]
    pub(super) fn wait_for_nf_thread(&mut self, reader: &TableReader, index: usize) -> bool {
        self.publish();
        let looped = reader.table().looped != 0;
        let (start, mut sleep, mut others_ran) = (clock::cycles(), None, false);
        let mut sharing = CoreSharing::default();
        while !reader.is_stale() && !self.engine_is_gone {
            self.beat();
            let waited = clock::cycles().wrapping_sub(start);
            if looped && waited > self.wait_times.detour_after {
                return false;
            }
            let yields_for =
                if others_ran { self.wait_times.yield_to_others_for } else { self.wait_times.yield_for };
            if waited <= yields_for {
                others_ran = sharing.yield_core().others_ran;
            } else {
                let next = sleep.map_or(FIRST_SLEEP, |last: Duration| (last * 2).min(MAX_SLEEP));
                std::thread::sleep(next);
                sleep = Some(next);
                self.engine_is_gone = self.shared.engine_is_gone();
            }
            let Some(tx_ring) = &mut self.nf_threads[index] else { return false };
            let wanted = if sleep.is_some() { tx_ring.producer.memory().capacity() / 2 } else { 1 };
            if tx_ring.has_room_for(wanted) {
                return true;
            }
        }
        false
    }

    /// Waits for room until the engine is gone. The engine never waits for an NF, so there will be room.
    #[cold]
    pub(super) fn wait_for_worker(&mut self, index: usize) -> bool {
        self.publish();
        let mut sharing = CoreSharing::default();
        while !self.engine_is_gone {
            for _ in 0..64 {
                self.beat();
                if sharing.is_contended(clock::cycles()) {
                    std::thread::sleep(FIRST_SLEEP);
                } else {
                    sharing.yield_core();
                }
                if self.workers[index].has_room() {
                    return true;
                }
            }
            self.engine_is_gone = self.shared.engine_is_gone();
        }
        false
    }
}
