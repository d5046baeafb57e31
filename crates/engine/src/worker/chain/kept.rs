// SPDX-License-Identifier: Apache-2.0
//! What NF threads keep: empty buffers for packets of their own, and packets that they hold. In: messages and verdicts
//! from an NF's ring. Out: buffers in its ring of empty buffers; packets with an ingress port.
//!
//! A packet that an NF has made goes on as one that it has received. Hops, rules and switching ask for a packet's
//! ingress port: it is what the NF says ([`Message::Ingress`]) and its trust group may use. A packet without one can
//! only leave by a port, and counts as received by that port.
//!
//! Cost: nothing without such messages and packets. 64 buffers are allocated and written at a time.

use dpdk::{Batch, Mbuf, PortNumber};
use netvm_ring::{Descriptor, Message, VerdictKind};

use crate::drop_reason::Violation;
use crate::ids::{LinkId, PortId};
use crate::memory::mark;
use crate::snapshot::Snapshot;
use crate::worker::state::Datapath;

/// The port of a packet without an ingress port: as of a new mbuf (`RTE_MBUF_PORT_INVALID`).
const NO_PORT: PortNumber = PortNumber(u16::MAX);

/// Does what an NF thread asks for.
#[cold]
pub(crate) fn handle_message(dp: &mut Datapath, snapshot: &Snapshot, link: LinkId, message: Message) {
    let handled = match message {
        Message::WithdrawVerdicts => {
            dp.flows.verdicts.withdraw(link);
            Ok(())
        }
        Message::RequestBuffers(count) => {
            fill(dp, link, count.into());
            Ok(())
        }
        Message::Release(buffer) => dp.in_flight.take_kept(link, buffer).map(drop),
        Message::Ingress { buffer, port } => {
            let group = dp.nfs.get(link).and_then(|end| snapshot.group(end.group));
            let may_use = group.is_some_and(|ports| ports.has(PortId(port)));
            set_ingress(dp, link, buffer, if may_use { PortNumber(port) } else { NO_PORT })
        }
    };
    if let Err(violation) = handled {
        dp.counters.links[link.index()].violations[violation as usize].add(1);
    }
}

/// Gives an NF thread empty buffers: as many as it asks for, at most a burst, as far as its quota, its ring and the
/// pool allow.
fn fill(dp: &mut Datapath, link: LinkId, wanted: usize) {
    let worker = dp.id;
    let allowed = dp.in_flight.room_to_keep(link);
    let Datapath { nfs, in_flight, memories, .. } = dp;
    let Some(end) = nfs.get_mut(link) else { return };
    let role = end.role;
    let (Some(stock), Some(memory)) = (&mut end.stock, memories.get(end.memory)) else { return };
    let count = wanted.min(Batch::CAPACITY).min(allowed);
    let count = count.min(stock.room(count as u32) as usize);
    let mut buffers = Batch::new();
    let headroom = memory.region().geometry().headroom as u16;
    // All or none: then fewer.
    if memory.pool.alloc_frames_into(&mut buffers, count, headroom, 0) == 0 {
        memory.pool.alloc_frames_into(&mut buffers, count.div_ceil(8), headroom, 0);
    }
    for mbuf in buffers.as_mut_slice() {
        mbuf.set_port(NO_PORT);
        mark::set_maker(mbuf, role);
        memory.set_stamp(mbuf, None);
    }
    let kept = in_flight.keep(link, &mut buffers, |spans| {
        let empty = Descriptor::default().on_path(0, 0, 0, worker.0);
        stock.write_each(0, spans, |span| empty.with_packet(*span));
    });
    stock.publish(kept as u32);
}

/// Gives a packet that an NF thread keeps its ingress port.
fn set_ingress(dp: &mut Datapath, link: LinkId, buffer: u32, port: PortNumber) -> Result<(), Violation> {
    let mut mbuf = dp.in_flight.take_kept(link, buffer)?;
    mbuf.set_port(port);
    let mut packet = Batch::new();
    packet.add(mbuf);
    // It was kept before, so the quota has room.
    dp.in_flight.keep(link, &mut packet, |_| {});
    Ok(())
}

/// Keeps packets that an NF thread holds; those beyond its quota stay in the batch.
#[cold]
pub(crate) fn hold(dp: &mut Datapath, link: LinkId, run: &mut Batch) {
    // What it sends later is a packet that it was given.
    run.as_mut_slice().iter_mut().for_each(mark::forget_maker);
    dp.in_flight.keep(link, run, |_| {});
}

/// Gives packets that have no ingress port the one that they leave by. Returns false if they go to a place that asks
/// for the ingress port.
pub(crate) fn give_ingress(verdict: u8, argument: u16, packets: &mut Batch) -> bool {
    let has_none = |mbuf: &Mbuf| mbuf.port() == NO_PORT;
    if !packets.as_slice().iter().any(has_none) {
        return true;
    }
    match VerdictKind::from_raw(verdict) {
        Some(VerdictKind::Port) => {
            for mbuf in packets.as_mut_slice().iter_mut().filter(|mbuf| has_none(mbuf)) {
                mbuf.set_port(PortNumber(argument));
            }
            true
        }
        // They stay with the NF, or nowhere.
        Some(VerdictKind::Hold | VerdictKind::Drop) | None => true,
        Some(_) => false,
    }
}
