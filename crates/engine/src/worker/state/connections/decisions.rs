// SPDX-License-Identifier: Apache-2.0
//! The decisions that connections have stored. In: the number that a connection has stored for the direction of a
//! packet. Out: the decision and the action that the flow cache would have for the packet, or nothing.
//!
//! ```text
//!  connection, direction ──▶ number ──▶ entry: context, compared with the packet's ──▶ decision, action
//! ```
//!
//! A flow key has three parts: what follows from its connection and direction (addresses, ports), the rest of it
//! ([`Context`]), and the rules by which it was decided (port, generation), which are in the context, too. So the
//! decision of an entry is that of exactly this key.
//!
//! Connections share entries: those whose packets have the same context and decision. So there are few, which stay in
//! the processor's caches, and a connection needs four bytes for each direction. An entry never gets another context or
//! decision. When all are in use, all begin anew, as soon as the table of connections permits it; until then, the flow
//! cache has the decisions that are not stored.

use netvm_conntrack::{ByProxy, Connections, Tracked};
use netvm_wire::{ConnState, FlowHasher, FlowKey};

use super::WorkerConnections;
use crate::ids::PortId;
use crate::worker::state::lookup_results::{LookupResults, PackedAction, PacketAction};

/// Most entries: 512 KiB.
const ENTRIES: usize = 8192;
/// Places of the index. It is half full at most.
const PLACES: usize = 2 * ENTRIES;
/// Places that a search looks at, at most.
const PROBES: usize = 8;
/// The bits of the sixth word of a key that are not of a MAC address.
const NOT_MAC: u64 = !0xffff_ffff;

/// What decides on the packets of a burst, besides their keys.
#[derive(Clone, Copy)]
pub(crate) struct Deciding {
    /// The port that received them, and the generation of its rules, where they are in a [`Context`].
    word: u64,
    /// The MAC addresses matter: to a rule, the guard of the port, or L2 switching.
    with_macs: bool,
}

impl Deciding {
    /// The rules of this generation for a port.
    #[inline(always)]
    pub(crate) fn new(port: PortId, generation: u32, with_macs: bool) -> Self {
        Self { word: u64::from(port.0) << 16 | u64::from(generation) << 32, with_macs }
    }
}

/// What decides on a packet, besides its addresses and ports: its other fields, and what is [`Deciding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context([u64; 4]);

impl Context {
    /// That of an IP packet with this key, without the fields that no rule uses.
    #[inline(always)]
    pub(crate) const fn new(key: &FlowKey, deciding: Deciding) -> Self {
        let [.., macs, types, ports, rest] = key.words();
        let (macs, types) = if deciding.with_macs { (macs, types) } else { (0, types & NOT_MAC) };
        // Above the ports: the inner VLAN, and the operation of ARP, which IP packets do not have.
        Self([macs, types, deciding.word | ports >> 32 & 0xffff, rest])
    }

    /// Branch-free comparison.
    #[inline(always)]
    fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
    }
}

/// An entry.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Stored {
    context: Context,
    decision: u32,
    /// Of L2 switching: with the epoch in which it was found.
    action: PackedAction,
    /// The tick of its last packet.
    last_used: u32,
}

const FREE: Stored =
    Stored { context: Context([0; 4]), decision: 0, action: PackedAction::AS_DECIDED, last_used: 0 };

/// What an entry says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) action: PacketAction,
    /// The packet is the first one of the entry in this tick.
    pub(crate) is_fresh: bool,
}

/// The stored decisions of one worker.
pub(crate) struct Decisions {
    entries: Box<[Stored]>,
    /// Entries in use: the first ones.
    count: usize,
    /// Numbers of entries by the hash of context and decision, plus 1; 0 for a free place.
    index: Box<[u16]>,
}

const _: () = assert!(ENTRIES < u16::MAX as usize);

impl Decisions {
    pub(crate) fn new() -> Self {
        Self { entries: vec![FREE; ENTRIES].into(), count: 0, index: vec![0; PLACES].into() }
    }

