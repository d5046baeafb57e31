// SPDX-License-Identifier: Apache-2.0
//! The scanner: packets in, a verdict for each by its patterns out.

use netlib::{Burst, Idle, MAX_COUNTERS, NetworkFunction, Packet, ThreadContext, Verdict};
use netvm_nf_common::View;
use netvm_wire::{FiveTuple, FlowKey, Fragment, Headers};

use crate::flows::CleanFlows;
use crate::{Action, Args, Destination, NAME, Patterns};

/// The NF's counters in the order of `Counter`, followed by those of the first patterns, see [`crate::counters`].
pub const COUNTERS: [&str; 7] =
    ["matched", "unmatched", "malformed", "no-target", "flow-drops", "flow-skips", "pattern-rest"];

#[derive(Clone, Copy)]
enum Counter {
    Matched,
    Unmatched,
    Malformed,
    NoTarget,
    FlowDrops,
    FlowSkips,
    PatternRest,
}

/// A thread's scanner.
#[derive(Debug)]
pub struct PayloadScan {
    args: Args,
    /// Whether this thread prints messages for all.
    speaks: bool,
    patterns: View<Patterns>,
    /// Number of patterns with a counter.
    shown: usize,
    /// The verdict of each pattern, if its port or role exists.
    verdicts: Vec<Option<Verdict>>,
    default: Option<Verdict>,
    /// With `--skip-after`.
    clean: Option<CleanFlows>,
    /// The flow verdicts of older patterns were withdrawn.
    withdrew: bool,
    counters: [u64; COUNTERS.len()],
    /// Packets decided or counted by each pattern.
    packets: Vec<u64>,
    /// The last packet that each pattern counted, so that it counts once a packet.
    counted_in: Vec<u64>,
    /// Number of this packet.
    packet: u64,
}

impl PayloadScan {
    /// The first `shown` patterns have counters; `context` resolves names.
    #[must_use]
    pub fn new(args: Args, patterns: View<Patterns>, shown: usize, context: &ThreadContext<'_>) -> Self {
        let mut this = Self {
            speaks: context.thread() == 0,
            clean: args.skip_after.map(|_| CleanFlows::new()),
            withdrew: false,
            args,
            patterns,
            shown: shown.min(crate::MAX_SHOWN),
            verdicts: Vec::new(),
            default: None,
            counters: [0; COUNTERS.len()],
            packets: Vec::new(),
            counted_in: Vec::new(),
            packet: 0,
        };
        this.begin(context);
        this
    }

    /// Switches to new patterns.
    fn begin(&mut self, context: &ThreadContext<'_>) {
        let count = self.patterns.get().list().len();
        self.packets = vec![0; count];
        self.counted_in = vec![0; count];
        self.look_up(context);
    }

    fn look_up(&mut self, context: &ThreadContext<'_>) {
        let verdict = |destination: &Destination| match destination {
            Destination::Drop => Some(Verdict::Drop),
            Destination::Next => Some(Verdict::Next),
            Destination::Port(name) => context.port(name).map(Verdict::Port),
            Destination::Role(name) => context.role(name).map(Verdict::Role),
        };
        let of_pattern = |action: &Action| match action {
            Action::Count => None,
            Action::Send(destination) => verdict(destination),
        };
        let list = self.patterns.get().list();
        self.verdicts = list.iter().map(|pattern| of_pattern(&pattern.action)).collect();
        self.default = verdict(&self.args.default);
        if !self.speaks {
            return;
        }
        let destinations = list.iter().filter_map(|pattern| match &pattern.action {
            Action::Count => None,
            Action::Send(destination) => Some(destination),
        });
        let mut named: Vec<&Destination> = Vec::new();
        for destination in
            destinations.chain([&self.args.default]).filter(|destination| verdict(destination).is_none())
        {
            if !named.contains(&destination) {
                named.push(destination);
                eprintln!(
                    "{NAME}: no {destination}: add it to netvmd's configuration, or correct the patterns or --default; \
                           packets that go there are dropped"
                );
            }
        }
    }

