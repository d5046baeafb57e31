//! Gives each flow one owner among the workers, for both directions, whatever ports and queues its packets come in by.
//! In: packets that a port has received. Out: those of this worker's flows; the others go to their owners
//! ([`handoff`](super::graph::handoff)).
//!
//! Only packets of ports where something is kept by flow are given to their owners: the port tracks connections, the
//! flow monitor counts them, or their chains have NFs that may give per-flow verdicts
//! ([`owned`](crate::snapshot::Snapshot::owned)). At other ports the worker that receives a packet handles it, and
//! nothing is lost by that: sticky replicas, limits and learnt addresses are shared by all workers.
//!
//! The owner is chosen by a hash of addresses, protocol and ports, with a random key; MAC addresses and EtherType, if
//! the packet is not IP ([`FlowOwners`](crate::snapshot::FlowOwners)). At ports that track connections it is chosen
//! by the addresses alone, so that fragments and ICMP errors go to the worker that has the connection. With NAT, where
//! both directions have other addresses, it is chosen by the zone: one worker has all connections of a zone. Ports that
//! wait for room also wait for that of their flows' owners, which take packets only if their chains have room for a
//! burst.
//!
//! Cost at such ports: the key and hash of each packet, and a handoff for one that changes the worker. At others, a bit
//! per burst.

use dpdk::Batch;
use netvm_conntrack::Zone;

use super::packet::groups::groups;
use super::packet::keys::{connection_hash_of, owner_hash_of, zone_hash};
use super::state::burst::Context;
use super::state::handoff::HandoffPacket;
use super::state::{BURST, Datapath};
use crate::ids::PortId;

/// Hands packets over that other workers own; the others stay. Returns those for which a worker has no room.
#[cold]
pub(crate) fn give_to_owners(dp: &mut Datapath, cx: Context<'_>, port: PortId, batch: &mut Batch) -> Batch {
    let Context { snapshot, memory, .. } = cx;
    let mut owners = [dp.id; BURST];
    let tracking = snapshot.policy.ingress(port).and_then(|ingress| ingress.tracking);
    let of_zone = tracking.filter(|_| snapshot.nat.is_some()).map(|tracking| zone_hash(Zone(tracking.zone)));
    for (owner, mbuf) in owners.iter_mut().zip(batch.as_slice()) {
        let hash = match (tracking, of_zone) {
            (Some(_), Some(hash)) => Some(hash),
            (Some(_), None) => connection_hash_of(mbuf),
            (None, _) => owner_hash_of(mbuf),
        };
        if let Some(hash) = hash {
            *owner = snapshot.owners.of(hash);
        }
    }
    let (mut kept, mut left) = (Batch::new(), Batch::new());
    let Datapath { ports, recorder, .. } = dp;
    let recorder = recorder.as_ref();
    groups(
        batch,
        |n| owners[n],
        |owner, of_owner| match ports.handoff.tx_to(owner) {
            None => {
                kept.append(of_owner);
            }
            Some(handoff_tx) => {
                let trace = |packets: &Batch| {
                    if let Some(recorder) = recorder {
                        recorder.handed_over(owner, packets);
                    }
                };
                handoff_tx.push_received(of_owner, trace, |mbuf| HandoffPacket {
                    mbuf,
                    memory,
                    port,
                    stamp: 0,
                });
                left.append(of_owner);
            }
        },
    );
    batch.append(&mut kept);
    left
}
