//! Out of an NF's ring. In: descriptors that an NF thread has returned. Out: packets that were out, in runs with the
//! same verdict, to [`verdict`](super::verdict). What taking back costs: see [`crate::inflight`].

use dpdk::Batch;
use netvm_ring::Message;

use super::verdict::{Sender, Verdict, act};
use crate::drop_reason::{DropReason, Violation};
use crate::ids::LinkId;
use crate::inflight::{Returned, Turn};
use crate::snapshot::Snapshot;
use crate::worker::state::burst::Context;
use crate::worker::state::{BURST, Datapath};
use crate::worker::tx::offload::{all_plain, renew};

/// Descriptors that are taken from one NF thread in a turn, or up to a burst less one more.
const MAX_DESCRIPTORS: usize = 4 * BURST;

/// Takes what one NF thread has returned, as far as is known, and acts on it. Returns how many descriptors there were.
///
/// That is more than a port gives in a turn: otherwise rings that filled up once, while either side stood still, would
/// stay full, as nothing takes more out of them than comes in.
#[inline]
pub(crate) fn collect(dp: &mut Datapath, snapshot: &Snapshot, link: LinkId) -> usize {
    let Some(end) = dp.nfs.get(link) else { return 0 };
    let cx = Context { snapshot, memory: end.memory };
    let sender = Sender { cx, link, group: end.group };
    let (mut count, mut turn) = (0, Turn::new(link));
    while count < MAX_DESCRIPTORS {
        let mut packets = Batch::new();
        let Some(end) = dp.nfs.get_mut(link) else { break };
        match dp.in_flight.take_back(&mut turn, &mut end.from_nf, &mut packets) {
            Returned::Packets(first) => {
                count += packets.len();
                if dp.ports.has_offload_work && !all_plain(&packets) {
                    renew(dp, cx.memory, &mut packets);
                }
                act(dp, sender, Verdict::of(first), &mut packets);
            }
            Returned::Nothing => break,
            other => {
                count += 1;
                note_without_packets(dp, link, other);
            }
        }
    }
    dp.counters.links[link.index()].returned.add(count as u64);
    count
}

/// A descriptor that brought no packet.
#[cold]
fn note_without_packets(dp: &Datapath, link: LinkId, returned: Returned) {
    let counters = &dp.counters.links[link.index()];
    match returned {
        Returned::Message(Message::WithdrawVerdicts) => dp.flows.verdicts.withdraw(link),
        Returned::BadBounds => counters.drops.add(DropReason::BadSpan, 1),
        Returned::Refused(violation) => counters.violations[violation as usize].add(1),
        Returned::Nothing | Returned::Packets(_) => {}
    }
}

/// Takes everything that an NF thread which is leaving has published; afterwards its link is of no use.
pub(crate) fn drain(dp: &mut Datapath, snapshot: &Snapshot, link: LinkId) {
    let Some(end) = dp.nfs.get(link) else { return };
    let bursts = end.from_nf.memory().capacity() as usize / BURST + 1;
    for _ in 0..bursts {
        dp.nfs.prefetch_returned();
        if collect(dp, snapshot, link) == 0 {
            break;
        }
    }
}

/// Counts impossible ring indexes.
pub(crate) fn note_faults(dp: &Datapath, link: LinkId) {
    if let Some(end) = dp.nfs.get(link) {
        let faults = end.to_nf.faults() + end.from_nf.faults();
        let counter = &dp.counters.links[link.index()].violations[Violation::RingIndex as usize];
        counter.add(faults.saturating_sub(counter.get()));
    }
}
