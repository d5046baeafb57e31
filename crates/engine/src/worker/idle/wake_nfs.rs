// SPDX-License-Identifier: Apache-2.0
//! Wakes NFs and other workers that sleep while they have packets, NFs sometimes shortly before. In: links to which a
//! burst was published, rings to workers, or a port that has packets after a sleep. Out: signals to eventfds.
//!
//! Cost: one fence per turn in which a burst was published, and a check of each link and each other worker.

use netvm_clock as clock;
use netvm_ring::full_fence;

use crate::drop_reason::Violation;
use crate::ids::{LinkId, PortId};
use crate::link::Link;
use crate::snapshot::{Snapshot, Target};
use crate::worker::state::Datapath;
use crate::worker::state::nf_links::Awaited;

/// Wakes the NFs and workers that sleep while they have packets; called once a turn, with one fence for all of them.
#[inline(always)]
pub(crate) fn wake_sleepers(dp: &mut Datapath) {
    let nfs = &mut dp.nfs;
    let mut published = false;
    nfs.each(|link| published |= link.has_published());
    let has_handed_over = dp.ports.handoff.has_pushed();
    if published {
        nfs.awaited = match nfs.awaited {
            Awaited::Nothing | Awaited::OfAwake => Awaited::OfAwake,
            Awaited::WokenAhead | Awaited::OfWoken => Awaited::OfWoken,
        };
    }
    if published || has_handed_over {
        full_fence();
    }
    if published {
        nfs.each(Link::look_for_sleeper);
    }
    if has_handed_over {
        dp.counters.woken_workers.add(dp.ports.handoff.wake_sleepers());
    }
    let mut pending = false;
    nfs.each(|link| pending |= link.is_wake_pending());
    if pending {
        nfs.awaited = Awaited::OfWoken;
        let now = clock::cycles();
        for n in 0..dp.nfs.active.len() {
            wake(dp, dp.nfs.active[n], now);
        }
    }
}

/// Wakes the NF that probably gets the packets of a port that ended this worker's sleep, so that it wakes up while the
/// worker receives them. A core that has slept for long takes a tenth of a millisecond to wake up, five times as long
/// as receiving.
#[cold]
pub(crate) fn wake_ahead(dp: &mut Datapath, snapshot: &Snapshot, port: PortId) {
    if let Some([chain]) = snapshot.policy.ingress(port).map(|ingress| &ingress.chains[..])
        && let Some(Target::Links { links, .. }) = snapshot.chain(*chain).map(|chain| &chain.entry)
        && let [only] = links[..]
        && let Some(link) = dp.nfs.get_mut(only)
    {
        let now = clock::cycles();
        link.expect_packets(now);
        if link.is_wake_pending() {
            dp.nfs.awaited = Awaited::WokenAhead;
            wake(dp, only, now);
        }
    }
}

#[inline(always)]
fn wake(dp: &mut Datapath, link: LinkId, now: u64) {
    if dp.nfs.wake(link, now) {
        dp.counters.links[link.index()].violations[Violation::CostlyWake as usize].add(1);
    }
}
