//! On the way out of a port that has rules or a rate of its own: what may not leave is dropped.
//!
//! Rules for the way out are asked for every packet and not remembered by flow: what leaves may come from a chain, where
//! NFs have changed it.

use dpdk::Batch;

use super::lookup::{MOST, key_of};
use super::path::Path;
use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::policy::{DENY, EgressPolicy, Outcome};
use crate::snapshot::Snapshot;

impl Path {
    /// Takes out of the batch what may not leave by the port.
    #[cold]
    pub(super) fn check_out(
        &mut self,
        snapshot: &Snapshot,
        egress: &EgressPolicy,
        out: PortId,
        memory: MemoryId,
        batch: &mut Batch,
    ) {
        if egress.looks {
            let mut passed = Batch::new();
            for mbuf in batch.drain() {
                let mut one = Batch::new();
                let _ = one.push(mbuf);
                self.check_one(snapshot, egress, out, memory, &mut one);
                passed.append(&mut one);
            }
            batch.append(&mut passed);
        }
        if let Some(meter) = &egress.meter {
            self.police(meter, out, batch);
        }
    }

    fn check_one(
        &mut self,
        snapshot: &Snapshot,
        egress: &EgressPolicy,
        out: PortId,
        memory: MemoryId,
        one: &mut Batch,
    ) {
        let Some(mbuf) = one.as_slice().first() else { return };
        let (from, length) = (PortId(mbuf.port().0), mbuf.pkt_len());
        let Ok(key) = key_of(mbuf) else {
            return self.drop_at_port(out, DropReason::Malformed, one);
        };
        let mut number = [DENY];
        if let Some(lookup) = egress.lookup(from) {
            lookup.decide(&[key], &mut number);
        }
        let [number] = number;
        if let Some(hits) = snapshot.hits.get(number as usize) {
            hits.add(1, length.into());
        }
        let decision = snapshot.policy.decision(number);
        if let Some(extras) = &decision.extras {
            for meter in &extras.meters {
                self.police(meter, out, one);
            }
            for change in &extras.set_vlan {
                self.set_vlan(*change, out, one);
            }
            for mirror in extras.mirrors.iter().filter(|mirror| **mirror != out) {
                self.mirror(*mirror, memory, one);
            }
        }
        match decision.outcome.resolved(Outcome::Allow, egress.undecided) {
            Outcome::Drop(reason) => self.drop_at_port(out, reason, one),
            Outcome::Reject => {
                self.reject_senders(
                    super::act::Origin { port: from, memory, admitted: false, bytes: 0 },
                    one,
                );
            }
            // Rules for the way out say only whether: the configuration has no others.
            Outcome::Allow | Outcome::Undecided | Outcome::Port(_) | Outcome::Chain(_) | Outcome::Normal => {}
        }
    }
}

const _: () = assert!(MOST == Batch::CAPACITY);
