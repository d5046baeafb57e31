// SPDX-License-Identifier: Apache-2.0
//! The members of a bond: selection (802.1AX-2014, 6.4.14), and frames in and out.

use std::collections::BTreeMap;
use std::time::Instant;

use netvm_wire::MacAddr;

use crate::member::{Member, MemberView};
use crate::pdu::{self, Frame, Participant, Received, System, state};

/// How a bond takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This system.
    pub system: System,
    /// The bond's key: unlike that of other bonds of the system.
    pub key: u16,
    /// Whether it asks partners for an LACPDU each second, and gives them up after 3 s; else 30 s and 90 s.
    pub is_fast: bool,
}

/// A bond: its members by number, which is from 1 on.
#[derive(Clone, Debug)]
pub struct Bond {
    settings: Settings,
    members: BTreeMap<u16, Member>,
    /// Responses to Markers, by member; the last of each.
    responses: BTreeMap<u16, Frame>,
    /// System and key of the partner whose links carry traffic.
    partner: Option<(System, u16)>,
}

impl Bond {
    /// A bond without members.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings, members: BTreeMap::new(), responses: BTreeMap::new(), partner: None }
    }

    /// Asks partners for another rate from now on.
    pub fn set_fast(&mut self, is_fast: bool) {
        self.settings.is_fast = is_fast;
        self.members.values_mut().for_each(|member| member.set_rate(is_fast));
    }

    /// Adds a member, whose link is down until [`Bond::set_link`] says otherwise.
    pub fn add(&mut self, number: u16) {
        let Settings { system, key, is_fast } = self.settings;
        let mut actor = Participant { system, key, port_priority: 0x8000, port: number, state: 0 };
        actor.set(state::ACTIVITY | state::AGGREGATION, true);
        actor.set(state::TIMEOUT, is_fast);
        actor.set(state::DEFAULTED, true);
        self.members.entry(number).or_insert_with(|| Member::new(actor));
    }

    /// Removes a member.
    pub fn remove(&mut self, number: u16) {
        self.members.remove(&number);
        self.responses.remove(&number);
        self.select();
    }

    /// A member's link is up or down.
    pub fn set_link(&mut self, number: u16, is_up: bool, now: Instant) {
        if let Some(member) = self.members.get_mut(&number) {
            member.set_link(is_up, now);
            self.select();
        }
    }

    /// A member has received a frame. Returns whether it was one of LACP, from another system.
    pub fn receive(&mut self, number: u16, frame: &[u8], now: Instant) -> bool {
        let own = self.settings.system;
        let Some(member) = self.members.get_mut(&number) else { return false };
        match pdu::read(frame) {
            // The link leads back to this system.
            Some(Received::Lacpdu { actor, .. }) if actor.system == own => return false,
            Some(Received::Lacpdu { actor, partner }) => member.receive(actor, &partner, now),
            Some(Received::Marker(response)) => drop(self.responses.insert(number, response)),
            None => return false,
        }
        self.select();
        true
    }

    /// Lets time pass. Returns the frames to send, each with its member.
    pub fn poll(&mut self, now: Instant) -> Vec<(u16, Frame)> {
        self.members.values_mut().for_each(|member| member.age(now));
        self.select();
        let mac = self.settings.system.mac;
        let mut frames = Vec::new();
        for (number, member) in &mut self.members {
            if member.takes_turn(now) {
                frames.push((*number, pdu::write(mac, member.actor(), member.partner())));
            }
        }
        for (number, mut response) in std::mem::take(&mut self.responses) {
            response[6..12].copy_from_slice(&mac);
            frames.push((number, response));
        }
        frames
    }

    /// Selects the members of the largest group with one partner; of equal ones the one that carries traffic already,
    /// else that of the stronger system.
    fn select(&mut self) {
        let mut groups: BTreeMap<(System, u16), (usize, bool)> = BTreeMap::new();
        for group in self.members.values().filter_map(Member::group) {
            let (links, is_current) = groups.entry(group).or_default();
            *links += 1;
            *is_current = self.partner == Some(group);
        }
        // The first of equal ones, as keys are in order and lower systems are stronger.
        let best = groups.iter().rev().max_by_key(|(_, size)| **size).map(|(group, _)| *group);
        self.partner = best;
        for member in self.members.values_mut() {
            let is_selected = best.is_some() && member.group() == best;
            member.set_selected(is_selected);
        }
    }

    /// The system at the other end, and its key.
    #[must_use]
    pub fn partner(&self) -> Option<(MacAddr, u16)> {
        self.partner.map(|(system, key)| (MacAddr(system.mac), key))
    }

    /// What is known of a member.
    #[must_use]
    pub fn member(&self, number: u16) -> Option<MemberView> {
        self.members.get(&number).map(Member::view)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn bond(mac: u8, members: u16, is_fast: bool) -> Bond {
        let system = System { priority: 0x8000, mac: [2, 0, 0, 0, 0, mac] };
        let mut bond = Bond::new(Settings { system, key: u16::from(mac), is_fast });
        (1..=members).for_each(|number| bond.add(number));
        bond
    }

    /// Two systems, and links that lead from a member of one to a member of the other.
    struct Net {
        ends: [Bond; 2],
        links: Vec<[u16; 2]>,
        is_up: Vec<bool>,
        now: Instant,
        frames: usize,
    }

    impl Net {
        fn new(ends: [Bond; 2], links: &[[u16; 2]]) -> Self {
            let mut net = Self {
                ends,
                links: links.to_vec(),
                is_up: vec![false; links.len()],
                now: Instant::now(),
                frames: 0,
            };
            (0..links.len()).for_each(|link| net.set(link, true));
            net
        }

        fn set(&mut self, link: usize, is_up: bool) {
            self.is_up[link] = is_up;
            for end in 0..2 {
                self.ends[end].set_link(self.links[link][end], is_up, self.now);
            }
        }

        /// Lets time pass in steps of 20 ms.
        fn run(&mut self, time: Duration) {
            let until = self.now + time;
            while self.now < until {
                self.now += Duration::from_millis(20);
                for end in 0..2 {
                    for (number, frame) in self.ends[end].poll(self.now) {
                        self.frames += 1;
                        let leads = |link: &usize| self.links[*link][end] == number && self.is_up[*link];
                        let link = (0..self.links.len()).find(leads);
                        if let Some(link) = link {
                            let other = 1 - end;
                            self.ends[other].receive(self.links[link][other], &frame, self.now);
                        }
                    }
                }
            }
        }

        fn distributing(&self, end: usize) -> Vec<u16> {
            let all = self.links.iter().map(|link| link[end]);
            all.filter(|number| self.ends[end].member(*number).unwrap().distributes).collect()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn links_join_within_a_second_and_leave_with_their_link() {
        let mut net = Net::new([bond(1, 2, true), bond(2, 2, true)], &[[1, 2], [2, 1]]);
        net.run(2 * SECOND);
        assert_eq!([net.distributing(0), net.distributing(1)], [[1, 2], [2, 1]]);
        assert_eq!(net.ends[0].partner(), Some((MacAddr([2, 0, 0, 0, 0, 2]), 2)));
        net.set(1, false);
        assert_eq!([net.distributing(0), net.distributing(1)], [[1], [2]]);
        net.set(1, true);
        net.run(2 * SECOND);
        assert_eq!(net.distributing(0), [1, 2]);
    }

    #[test]
    fn a_partner_that_falls_silent_is_given_up_after_its_timeout() {
        for (is_fast, seconds) in [(true, 3), (false, 90)] {
            let mut net = Net::new([bond(1, 1, is_fast), bond(2, 1, is_fast)], &[[1, 1]]);
            net.run(3 * SECOND);
            assert_eq!(net.distributing(0), [1]);
            // Frames are lost in both directions, and no link says so.
            net.is_up[0] = false;
            net.run(seconds * SECOND - SECOND - 30 * SECOND * u32::from(!is_fast));
            assert_eq!(net.distributing(0), [1], "{is_fast}");
            net.run((5 + 30 * u32::from(!is_fast)) * SECOND);
            assert_eq!(net.distributing(0), [] as [u16; 0], "{is_fast}");
            net.run(4 * SECOND);
            assert_eq!(net.ends[0].partner(), None);
            net.is_up[0] = true;
            net.run(if is_fast { 2 * SECOND } else { 31 * SECOND });
            assert_eq!(net.distributing(0), [1], "{is_fast}");
        }
    }

    #[test]
    fn a_rate_decides_how_often_the_other_end_speaks() {
        for (rates, most) in [([true, true], 45), ([false, false], 10), ([true, false], 30)] {
            let mut net = Net::new([bond(1, 1, rates[0]), bond(2, 1, rates[1])], &[[1, 1]]);
            net.run(20 * SECOND);
            assert!(net.frames <= most, "{rates:?}: {}", net.frames);
        }
        let mut net = Net::new([bond(1, 1, false), bond(2, 1, false)], &[[1, 1]]);
        net.run(5 * SECOND);
        net.frames = 0;
        net.ends[0].set_fast(true);
        net.run(20 * SECOND);
        assert!((18..=25).contains(&net.frames), "{}", net.frames);
    }

    #[test]
    fn links_to_another_system_carry_nothing_until_they_are_the_most() {
        // The third link of the first system leads to a system of its own.
        let mut net = Net::new([bond(1, 3, true), bond(2, 3, true)], &[[1, 1], [2, 2]]);
        let mut other = bond(9, 1, true);
        net.ends[0].set_link(3, true, net.now);
        other.set_link(1, true, net.now);
        let run = |net: &mut Net, other: &mut Bond| {
            for _ in 0..100 {
                net.run(Duration::from_millis(20));
                for (_, frame) in other.poll(net.now) {
                    net.ends[0].receive(3, &frame, net.now);
                }
                let view = net.ends[0].member(3).unwrap();
                let frame = pdu::write([0; 6], &view.actor, &view.partner.unwrap_or_default());
                other.receive(1, &frame, net.now);
            }
        };
        run(&mut net, &mut other);
        assert_eq!(net.distributing(0), [1, 2]);
        assert!(!net.ends[0].member(3).unwrap().collects);
        net.set(0, false);
        run(&mut net, &mut other);
        assert_eq!(net.distributing(0), [2], "the present one, of two equal ones");
        net.set(1, false);
        run(&mut net, &mut other);
        assert!(net.ends[0].member(3).unwrap().distributes);
    }

    #[test]
    fn a_link_that_leads_back_carries_nothing() {
        let mut one = bond(1, 2, true);
        let now = Instant::now();
        (1..=2).for_each(|number| one.set_link(number, true, now));
        for (number, frame) in one.poll(now) {
            assert!(!one.receive(3 - number, &frame, now));
        }
        assert!((1..=2).all(|number| !one.member(number).unwrap().collects));
    }

    #[test]
    fn markers_are_answered_once() {
        let mut one = bond(1, 1, true);
        let now = Instant::now();
        one.set_link(1, true, now);
        one.poll(now);
        let mut marker = [0; pdu::FRAME_LEN];
        marker[..16].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 9, 0x88, 9, 2, 1]);
        marker[16..18].copy_from_slice(&[1, 16]);
        assert!(one.receive(1, &marker, now));
        let frames = one.poll(now);
        assert_eq!((frames.len(), frames[0].1[16], frames[0].1[11]), (1, 2, 1));
        assert!(one.poll(now).is_empty());
    }

    /// An event of a random run.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Link(usize, bool),
        Lose(usize),
        Wait(u32),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..4usize, any::<bool>()).prop_map(|(link, is_up)| Event::Link(link, is_up)),
            (0..4usize).prop_map(Event::Lose),
            (1..100u32).prop_map(Event::Wait),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever happened: the links that are up at last carry traffic at both ends, and no others.
        #[test]
        fn both_ends_agree_in_the_end(events in prop::collection::vec(event(), 0..40)) {
            let links = [[1, 4], [2, 3], [3, 2], [4, 1]];
            let mut net = Net::new([bond(1, 4, true), bond(2, 4, true)], &links);
            let mut wanted = [true; 4];
            for event in events {
                match event {
                    Event::Link(link, is_up) => {
                        wanted[link] = is_up;
                        net.set(link, is_up);
                    }
                    Event::Lose(link) => net.is_up[link] = false,
                    Event::Wait(tenths) => net.run(Duration::from_millis(100) * tenths),
                }
            }
            net.is_up = wanted.to_vec();
            net.run(10 * SECOND);
            for end in 0..2 {
                let expected: Vec<u16> =
                    links.iter().zip(wanted).filter(|(_, up)| *up).map(|(link, _)| link[end]).collect();
                prop_assert_eq!(net.distributing(end), expected);
            }
        }
    }
}
