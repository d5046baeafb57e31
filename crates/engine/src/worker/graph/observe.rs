// SPDX-License-Identifier: Apache-2.0
//! What the loop sees of packets between stages: it counts them, shows them to captures, and follows some of them, for
//! latencies and traces.
//!
//! Cost while nothing is captured, measured or traced: a flag and a comparison per burst and capture point.

use dpdk::{Batch, Mbuf};
use netvm_capture_ring::Direction;

use super::record;
use crate::capture::{CaptureMeta, CapturePoint};
use crate::drop_reason::{DropReason, reason_of_malformed};
use crate::ids::{ChainId, PortId, RouterId};
use crate::memory::mark::maker_of;
use crate::snapshot::Snapshot;
use crate::worker::latency::ProgramPassage;
use crate::worker::next::{ChainHop, CountedAt, PairEntry};
use crate::worker::packet::bytes_of;
use crate::worker::packet::keys::key_of;
use crate::worker::record::Source;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;

/// Drops packets, and counts them; the batch is empty afterwards.
#[cold]
pub(crate) fn drop(dp: &Datapath, at: CountedAt, reason: DropReason, batch: &mut Batch) {
    let (counters, point) = match at {
        CountedAt::Port(port) => {
            (dp.counters.ports.get(port.index()).map(|port| &port.drops), CapturePoint::Port(port))
        }
        CountedAt::Chain(chain) => {
            (dp.counters.chains.get(chain.index()).map(|chain| &chain.drops), CapturePoint::Chain(chain))
        }
    };
    if let Some(drops) = counters {
        drops.add(reason, batch.len() as u64);
    }
    if dp.is_capturing {
        dp.capture(&CaptureMeta::dropped(point, reason), batch.as_slice());
    }
    free(dp, reason, batch);
}

/// Drops a packet, and counts it at the port that received it.
#[cold]
pub(crate) fn drop_one(dp: &Datapath, reason: DropReason, mbuf: Mbuf) {
    let port = PortId(mbuf.port().0);
    drop(dp, CountedAt::Port(port), reason, &mut Batch::from(mbuf));
}

/// Drops packets whose headers cannot be read, and counts why.
#[cold]
pub(crate) fn drop_malformed(dp: &Datapath, port: PortId, batch: &mut Batch) {
    for mbuf in batch.drain() {
        let why = key_of(&mbuf).err();
        if let (Some(why), Some(counters)) = (why, dp.counters.ports.get(port.index())) {
            counters.malformed[why as usize].add(1);
        }
        let reason = why.map_or(DropReason::Malformed, reason_of_malformed);
        drop(dp, CountedAt::Port(port), reason, &mut Batch::from(mbuf));
    }
}

/// Frees packets that are dropped, and are counted elsewhere.
pub(crate) fn free(dp: &Datapath, reason: DropReason, batch: &mut Batch) {
    dp.latency.dropped(batch);
    if let Some(recorder) = &dp.recorder {
        recorder.dropped(reason, batch.as_slice());
    }
    batch.clear();
}

/// Notes the packets of these that an NF has made. It has held the others.
#[cold]
pub(crate) fn made(dp: &mut Datapath, snapshot: &Snapshot, by: Source, batch: &Batch) {
    let mut begin = 0;
    for packets in batch.as_slice().chunk_by(|one, next| maker_of(one) == maker_of(next)) {
        let end = begin + packets.len();
        if let Some(role) = maker_of(&packets[0]) {
            dp.latency.made(role, &batch.raw()[begin..end], dp.clock.now);
            record::made(dp, snapshot, by, packets);
        }
        begin = end;
    }
}

/// Counts packets to which a decision applies, for its rules.
#[inline]
pub(crate) fn decided(cx: Context<'_>, decision: u32, batch: &Batch) {
    if let Some(hits) = cx.snapshot.hits.get(decision as usize) {
        hits.add(batch.len(), bytes_of(batch));
    }
}

/// Counts packets that leave a chain.
#[inline]
pub(crate) fn left_chain(dp: &mut Datapath, chain: ChainId, batch: &Batch) {
    dp.latency.left(batch);
    if let Some(counters) = dp.counters.chains.get(chain.index()) {
        counters.left.add(batch.len() as u64);
    }
}

