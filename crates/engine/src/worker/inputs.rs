// SPDX-License-Identifier: Apache-2.0
//! Chooses the ports that a turn polls. In: the number of packets of each poll, and ports that others found to have
//! packets. Out: the ports of the next turn.
//!
//! A turn polls each port that had packets lately, and a few of the other, quiet ports in rotation. So quiet ports cost
//! busy ports little: a virtual router has a punt port for each interface, which rarely has packets. Quiet ports that
//! the kernel watches (`idle/port_events`) are polled when they have packets, and otherwise one at a time, to take back
//! their buffers.
//!
//! An empty poll misses the L1 cache, because the port's rings are not there, so polling hundreds of quiet ports in
//! each turn would cost more than the packets of the busy ones. With up to [`POLL_ALL_UP_TO`] ports, each turn polls
//! all of them in order: no masks, nothing is counted.

use arrayvec::ArrayVec;
use netvm_region::MAX_PORTS;

use crate::ids::PortId;
use crate::port_bits::PortBits;

const WORDS: usize = MAX_PORTS / 64;

/// With up to this many ports, each turn polls all of them.
const POLL_ALL_UP_TO: usize = 16;
/// A port is quiet after this many consecutive polls without a packet.
const QUIET_AFTER: u8 = 32;
/// The least number of quiet ports that a turn polls while other ports receive packets.
const MIN_QUIET_POLLS: usize = 4;
/// A turn polls one more quiet port for each of this many packets of the turn before.
const PACKETS_PER_QUIET_POLL: usize = 32;
/// Quiet ports that a turn polls after a turn without packets: few, so that busy ports are polled again soon.
const IDLE_QUIET_POLLS: usize = 16;

/// The ports by which a worker receives. The size is fixed, because a worker does not allocate.
#[derive(Debug)]
pub(crate) struct Inputs {
    ports: ArrayVec<PortId, MAX_PORTS>,
    /// For each port, the number of consecutive polls without a packet.
    empty: [u8; MAX_PORTS],
    /// Bit mask of the ports that are not quiet.
    busy: [u64; WORDS],
    /// Bit mask of the ports that this turn has still to poll.
    due: [u64; WORDS],
    /// Bit mask of the ports that have packets, as found by others.
    found: [u64; WORDS],
    /// Bit mask of the ports in the rotation: those that are not watched.
    rotating: [u64; WORDS],
    watched: PortBits,
    /// Number of words in use.
    words: usize,
    /// Where the next search of each of the two begins.
    next: usize,
    next_watched: usize,
}

impl Default for Inputs {
    fn default() -> Self {
        Self {
            ports: ArrayVec::new(),
            empty: [0; MAX_PORTS],
            busy: [0; WORDS],
            due: [0; WORDS],
            found: [0; WORDS],
            rotating: [0; WORDS],
            watched: PortBits::default(),
            words: 0,
            next: 0,
            next_watched: 0,
        }
    }
}

