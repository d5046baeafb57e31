// SPDX-License-Identifier: Apache-2.0
//! The next hop of a chain. In: packets at a position of a chain, all from one memory. Out: to the ring of one of the
//! hop's replicas, as its balancing chooses; or out of the chain, if no hop is left. Packets for another trust group
//! are copied. Pending offloads are done first, unless all NFs of the group accept them.
//!
//! Cost with one replica: two comparisons per burst. Least occupied: each ring's indexes once per burst. By hash: a key
//! per packet. Sticky: a key per packet and a bucket (a line of 64 KiB at worst); a burst for several replicas is
//! published once for each.

use dpdk::Batch;
use netvm_model::MAX_REPLICAS;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, PortId, RoleId};
use crate::snapshot::{Choice, Replicas, Snapshot, StickyChoice, Target};
use crate::worker::next::{Dispatch, Exit, Next, Position, RingEnd, Step};
use crate::worker::packet::keys::{hash_of, symmetric_hash_of};
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;
use crate::worker::tx::copy::copy_into;
use crate::worker::tx::offload::{AcceptedPackets, Receiver, all_plain};

/// A hop: a position in a chain.
#[derive(Clone, Copy)]
pub(crate) struct Hop {
    pub(crate) chain: ChainId,
    pub(crate) position: Position,
}

impl Hop {
    /// The target there; `None` if there is none.
    pub(super) fn target(self, snapshot: &Snapshot) -> Option<&Target> {
        let path = snapshot.chain(self.chain)?;
        match self.position {
            Position::Entry(_) => Some(&path.entry),
            Position::Later(_, hop) | Position::Inside(hop) => path.targets.get(usize::from(hop)),
            Position::Aside { role, .. } => snapshot.roles.get(usize::from(role))?.as_ref(),
        }
    }

    /// The role of the program that packets wait for there, if they do.
    pub(crate) fn waits_for(self, snapshot: &Snapshot) -> Option<RoleId> {
        match self.target(snapshot)? {
            Target::Start(role) => Some(*role),
            _ => None,
        }
    }

    /// The replicas there, if they are NFs.
    fn replicas(self, snapshot: &Snapshot) -> Option<Replicas<'_>> {
        let replicas = self.target(snapshot)?.replicas()?;
        match self.position {
            // It changes nothing about the packets' position.
            Position::Aside { hop, .. } => Some(Replicas { hop, ..replicas }),
            _ => Some(replicas),
        }
    }
}

/// Sends packets to a hop of their chain, or out of the chain.
#[inline]
pub(crate) fn go(dp: &mut Datapath, cx: Context<'_>, hop: Hop, batch: &Batch) -> Next {
    let Hop { chain, position } = hop;
    let Some(target) = hop.target(cx.snapshot) else {
        return Next::drop_in(chain, DropReason::NoOutput);
    };
    let leave = |to| Next::LeaveChain { chain, to, entered: position.entered_from().is_some() };
    match target {
        Target::Links { .. } if dp.ports.has_offload_work && !all_plain(batch) => {
            Next::HopUnfinished(chain, position)
        }
        Target::Links { group, .. } => go_to_group(dp, cx, *group, hop),
        Target::Pair(_) => Next::Pair(chain, position),
        Target::Start(_) => Next::WaitForStart(chain, position),
        Target::Port(port) => leave(Exit::Port(*port)),
        Target::Ingress => leave(Exit::Ingress),
        Target::Normal => leave(Exit::Normal),
        Target::Router(router) => leave(Exit::Router(*router)),
        Target::Drop(reason) => Next::drop_in(chain, *reason),
    }
}

/// The packets that the NFs of a hop accept: from their own memory, perhaps with pending offloads.
pub(crate) fn receiver(dp: &Datapath, cx: Context<'_>, hop: Hop) -> Receiver {
    let accepts = hop
        .replicas(cx.snapshot)
        .is_some_and(|replicas| replicas.offloads && dp.memories.home_of(replicas.group) == Some(cx.memory));
    Receiver {
        memory: cx.memory,
        takes: if accepts { AcceptedPackets::Nf } else { AcceptedPackets::Nothing },
    }
}

/// Where packets go whose offloads are finished, as far as the NFs of the hop want it.
pub(crate) fn go_finished(dp: &Datapath, cx: Context<'_>, hop: Hop) -> Next {
    match hop.replicas(cx.snapshot) {
        Some(replicas) => go_to_group(dp, cx, replicas.group, hop),
        None => Next::drop_in(hop.chain, DropReason::NfDown),
    }
}

/// To a replica in a group, whose memory may be another one.
#[inline(always)]
fn go_to_group(dp: &Datapath, cx: Context<'_>, group: GroupId, hop: Hop) -> Next {
    let Hop { chain, position } = hop;
    match dp.memories.home_of(group) {
        Some(home) if home == cx.memory => Next::Replica(chain, position),
        Some(_) => Next::HopCopy(chain, position),
        None => Next::drop_in(chain, DropReason::NfDown),
    }
}

