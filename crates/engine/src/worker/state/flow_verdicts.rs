//! What NFs have said of whole flows: drop the rest, skip me.
//!
//! ```text
//!  in:   flow cache ──▶ note of the flow (place, insertion) in the mbuf ──▶ words of the flow? ──▶ drop │ chain without the hop
//!  back: DropFlow, SkipFlow ──▶ the mbuf's note ──▶ the flow's key as it came in ──▶ word into the table
//! ```
//!
//! - The key is the one that the packet came in with, whatever an NF has made of it since: mbufs and the flow cache are the
//!   engine's own memory. A note whose entry is another's by now finds nothing, and the word is for its packet alone.
//! - Words lie in a table of their own, which no traffic writes to: a scan that fills the flow cache evicts none, and a new
//!   policy leaves them. It is asked only at ports whose packets can get to an NF that has a say in flows.
//! - A word holds while its flow is not idle for longer than it says, and while its link is as it was: taking back all words
//!   of an NF thread, or its end, is one number that moves. Each worker knows what was said of packets that it received,
//!   and those are all of a flow (RSS).

use core::cell::Cell;

use dpdk::Batch;
use netvm_flow::{CacheError, Eviction, FlowCache, MAX_BURST, Moment, New, Options, Slot};
use netvm_policy::UsedFields;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::FlowKey;

use crate::ids::{LinkId, PortId, RoleId};
use crate::link::MAX_LINKS;
use crate::snapshot::ChainPath;

/// Flows of which something can be known at a time.
const FLOWS: u32 = 16_384;
/// NFs that can have a say in one flow.
pub(crate) const MOST_WORDS: usize = 4;
/// Words know no generation of the policy.
const ALWAYS: u32 = 0;

/// What one NF has said of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// Drop the rest; otherwise: skip me.
    pub(crate) drops: bool,
    /// Who said it, and where in the chain.
    pub(crate) role: RoleId,
    pub(crate) hop: u8,
    pub(crate) link: LinkId,
    /// What [`FlowVerdicts::since`] said of the link then.
    since: u32,
    /// Ticks without a packet after which it is over.
    pub(crate) idle: u32,
}

/// What is to become of packets that a chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// They are dropped at the chain's entry.
    Drop,
    /// They pass by these hops, a bit each.
    Skip(u16),
}

/// One worker's knowledge of what NFs say of flows.
pub(crate) struct FlowVerdicts {
    /// By key and port; where something is known of a flow, and when its last packet came.
    table: FlowCache,
    /// By slot.
    words: Box<[[Option<Word>; MOST_WORDS]]>,
    /// By [`LinkId`]: moves when all that came by it holds no more.
    since: Box<[Cell<u32>]>,
    /// Something was said since the start.
    any: bool,
    /// What is to become of packets of the burst at hand that are told apart by it.
    effects: [Effect; MAX_BURST],
    count: usize,
}

impl FlowVerdicts {
    pub(crate) fn new() -> Result<Self, CacheError> {
        let options = Options { entries: FLOWS, eviction: Eviction::Clock, idle: Options::NEVER };
        Ok(Self {
            table: FlowCache::new(&options)?,
            words: vec![[None; MOST_WORDS]; FLOWS as usize].into(),
            since: (0..MAX_LINKS).map(|_| Cell::new(0)).collect(),
            any: false,
            effects: [Effect::Drop; MAX_BURST],
            count: 0,
        })
    }

    /// What came by a link holds no more.
    pub(crate) fn withdraw(&self, link: LinkId) {
        let since = &self.since[link.index()];
        since.set(since.get().wrapping_add(1));
    }

    /// Takes a word in; the last one of a role at a hop counts. Of more than [`MOST_WORDS`] the new one is left out; returns
    /// whether it was taken.
    pub(crate) fn say(
        &mut self,
        port: PortId,
        key: &FlowKey,
        (drops, role, hop, link): (bool, RoleId, u8, LinkId),
        seconds: u16,
        now: u32,
    ) -> bool {
        let key = UsedFields::default().mask(*key);
        let word = Word {
            drops,
            role,
            hop,
            link,
            since: self.since[link.index()].get(),
            idle: u32::from(seconds) * TICKS_PER_SECOND,
        };
        let slot = self.table.slot_of(port.0, &key);
        if let Some(slot) = slot {
            self.forget_old(slot, now);
        }
        let slot = slot.unwrap_or_else(|| {
            let new = New { decision: 0, extra: 0, lifetime: Options::NEVER };
            let slot = self.table.insert(port.0, &key, new, Moment { generation: ALWAYS, now });
            self.words[slot.index()] = [None; MOST_WORDS];
            slot
        });
        self.table.hit(slot, 0, 0, now);
        self.any = true;
        let words = &mut self.words[slot.index()];
        let own =
            words.iter().position(|other| other.is_some_and(|other| other.role == role && other.hop == hop));
        match own.or_else(|| words.iter().position(Option::is_none)) {
            Some(place) => words[place] = Some(word),
            None => return false,
        }
        true
    }

