// SPDX-License-Identifier: Apache-2.0
//! The firewall: packets in, allow or deny out, by rules, cached decisions and flow states.

use netlib::{Burst, MAX_COUNTERS, NetworkFunction, Outbox, Packet, PortId, ThreadContext, Verdict, clock};
use netvm_nf_common::{LruTable, View};
use netvm_wire::reply::{MAX_ANSWER, Undelivered};
use netvm_wire::{ConnState, EtherType, FiveTuple, Headers, IpProto, Network, Transport};

use crate::flow::FlowOf;
use crate::states::Lookup;
use crate::{Action, Args, Rules, States, Subject};

/// The NF's counters, in the order of `Counter`.
pub const COUNTERS: [&str; 12] = [
    "allowed",
    "established",
    "denied",
    "malformed",
    "neighbours",
    "other",
    "decided",
    "rules",
    "states",
    "evicted",
    "invalid",
    "answered",
];

#[derive(Clone, Copy)]
enum Counter {
    Allowed,
    Established,
    Denied,
    Malformed,
    Neighbours,
    Other,
    Decided,
    Rules,
    States,
    Evicted,
    Invalid,
    Answered,
}

/// Most answers to rejected packets that a thread sends in a tick, of which a second has ten: a flood of them causes no
/// flood of answers (RFC 1812 section 4.3.2.8).
const ANSWERS_PER_TICK: u32 = 100;
/// Most bytes of headers that answers look at.
const HEADER_BYTES: usize = 256;

/// A thread's firewall.
#[derive(Debug)]
pub struct Firewall {
    args: Args,
    /// Whether this thread publishes the counters common to all.
    shows_common: bool,
    rules: View<Rules>,
    /// The ingress port of each rule, if it names an existing one.
    ingress: Vec<Option<PortId>>,
    /// Cached decisions of recent packets.
    decisions: LruTable<Subject, Action>,
    states: Option<States>,
    /// Answers that may be sent until the next tick.
    answers_left: u32,
    now: u64,
    counters: [u64; COUNTERS.len()],
}

impl Firewall {
    /// `context` resolves the names in the rules; stateful if `states` is given.
    #[must_use]
    pub fn new(args: Args, rules: View<Rules>, states: Option<States>, context: &ThreadContext<'_>) -> Self {
        let mut this = Self {
            shows_common: context.thread() == 0,
            rules,
            ingress: Vec::new(),
            decisions: LruTable::new(args.flows as usize),
            states,
            answers_left: ANSWERS_PER_TICK,
            now: clock::cycles(),
            counters: [0; COUNTERS.len()],
            args,
        };
        this.look_up_ports(context);
        this
    }

    fn look_up_ports(&mut self, context: &ThreadContext<'_>) {
        let port = |name: &Option<Box<str>>| name.as_ref().and_then(|name| context.port(name));
        self.ingress = self.rules.get().list().iter().map(|rule| port(&rule.ingress)).collect();
        self.decisions.clear();
        if self.shows_common {
            self.counters[Counter::Rules as usize] = self.ingress.len() as u64;
        }
    }

    #[inline]
    fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    /// The action of the first matching rule, by a linear scan.
    fn action_for(&self, subject: &Subject) -> Action {
        let rules = self.rules.get().list().iter().zip(&self.ingress);
        let matching = rules
            .map(|(rule, ingress)| (rule, *ingress == Some(PortId(subject.ingress))))
            .find(|(rule, ingress_matches)| rule.matches(subject, *ingress_matches));
        matching.map_or(self.args.default, |(rule, _)| rule.action)
    }

    /// As [`Firewall::action_for`], from the cache if possible.
    #[inline]
    fn decide(&mut self, subject: Subject) -> Action {
        if let Some(action) = self.decisions.get(&subject, 0) {
            return *action;
        }
        let action = self.action_for(&subject);
        self.count(Counter::Decided);
        self.decisions.insert(subject, action, 0);
        action
    }

    #[inline]
    fn filter(&mut self, subject: Subject, of: FlowOf) -> Action {
        let (flow, known) = match (&self.states, of) {
            (Some(states), FlowOf::Is { flow, .. } | FlowOf::About(flow)) => {
                (flow, states.find(flow, self.rules.generation(), self.now))
            }
            (Some(_), FlowOf::Invalid) => return self.refuse(Counter::Invalid),
            _ => (subject.tuple, Lookup::Unknown),
        };
        match known {
            Lookup::Allowed => return self.allow(Counter::Established),
            Lookup::Outdated(first) => {
                if self.decide(first) == Action::Allow {
                    self.remember(flow, first);
                    return self.allow(Counter::Established);
                }
                if let Some(states) = &self.states {
                    states.forget(flow);
                }
            }
            Lookup::Unknown => {}
        }
        match self.decide(subject) {
            Action::Allow => {
                match of {
                    FlowOf::Is { flow, begins: true } => self.remember(flow, subject),
                    // The end of a connection that nobody knows, or the answer to what nobody asked.
                    FlowOf::Is { .. } if self.states.is_some() && subject.tuple.protocol == IpProto::TCP => {
                        return self.refuse(Counter::Invalid);
                    }
                    _ => {}
                }
                self.allow(Counter::Allowed)
            }
            Action::Deny => self.refuse(Counter::Denied),
            Action::Reject => self.reject(),
        }
    }

