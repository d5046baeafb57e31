// SPDX-License-Identifier: Apache-2.0
//! Watches L2 switching for loops and storms. In: the counts of the forwarding database and of storm control, once a
//! second. Out: events for notices, and the state that views show.

use std::collections::BTreeMap;

use netvm_switch::{LastMove, Moves, StormClass, TICKS_PER_SECOND};

use super::Switching;
use crate::ids::PortId;

/// MAC addresses that move to a port, or try to, in a second: more are flapping, not moving.
const FLAPPING_FROM: u64 = 10;
/// Seconds in a row with that many until it is reported: hosts that move all at once do so in one.
const FLAPPING_SECONDS: u32 = 2;
/// Claims to held addresses in a second that are reported at once: storm control ends a loop within a second.
const LOOPING_FROM: u64 = 100;
/// Seconds for which a storm or a flapping address is shown after its last packet, and between two notices of moves.
const SHOWN_FOR: u32 = 10;

/// What L2 switching has seen at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchingView {
    /// Addresses that came to the port from others, since netvm started.
    pub moves: Moves,
    /// The address that moves to and fro between this port and another.
    pub flapping: Option<LastMove>,
    /// Classes of flooded packets that exceed the port's storm control.
    pub storms: Vec<StormClass>,
}

/// What L2 switching tells of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchingEvent {
    /// An address moved to the port.
    Moved(LastMove),
    /// Addresses move to and fro.
    Flapping {
        /// The last of them.
        last: LastMove,
        /// Moves and attempts in the last second.
        per_second: u64,
    },
    /// Flooded packets exceed the port's storm control.
    Storm {
        /// Their class.
        class: StormClass,
        /// Packets dropped in the last second.
        dropped: u64,
    },
}

/// What forwarding database and storm control have counted at a port.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    moves: Moves,
    /// By class.
    dropped: [u64; StormClass::ALL.len()],
}

#[derive(Debug, Default)]
struct PortWatch {
    before: Counts,
    /// The second until which further moves are no news.
    moved_until: u32,
    flapping_for: u32,
    /// The second until which it is shown.
    flapping_until: u32,
    storm_until: [u32; StormClass::ALL.len()],
}

impl PortWatch {
    /// Compares with the counts of the second before.
    fn update(&mut self, second: u32, counts: Counts) -> Seen {
        let before = std::mem::replace(&mut self.before, counts);
        let moved = new_since(before.moves.moved, counts.moves.moved);
        let held = new_since(before.moves.held, counts.moves.held);
        let per_second = moved + held;
        let storms = std::array::from_fn(|n| {
            let new = new_since(before.dropped[n], counts.dropped[n]);
            let is_news = new > 0 && self.storm_until[n] < second;
            if new > 0 {
                self.storm_until[n] = second + SHOWN_FOR;
            }
            if is_news { new } else { 0 }
        });
        self.flapping_for = if per_second >= FLAPPING_FROM { self.flapping_for + 1 } else { 0 };
        let was_flapping = self.flapping_until >= second;
        if self.flapping_for >= FLAPPING_SECONDS || held >= LOOPING_FROM {
            self.flapping_until = second + SHOWN_FOR;
        }
        let is_flapping = self.flapping_until >= second;
        let has_moved = moved > 0 && !is_flapping && self.moved_until < second;
        if has_moved {
            self.moved_until = second + SHOWN_FOR;
        }
        Seen { has_moved, flapping: if is_flapping && !was_flapping { per_second } else { 0 }, storms }
    }
}

/// How far a count has gone. A forwarding database that replaces another, as its options changed, counts from 0.
const fn new_since(before: u64, now: u64) -> u64 {
    if now < before { now } else { now - before }
}

/// What is new in a second.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    has_moved: bool,
    /// Moves in the second in which flapping began, else 0.
    flapping: u64,
    /// By class: packets dropped in the second in which a storm began, else 0.
    storms: [u64; StormClass::ALL.len()],
}

/// The counts of the last second.
#[derive(Debug, Default)]
pub(crate) struct SwitchingWatch {
    second: u32,
    settled: u32,
    /// All that were ever ports of the switch: their counts go on when they are ports again.
    ports: BTreeMap<u16, PortWatch>,
}

