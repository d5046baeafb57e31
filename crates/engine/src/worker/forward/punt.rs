// SPDX-License-Identifier: Apache-2.0
//! Between a virtual router and its kernel. In: packets that the router punts, or that its kernel sends. Out: to the
//! punt port of their interface, without their tag, as far as the shares of their classes allow; or out of the
//! interface's port.

use arrayvec::ArrayVec;
use netvm_model::RouterId;

use super::advertise;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::router::PuntReason;
use crate::worker::next::{Dispatch, Next, PuntBy, Step};
use crate::worker::packet::bytes_of;
use crate::worker::packet::keys::key_of;
use crate::worker::packet::retag::{Retag, retag};
use crate::worker::router::{PuntCause, counters_of, destination_hash, reason_of, source_hash};
use crate::worker::state::BURST;

/// Finds out why each packet is punted, and drops packets that exceed the share of their class.
#[cold]
pub(crate) fn punt(burst: &mut Dispatch<'_>, from: PortId, by: PuntBy, cause: PuntCause) -> Step {
    let Dispatch { cx, batch, split, .. } = burst;
    let Some(path) = cx.snapshot.router(by.router) else {
        return Step::All(Next::drop_at(from, DropReason::NoRouterInterface));
    };
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
        let reason = reason_of(cause, || key_of(mbuf).ok(), &path.tables);
        *next = Next::PuntFor { from, by, reason };
    }
    Step::Each
}

/// Drops packets that exceed the share of their class, or the limit of a neighbour.
pub(crate) fn limit(burst: &mut Dispatch<'_>, from: PortId, by: PuntBy, reason: PuntReason) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let excess = Next::drop_at(from, DropReason::PuntQuota);
    let path = cx.snapshot.router(by.router);
    let Some(interface) = path.and_then(|path| path.interface(by.interface)) else {
        return Step::All(Next::drop_at(from, DropReason::NoRouterInterface));
    };
    if dp.is_dry {
        return Step::All(Next::Kernel { from, by, reason });
    }
    let punts = &interface.punts;
    split.nexts.fill(Next::Kernel { from, by, reason });
    if matches!(reason, PuntReason::Miss | PuntReason::Lost) {
        let unresolved = (reason == PuntReason::Miss).then_some(&*punts.unresolved);
        let router = by.router;
        for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
            let may_begin =
                || unresolved.is_none_or(|limit| limit.admit(dp.clock.now, source_hash(router.0, mbuf)));
            let destination = destination_hash(router.0, mbuf);
            if !dp.limits.misses.admit_if(dp.clock.now, destination, may_begin) {
                *next = excess;
            }
        }
    }
    // The share of a redirect has already been checked.
    if reason != PuntReason::Redirect {
        let left: ArrayVec<usize, BURST> = (0..batch.len()).filter(|n| split.nexts[*n] != excess).collect();
        let lengths: ArrayVec<u32, BURST> = left.iter().map(|n| batch.as_slice()[*n].pkt_len()).collect();
        let admitted = punts.of(reason.class()).admit_run(dp.clock.now, &lengths);
        left[admitted..].iter().for_each(|n| split.nexts[*n] = excess);
    }
    let punted = split.nexts[..batch.len()].iter().filter(|next| **next != excess).count();
    punts.count(reason, punted, batch.len() - punted);
    Step::Each
}

/// Gives packets to the kernel, without the tag of their interface. Answers solicitations for addresses of NAT by the
/// port of the interface.
pub(crate) fn to_kernel(burst: &mut Dispatch<'_>, from: PortId, by: PuntBy) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let path = cx.snapshot.router(by.router);
    let Some(interface) = path.and_then(|path| path.interface(by.interface)) else {
        return Step::All(Next::drop_at(from, DropReason::NoRouterInterface));
    };
    let to_punt_port = Next::Interface(interface.punt);
    let addresses = cx.snapshot.nat.as_ref().map_or(&[][..], |nat| nat.advertised(by.router));
    if !by.is_tagged && addresses.is_empty() {
        return Step::All(to_punt_port);
    }
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        if !addresses.is_empty() && advertise::answer(mbuf, interface, addresses) {
            let sent = counters_of(interface, &dp.counters);
            sent.tx_packets.add(1);
            sent.tx_bytes.add(mbuf.pkt_len().into());
            *next = Next::Interface(interface.port);
            continue;
        }
        if !by.is_tagged {
            *next = to_punt_port;
            continue;
        }
        let is_stripped = retag(mbuf, Retag::Strip);
        *next = if is_stripped { to_punt_port } else { Next::drop_at(from, DropReason::TooLong) };
    }
    Step::Each
}

/// Sends packets of the kernel out of the port of their interface, with its tag.
pub(crate) fn from_kernel(burst: &mut Dispatch<'_>, from: PortId, router: RouterId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Some(interface) = cx.snapshot.router(router).and_then(|router| router.punted_by(from)) else {
        return Step::All(Next::drop_at(from, DropReason::NoRouterInterface));
    };
    let out = Next::Interface(interface.port);
    let sent = counters_of(interface, &dp.counters);
    sent.tx_packets.add(batch.len() as u64);
    sent.tx_bytes.add(bytes_of(batch));
    let Some(vlan) = interface.vlan else { return Step::All(out) };
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        let is_tagged = retag(mbuf, Retag::Push(vlan));
        *next = if is_tagged { out } else { Next::drop_at(from, DropReason::TooLong) };
    }
    Step::Each
}
