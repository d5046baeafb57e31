// SPDX-License-Identifier: Apache-2.0
//! Applies the decision of rules. In: packets with the same decision. Out: where its outcome sends them, after its rate
//! limits, its changes of the tag and its queue; before that, a copy for each mirror port, with the new tag.
//!
//! Cost: a decision without any of these is not a stage of its own ([`outcome`]).

use netvm_model::SteerTo;

use super::police::admitted;
use super::vlan::set_vlan;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::memory::mark;
use crate::policy::{Decision, Outcome};
use crate::snapshot::Snapshot;
use crate::worker::next::{Dispatch, Entering, Next, Side, Step};
use crate::worker::state::lookup_results::{Action, PacketAction, Steering};
use crate::worker::tx::copy::copies_for;

/// Where a decision of received packets sends them, or one of packets to send that drops them or lets them pass.
#[inline(always)]
pub(crate) fn outcome(snapshot: &Snapshot, side: Side, action: PacketAction) -> Next {
    let decision = snapshot.policy.decision(action.decision);
    match side {
        Side::Ingress(from) => match snapshot.policy.ingress(from) {
            Some(policy) => {
                let outcome = decision.outcome.resolved(policy.forward, policy.undecided);
                of_received(from, outcome, action)
            }
            None => Next::drop_at(from, DropReason::NoRule),
        },
        Side::Egress(out) => of_sent(snapshot, out, decision),
    }
}

#[inline(always)]
fn of_received(from: PortId, outcome: Outcome, action: PacketAction) -> Next {
    match outcome {
        Outcome::Port(out) => Next::Interface(out),
        Outcome::Chain(chain) => match action.action.unpack() {
            Action::SkipHops(skipped) => Next::Chain(Entering { from, chain, skipped }),
            Action::DropFlow => Next::drop_in(chain, DropReason::FlowVerdict),
            Action::Steer(Steering { to, hop }) => match to {
                SteerTo::Chain(chain) => Next::Chain(Entering { from, chain, skipped: 0 }),
                SteerTo::Role(role) => Next::ChainRole { from, chain, role, hop },
                SteerTo::Port(out) => Next::Interface(out),
            },
            _ => Next::Chain(Entering { from, chain, skipped: 0 }),
        },
        Outcome::Normal => Next::Bridge { from, action: action.action },
        Outcome::Router(router) => Next::Router { from, router },
        Outcome::Drop(reason) => Next::drop_at(from, reason),
        Outcome::Reject => Next::Reject { from },
        // A port's `forward` and default never are one of these.
        Outcome::Allow | Outcome::Undecided => Next::drop_at(from, DropReason::NoRule),
    }
}

/// Egress rules only allow or deny: the configuration permits no other actions. Rejected packets are the matter of
/// [`apply`], because they may have come by several ports.
fn of_sent(snapshot: &Snapshot, out: PortId, decision: &Decision) -> Next {
    let undecided = snapshot.policy.egress(out).map_or(Outcome::Allow, |policy| policy.undecided);
    match decision.outcome.resolved(Outcome::Allow, undecided) {
        Outcome::Drop(reason) => Next::drop_at(out, reason),
        _ => Next::allowed(snapshot, out),
    }
}

/// Applies a decision.
pub(crate) fn apply(burst: &mut Dispatch<'_>, side: Side, action: PacketAction) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let decision = cx.snapshot.policy.decision(action.decision);
    if let Some(queue) = decision.queue {
        batch.as_mut_slice().iter_mut().for_each(|mbuf| mark::set_queue(mbuf, queue));
    }
    let Some(extras) = &decision.extras else { return end(burst, side, action) };
    let meters = extras.meters.iter().filter(|_| !dp.is_dry);
    let conform =
        meters.fold(batch.len(), |count, meter| admitted(meter, dp.clock.now, &batch.as_slice()[..count]));
    let then = Next::Mirror(side, action, 0);
    split.nexts[..conform].fill(then);
    split.nexts[conform..].fill(Next::drop_at(side.port(), DropReason::Policed));
    for change in &extras.set_vlan {
        for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
            if *next == then && !set_vlan(*change, mbuf) {
                *next = Next::drop_at(side.port(), DropReason::TooLong);
            }
        }
    }
    Step::Each
}

/// A copy for the `n`th mirror port of a decision, then the others; then its outcome.
pub(crate) fn mirror(burst: &mut Dispatch<'_>, side: Side, action: PacketAction, n: u8) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let extras = cx.snapshot.policy.decision(action.decision).extras.as_ref();
    let Some(to) = extras.and_then(|extras| extras.mirrors.get(usize::from(n))) else {
        return end(burst, side, action);
    };
    let then = Next::Mirror(side, action, n + 1);
    // A port does not mirror to itself what it sends.
    if side == Side::Egress(*to) {
        return Step::All(then);
    }
    split.copies = copies_for(dp, *to, cx.memory, batch.as_slice());
    Step::Copies(Next::Tx(*to), then)
}

fn end(burst: &mut Dispatch<'_>, side: Side, action: PacketAction) -> Step {
    let snapshot = burst.cx.snapshot;
    let next = outcome(snapshot, side, action);
    if let Side::Egress(_) = side {
        let is_rejected = snapshot.policy.decision(action.decision).outcome == Outcome::Reject;
        if is_rejected || matches!(next, Next::Drop(..)) {
            forget_begun(burst);
        }
        if is_rejected {
            return reject_each(burst);
        }
    }
    Step::All(next)
}

/// Forgets the connections that packets have begun which the rules of a port do not let out: they leave no trace.
#[cold]
fn forget_begun(burst: &mut Dispatch<'_>) {
    if let Some(connections) = &mut burst.dp.connections {
        burst.batch.as_slice().iter().for_each(|mbuf| connections.forget_begun(mbuf));
    }
}

/// The senders of packets to send are behind the ports that the packets came by.
fn reject_each(burst: &mut Dispatch<'_>) -> Step {
    for (next, mbuf) in burst.split.nexts.iter_mut().zip(burst.batch.as_slice()) {
        *next = Next::Reject { from: PortId(mbuf.port().0) };
    }
    Step::Each
}