impl Inputs {
    pub(crate) fn ports(&self) -> &[PortId] {
        &self.ports
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    pub(crate) fn add(&mut self, port: PortId) {
        // Each is added once, and there are no more.
        let _ = self.ports.try_push(port);
        self.begin();
    }

    pub(crate) fn remove(&mut self, port: PortId) {
        self.ports.retain(|input| *input != port);
        self.watched.take(port);
        self.begin();
    }

    /// The port leaves the rotation, because another part of the worker [finds](Inputs::found) when it has packets; or
    /// it returns.
    pub(crate) fn watch(&mut self, port: PortId, is_watched: bool) {
        let Some(n) = self.ports.iter().position(|input| *input == port) else { return };
        if is_watched {
            self.watched.add(port);
            self.rotating[n / 64] &= !(1 << (n % 64));
        } else {
            self.watched.take(port);
            self.rotating[n / 64] |= 1 << (n % 64);
        }
    }

    /// The next turn polls these ports.
    pub(crate) fn found(&mut self, ports: &[PortId]) {
        for n in ports.iter().filter_map(|port| self.ports.iter().position(|input| input == port)) {
            self.found[n / 64] |= 1 << (n % 64);
        }
    }

    /// The next turn polls the next watched port.
    pub(crate) fn poll_next_watched(&mut self) {
        let count = self.ports.len();
        let watched: [u64; WORDS] =
            std::array::from_fn(|n| first_bits(count.saturating_sub(n * 64)) & !self.rotating[n]);
        if let Some(n) = following(&watched[..self.words], self.next_watched) {
            self.found[n / 64] |= 1 << (n % 64);
            self.next_watched = n + 1;
        }
    }

    /// Starts again with all ports busy.
    fn begin(&mut self) {
        let count = self.ports.len();
        self.words = count.div_ceil(64);
        self.empty.fill(0);
        for (n, word) in self.busy.iter_mut().enumerate() {
            *word = first_bits(count.saturating_sub(n * 64));
        }
        self.rotating = self.busy;
        for (n, _) in self.ports.iter().enumerate().filter(|(_, port)| self.watched.has(**port)) {
            self.rotating[n / 64] &= !(1 << (n % 64));
        }
        self.due = self.busy;
        self.found = [0; WORDS];
        self.next = 0;
        self.next_watched = 0;
    }

    /// Begins a turn. `moved`: packets of the turn before.
    #[inline]
    pub(crate) fn begin_turn(&mut self, moved: usize) {
        if self.ports.len() > POLL_ALL_UP_TO {
            self.choose_due(moved);
        }
    }

    /// Sets the mask of ports to poll: the busy ones, the found ones, and the next of the rotation.
    fn choose_due(&mut self, moved: usize) {
        for n in 0..self.words {
            self.due[n] = self.busy[n] | std::mem::take(&mut self.found[n]);
        }
        let rotated =
            if moved == 0 { IDLE_QUIET_POLLS } else { MIN_QUIET_POLLS + moved / PACKETS_PER_QUIET_POLL };
        for _ in 0..rotated.min(self.ports.len()) {
            let Some(n) = following(&self.rotating[..self.words], self.next) else { break };
            self.due[n / 64] |= 1 << (n % 64);
            self.next = n + 1;
        }
    }

    /// The next port to poll in this turn, and its index. `cursor` is 0 at the start of a turn.
    #[inline(always)]
    pub(crate) fn next_due(&mut self, cursor: &mut usize) -> Option<(usize, PortId)> {
        if self.ports.len() > POLL_ALL_UP_TO {
            return self.next_in_mask(cursor);
        }
        let n = *cursor;
        let port = *self.ports.get(n)?;
        *cursor += 1;
        Some((n, port))
    }

    /// The next port of the mask, from the `word`th 64 ports on.
    fn next_in_mask(&mut self, word: &mut usize) -> Option<(usize, PortId)> {
        loop {
            let due = self.due[..self.words].get_mut(*word)?;
            if *due != 0 {
                let n = *word * 64 + due.trailing_zeros() as usize;
                *due &= *due - 1;
                return Some((n, self.ports[n]));
            }
            *word += 1;
        }
    }

    /// Records the number of packets of a poll of the `n`th port.
    #[inline]
    pub(crate) fn polled(&mut self, n: usize, packets: usize) {
        if self.ports.len() <= POLL_ALL_UP_TO {
            return;
        }
        let bit = 1 << (n % 64);
        if packets > 0 {
            self.empty[n] = 0;
            self.busy[n / 64] |= bit;
        } else if self.empty[n] < QUIET_AFTER {
            self.empty[n] += 1;
        } else {
            self.busy[n / 64] &= !bit;
        }
    }

    /// Records that this turn left out the `n`th port, which may have packets: the next turn polls it.
    #[inline]
    pub(crate) fn left_out(&mut self, n: usize) {
        self.busy[n / 64] |= 1 << (n % 64);
    }
}

/// The first bit of the mask from `from` on, and then from its beginning.
fn following(mask: &[u64], from: usize) -> Option<usize> {
    let first = from / 64;
    let later = mask.get(first).map_or(0, |word| word & (u64::MAX << (from % 64)));
    let others = (first + 1..mask.len()).chain(0..mask.len()).map(|n| (n, mask[n]));
    let (n, word) = std::iter::once((first, later)).chain(others).find(|(_, word)| *word != 0)?;
    Some(n * 64 + word.trailing_zeros() as usize)
}

/// A mask of the lowest `count` bits, up to 64.
const fn first_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(count: u16) -> Inputs {
        let mut inputs = Inputs::default();
        // Numbers need not be in a row.
        (0..count).for_each(|n| inputs.add(PortId(n * 2)));
        inputs
    }

    /// The indexes of the ports that a turn polls. Those of `with` give a packet.
    fn turn(inputs: &mut Inputs, moved: usize, with: &[usize]) -> Vec<usize> {
        inputs.begin_turn(moved);
        let (mut polled, mut cursor) = (Vec::new(), 0);
        while let Some((n, port)) = inputs.next_due(&mut cursor) {
            assert_eq!(port, inputs.ports[n]);
            inputs.polled(n, usize::from(with.contains(&n)));
            polled.push(n);
        }
        polled
    }

