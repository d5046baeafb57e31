//! From packets to decisions: the key of each, the flow cache, and for what it does not know the compiled rules.
//!
//! Predicted cost at 2.3 GHz in bursts of 32: the first line of each packet (fetched ahead) and its key 20 cycles, hash
//! and cache 15 with few flows and 35 with 100,000, the rules 100 for a flow that the cache does not know.

use dpdk::{Batch, Mbuf};
use netvm_config::model::{self, FlowCacheConfig};
use netvm_flow::{Eviction, FlowCache, Moment, New, Options, Slot};
use netvm_switch::{Guard, TICKS_PER_SECOND};
use netvm_wire::{FlowKey, Malformed};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::{IngressPolicy, Policy, SPOOFED};
use crate::worker::classify::packet_set::all;
use crate::worker::rx::dispatch::Origin;
use crate::worker::state::Path;
use crate::worker::state::flow_verdicts::FlowVerdicts;

/// Packets that are looked up at once.
pub(crate) const MOST: usize = Batch::CAPACITY;
/// Bytes of a packet that are copied to be looked at, where that is enough: one cache line.
const FIRST_LINE: usize = 64;
/// The most bytes of headers that are looked at.
pub(crate) const HEADER_BYTES: usize = 256;
/// What one worker knows of flows.
pub(crate) struct Flows {
    pub(crate) cache: FlowCache,
    /// What NFs have said of them.
    pub(crate) words: FlowVerdicts,
}

impl Flows {
    pub(crate) fn new(config: &FlowCacheConfig) -> Result<Self, netvm_flow::CacheError> {
        let eviction = match config.eviction {
            model::Eviction::Clock => Eviction::Clock,
            model::Eviction::Lru => Eviction::Lru,
        };
        let idle = config.idle.saturating_mul(TICKS_PER_SECOND);
        let cache = FlowCache::new(&Options { entries: config.entries, eviction, idle })?;
        Ok(Self { cache, words: FlowVerdicts::new()? })
    }

    /// What is known of the flow at place `n` of a burst, which the cache has found, with packets and bytes that are counted.
    #[inline(always)]
    pub(crate) fn recall(&mut self, found: &mut Found, n: usize, counted: (u32, u64), moment: Moment) {
        let slot = found.slots[n];
        found.fresh |= u64::from(self.cache.entry(slot).last_used != moment.now) << n;
        let verdict = self.cache.hit(slot, counted.0, counted.1, moment.now);
        (found.decisions[n], found.extras[n]) = (verdict.decision, verdict.extra);
    }

    /// Remembers the decision for the flow at place `n` of a burst from `port`, and counts its packets and bytes.
    #[inline(always)]
    pub(crate) fn remember(
        &mut self,
        found: &mut Found,
        n: usize,
        port: PortId,
        decision: u32,
        counted: (u32, u64),
        moment: Moment,
    ) {
        let new = New { decision, extra: UNRESOLVED, lifetime: Options::NEVER };
        found.slots[n] = self.cache.insert(port.0, &found.keys[n], new, moment);
        self.cache.hit(found.slots[n], counted.0, counted.1, moment.now);
        (found.decisions[n], found.extras[n]) = (decision, UNRESOLVED);
        found.fresh |= 1 << n;
    }
}

/// What was found of each packet of a burst.
pub(crate) struct Found {
    pub(crate) keys: [FlowKey; MOST],
    pub(crate) lengths: [u32; MOST],
    /// The first 16 bytes as a number, where the burst was screened.
    pub(crate) headers: [u128; MOST],
    /// Source addresses of IPv4, where the burst was screened at a port that is guarded.
    pub(crate) sources: [[u8; 4]; MOST],
    /// Number of the decision.
    pub(crate) decisions: [u32; MOST],
    /// Where the flow is in the cache.
    pub(crate) slots: [Slot; MOST],
    /// What the cache knows besides; [`UNRESOLVED`] where it is for nothing.
    pub(crate) extras: [u32; MOST],
    /// Packets that are the first of their flow in this tick, a bit each.
    pub(crate) fresh: u64,
}

/// No port was resolved.
pub(crate) const UNRESOLVED: u32 = u32::MAX;

impl Found {
    pub(crate) fn new() -> Self {
        Self {
            keys: [FlowKey::EMPTY; MOST],
            lengths: [0; MOST],
            headers: [0; MOST],
            sources: [[0; 4]; MOST],
            decisions: [0; MOST],
            slots: [Slot::default(); MOST],
            extras: [UNRESOLVED; MOST],
            fresh: 0,
        }
    }
}

impl Path {
    /// Finds the decision of each packet of the batch; what cannot be parsed is dropped first.
    #[inline]
    pub(crate) fn look_up(
        &mut self,
        policy: &Policy,
        ingress: &IngressPolicy,
        from: Origin,
        batch: &mut Batch,
        found: &mut Found,
    ) {
        self.read_keys(policy, from.port, batch, found);
        self.find_flows(policy, ingress, from, batch.len(), found);
        if let Some(guard) = &ingress.guard {
            look_into(guard, batch.as_slice().iter(), found);
        }
    }