    /// What an entry says of a packet with this context at this tick.
    #[inline(always)]
    pub(crate) fn get(&mut self, number: u32, context: &Context, now: u32) -> Option<Known> {
        let entry = self.entries.get_mut(number as usize).filter(|entry| entry.context.is(context))?;
        let is_fresh = entry.last_used != now;
        entry.last_used = now;
        let action = PacketAction { decision: entry.decision, action: entry.action };
        Some(Known { action, is_fresh })
    }

    /// Gives an entry the action of L2 switching, which follows from its context and decision.
    pub(crate) fn set_action(&mut self, number: u32, action: PackedAction) {
        if let Some(entry) = self.entries.get_mut(number as usize) {
            entry.action = action;
        }
    }

    /// The number of the entry with this context and decision, which connections of the table can store; `None` if
    /// there is no room.
    pub(crate) fn number(
        &mut self,
        context: &Context,
        decision: u32,
        table: &mut Connections,
    ) -> Option<u32> {
        if let Some(number) = self.find_or_add(context, decision) {
            return Some(number);
        }
        if !table.forget_decided() {
            return None;
        }
        self.count = 0;
        self.index.fill(0);
        self.find_or_add(context, decision)
    }

    fn find_or_add(&mut self, context: &Context, decision: u32) -> Option<u32> {
        let [a, b, c, d] = context.0;
        let hash = FlowHasher::shared().words([a, b, c, d, decision.into()]) as usize;
        for place in (hash..).take(PROBES).map(|place| place % PLACES) {
            let Some(number) = usize::from(self.index[place]).checked_sub(1) else {
                return self.add(place, Stored { context: *context, decision, ..FREE });
            };
            let entry = &self.entries[number];
            if entry.decision == decision && entry.context.is(context) {
                return Some(number as u32);
            }
        }
        None
    }

    fn add(&mut self, place: usize, entry: Stored) -> Option<u32> {
        let number = self.count;
        *self.entries.get_mut(number)? = entry;
        self.index[place] = number as u16 + 1;
        self.count += 1;
        Some(number as u32)
    }
}

impl WorkerConnections {
    /// The first `count` packets of the burst whose keys follow from their connections but for their [`Context`] (bit
    /// mask).
    #[inline(always)]
    pub(crate) fn of_connections(&self, count: usize) -> u64 {
        let follows = |it: &Tracked| {
            it.connection.is_some()
                && it.state != ConnState::Related
                && it.ports.is_none()
                && it.proxy != ByProxy::Proved
        };
        let tracked = self.tracked.iter().take(count).enumerate();
        tracked.fold(0, |bits, (n, it)| bits | u64::from(follows(it)) << n)
    }

    /// Fills in the results of the packets (bit mask) whose connections have stored a decision. Returns which they are.
    #[inline(always)]
    pub(crate) fn find_stored(
        &mut self,
        packets: u64,
        deciding: Deciding,
        results: &mut LookupResults,
    ) -> u64 {
        let Self { decisions, tracked, now, .. } = self;
        let (mut found, mut left) = (0u64, packets);
        results.fresh = 0;
        while left != 0 {
            let n = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(number) = tracked[n].decided else { continue };
            let context = Context::new(&results.keys[n], deciding);
            if let Some(Known { action, is_fresh }) = decisions.get(number, &context, *now) {
                (results.decisions[n], results.actions[n]) = (action.decision, action.action);
                results.fresh |= u64::from(is_fresh) << n;
                found |= 1 << n;
            }
        }
        self.decided += u64::from(found.count_ones());
        found
    }

    /// Packets that had stored decisions so far.
    #[cfg(test)]
    pub(crate) const fn decided(&self) -> u64 {
        self.decided
    }

    /// Stores the decisions on these packets (bit mask) in their connections.
    pub(crate) fn store(&mut self, packets: u64, deciding: Deciding, results: &LookupResults) {
        let Self { decisions, tracked, table, .. } = self;
        let mut left = packets;
        while left != 0 {
            let n = left.trailing_zeros() as usize;
            left &= left - 1;
            let context = Context::new(&results.keys[n], deciding);
            let number = decisions.number(&context, results.decisions[n], table);
            if let (Some(id), Some(number)) = (tracked[n].connection, number) {
                table.set_decided(id, tracked[n].is_reply, number);
            }
        }
    }