    #[inline]
    fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    /// Extends the verdict to the flow, if the options say so.
    #[inline]
    fn of_flow(&mut self, key: Option<FlowKey>, matched: bool, verdict: Verdict) -> Verdict {
        let idle = Idle(self.args.flow_idle);
        if let (Some(clean), Some(key), Some(enough)) = (&mut self.clean, key, self.args.skip_after) {
            if matched {
                clean.forget(key);
            } else if verdict == Verdict::Next && clean.count(key, enough.get()) {
                self.count(Counter::FlowSkips);
                return Verdict::SkipFlow(idle);
            }
        }
        if self.args.drop_flow && matched && verdict == Verdict::Drop {
            self.count(Counter::FlowDrops);
            return Verdict::DropFlow(idle);
        }
        verdict
    }

    /// Searches a packet; returns whether a pattern decided, and its verdict, `None` if its port or role does not
    /// exist.
    #[inline]
    fn search(&mut self, text: &[u8]) -> (bool, Option<Verdict>) {
        self.packet += 1;
        let (packets, counted_in, packet) = (&mut self.packets, &mut self.counted_in, self.packet);
        let decided = self.patterns.get().scan(text, |place| {
            if counted_in[place] != packet {
                counted_in[place] = packet;
                packets[place] += 1;
            }
        });
        match decided {
            Some(place) => {
                self.packets[place] += 1;
                self.count(Counter::Matched);
                (true, self.verdicts[place])
            }
            None => {
                self.count(Counter::Unmatched);
                (false, self.default)
            }
        }
    }
}

/// The flow of an IP packet. Fragments form a flow by their addresses, as only the first has ports.
fn flow_of(headers: &Headers) -> Option<FiveTuple> {
    let tuple = headers.five_tuple()?;
    if headers.key().fragment == Fragment::Whole {
        return Some(tuple);
    }
    Some(FiveTuple { source_port: 0, destination_port: 0, ..tuple })
}

/// Sets the hash that selects a replica if the descriptor has none: a pattern may send to a role outside the chain.
#[inline]
fn mark_flow(packet: &mut Packet<'_>) {
    if packet.hash() == 0
        && let Some(tuple) = netvm_wire::parse(packet.data()).ok().as_ref().and_then(flow_of)
    {
        packet.set_hash((tuple.symmetric_hash() >> 56) as u8);
    }
}

impl NetworkFunction for PayloadScan {
    #[inline]
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let frame = packet.data();
        let mut key = None;
        let (matched, found) = if self.args.whole_frame {
            if self.clean.is_some() {
                key = netvm_wire::parse(frame).ok().map(|headers| *headers.key());
            }
            self.search(frame)
        } else if let Ok(headers) = netvm_wire::parse(frame) {
            key = Some(*headers.key());
            self.search(headers.payload(frame))
        } else {
            self.count(Counter::Malformed);
            return self.args.malformed.verdict();
        };
        match found {
            Some(verdict) => {
                if matches!(verdict, Verdict::Role(_)) {
                    mark_flow(packet);
                }
                self.of_flow(key, matched, verdict)
            }
            None => {
                self.count(Counter::NoTarget);
                Verdict::Drop
            }
        }
    }

    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        if self.patterns.refresh() {
            self.begin(&burst.context());
            // The new patterns decide all flows again.
            burst.withdraw();
            self.clean.iter_mut().for_each(CleanFlows::clear);
        }
        burst.for_each(|packet| self.packet(packet));
    }

    fn changed(&mut self, context: &ThreadContext<'_>) {
        // A later burst takes newer patterns; until then, verdicts belong to the patterns in view.
        self.look_up(context);
    }

    fn tick(&mut self) {
        self.patterns.tick();
    }

    fn withdraws(&mut self) -> bool {
        // Flows that bypass this NF bring no burst that would take the newer patterns.
        let stale = self.patterns.is_stale();
        !std::mem::replace(&mut self.withdrew, stale) && stale
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        let shown = self.shown.min(self.packets.len());
        counters[..COUNTERS.len()].copy_from_slice(&self.counters);
        counters[Counter::PatternRest as usize] = self.packets[shown..].iter().sum();
        counters[COUNTERS.len()..].fill(0);
        counters[COUNTERS.len()..][..shown].copy_from_slice(&self.packets[..shown]);
    }
}

#[cfg(test)]
mod tests;