/// Notes packets that enter a program by one of its ports.
#[inline]
pub(crate) fn into_pair(dp: &mut Datapath, cx: Context<'_>, end: PairEntry, batch: &Batch) {
    if dp.latency.is_among(batch.raw())
        && let Some(back) = cx.snapshot.pairs.of(end.port)
    {
        let ChainHop { chain, hop } = end.at;
        dp.latency.entered_program(batch, ProgramPassage { chain, hop, by: back.other });
    }
    if end.from.is_some() {
        entered_chain(dp, end.at.chain, batch.len());
    }
    if let Some(counters) = dp.counters.ports.get(end.port.index()) {
        counters.into_hop.add(batch.len() as u64);
    }
    if dp.is_capturing {
        capture_hop(dp, cx, &HopMeta { at: end.at, direction: Direction::In }, batch);
    }
}

/// Notes packets that have come back from a program.
#[inline]
pub(crate) fn from_pair(dp: &Datapath, cx: Context<'_>, passed: ChainHop, batch: &Batch) {
    if dp.is_capturing {
        capture_hop(dp, cx, &HopMeta { at: passed, direction: Direction::Out }, batch);
    }
    if dp.recorder.is_some() {
        record::from_pair(dp, cx, passed, batch);
    }
}

/// Packets at a hop of a chain.
struct HopMeta {
    at: ChainHop,
    direction: Direction,
}

#[cold]
fn capture_hop(dp: &Datapath, cx: Context<'_>, meta: &HopMeta, batch: &Batch) {
    let HopMeta { at: ChainHop { chain, hop }, direction } = *meta;
    if let Some(role) = cx.snapshot.role_at(chain, hop) {
        dp.capture(&CaptureMeta::at(CapturePoint::Hop { chain, hop, role }, direction), batch.as_slice());
    }
}

/// Counts packets that have entered a chain.
#[inline]
pub(crate) fn entered_chain(dp: &Datapath, chain: ChainId, count: usize) {
    if let Some(counters) = dp.counters.chains.get(chain.index()) {
        counters.entered.add(count as u64);
    }
}

/// Packets that a virtual router is to forward.
#[inline]
pub(crate) fn at_router(dp: &Datapath, router: RouterId, batch: &Batch) {
    capture_router(dp, router, Direction::In, batch);
}

/// Counts packets that a router's kernel sends.
pub(crate) fn from_kernel(dp: &Datapath, router: RouterId, batch: &Batch) {
    capture_router(dp, router, Direction::FromKernel, batch);
    if let Some(counters) = dp.counters.routers.get(router.index()) {
        counters.from_kernel.add(batch.len() as u64);
    }
}

/// Counts packets that a router forwards.
#[inline]
pub(crate) fn forwarded(dp: &Datapath, router: RouterId, batch: &Batch) {
    capture_router(dp, router, Direction::Out, batch);
    if let Some(counters) = dp.counters.routers.get(router.index()) {
        counters.forwarded.add(batch.len() as u64);
    }
}

/// Counts packets that a router gives to its kernel.
pub(crate) fn punted(dp: &Datapath, router: RouterId, batch: &Batch) {
    capture_router(dp, router, Direction::ToKernel, batch);
    if let Some(counters) = dp.counters.routers.get(router.index()) {
        counters.punted.add(batch.len() as u64);
    }
}

#[inline(always)]
fn capture_router(dp: &Datapath, router: RouterId, direction: Direction, batch: &Batch) {
    if dp.is_capturing {
        dp.capture(&CaptureMeta::at(CapturePoint::Router(router), direction), batch.as_slice());
    }
}

/// Counts packets that a port without a device sends.
pub(crate) fn passed_on(dp: &Datapath, port: PortId, batch: &Batch) {
    if let Some(counters) = dp.counters.ports.get(port.index()) {
        counters.tx_packets.add(batch.len() as u64);
        counters.tx_bytes.add(bytes_of(batch));
    }
    if dp.recorder.is_some() {
        record::passed_on(dp, port, batch);
    }
}

/// Shows packets of a port to the captures.
#[inline(always)]
pub(crate) fn at_port(dp: &Datapath, port: PortId, direction: Direction, batch: &Batch) {
    if dp.is_capturing {
        dp.capture(&CaptureMeta::at(CapturePoint::Port(port), direction), batch.as_slice());
    }
}
