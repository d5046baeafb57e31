// SPDX-License-Identifier: Apache-2.0
//! Whether a program forwards packets. In: what was sent to it and what came back since the last look. Out: changes of
//! its state.
//!
//! A program that forwards any frame is watched by probes: they come back while it works. Packets that come back are as
//! good as probes, since its queues may be full of packets. Of a program that does not forward probes (a proxy) only
//! packets are known: it hangs if packets go in, one after the other for its `hang_timeout`, and none comes back on
//! either side. One or two packets without an answer say nothing, nor does a packet that has just gone in. The last
//! packet of a connection needs no answer, so the time after it does not count.

use std::time::Duration;

use netvm_model::PairSide;

use crate::manager::notice::ProgramFault;

/// Time without any probe or packet from a program that was sent some, after which it has failed: five probes.
pub(super) const SILENT_TIMEOUT: Duration = Duration::from_millis(200);

/// The longest time between two packets that count as one after the other: a ping a second does.
const MAX_QUIET: Duration = Duration::from_millis(1500);

/// Looks with packets that went in while none came back, without which a program does not hang: a packet may need no
/// answer, and the last one may still get it.
const MIN_UNANSWERED: u32 = 3;

/// The state of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ProgramState {
    /// It does not forward yet.
    #[default]
    Starting,
    /// It forwards.
    Up,
    /// It has failed.
    Down,
}

/// Sums at the port of one side, which only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SideSums {
    /// Packets of chains that entered by it.
    pub(super) into: u64,
    /// Packets of chains that came back by it.
    pub(super) back: u64,
    /// Frames that were sent by it, or for which its queue had no room.
    pub(super) sent: u64,
    /// Probes that came back by it.
    pub(super) probes: u64,
}

/// What is seen of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observation {
    /// Its process runs, or nothing says that it does not.
    pub(super) runs: bool,
    /// Both ports are open.
    pub(super) is_open: bool,
    /// By side.
    pub(super) sides: [SideSums; 2],
}

/// How it is watched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// By probes.
    pub(super) probe: bool,
    /// By side: whether packets of chains come back by it.
    pub(super) expects: [bool; 2],
    /// The time without progress after which it hangs; `None`: never.
    pub(super) hang_timeout: Option<Duration>,
    /// Whether netvmd starts its process, and so starts it again if it hangs.
    pub(super) is_started: bool,
    /// Whether both sides are one port.
    pub(super) has_one_port: bool,
}

/// What is known of a program.
#[derive(Clone, Debug)]
pub(super) struct Health {
    pub(super) state: ProgramState,
    /// The time in this state.
    pub(super) since: Duration,
    before: Observation,
    /// By side: the time since something came back by it.
    silent: [Duration; 2],
    /// The time since the last packet entered.
    quiet: Duration,
    /// Looks at which packets had entered since the last one came back.
    unanswered: u32,
}

impl Health {
    /// Of a program of which these sums were counted before.
    pub(super) fn new(sides: [SideSums; 2]) -> Self {
        let before = Observation { sides, ..Observation::default() };
        Self {
            state: ProgramState::Starting,
            since: Duration::ZERO,
            before,
            silent: [Duration::MAX; 2],
            quiet: Duration::ZERO,
            unanswered: 0,
        }
    }

    /// Its process has started, or started again.
    pub(super) fn starts(&mut self) {
        self.enter(ProgramState::Starting);
        self.silent = [Duration::MAX; 2];
    }

    /// Takes an observation, `step` after the last one. Returns the fault with which it has just failed.
    pub(super) fn observe(&mut self, now: Observation, step: Duration, watch: Watch) -> Option<ProgramFault> {
        let before = std::mem::replace(&mut self.before, now);
        self.since = self.since.saturating_add(step);
        for side in 0..2 {
            let (was, is, other) = (before.sides[side], now.sides[side], 1 - side);
            let was_sent = now.sides[other].sent > before.sides[other].sent;
            let is_up = self.state == ProgramState::Up;
            let has_come = is.probes > was.probes || is_up && is.back > was.back;
            if has_come {
                self.silent[side] = Duration::ZERO;
            } else if was_sent && watch.probe {
                // Without a probe or packet to forward, nothing can come back.
                self.silent[side] = self.silent[side].saturating_add(step);
            }
        }
        if !now.runs || !now.is_open {
            self.silent = [Duration::MAX; 2];
            return self.fail(if now.runs { ProgramFault::PortClosed } else { ProgramFault::Ended });
        }
        if watch.probe { self.see_probes(watch) } else { self.see_progress(before, step, watch) }
    }

