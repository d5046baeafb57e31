//! NFs' words about whole flows on the packet path: heeded when packets come in, heard when packets come back.

use core::sync::atomic::Ordering;

use dpdk::Batch;
use netvm_flow::Slot;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, LinkId, PortId};
use crate::policy::{IngressPolicy, Outcome, Policy};
use crate::snapshot::{ChainPath, Snapshot, Target};
use crate::worker::chain::deliver::Way;
use crate::worker::classify::lookup::{Found, MOST};
use crate::worker::forward::switching::Resolved;
use crate::worker::rx::dispatch::Origin;
use crate::worker::state::Path;
use crate::worker::state::flow_verdicts::{Effect, note_flows};

/// What an NF says of the flows of some packets.
#[derive(Clone, Copy)]
pub(crate) struct Said {
    pub(crate) link: LinkId,
    pub(crate) hop: u8,
    /// Drop the rest; otherwise: skip me.
    pub(crate) drops: bool,
    /// How long it is to hold.
    pub(crate) seconds: u16,
}

impl Path {
    /// Notes in each packet which flow it is of, and looks for what NFs have said of the flows that go into chains.
    #[cold]
    pub(crate) fn heed(
        &mut self,
        snapshot: &Snapshot,
        ingress: &IngressPolicy,
        from: Origin,
        batch: &mut Batch,
        found: &mut Found,
    ) {
        let count = batch.len().min(MOST);
        note_flows(&self.flows.cache, from.port, &found.keys[..count], &found.slots[..count], batch);
        let words = &mut self.flows.words;
        let mut slots = [Slot::FIRST; MOST];
        let mut told = words.look_up(from.port, &found.keys[..count], self.tick, &mut slots[..count]);
        while told != 0 {
            let n = told.trailing_zeros() as usize;
            told &= told - 1;
            let chain = chain_of(&snapshot.policy, ingress, found.decisions[n]);
            if let Some(path) = chain.and_then(|chain| snapshot.chain(chain))
                && let Some(effect) = words.effect_on(slots[n], path)
            {
                found.extras[n] = Resolved::told(effect).to_extra();
            }
        }
    }

    /// Packets enter a chain as NFs of it have said; the batch is empty afterwards.
    #[cold]
    pub(crate) fn enter_as_told(
        &mut self,
        snapshot: &Snapshot,
        chain: ChainId,
        number: u32,
        from: Origin,
        batch: &mut Batch,
    ) {
        let (Some(path), Some(effect)) = (snapshot.chain(chain), self.flows.words.effect(number)) else {
            return self.drop_in_chain(chain, DropReason::NoRule, batch);
        };
        let skipped = match effect {
            Effect::Drop => return self.drop_in_chain(chain, DropReason::FlowVerdict, batch),
            Effect::Skip(hops) => hops,
        };
        // Hops that are skipped at the beginning need no other chain.
        let first = (skipped.trailing_ones() as usize).min(path.roles.len());
        let later = skipped & u16::MAX.checked_shl(first as u32).unwrap_or(0);
        let (number, path) = self.without_hops(snapshot, chain, later).unwrap_or((chain, path));
        if matches!(path.entry, Target::Drop(_)) {
            return self.enter_chain(snapshot, chain, from, batch);
        }
        if !from.admitted && self.is_full_inside(path, number) {
            return self.drop_in_chain(chain, DropReason::ChainFull, batch);
        }
        let port = Some(from.port);
        let way = Way { chain: number, hashed: path.hashed, port, full: DropReason::ChainFull };
        let entered = self.deliver(snapshot, &path.targets[first], way, from.memory, batch);
        if let Some(counters) = self.counters.chains.get(chain.index()) {
            counters.entered.add(entered as u64);
        }
    }

    /// The chain without some inner hops; asks the manager for it when there is none yet.
    fn without_hops<'a>(
        &self,
        snapshot: &'a Snapshot,
        chain: ChainId,
        hops: u16,
    ) -> Option<(ChainId, &'a ChainPath)> {
        if hops == 0 {
            return None;
        }
        let known = snapshot.shortened.iter().find(|known| (known.of, known.without) == (chain, hops));
        match known {
            Some(known) => Some((known.id, snapshot.chain(known.id)?)),
            None => {
                let wanted = 1 << 32 | u64::from(chain.0) << 16 | u64::from(hops);
                self.counters.wanted_chain.store(wanted, Ordering::Relaxed);
                None
            }
        }
    }

    /// Remembers what an NF says of the flows of packets that it has given back: of those whose flow is known, and only if
    /// it is the NF at that hop of the chain and the configuration lets it.
    #[cold]
    pub(crate) fn hear(&mut self, snapshot: &Snapshot, path: &ChainPath, said: Said, run: &Batch) {
        let Some(link) = self.links[said.link.index()].as_deref() else { return };
        let counters = &self.counters.links[said.link.index()];
        let hop = usize::from(said.hop);
        let is_its_own = path.roles.get(hop) == Some(&link.role.0);
        let longest = path.longest.get(hop).copied().unwrap_or(0);
        if !is_its_own || longest == 0 {
            counters.flows_refused.add(run.len() as u64);
            return;
        }
        for mbuf in run.as_slice() {
            let port = PortId(mbuf.port().0);
            let [place, serial] = mbuf.note();
            let entry = snapshot
                .heeded
                .has(port)
                .then(|| self.flows.cache.entry_of(place, serial))
                .flatten()
                .filter(|entry| entry.port() == port.0);
            let who = (said.drops, link.role, said.hop, said.link);
            let taken = entry.is_some_and(|entry| {
                self.flows.words.say(port, &entry.key(), who, said.seconds.min(longest), self.tick)
            });
            if taken { counters.flows_decided.add(1) } else { counters.flows_refused.add(1) }
        }
    }
}

/// The chain that a decision leads to.
fn chain_of(policy: &Policy, ingress: &IngressPolicy, decision: u32) -> Option<ChainId> {
    match policy.decision(decision).outcome.resolved(ingress.forward, ingress.undecided) {
        Outcome::Chain(chain) => Some(chain),
        _ => None,
    }
}
