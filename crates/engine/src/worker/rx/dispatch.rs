//! From decisions to actions: packets of a burst that are treated alike are treated together, in order.

use dpdk::Batch;
use netvm_switch::Meter;

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::policy::{Extras, IngressPolicy, Outcome};
use crate::snapshot::Snapshot;
use crate::worker::classify::lookup::{Found, MOST};
use crate::worker::forward::switching::Resolved;
use crate::worker::state::Path;

/// Where packets come from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) port: PortId,
    pub(crate) memory: MemoryId,
    /// There is room for them further on.
    pub(crate) admitted: bool,
    /// Bytes that came in.
    pub(crate) bytes: u64,
}

impl Origin {
    /// Of packets that have left a chain: they were counted when they came in.
    pub(crate) const fn behind_chain(port: PortId, memory: MemoryId) -> Self {
        Self { port, memory, admitted: false, bytes: 0 }
    }
}

/// Packets that are treated alike: the same decision, and the same place where switching has found one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Treatment {
    pub(crate) decision: u32,
    pub(crate) resolved: Resolved,
}

impl Path {
    /// Sends a burst that came in on its ways; the batch is empty afterwards.
    #[inline]
    pub(crate) fn steer(&mut self, snapshot: &Snapshot, from: Origin, found: &mut Found, batch: &mut Batch) {
        let policy = &*snapshot.policy;
        let Some(ingress) = policy.ingress(from.port) else {
            return self.drop_at_port(from.port, DropReason::NoRule, batch);
        };
        if let Some(meter) = &ingress.meter {
            self.police(meter, from.port, batch);
        }
        let heeds = snapshot.heeded.has(from.port);
        if let Some(decision) = ingress.blanket
            && !heeds
        {
            let treatment = Treatment { decision, resolved: Resolved::NONE };
            return self.treat_alike(snapshot, ingress, treatment, from, from.bytes, batch);
        }
        if let (Some(decision), Some(switching)) = (ingress.switched, &policy.switching) {
            return self.steer_frames(snapshot, ingress, switching, from, decision, found, batch);
        }
        if let Some(shortcut) = &ingress.shortcut
            && !heeds
        {
            return self.steer_screened(snapshot, ingress, shortcut, from, found, batch);
        }
        self.steer_each(snapshot, ingress, from, found, batch);
    }

    /// Sends the packets of a burst where their flows go; the batch is empty afterwards.
    #[inline]
    pub(crate) fn steer_each(
        &mut self,
        snapshot: &Snapshot,
        ingress: &IngressPolicy,
        from: Origin,
        found: &mut Found,
        batch: &mut Batch,
    ) {
        let policy = &*snapshot.policy;
        self.look_up(policy, ingress, from, batch, found);
        if let Some(switching) = &policy.switching {
            self.switch(policy, ingress, switching, from, batch.len(), found);
        }
        if snapshot.heeded.has(from.port) {
            self.heed(snapshot, ingress, from, batch, found);
        }
        self.treat(snapshot, ingress, from, found, batch);
    }

    /// Acts on packets by what was found of each.
    #[inline]
    pub(crate) fn treat(
        &mut self,
        snapshot: &Snapshot,
        ingress: &IngressPolicy,
        from: Origin,
        found: &Found,
        batch: &mut Batch,
    ) {
        let count = batch.len();
        if count == 0 {
            return;
        }
        let treatment =
            |n: usize| Treatment { decision: found.decisions[n], resolved: Resolved::of(found.extras[n]) };
        let first = treatment(0);
        if (1..count).all(|n| treatment(n) == first) {
            let bytes = found.lengths[..count].iter().map(|length| u64::from(*length)).sum();
            return self.treat_alike(snapshot, ingress, first, from, bytes, batch);
        }
        let mut places = [0u8; MOST];
        for (n, place) in (0u8..).zip(&mut places) {
            *place = n;
        }
        while !batch.is_empty() {
            let chosen = treatment(places[0].into());
            let (mut alike, mut others) = (Batch::new(), Batch::new());
            let mut bytes = 0;
            for (n, mbuf) in batch.drain().enumerate() {
                let place = places[n];
                // Each is as large as the batch that they come from: there is room.
                if treatment(place.into()) == chosen {
                    bytes += u64::from(found.lengths[usize::from(place)]);
                    let _ = alike.push(mbuf);
                } else {
                    places[others.len()] = place;
                    let _ = others.push(mbuf);
                }
            }
            self.treat_alike(snapshot, ingress, chosen, from, bytes, &mut alike);
            batch.append(&mut others);
        }
    }