    /// Finds the decisions for the first `count` keys.
    #[inline(always)]
    pub(crate) fn find_flows(
        &mut self,
        policy: &Policy,
        ingress: &IngressPolicy,
        from: Origin,
        count: usize,
        found: &mut Found,
    ) {
        let moment = Moment { generation: policy.generation, now: self.tick };
        let place = from.port.0;
        let hits = self.flows.cache.find(place, &found.keys[..count], moment, &mut found.slots);
        found.fresh = 0;
        for n in 0..count {
            if hits >> n & 1 == 1 {
                let counted = (1, found.lengths[n].into());
                self.flows.recall(found, n, counted, moment);
            }
        }
        let all = all(count);
        if hits != all {
            self.classify(ingress, from, !hits & all, moment, found);
        }
    }

    /// The keys of all packets, without those that have none.
    #[inline(always)]
    fn read_keys(&mut self, policy: &Policy, port: PortId, batch: &mut Batch, found: &mut Found) {
        for mbuf in batch.as_slice() {
            prefetch(mbuf.data());
        }
        let mut bad = 0u64;
        for (n, mbuf) in batch.as_slice().iter().enumerate().take(MOST) {
            let key = &mut found.keys[n];
            bad |= u64::from(read_key(mbuf, key).is_err()) << n;
            *key = policy.used.mask(*key);
            found.lengths[n] = mbuf.pkt_len();
        }
        if bad != 0 {
            self.drop_malformed(port, bad, batch, found);
        }
    }

    #[cold]
    pub(crate) fn drop_malformed(&mut self, port: PortId, bad: u64, batch: &mut Batch, found: &mut Found) {
        let mut good = Batch::new();
        let mut left = 0;
        for (n, mbuf) in batch.drain().enumerate() {
            if bad >> n & 1 == 0 {
                found.keys[left] = found.keys[n];
                found.lengths[left] = found.lengths[n];
                left += 1;
                let _ = good.push(mbuf);
            } else {
                let counters = &self.counters.ports[port.index()];
                counters.drops.add(DropReason::Malformed, 1);
                if let Err(why) = key_of(&mbuf) {
                    counters.malformed[why as usize].add(1);
                }
            }
        }
        batch.append(&mut good);
    }

    /// Asks the rules about packets whose flow the cache does not know, a bit each, and tells the cache.
    fn classify(
        &mut self,
        ingress: &IngressPolicy,
        from: Origin,
        new: u64,
        moment: Moment,
        found: &mut Found,
    ) {
        let mut keys = [FlowKey::EMPTY; MOST];
        let mut places = [0u8; MOST];
        let mut count = 0;
        let mut left = new;
        while left != 0 {
            let n = left.trailing_zeros() as usize;
            left &= left - 1;
            keys[count] = found.keys[n];
            places[count] = n as u8;
            count += 1;
        }
        let mut decisions = [0u32; MOST];
        ingress.lookup.decide(&keys[..count], &mut decisions[..count]);
        for ((key, decision), n) in keys.iter().zip(&decisions).zip(&places[..count]) {
            let n = usize::from(*n);
            let spoofed = ingress.guard.as_ref().is_some_and(|guard| guard.check(key).is_err());
            let decision = if spoofed { SPOOFED } else { *decision };
            let counted = (1, found.lengths[n].into());
            self.flows.remember(found, n, from.port, decision, counted, moment);
        }
    }
}

/// Judges what ARP and neighbour discovery say inside, which differs from packet to packet of a flow.
#[cold]
pub(crate) fn look_into<'a>(guard: &Guard, packets: impl Iterator<Item = &'a Mbuf>, found: &mut Found) {
    for (n, mbuf) in packets.enumerate().take(MOST) {
        if !guard.needs_inspection(&found.keys[n]) {
            continue;
        }
        let mut headers = [0u8; HEADER_BYTES];
        let copied = mbuf.copy_to(&mut headers);
        if guard.inspect(&headers[..copied], mbuf.pkt_len() as usize).is_err() {
            found.decisions[n] = SPOOFED;
            found.extras[n] = UNRESOLVED;
        }
    }
}

/// The key of a packet.
#[inline]
pub(crate) fn key_of(mbuf: &Mbuf) -> Result<FlowKey, Malformed> {
    let mut key = FlowKey::EMPTY;
    read_key(mbuf, &mut key)?;
    Ok(key)
}

/// Reads the key of a packet from a private copy of its headers, which NFs of its group cannot change any more.
#[inline(always)]
pub(crate) fn read_key(mbuf: &Mbuf, key: &mut FlowKey) -> Result<(), Malformed> {
    let length = mbuf.pkt_len() as usize;
    let mut line = [0u8; FIRST_LINE];
    let copied = mbuf.copy_first(&mut line);
    if copied > 0 && (copied == length || is_plain_v4(&line)) {
        return key.read_frame(&line[..copied], length);
    }
    read_long_key(mbuf, key)
}

/// Whether one line holds all headers of a packet: untagged IPv4 without options, and TCP or UDP.
#[inline(always)]
fn is_plain_v4(line: &[u8; FIRST_LINE]) -> bool {
    let protocol = line[23];
    line[12] == 8 && line[13] == 0 && line[14] == 0x45 && (protocol == 6 || protocol == 17)
}

#[inline(never)]
fn read_long_key(mbuf: &Mbuf, key: &mut FlowKey) -> Result<(), Malformed> {
    let mut headers = [0u8; HEADER_BYTES];
    let copied = mbuf.copy_to(&mut headers);
    key.read_frame(&headers[..copied], mbuf.pkt_len() as usize)
}

#[inline(always)]
pub(crate) fn prefetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
