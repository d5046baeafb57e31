//! The entry of a chain. In: packets for a chain. Out: to the NFs of its first hop. Drops traffic if a later ring of the
//! chain fills up, unless the rx stage has checked for room. NFs report rings that they fill (backpressure); the engine
//! itself checks rings between trust groups.
//!
//! Cost: one word per watched group and burst.

use core::sync::atomic::Ordering;

use dpdk::Batch;

use super::deliver::Delivery;
use super::leave::go_to;
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, LinkId, MemoryId};
use crate::snapshot::{ChainPath, Choice, Snapshot, Target};
use crate::worker::state::Datapath;
use crate::worker::state::burst::Origin;

/// Sends packets into a chain; the batch is empty afterwards.
#[inline]
pub(crate) fn enter(dp: &mut Datapath, origin: Origin<'_>, chain: ChainId, batch: &mut Batch) {
    let Some(path) = origin.cx.snapshot.chain(chain) else {
        return dp.drop_in_chain(chain, DropReason::NoRule, batch);
    };
    if !origin.admitted && is_full_inside(dp, path, chain) {
        return dp.drop_in_chain(chain, DropReason::ChainFull, batch);
    }
    let delivery = Delivery::into_chain(origin, chain, path);
    let entered = go_to(dp, &delivery, &path.entry, batch);
    count_entered(dp, chain, entered);
}

/// Sends packets into a chain without the hops that per-flow verdicts skip (bit mask); the batch is empty afterwards.
#[cold]
pub(crate) fn enter_without_hops(
    dp: &mut Datapath,
    origin: Origin<'_>,
    (chain, skipped): (ChainId, u16),
    batch: &mut Batch,
) {
    let snapshot = origin.cx.snapshot;
    let Some(path) = snapshot.chain(chain) else {
        return dp.drop_in_chain(chain, DropReason::NoRule, batch);
    };
    // Skipping only the first hops needs no shortened chain.
    let first = (skipped.trailing_ones() as usize).min(path.roles.len());
    let later = skipped & u16::MAX.checked_shl(first as u32).unwrap_or(0);
    let (id, path) = without_hops(dp, snapshot, chain, later).unwrap_or((chain, path));
    if matches!(path.entry, Target::Drop(_)) {
        return enter(dp, origin, chain, batch);
    }
    if !origin.admitted && is_full_inside(dp, path, id) {
        return dp.drop_in_chain(chain, DropReason::ChainFull, batch);
    }
    let delivery = Delivery::into_chain(origin, id, path);
    let entered = go_to(dp, &delivery, &path.targets[first], batch);
    count_entered(dp, chain, entered);
}

fn count_entered(dp: &Datapath, chain: ChainId, entered: usize) {
    if let Some(counters) = dp.counters.chains.get(chain.index()) {
        counters.entered.add(entered as u64);
    }
}

/// The shortened chain without some inner hops. Requests it from the manager if it does not exist yet.
fn without_hops<'a>(
    dp: &Datapath,
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
            dp.counters.wanted_chain.store(wanted, Ordering::Relaxed);
            None
        }
    }
}

/// Room at the entry of a chain, at most `wanted` packets.
pub(crate) fn room_at_entry(dp: &mut Datapath, snapshot: &Snapshot, chain: ChainId, wanted: usize) -> usize {
    let Some(path) = snapshot.chain(chain) else { return wanted };
    if is_full_inside(dp, path, chain) {
        return 0;
    }
    match &path.entry {
        Target::Links { links, choice, .. } => {
            let rooms = links.iter().map(|link| {
                let link = dp.nfs.get_mut(*link);
                link.map_or(0, |link| link.room_worthwhile(wanted))
            });
            // A whole burst goes to the emptiest ring. By hash, the whole burst could go to any ring.
            let room = match choice {
                Choice::LeastOccupied => rooms.max(),
                Choice::FlowHash | Choice::Sticky(_) => rooms.min(),
            };
            let room = room.map_or(0, |room| room.min(wanted));
            if path.may_have_flow_verdicts() { room_inside(dp, path, room) } else { room }
        }
        Target::Drop(DropReason::NfDown) => 0,
        Target::Port(_) | Target::Ingress | Target::Normal | Target::Router(_) | Target::Drop(_) => wanted,
    }
}

/// Room in every ring of a chain, at most `wanted` packets: if NFs may let flows skip them, a burst may enter at any hop.
#[cold]
fn room_inside(dp: &mut Datapath, path: &ChainPath, wanted: usize) -> usize {
    let links = path.targets.iter().filter_map(Target::replicas).flat_map(|replicas| replicas.links);
    let room = |room: usize, link: &LinkId| {
        let link = dp.nfs.get_mut(*link);
        link.map_or(room, |link| room.min(link.room_worthwhile(wanted)))
    };
    links.fold(wanted, room)
}

/// Whether a ring inside the chain is filling up.
#[inline]
fn is_full_inside(dp: &mut Datapath, path: &ChainPath, chain: ChainId) -> bool {
    path.watched.iter().any(|(memory, nf_threads)| has_backpressure(dp, *memory, chain, *nf_threads))
        || path.crossings.iter().any(|link| {
            dp.nfs.get_mut(*link).is_some_and(|link| {
                let quarter = link.to_nf.memory().capacity() / 4;
                link.to_nf.room(quarter) < quarter
            })
        })
}

#[inline(always)]
fn has_backpressure(dp: &Datapath, memory: MemoryId, chain: ChainId, nf_threads: u64) -> bool {
    let memory = dp.memories.get(memory);
    memory
        .is_some_and(|memory| memory.region().backpressure(chain.0).load(Ordering::Relaxed) & nf_threads != 0)
}