    /// Acts on packets that are treated alike; the batch is empty afterwards.
    #[inline]
    pub(crate) fn treat_alike(
        &mut self,
        snapshot: &Snapshot,
        ingress: &IngressPolicy,
        treatment: Treatment,
        from: Origin,
        bytes: u64,
        batch: &mut Batch,
    ) {
        if let Some(hits) = snapshot.hits.get(treatment.decision as usize) {
            hits.add(batch.len(), bytes);
        }
        let decision = snapshot.policy.decision(treatment.decision);
        if let Some(extras) = &decision.extras {
            self.do_extras(extras, from, batch);
        }
        match decision.outcome.resolved(ingress.forward, ingress.undecided) {
            Outcome::Port(out) => self.send_out(snapshot, out, from.memory, batch),
            Outcome::Chain(chain) => match treatment.resolved.effect() {
                None => self.enter_chain(snapshot, chain, from, batch),
                Some(effect) => self.enter_as_told(snapshot, chain, effect, from, batch),
            },
            Outcome::Normal => self.send_switched(snapshot, treatment.resolved, from, batch),
            Outcome::Router(router) => self.route(snapshot, router, from, batch),
            Outcome::Drop(reason) => self.drop_at_port(from.port, reason, batch),
            Outcome::Reject => self.reject_senders(from, batch),
            // A port's own word is none of these.
            Outcome::Allow | Outcome::Undecided => self.drop_at_port(from.port, DropReason::NoRule, batch),
        }
    }

    /// What is done besides: police, then the tag, then the copies, which have the new tag.
    #[cold]
    fn do_extras(&mut self, extras: &Extras, from: Origin, batch: &mut Batch) {
        for meter in &extras.meters {
            self.police(meter, from.port, batch);
        }
        for change in &extras.set_vlan {
            self.set_vlan(*change, from.port, batch);
        }
        for mirror in &extras.mirrors {
            self.mirror(*mirror, from.memory, batch);
        }
    }

    /// Drops what exceeds a rate; the first of the burst are those that conform.
    pub(crate) fn police(&mut self, meter: &Meter, port: PortId, batch: &mut Batch) {
        self.limit(meter, port, DropReason::Policed, batch);
    }

    /// As [`Path::police`], with another reason.
    pub(crate) fn limit(&mut self, meter: &Meter, port: PortId, reason: DropReason, batch: &mut Batch) {
        let mut lengths = [0u32; MOST];
        for (length, mbuf) in lengths.iter_mut().zip(batch.as_slice()) {
            *length = mbuf.pkt_len();
        }
        let admitted = meter.admit_run(self.now, &lengths[..batch.len()]);
        let mut excess = batch.split_off(admitted);
        if !excess.is_empty() {
            self.drop_at_port(port, reason, &mut excess);
        }
    }

    /// Out of a port, if its policy lets the packets; the batch is empty afterwards.
    #[inline]
    pub(crate) fn send_out(&mut self, snapshot: &Snapshot, out: PortId, memory: MemoryId, batch: &mut Batch) {
        if let Some(egress) = snapshot.policy.egress(out) {
            self.check_out(snapshot, egress, out, memory, batch);
        }
        self.transmit(out, memory, batch);
    }
}
