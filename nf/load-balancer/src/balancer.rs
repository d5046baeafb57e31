// SPDX-License-Identifier: Apache-2.0
//! The load balancer: packets in, a role verdict and a flow hash for each out.

use netlib::{Burst, MAX_COUNTERS, NetworkFunction, Packet, RoleId, ThreadContext, Verdict, clock};
use netvm_wire::{FiveTuple, FlowHasher, Fragment, Headers};

use crate::flows::Flow;
use crate::spread::Spread;
use crate::{Args, Fallback, Flows, NAME, Other, SelectBy};

/// The NF's counters in the order of `Counter`, followed by those of the targets, see [`Args::counters`].
pub const COUNTERS: [&str; 7] =
    ["unknown-role", "other", "malformed", "no-port", "flows", "moved", "evicted"];

#[derive(Clone, Copy)]
enum Counter {
    UnknownRole,
    Other,
    Malformed,
    NoPort,
    Flows,
    Moved,
    Evicted,
}

/// A thread's load balancer.
#[derive(Debug)]
pub struct LoadBalancer {
    args: Args,
    /// Whether this thread prints messages for all.
    speaks: bool,
    hasher: FlowHasher,
    flows: Flows,
    /// The role ids of the targets, if they exist.
    roles: Vec<Option<RoleId>>,
    spread: Spread,
    /// Verdict for packets without a flow; `None` if the port does not exist.
    other: Option<Verdict>,
    now: u64,
    counters: [u64; COUNTERS.len()],
    sent: Vec<u64>,
}

impl LoadBalancer {
    /// `hash` and `flows` are shared by all threads; `context` resolves the names in the options.
    #[must_use]
    pub fn new(args: Args, hasher: FlowHasher, flows: Flows, context: &ThreadContext<'_>) -> Self {
        let targets = args.to.len();
        let mut this = Self {
            args,
            speaks: context.thread() == 0,
            hasher,
            flows,
            // As if all existed, so that the first look-up names the missing ones.
            roles: vec![Some(RoleId(u16::MAX)); targets],
            spread: Spread::default(),
            other: None,
            now: clock::cycles(),
            counters: [0; COUNTERS.len()],
            sent: vec![0; targets],
        };
        this.look_up(context);
        this
    }

    fn look_up(&mut self, context: &ThreadContext<'_>) {
        let roles: Vec<_> = self.args.to.iter().map(|target| context.role(&target.role)).collect();
        if self.speaks {
            for (target, (before, now)) in self.args.to.iter().zip(self.roles.iter().zip(&roles)) {
                match (before, now) {
                    (Some(_), None) => eprintln!("{NAME}: {}", self.unknown(&target.role)),
                    (None, Some(_)) => eprintln!("{NAME}: role `{}` exists now", target.role),
                    _ => {}
                }
            }
        }
        self.roles = roles;
        let others_take_over = self.args.fallback == Fallback::Others;
        self.spread = Spread::new(&self.args.to, |n| !others_take_over || self.roles[n].is_some());
        self.other = match &self.args.other {
            Other::Drop => Some(Verdict::Drop),
            Other::Next => Some(Verdict::Next),
            Other::Port(name) => context.port(name).map(Verdict::Port),
        };
    }

    fn unknown(&self, role: &str) -> String {
        let fate = match self.args.fallback {
            Fallback::Drop => "its packets are dropped (--fallback)",
            Fallback::Next => "its packets go to the next hop",
            Fallback::Others => "the other roles take its packets",
        };
        format!("no role `{role}`: add an NF of this role to netvmd's configuration, or correct --to; {fate}")
    }

    #[inline]
    fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    /// Selects the target of a packet in a flow, and sets the hash that selects the replica.
    #[inline]
    fn choose(&mut self, packet: &mut Packet<'_>, tuple: &FiveTuple) -> Option<usize> {
        if self.args.by == SelectBy::Least {
            packet.set_hash(0);
            return self.spread.in_turn();
        }
        let hash = self.hasher.symmetric(tuple);
        packet.set_hash((hash >> 56) as u8);
        if self.args.by == SelectBy::Hash {
            return self.spread.by_hash(hash);
        }
        let stays = |n: usize| self.args.fallback != Fallback::Others || self.roles[n].is_some();
        let found = self.flows.find(Flow { tuple, hash }, self.now, stays, || self.spread.by_hash(hash));
        self.counters[Counter::Evicted as usize] += u64::from(found.evicted);
        self.counters[Counter::Moved as usize] += u64::from(found.moved);
        found.target
    }

    #[inline]
    fn send(&mut self, target: Option<usize>) -> Verdict {
        if let Some(target) = target
            && let Some(role) = self.roles[target]
        {
            self.sent[target] += 1;
            return Verdict::Role(role);
        }
        self.count(Counter::UnknownRole);
        if self.args.fallback == Fallback::Next { Verdict::Next } else { Verdict::Drop }
    }

    fn send_other(&mut self) -> Verdict {
        self.count(Counter::Other);
        if self.other.is_none() {
            self.count(Counter::NoPort);
        }
        self.other.unwrap_or(Verdict::Drop)
    }
}

/// The flow of an IP packet. Fragments form a flow by their addresses, as only the first has ports.
#[inline]
fn flow_of(headers: &Headers) -> Option<FiveTuple> {
    let tuple = headers.five_tuple()?;
    if headers.key().fragment == Fragment::Whole {
        return Some(tuple);
    }
    Some(FiveTuple { source_port: 0, destination_port: 0, ..tuple })
}

impl NetworkFunction for LoadBalancer {
    #[inline]
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let Ok(headers) = netvm_wire::parse(packet.data()) else {
            self.count(Counter::Malformed);
            return self.args.malformed.verdict();
        };
        match flow_of(&headers) {
            Some(tuple) => {
                let target = self.choose(packet, &tuple);
                self.send(target)
            }
            None => self.send_other(),
        }
    }

    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        self.now = clock::cycles();
        burst.for_each(|packet| self.packet(packet));
    }

    fn changed(&mut self, context: &ThreadContext<'_>) {
        self.look_up(context);
    }

    fn tick(&mut self) {
        self.now = clock::cycles();
        if self.speaks {
            self.counters[Counter::Flows as usize] = self.flows.expire(self.now) as u64;
        }
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        let values = self.counters.iter().chain(&self.sent);
        for (to, value) in counters.iter_mut().zip(values) {
            *to = *value;
        }
    }
}

#[cfg(test)]
mod tests;