/// Copies packets into the memory of the NFs of a hop.
pub(crate) fn copy(burst: &mut Dispatch<'_>, hop: Hop) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Hop { chain, position } = hop;
    let replicas = hop.replicas(cx.snapshot);
    let Some(home) = replicas.and_then(|replicas| dp.memories.home_of(replicas.group)) else {
        return Step::All(Next::drop_in(chain, DropReason::NfDown));
    };
    split.copies = copy_into(dp, home, cx.memory, batch);
    Step::Copies(Next::drop_in(chain, DropReason::NoBuffer), Next::Replica(chain, position))
}

/// Chooses the replica for all packets, if it does not depend on their flows.
#[inline]
pub(crate) fn choose(dp: &mut Datapath, cx: Context<'_>, hop: Hop) -> Next {
    let Hop { chain, position } = hop;
    let Some(replicas) = hop.replicas(cx.snapshot) else {
        return Next::drop_in(chain, DropReason::NfDown);
    };
    let link = match (replicas.links, replicas.choice) {
        ([only], choice) if !matches!(choice, Choice::Sticky(StickyChoice { always: true, .. })) => *only,
        (several, Choice::LeastOccupied) => {
            let mut best = (u32::MAX, several[0]);
            for link in several {
                let load = dp.nfs.occupancy(*link);
                if load < best.0 {
                    best = (load, *link);
                }
            }
            best.1
        }
        (_, Choice::FlowHash | Choice::Sticky(_)) => return Next::ReplicaOfFlow(chain, position),
    };
    Next::Ring(RingEnd { link, chain, hop: replicas.hop, from: position.entered_from() })
}

/// Chooses the replica for each packet by its flow.
pub(crate) fn choose_each(burst: &mut Dispatch<'_>, hop: Hop) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Hop { chain, position } = hop;
    let Some(replicas) = hop.replicas(cx.snapshot) else {
        return Step::All(Next::drop_in(chain, DropReason::NfDown));
    };
    let (links, from) = (replicas.links, position.entered_from());
    let to = |link: LinkId| Next::Ring(RingEnd { link, chain, hop: replicas.hop, from });
    match replicas.choice {
        Choice::Sticky(sticky) => {
            let replicas = StickyReplicas { choice: sticky, links };
            choose_sticky(dp, replicas, batch, |n, link| split.nexts[n] = to(link));
        }
        Choice::FlowHash | Choice::LeastOccupied => {
            for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
                *next = to(links[usize::from(hash_of(mbuf)) % links.len()]);
            }
        }
    }
    Step::Each
}

/// The replicas of a hop of which each has its flows.
#[derive(Clone, Copy)]
struct StickyReplicas<'a> {
    choice: &'a StickyChoice,
    links: &'a [LinkId],
}

/// Chooses for each packet the replica that its flow has used before, or else the one with the least load.
fn choose_sticky(
    dp: &mut Datapath,
    replicas: StickyReplicas<'_>,
    batch: &Batch,
    mut chosen: impl FnMut(usize, LinkId),
) {
    let StickyReplicas { choice: sticky, links } = replicas;
    let links = &links[..links.len().min(MAX_REPLICAS)];
    let nf_threads = &sticky.nf_threads[..links.len().min(sticky.nf_threads.len())];
    // Packets that wait for each replica, with those of this burst.
    let mut loads = [u32::MAX; MAX_REPLICAS];
    for (load, link) in loads.iter_mut().zip(links) {
        *load = dp.nfs.occupancy(*link);
    }
    let now = dp.clock.tick as u16;
    for (n, mbuf) in batch.as_slice().iter().enumerate() {
        let is_available = |nf_thread: u16| nf_threads.iter().any(|one| u16::from(one.0) == nf_thread);
        let best = || {
            nf_threads.get(least(&loads[..links.len()], &sticky.takes_new)).map_or(0, |one| u16::from(one.0))
        };
        let choice = sticky.table.choose(symmetric_hash_of(mbuf), now, is_available, best);
        let nth = nf_threads.iter().position(|one| u16::from(one.0) == choice).unwrap_or(0);
        loads[nth] = loads[nth].saturating_add(1);
        chosen(n, links[nth]);
    }
}

/// The number of the replica with the least load, of those that get new flows, if any does.
fn least(loads: &[u32], takes_new: &[bool]) -> usize {
    let least =
        loads.iter().zip(takes_new).enumerate().min_by_key(|(_, (load, takes_new))| (!**takes_new, **load));
    least.map_or(0, |(n, _)| n)
}

/// Where packets go whose chain ends in a way that depends on their ingress ports.
pub(crate) fn leave_each(burst: &mut Dispatch<'_>, exit: Exit) -> Step {
    for (next, mbuf) in burst.split.nexts.iter_mut().zip(burst.batch.as_slice()) {
        let from = PortId(mbuf.port().0);
        *next = match exit {
            Exit::Port(port) => Next::Interface(port),
            Exit::Ingress => Next::Interface(from),
            Exit::Normal => Next::BridgeLookup { from },
            Exit::Router(router) => Next::Router { from, router },
        };
    }
    Step::Each
}