    /// Forgets words of a flow that hold no more.
    fn forget_old(&mut self, slot: Slot, now: u32) {
        let unused = now.wrapping_sub(self.table.entry(slot).last_used);
        for word in &mut self.words[slot.index()] {
            let since = &self.since;
            *word = word.filter(|word| unused <= word.idle && since[word.link.index()].get() == word.since);
        }
    }

    /// Looks for words of the flows of packets that came in by a port, bit `n` of what it gives for `keys[n]`; what is found
    /// counts as a packet of its flow.
    pub(crate) fn look_up(&mut self, port: PortId, keys: &[FlowKey], now: u32, slots: &mut [Slot]) -> u64 {
        self.count = 0;
        if !self.any {
            return 0;
        }
        let mut masked = [FlowKey::EMPTY; MAX_BURST];
        for (masked, key) in masked.iter_mut().zip(keys) {
            *masked = UsedFields::default().mask(*key);
        }
        let found = self.table.find(port.0, &masked[..keys.len()], Moment { generation: ALWAYS, now }, slots);
        let mut left = found;
        while left != 0 {
            let slot = slots[left.trailing_zeros() as usize];
            left &= left - 1;
            self.forget_old(slot, now);
            self.table.hit(slot, 1, 0, now);
        }
        found
    }

    /// What the words of a flow come to on a chain, as a number for [`FlowVerdicts::effect`]; `None` when to nothing.
    pub(crate) fn effect_on(&mut self, slot: Slot, path: &ChainPath) -> Option<u32> {
        let mut skipped = 0u16;
        let mut drops = false;
        for word in self.words[slot.index()].iter().flatten() {
            let hop = usize::from(word.hop);
            if path.roles.get(hop) == Some(&word.role.0)
                && path.longest.get(hop).is_some_and(|most| *most > 0)
            {
                drops |= word.drops;
                skipped |= 1u16.checked_shl(hop as u32).unwrap_or(0);
            }
        }
        if skipped == 0 {
            return None;
        }
        let effect = if drops { Effect::Drop } else { Effect::Skip(skipped) };
        let known = self.effects[..self.count].iter().position(|known| *known == effect);
        let place = known.unwrap_or_else(|| {
            // No more effects than packets: there is room.
            let place = self.count.min(MAX_BURST - 1);
            self.effects[place] = effect;
            self.count = place + 1;
            place
        });
        Some(place as u32)
    }

    /// The effect with that number in the burst at hand.
    pub(crate) fn effect(&self, number: u32) -> Option<Effect> {
        self.effects[..self.count].get(number as usize).copied()
    }

    /// For people: the words of a flow that hold, and ticks for which each does if no packet comes.
    pub(crate) fn of_flow(&self, port: PortId, key: &FlowKey, now: u32) -> [Option<(Word, u32)>; MOST_WORDS] {
        let mut held = [None; MOST_WORDS];
        if !self.any {
            return held;
        }
        let Some(slot) = self.table.slot_of(port.0, &UsedFields::default().mask(*key)) else { return held };
        let unused = now.wrapping_sub(self.table.entry(slot).last_used);
        for (held, word) in held.iter_mut().zip(&self.words[slot.index()]) {
            *held = word
                .filter(|word| self.since[word.link.index()].get() == word.since)
                .and_then(|word| Some((word, word.idle.checked_sub(unused)?)));
        }
        held
    }

    /// Whether an NF has said anything yet.
    pub(crate) const fn any(&self) -> bool {
        self.any
    }
}

/// Notes in packets which flow of the cache they are of: the place of its entry, and the insertion that made it.
pub(crate) fn note_flows(
    cache: &FlowCache,
    port: PortId,
    keys: &[FlowKey],
    slots: &[Slot],
    batch: &mut Batch,
) {
    for ((mbuf, key), slot) in batch.as_mut_slice().iter_mut().zip(keys).zip(slots) {
        let entry = cache.entry(*slot);
        // Another flow of this burst may have taken the place since.
        let is_its_own = entry.port() == port.0 && entry.key() == *key;
        mbuf.set_note(if is_its_own { [slot.index() as u32, entry.serial] } else { [u32::MAX, 0] });
    }
}
