// SPDX-License-Identifier: Apache-2.0
//! Gives each flow one owner among the workers, for both directions, whatever ports and queues its packets come in by.
//! In: packets that a port has received. Out: those of this worker's flows; the others go to their owners
//! ([`arrivals`](super::graph::arrivals)).
//!
//! Only packets of ports where something is kept by flow are given to their owners: the port tracks connections, the
//! flow monitor counts them, or their chains have NFs that may give per-flow verdicts
//! ([`owned`](crate::snapshot::Snapshot::owned)). At other ports the worker that receives a packet handles it, and
//! nothing is lost by that: sticky replicas, limits and learnt addresses are shared by all workers.
//!
//! The owner is chosen by a hash of addresses, protocol and ports, with a random key; MAC addresses and EtherType, if
//! the packet is not IP ([`FlowOwners`](netvm_conntrack::FlowOwners)). At ports that track connections it is chosen by
//! the symmetric RSS hash of addresses and ports. With a power of two of workers, and a NIC with as many queues,
//! packets arrive at their owners. ICMP errors go to the worker that has the connection, and so do later fragments if
//! this worker received the first one. NAT chooses ports by which answers have the same hash. Connections for which it
//! cannot, such as those to a service, are in a table that all workers read
//! ([`Connections::owner_of`](netvm_conntrack::Connections::owner_of)).
//!
//! Ports that wait for room also wait for that of their flows' owners, which take packets only if their chains have
//! room for a burst.
//!
//! Cost at such ports: the key and hash of each packet, and a handoff for one that changes the worker; a line of the
//! table, if there are such connections. At others, a bit per burst.

use dpdk::{Batch, Mbuf};
use netvm_conntrack::{Packet, Zone};
use netvm_wire::FlowKey;

use super::packet::groups::groups;
use super::packet::keys::{HEADER_BYTES, owner_hash_of, read_front};
use super::state::burst::Context;
use super::state::connections::WorkerConnections;
use super::state::handoff::HandoffPacket;
use super::state::{BURST, Datapath};
use crate::ids::{PortId, WorkerId};

/// Hands packets over that other workers own; the others stay. Returns those for which a worker has no room.
#[cold]
pub(crate) fn give_to_owners(dp: &mut Datapath, cx: Context<'_>, port: PortId, batch: &mut Batch) -> Batch {
    let Context { snapshot, memory, .. } = cx;
    let mut owners = [dp.id; BURST];
    let Datapath { ports, recorder, connections, clock, .. } = dp;
    let tracking = snapshot.policy.ingress(port).and_then(|ingress| ingress.tracking);
    let mut table = tracking.and_then(|tracking| Some((Zone(tracking.zone), connections.as_deref_mut()?)));
    for (owner, mbuf) in owners.iter_mut().zip(batch.as_slice()) {
        let of_packet = match &mut table {
            Some((zone, connections)) => connections.owner_of(mbuf, *zone, clock.tick),
            None => owner_hash_of(mbuf).map(|hash| WorkerId(snapshot.owners.of(hash))),
        };
        *owner = of_packet.unwrap_or(*owner);
    }
    let (mut kept, mut left) = (Batch::new(), Batch::new());
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

impl WorkerConnections {
    /// The worker that has the connection of a packet, or is to have it; `None`: no worker can know it.
    fn owner_of(&mut self, mbuf: &Mbuf, zone: Zone, now: u32) -> Option<WorkerId> {
        let (mut key, mut front) = (FlowKey::EMPTY, [0; HEADER_BYTES]);
        let copied = read_front(mbuf, &mut front, &mut key).ok()?;
        let packet = Packet { key: &key, zone, front: &front[..copied], length: mbuf.pkt_len() as usize };
        self.table.owner_of(&packet, now).map(WorkerId)
    }
}