    /// Stores the action of L2 switching for a packet whose decision was stored.
    pub(crate) fn store_action(&mut self, n: usize, action: PackedAction) {
        if let Some(number) = self.tracked[n].decided {
            self.decisions.set_action(number, action);
        }
    }
}

#[cfg(test)]
mod tests {
    use netvm_conntrack::Config;
    use netvm_wire::MacAddr;

    use super::*;

    fn table() -> Connections {
        Connections::new(&Config { sessions: 4, ..Config::default() }).unwrap()
    }

    fn context(n: u64) -> Context {
        Context([n, 0, 1, 2])
    }

    #[test]
    fn equal_contexts_share_an_entry_and_others_have_their_own() {
        let (mut decisions, mut table) = (Decisions::new(), table());
        let mut number = |n, decision| decisions.number(&context(n), decision, &mut table).unwrap();
        let numbers = [number(1, 7), number(1, 8), number(2, 7)];
        assert_eq!(numbers, [number(1, 7), number(1, 8), number(2, 7)]);
        assert_eq!(numbers, [0, 1, 2]);
        let known = |decision, is_fresh| {
            Some(Known { action: PacketAction { decision, action: PackedAction::AS_DECIDED }, is_fresh })
        };
        assert_eq!(decisions.get(1, &context(1), 5), known(8, true));
        assert_eq!(decisions.get(1, &context(1), 5), known(8, false));
        assert_eq!(decisions.get(1, &context(1), 6), known(8, true));
        assert_eq!(decisions.get(1, &context(2), 6), None);
        assert_eq!(decisions.get(u32::MAX, &context(2), 6), None);
    }

    #[test]
    fn when_all_entries_are_in_use_they_begin_anew_once_the_table_permits_it() {
        let (mut decisions, mut table) = (Decisions::new(), table());
        let mut added = 0;
        let mut fill = |decisions: &mut Decisions, table: &mut Connections| {
            let before = added;
            while decisions.number(&context(added), 0, table).is_some() {
                added += 1;
                if added - before > ENTRIES as u64 * 3 {
                    break;
                }
            }
            added - before
        };
        let first = fill(&mut decisions, &mut table);
        // All that fit, and once more.
        assert!(first > ENTRIES as u64 / 2 && first <= 2 * ENTRIES as u64, "{first}");
        assert_eq!(fill(&mut decisions, &mut table), 0);
        table.expire(0, 3);
        assert_eq!(fill(&mut decisions, &mut table), 0, "the hand has not passed all slots");
        table.expire(0, 1);
        assert!(fill(&mut decisions, &mut table) > 0);
    }

    #[test]
    fn a_context_has_all_that_is_not_of_the_connection() {
        let of =
            |key: &FlowKey, with_macs| Context::new(key, Deciding { word: 3 << 16 | 9 << 32, with_macs });
        let key = FlowKey { source_port: 1, destination_port: 2, ..FlowKey::EMPTY };
        let moved = FlowKey { source_mac: MacAddr([2, 0, 0, 0, 0, 1]), ..key };
        let to = FlowKey { destination_mac: MacAddr([2, 0, 0, 0, 0, 1]), ..key };
        let port = FlowKey { source_port: 7, ..key };
        for other in [moved, to] {
            assert_ne!(of(&key, true), of(&other, true));
            assert_eq!(of(&key, false), of(&other, false));
        }
        assert_eq!(of(&key, true), of(&port, true));
        let vlan = netvm_wire::VlanId::new(7).ok();
        for other in [
            FlowKey { vlan, ..key },
            FlowKey { inner_vlan: vlan, ..key },
            FlowKey { dscp: 1, ..key },
            FlowKey { state: netvm_wire::ConnState::New, ..key },
            FlowKey { fragment: netvm_wire::Fragment::First, ..key },
            FlowKey { ether_type: netvm_wire::EtherType::IPV6, ..key },
            FlowKey { tcp_flags: netvm_wire::TcpFlags::SYN, ..key },
            FlowKey { icmp_code: 1, ..key },
        ] {
            assert_ne!(of(&key, false), of(&other, false), "{other:?}");
        }
    }
}