    fn see_probes(&mut self, watch: Watch) -> Option<ProgramFault> {
        match self.first_silent(watch, SILENT_TIMEOUT) {
            Some(_) if watch.has_one_port => self.fail(ProgramFault::Silent(PairSide::Only)),
            Some(side) => self.fail(ProgramFault::Silent(side)),
            None => self.succeed(),
        }
    }

    fn see_progress(&mut self, before: Observation, step: Duration, watch: Watch) -> Option<ProgramFault> {
        let limit = watch.hang_timeout.unwrap_or(Duration::MAX);
        // Without packets nothing shows that it works again, so it gets some.
        let may_work = self.state == ProgramState::Down && !watch.is_started && self.since >= limit;
        if self.state == ProgramState::Starting || may_work {
            (self.silent, self.unanswered) = ([Duration::ZERO; 2], 0);
            return self.succeed();
        }
        let grown = |of: fn(&SideSums) -> u64| {
            self.before.sides.iter().zip(&before.sides).any(|(is, was)| of(is) > of(was))
        };
        let (entered, has_come) = (grown(|side| side.into), grown(|side| side.back));
        self.quiet = if entered { Duration::ZERO } else { self.quiet.saturating_add(step) };
        if has_come || self.quiet >= MAX_QUIET {
            (self.silent, self.unanswered) = ([Duration::ZERO; 2], 0);
        } else if entered || self.unanswered > 0 {
            self.silent = self.silent.map(|time| time.saturating_add(step));
            self.unanswered += u32::from(entered);
        }
        let hangs = entered && self.unanswered >= MIN_UNANSWERED && self.silent[0] >= limit;
        if hangs { self.fail(ProgramFault::Hung) } else { None }
    }

    /// The first side of those that matter that has been silent for so long.
    fn first_silent(&self, watch: Watch, limit: Duration) -> Option<PairSide> {
        let mut silent = PairSide::BOTH.into_iter().zip(self.silent).zip(watch.expects);
        silent.find(|((_, time), expects)| *expects && *time >= limit).map(|((side, _), _)| side)
    }

    fn fail(&mut self, fault: ProgramFault) -> Option<ProgramFault> {
        if self.state != ProgramState::Up {
            return None;
        }
        self.enter(ProgramState::Down);
        Some(fault)
    }

    fn succeed(&mut self) -> Option<ProgramFault> {
        self.enter(ProgramState::Up);
        None
    }

