// SPDX-License-Identifier: Apache-2.0
//! A slow reference: each membership and each router is a line of a list, and everything is looked at every time.

use proptest::prelude::*;

use super::*;

const GROUPS: [&str; 3] = ["239.1.1.1", "239.1.1.2", "239.1.1.3"];

#[derive(Clone, Copy, Debug)]
enum Event {
    Pass(u32),
    Join(u16, usize),
    Leave(u16, usize),
    /// By an address 10.0.0.N; 0: 0.0.0.0.
    Query(u16, u8),
    QueryFor(u16, usize),
}

fn event() -> impl Strategy<Value = Event> {
    let (port, group) = (1u16..=4, 0usize..3);
    prop_oneof![
        3 => (1u32..200).prop_map(Event::Pass),
        3 => (port.clone(), group.clone()).prop_map(|(port, group)| Event::Join(port, group)),
        2 => (port.clone(), group.clone()).prop_map(|(port, group)| Event::Leave(port, group)),
        2 => (port.clone(), 0u8..9).prop_map(|(port, address)| Event::Query(port, address)),
        1 => (port, group).prop_map(|(port, group)| Event::QueryFor(port, group)),
    ]
}

/// Quarters of a second.
const QUARTERS: u32 = 4;

#[derive(Default)]
struct Model {
    now: u32,
    own: Option<u8>,
    /// Port, group, until when, whether it is being ended.
    members: Vec<(u16, usize, u32, bool)>,
    routers: Vec<(u16, u32)>,
    /// Address, until when.
    other: Option<(u8, u32)>,
    since: Option<u32>,
}

impl Model {
    fn tick(&mut self) {
        self.other.take_if(|(_, until)| *until <= self.now);
        self.members.retain(|(_, _, until, _)| *until > self.now);
        self.routers.retain(|(_, until)| *until > self.now);
        if self.other.is_none() && self.own.is_none() {
            self.since = None;
        } else if self.since.is_none() {
            self.since = Some(self.now);
        }
    }

    fn is_querier(&self) -> bool {
        self.own.is_some() && self.other.is_none()
    }

    fn event(&mut self, event: Event) {
        let lasts = 210 * QUARTERS;
        match event {
            Event::Pass(quarters) => {
                for _ in 0..quarters {
                    self.now += 1;
                    self.tick();
                }
            }
            Event::Join(port, group) => {
                self.members.retain(|member| (member.0, member.1) != (port, group));
                self.members.push((port, group, self.now + lasts, false));
            }
            Event::Leave(port, group) if self.is_querier() => {
                let ends = self.now + 2 * QUARTERS;
                for member in &mut self.members {
                    if (member.0, member.1) == (port, group) && !member.3 {
                        (member.2, member.3) = (member.2.min(ends), true);
                    }
                }
            }
            Event::Leave(..) => {}
            Event::QueryFor(port, group) => {
                let ends = self.now + 2 * QUARTERS;
                let asked = self.members.iter_mut().filter(|member| member.0 != port && member.1 == group);
                asked.for_each(|member| member.2 = member.2.min(ends));
            }
            Event::Query(port, address) => {
                if address != 0 {
                    self.routers.retain(|router| router.0 != port);
                    self.routers.push((port, self.now + 205 * QUARTERS));
                }
                // A querier without an address comes last.
                let rank = |address: u8| if address == 0 { 100 } else { address };
                let beats_own = self.own.is_none_or(|own| address != 0 && rank(address) <= rank(own));
                if beats_own && self.other.is_none_or(|(other, _)| rank(address) <= rank(other)) {
                    self.other = Some((address, self.now + 205 * QUARTERS));
                }
            }
        }
        self.tick();
    }

    fn ports_of(&self, group: usize) -> Vec<u16> {
        let is_pruned = self.since.is_some_and(|since| since + 10 * QUARTERS <= self.now);
        let is_known = self.members.iter().any(|member| member.1 == group);
        if !is_pruned || !is_known {
            return vec![1, 2, 3];
        }
        let members = self.members.iter().filter(|member| member.1 == group).map(|member| member.0);
        let mut ports: Vec<u16> = members.chain(self.routers.iter().map(|router| router.0)).collect();
        ports.sort_unstable();
        ports.dedup();
        ports.retain(|port| *port != 4);
        ports
    }
}

proptest! {
    #[test]
    fn ports_are_those_of_the_reference(
        own in prop::option::of(0u8..9),
        events in prop::collection::vec(event(), 1..60),
    ) {
        let own_address = own.map(|own| if own == 0 { "0.0.0.0".to_owned() } else { format!("10.0.0.{own}") });
        let mut switch = Switch::new(settings(own_address.as_deref()), |_| ());
        let mut model = Model { own, ..Model::default() };
        model.tick();
        switch.pass(Duration::ZERO);
        for event in events {
            match event {
                Event::Pass(quarters) => drop(switch.pass(quarters * SECOND / 4)),
                Event::Join(port, group) => switch.say(port, GROUPS[group], Change::Join),
                Event::Leave(port, group) => switch.say(port, GROUPS[group], Change::Leave),
                Event::QueryFor(port, group) => switch.hear(port, query("10.0.0.1", Some(GROUPS[group]))),
                Event::Query(port, 0) => switch.hear(port, query("0.0.0.0", None)),
                Event::Query(port, n) => switch.hear(port, query(&format!("10.0.0.{n}"), None)),
            }
            switch.pass(Duration::ZERO);
            model.event(event);
            for (n, group) in GROUPS.iter().enumerate() {
                prop_assert_eq!(switch.ports_of(group), model.ports_of(n), "{} after {:?}", group, event);
            }
            let total: u32 = (1..=4).map(|port| switch.snooper.counts(port).0).sum();
            prop_assert_eq!(total as usize, model.members.len());
        }
    }
}