impl SwitchingWatch {
    /// Settles claims to moved addresses, and returns what is new at ports, once a second. `tick`: the time.
    pub(crate) fn service(&mut self, switching: &Switching, tick: u32) -> Vec<(PortId, SwitchingEvent)> {
        if tick.wrapping_sub(self.settled) >= switching.fdb.options().hold.max(TICKS_PER_SECOND) {
            self.settled = tick;
            switching.fdb.settle_claims(tick);
        }
        let second = tick / TICKS_PER_SECOND;
        if second == std::mem::replace(&mut self.second, second) {
            return Vec::new();
        }
        for (port, watch) in &mut self.ports {
            if !switching.bridge.has(*port) {
                *watch = PortWatch { before: watch.before, ..PortWatch::default() };
            }
        }
        let mut news = Vec::new();
        for port in switching.ports() {
            let counts = Counts { moves: switching.fdb.moves(port), dropped: switching.storm.dropped(port) };
            let seen = self.ports.entry(port).or_default().update(second, counts);
            let last = switching.fdb.last_move(port);
            let moved = last.filter(|_| seen.has_moved).map(SwitchingEvent::Moved);
            let flapping = last.filter(|_| seen.flapping > 0);
            let flapping = flapping.map(|last| SwitchingEvent::Flapping { last, per_second: seen.flapping });
            let storms = StormClass::ALL.into_iter().zip(seen.storms).filter(|(_, dropped)| *dropped > 0);
            let storms = storms.map(|(class, dropped)| SwitchingEvent::Storm { class, dropped });
            let events = moved.into_iter().chain(flapping).chain(storms);
            news.extend(events.map(|event| (PortId(port), event)));
        }
        news
    }

    /// The state of a port.
    pub(crate) fn view(&self, switching: Option<&Switching>, port: PortId) -> SwitchingView {
        let (Some(switching), Some(watch)) = (switching, self.ports.get(&port.0)) else {
            return SwitchingView::default();
        };
        let is_shown = |until: u32| until >= self.second;
        SwitchingView {
            moves: switching.fdb.moves(port.0),
            flapping: switching.fdb.last_move(port.0).filter(|_| is_shown(watch.flapping_until)),
            storms: StormClass::ALL
                .into_iter()
                .filter(|class| is_shown(watch.storm_until[*class as usize]))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(moved: u64, held: u64, broadcasts: u64) -> Counts {
        Counts { moves: Moves { moved, held }, dropped: [broadcasts, 0, 0] }
    }

    #[test]
    fn a_move_is_reported_at_intervals_and_flapping_once() {
        let mut watch = PortWatch::default();
        let mut at = |second, moved, held| {
            let seen = watch.update(second, counts(moved, held, 0));
            (seen.has_moved, seen.flapping)
        };
        assert_eq!(at(100, 0, 3), (false, 0), "an attempt is no move");
        assert_eq!(at(101, 1, 3), (true, 0));
        assert_eq!(at(111, 2, 3), (false, 0));
        assert_eq!(at(112, 52, 3), (true, 0), "hosts that move all at once");
        assert_eq!(at(113, 52, 3), (false, 0));
        assert_eq!((at(114, 53, 43), at(115, 54, 83)), ((false, 0), (false, 41)));
        assert_eq!(at(116, 55, 123), (false, 0), "it is reported once");
        assert_eq!(at(126, 55, 123), (false, 0));
        assert_eq!(at(127, 56, 123), (true, 0));
        assert_eq!((at(138, 57, 200), at(139, 58, 290)), ((true, 0), (false, 91)), "flapping again");
        assert_eq!(at(160, 59, 1290), (false, 1001), "a loop that storm control ended");
        assert_eq!(at(180, 0, 2), (false, 0), "another database, after a change of its options");
        assert_eq!(at(181, 1, 2), (true, 0));
    }

    #[test]
    fn a_storm_is_reported_when_it_begins() {
        let mut watch = PortWatch::default();
        let mut at = |second, broadcasts| watch.update(second, counts(0, 0, broadcasts)).storms[0];
        assert_eq!([at(100, 0), at(101, 500), at(102, 900), at(112, 950)], [0, 500, 0, 0]);
        assert_eq!([at(122, 960), at(134, 970)], [0, 10]);
    }
}