    fn enter(&mut self, state: ProgramState) {
        if self.state != state {
            (self.state, self.since) = (state, Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(40);
    const BOTH_WAYS: [bool; 2] = [true, true];

    fn watch(probe: bool) -> Watch {
        Watch {
            probe,
            expects: BOTH_WAYS,
            hang_timeout: Some(Duration::from_secs(1)),
            is_started: false,
            has_one_port: false,
        }
    }

    /// A program that runs, and its sums.
    struct Program {
        health: Health,
        seen: Observation,
    }

    impl Program {
        fn new() -> Self {
            let seen = Observation { runs: true, is_open: true, sides: Default::default() };
            Self { health: Health::new(seen.sides), seen }
        }

        /// A look after a probe each way, of which those come back that `back` says.
        fn probe(&mut self, back: [bool; 2]) -> Option<ProgramFault> {
            for (side, back) in self.seen.sides.iter_mut().zip(back) {
                side.sent += 1;
                side.probes += u64::from(back);
            }
            self.health.observe(self.seen, STEP, watch(true))
        }
    }

    #[test]
    fn it_is_up_when_probes_come_back_both_ways_and_down_when_they_do_not() {
        let mut program = Program::new();
        for back in [[false, false], [true, false]] {
            assert_eq!(program.probe(back), None);
            assert_eq!(program.health.state, ProgramState::Starting);
        }
        assert_eq!(program.probe([true, true]), None);
        assert_eq!(program.health.state, ProgramState::Up);
        let faults: Vec<_> = (0..6).map(|_| program.probe([true, false])).collect();
        assert_eq!(faults[4], Some(ProgramFault::Silent(PairSide::Right)), "{faults:?}");
        assert_eq!(faults.iter().flatten().count(), 1);
        assert_eq!(program.health.state, ProgramState::Down);
        program.probe([true, true]);
        assert_eq!(program.health.state, ProgramState::Up);
    }

    #[test]
    fn packets_are_as_good_as_probes_but_only_of_a_program_that_was_up() {
        let mut program = Program::new();
        let packets = |program: &mut Program| {
            program.seen.sides.iter_mut().for_each(|side| side.back += 1);
            program.probe([false, false])
        };
        assert_eq!(packets(&mut program), None);
        assert_eq!(program.health.state, ProgramState::Starting);
        program.probe([true, true]);
        for _ in 0..20 {
            assert_eq!(packets(&mut program), None);
        }
        assert_eq!(program.health.state, ProgramState::Up);
    }

    #[test]
    fn silence_counts_only_while_something_was_sent() {
        let mut program = Program::new();
        program.probe([true, true]);
        for _ in 0..20 {
            assert_eq!(program.health.observe(program.seen, STEP, watch(true)), None);
        }
        assert_eq!(program.health.state, ProgramState::Up);
    }

    #[test]
    fn an_ended_process_or_a_closed_port_is_a_fault_at_once() {
        let mut program = Program::new();
        program.probe([true, true]);
        program.seen.is_open = false;
        assert_eq!(program.probe([true, true]), Some(ProgramFault::PortClosed));
        program.seen.is_open = true;
        program.probe([true, true]);
        assert_eq!(program.health.state, ProgramState::Up);
        program.seen.runs = false;
        assert_eq!(program.probe([false, false]), Some(ProgramFault::Ended));
        program.seen.runs = true;
        program.health.starts();
        program.probe([false, false]);
        assert_eq!(program.health.state, ProgramState::Starting);
    }

    #[test]
    fn a_program_without_probes_hangs_if_packets_go_in_and_none_comes_out() {
        let mut program = Program::new();
        let look = |program: &mut Program| program.health.observe(program.seen, STEP, watch(false));
        assert_eq!(look(&mut program), None);
        assert_eq!(program.health.state, ProgramState::Up, "nothing else shows that it works");
        for _ in 0..50 {
            assert_eq!(look(&mut program), None, "no packets, no progress to expect");
        }
        let faults: Vec<_> = (0..30)
            .filter_map(|_| {
                program.seen.sides[0].into += 1;
                look(&mut program)
            })
            .collect();
        assert_eq!(faults, [ProgramFault::Hung]);
        for _ in 0..26 {
            look(&mut program);
        }
        assert_eq!(program.health.state, ProgramState::Up, "it gets packets again, to see");
    }

    #[test]
    fn one_packet_without_an_answer_is_no_hang_and_a_third_one_is() {
        let mut program = Program::new();
        let watch = Watch { is_started: true, ..watch(false) };
        let mut look = |packets: u64| {
            program.seen.sides[0].into += packets;
            program.health.observe(program.seen, STEP, watch)
        };
        look(0);
        // Its `hang_timeout` is a second: a second and more passes after one packet, and after the next one.
        for _ in 0..2 {
            assert_eq!(look(1), None);
            for _ in 0..30 {
                assert_eq!(look(0), None);
            }
        }
        assert_eq!(look(1), Some(ProgramFault::Hung));
    }

    #[test]
    fn packets_with_long_pauses_are_not_one_after_the_other() {
        let mut program = Program::new();
        let watch = Watch { is_started: true, ..watch(false) };
        for _ in 0..10 {
            program.seen.sides[0].into += 1;
            for _ in 0..50 {
                assert_eq!(program.health.observe(program.seen, STEP, watch), None);
            }
        }
    }

    #[test]
    fn the_last_packet_of_a_connection_needs_no_answer() {
        let mut program = Program::new();
        let watch = Watch { is_started: true, ..watch(false) };
        let look = |program: &mut Program, packets: u64| {
            program.seen.sides[0].into += packets;
            program.health.observe(program.seen, STEP, watch)
        };
        look(&mut program, 0);
        // One packet, and then quiet: it adds up to the longest pause between packets at most.
        let long = Watch { hang_timeout: Some(Duration::from_secs(2)), ..watch };
        program.seen.sides[0].into += 1;
        for _ in 0..200 {
            assert_eq!(program.health.observe(program.seen, STEP, long), None);
        }
        // A packet that comes back on either side is progress.
        program.seen.sides[0].back += 1;
        assert_eq!(look(&mut program, 1), None);
        for _ in 0..20 {
            assert_eq!(look(&mut program, 1), None);
        }
        let faults: Vec<_> = (0..10).filter_map(|_| look(&mut program, 1)).collect();
        assert_eq!(faults, [ProgramFault::Hung]);
        for _ in 0..200 {
            look(&mut program, 0);
        }
        assert_eq!(program.health.state, ProgramState::Down, "netvmd starts it again");
    }
}