    #[test]
    fn few_ports_are_polled_in_each_turn() {
        for count in [0, 1, 15, 16] {
            let mut inputs = inputs(count);
            for _ in 0..1000 {
                assert_eq!(turn(&mut inputs, 64, &[]), Vec::from_iter(0..usize::from(count)));
            }
        }
    }

    #[test]
    fn busy_ports_are_polled_in_each_turn_and_quiet_ones_in_rotation() {
        for count in [17, 64, 65, 1024] {
            let mut inputs = inputs(count);
            let busy = [3, usize::from(count) - 1];
            for _ in 0..100 {
                turn(&mut inputs, 64, &busy);
            }
            let most = MIN_QUIET_POLLS + 64 / PACKETS_PER_QUIET_POLL;
            let mut seen = vec![0; count.into()];
            let turns = usize::from(count).div_ceil(most);
            for _ in 0..turns {
                let polled = turn(&mut inputs, 64, &busy);
                assert!(polled.len() <= most + busy.len() && polled.is_sorted(), "{polled:?}");
                polled.iter().for_each(|n| seen[*n] += 1);
            }
            for (n, seen) in seen.into_iter().enumerate() {
                let expected = if busy.contains(&n) { turns..=turns } else { 1..=2 };
                assert!(expected.contains(&seen), "port {n} of {count}: {seen}");
            }
            // A quiet one that has a packet is busy at once, and quiet again after a while.
            let found = (0..turns).any(|_| turn(&mut inputs, 64, &[0, 3]).contains(&0));
            assert!(found && turn(&mut inputs, 64, &[]).contains(&0));
            for _ in 0..2 * QUIET_AFTER {
                turn(&mut inputs, 64, &busy);
            }
            let polled = (0..4).filter(|_| turn(&mut inputs, 64, &busy).contains(&0)).count();
            assert!(polled <= 2, "{count}: {polled}");
        }
    }

    #[test]
    fn found_ports_are_polled_at_once_and_more_without_packets() {
        let mut inputs = inputs(1000);
        for _ in 0..100 {
            turn(&mut inputs, 64, &[]);
        }
        inputs.found(&[900, 31, 30].map(|n| PortId(2 * n)));
        let polled = turn(&mut inputs, 0, &[]);
        assert!(polled.len() <= IDLE_QUIET_POLLS + 3, "{polled:?}");
        assert!([30, 31, 900].iter().all(|n| polled.contains(n)), "{polled:?}");
        assert_eq!(turn(&mut inputs, 0, &[]).len(), IDLE_QUIET_POLLS);
        // One that had to wait for its share is looked at again.
        inputs.left_out(900);
        assert!(turn(&mut inputs, 64, &[]).contains(&900));
    }

    #[test]
    fn watched_ports_are_polled_when_found_and_one_at_a_time() {
        let mut inputs = inputs(200);
        for _ in 0..100 {
            turn(&mut inputs, 64, &[]);
        }
        // All but 3 and 150.
        (0..200).filter(|n| ![3, 150].contains(n)).for_each(|n| inputs.watch(PortId(2 * n), true));
        for _ in 0..3 {
            assert_eq!(turn(&mut inputs, 64, &[]), [3, 150]);
        }
        inputs.found(&[PortId(2 * 130)]);
        assert_eq!(turn(&mut inputs, 0, &[130]), [3, 130, 150]);
        assert_eq!(turn(&mut inputs, 0, &[]), [3, 130, 150], "it had a packet");
        let mut seen = [false; 200];
        for _ in 0..198 {
            inputs.poll_next_watched();
            turn(&mut inputs, 64, &[]).into_iter().for_each(|n| seen[n] = true);
        }
        assert!(seen.into_iter().all(|seen| seen), "{seen:?}");
        // Its number changes with the removal of another one.
        inputs.remove(PortId(0));
        inputs.watch(PortId(2 * 3), true);
        for _ in 0..100 {
            turn(&mut inputs, 64, &[]);
        }
        assert_eq!(turn(&mut inputs, 64, &[]), [149]);
        inputs.watch(PortId(2 * 3), false);
        assert_eq!(turn(&mut inputs, 64, &[]), [2, 149]);
    }

    #[test]
    fn ports_come_and_go() {
        let mut inputs = inputs(100);
        for _ in 0..100 {
            turn(&mut inputs, 64, &[]);
        }
        inputs.remove(PortId(198));
        assert_eq!(turn(&mut inputs, 64, &[]), Vec::from_iter(0..99));
        assert_eq!((inputs.ports().len(), inputs.is_empty()), (99, false));
    }
}