    /// As the engine tracks its connection: no state of this NF is needed.
    #[inline]
    fn filter_tracked(&mut self, subject: Subject, state: ConnState) -> Action {
        match state {
            ConnState::Established | ConnState::Related => self.allow(Counter::Established),
            ConnState::Invalid => self.refuse(Counter::Invalid),
            ConnState::New | ConnState::Untracked => match self.decide(subject) {
                Action::Allow => self.allow(Counter::Allowed),
                Action::Deny => self.refuse(Counter::Denied),
                Action::Reject => self.reject(),
            },
        }
    }

    #[inline]
    fn refuse(&mut self, counter: Counter) -> Action {
        self.count(counter);
        Action::Deny
    }

    fn reject(&mut self) -> Action {
        self.count(Counter::Denied);
        Action::Reject
    }

    #[inline]
    fn allow(&mut self, counter: Counter) -> Action {
        self.count(counter);
        Action::Allow
    }

    /// Tells the sender of a packet that it was rejected.
    #[cold]
    fn answer(&mut self, packet: &Packet<'_>, outbox: &mut Outbox<'_>) {
        let frame = packet.data();
        let mut answer = [0; MAX_ANSWER];
        if self.answers_left > 0
            && let Some(undelivered) = Undelivered::of(&frame[..frame.len().min(HEADER_BYTES)], frame.len())
            && let Some(length) = undelivered.reject(&mut answer)
            && let Some(mut made) = outbox.alloc_for(packet, length)
        {
            made.data_mut().copy_from_slice(&answer[..length]);
            outbox.send(made, Verdict::Port(packet.ingress()));
            self.answers_left -= 1;
            self.count(Counter::Answered);
        }
    }

    #[inline]
    fn handle(&mut self, packet: &Packet<'_>, outbox: &mut Outbox<'_>) -> Verdict {
        let Ok(headers) = netvm_wire::parse(packet.data()) else {
            self.count(Counter::Malformed);
            return self.args.malformed.verdict();
        };
        if is_neighbour_discovery(packet.data(), &headers) {
            self.count(Counter::Neighbours);
            return self.args.neighbours.verdict();
        }
        let Some(tuple) = headers.five_tuple() else {
            self.count(Counter::Other);
            return self.args.other.verdict();
        };
        let subject = Subject::new(tuple, headers.key().fragment, packet.ingress().0);
        let action = match (&self.states, packet.state()) {
            (None, _) => self.filter(subject, FlowOf::None),
            (Some(_), ConnState::Untracked) => {
                self.filter(subject, FlowOf::new(packet.data(), &headers, tuple))
            }
            (Some(_), state) => self.filter_tracked(subject, state),
        };
        match action {
            Action::Allow => return Verdict::Next,
            Action::Deny => {}
            Action::Reject => self.answer(packet, outbox),
        }
        Verdict::Drop
    }

    /// Records the state of an allowed packet's flow, if stateful.
    fn remember(&mut self, flow: FiveTuple, first: Subject) {
        if let Some(states) = &self.states
            && states.allow(flow, first, self.rules.generation(), self.now)
        {
            self.count(Counter::Evicted);
        }
    }
}

/// Whether the packet is ARP or IPv6 neighbour discovery (router and neighbour solicitations and advertisements, whose
/// hop limit is 255: RFC 4861).
#[inline]
fn is_neighbour_discovery(frame: &[u8], headers: &Headers) -> bool {
    let key = headers.key();
    key.ether_type == EtherType::ARP
        || (headers.network() == Network::Ipv6
            && headers.transport() == Transport::Icmpv6
            && matches!(key.icmp_type, 133..=136)
            && frame.get(headers.l3_offset() + 7) == Some(&255))
}

impl NetworkFunction for Firewall {
    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        if self.rules.refresh() {
            self.look_up_ports(&burst.context());
        }
        self.now = clock::cycles();
        burst.for_each_with(|packet, outbox| self.handle(&packet, outbox));
    }

    fn changed(&mut self, context: &ThreadContext<'_>) {
        self.look_up_ports(context);
    }

    fn tick(&mut self) {
        self.answers_left = ANSWERS_PER_TICK;
        self.rules.tick();
        self.now = clock::cycles();
        if let Some(states) = self.states.as_ref().filter(|_| self.shows_common) {
            self.counters[Counter::States as usize] = states.expire(self.now) as u64;
        }
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        counters[..self.counters.len()].copy_from_slice(&self.counters);
    }
}

#[cfg(test)]
mod tests;
