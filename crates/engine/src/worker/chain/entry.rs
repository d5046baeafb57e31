// SPDX-License-Identifier: Apache-2.0
//! The entry of a chain. In: packets for a chain. Out: to its first hop. Drops traffic if a later ring of the
//! chain fills up, unless the rx stage has checked for room. NFs report rings that they fill (backpressure); the engine
//! itself checks rings between trust groups.
//!
//! Cost: one word per watched group and burst.

use core::sync::atomic::Ordering;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, LinkId, MemoryId, RoleId};
use crate::snapshot::{ChainPath, Choice, Snapshot, Target};
use crate::worker::next::{Entering, Next, Position};
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;

/// Sends packets into a chain, unless it is full inside.
#[inline]
pub(crate) fn enter(dp: &mut Datapath, cx: Context<'_>, entering: Entering) -> Next {
    let Entering { from, chain, skipped } = entering;
    let Some(path) = cx.snapshot.chain(chain) else { return Next::drop_in(chain, DropReason::NoRule) };
    if skipped != 0 {
        return enter_without_hops(dp, cx, path, entering);
    }
    if !cx.admitted && is_full_inside(dp, path, chain) {
        return Next::drop_in(chain, DropReason::ChainFull);
    }
    Next::Hop(chain, Position::Entry(from))
}

/// The role to which an NF at a hop has steered a flow.
#[derive(Clone, Copy)]
pub(crate) struct AtRole {
    pub(crate) role: RoleId,
    pub(crate) hop: u8,
}

/// Sends packets into a chain at an NF of a role: the next hop of the chain with this role, else an NF of the role
/// beside the chain.
#[cold]
pub(crate) fn enter_at_role(dp: &mut Datapath, cx: Context<'_>, entering: Entering, at: AtRole) -> Next {
    let Entering { from, chain, .. } = entering;
    let Some(path) = cx.snapshot.chain(chain) else { return Next::drop_in(chain, DropReason::NoRule) };
    if !cx.admitted && is_full_inside(dp, path, chain) {
        return Next::drop_in(chain, DropReason::ChainFull);
    }
    if matches!(path.entry, Target::Drop(_)) {
        return Next::Hop(chain, Position::Entry(from));
    }
    let position = match at.later_in(path) {
        Some(hop) => Position::Later(from, hop),
        None => Position::Aside { role: at.role.0, hop: at.hop, from: Some(from) },
    };
    Next::Hop(chain, position)
}

impl AtRole {
    /// The next hop of the chain with this role.
    pub(crate) fn later_in(self, path: &ChainPath) -> Option<u8> {
        let after = usize::from(self.hop) + 1;
        let later = path.roles.iter().skip(after).position(|role| *role == self.role.0)?;
        Some((after + later) as u8)
    }
}

/// The same, without the hops that per-flow verdicts skip.
#[cold]
fn enter_without_hops(dp: &mut Datapath, cx: Context<'_>, path: &ChainPath, entering: Entering) -> Next {
    let Entering { from, chain, skipped } = entering;
    // Skipping only the first hops needs no shortened chain.
    let first = skipped.trailing_ones().min(path.roles.len() as u32);
    let later = skipped & u16::MAX.checked_shl(first).unwrap_or(0);
    let (id, path) = without_hops(dp, cx.snapshot, chain, later).unwrap_or((chain, path));
    if !cx.admitted && is_full_inside(dp, path, id) {
        return Next::drop_in(chain, DropReason::ChainFull);
    }
    // A chain that is closed drops what enters it, whatever it skips.
    let is_closed = matches!(path.entry, Target::Drop(_));
    let position = if is_closed { Position::Entry(from) } else { Position::Later(from, first as u8) };
    Next::Hop(id, position)
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
        Target::Start(role) => dp.start_queue.room(*role).min(wanted),
        Target::Pair(_)
        | Target::Port(_)
        | Target::Ingress
        | Target::Normal
        | Target::Router(_)
        | Target::Drop(_) => wanted,
    }
}

/// Room in every ring of a chain, at most `wanted` packets: if NFs may let flows skip them, a burst may enter at any
/// hop.
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
