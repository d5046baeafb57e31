//! The dispatch stage. In: a received burst. Out: packets with the same action together, in order, to a chain, a port,
//! L2 switching, a router or nowhere, after the extra actions of their decision. Actions are found in one of two ways:
//!
//! - blanket: the port has one decision for all packets, whatever they carry. No packet is read.
//! - per flow: [`classify`] finds the action of each packet.
//!
//! Cost: blanket, one look at the policy per burst. Per flow, one comparison of 8 bytes per packet if all actions are
//! the same; otherwise a copy of the mbuf pointers per different action.

use dpdk::Batch;

use super::receive::Received;
use crate::drop_reason::DropReason;
use crate::policy::Outcome;
use crate::worker::act::{do_extras, police::police, reject};
use crate::worker::chain::entry::{enter, enter_without_hops};
use crate::worker::classify::classifier::{Classified, Classifier};
use crate::worker::classify::classify;
use crate::worker::forward::egress::send_out;
use crate::worker::forward::route::route;
use crate::worker::forward::switching;
use crate::worker::packet::runs::groups;
use crate::worker::state::Datapath;
use crate::worker::state::burst::{Burst, Ingress};
use crate::worker::state::lookup_results::{Action, Alike, PackedAction, PacketAction};

/// Sends a burst where its port's policy says; the batch is empty afterwards.
#[inline]
pub(crate) fn ingress(dp: &mut Datapath, received: Received<'_>, burst: &mut Burst) {
    let Received { origin, bytes } = received;
    let Some(policy) = origin.cx.snapshot.policy.ingress(origin.port) else {
        return dp.drop_at_port(origin.port, DropReason::NoRule, &mut burst.batch);
    };
    if let Some(meter) = &policy.meter {
        police(dp, meter, origin.port, &mut burst.batch);
    }
    let ingress = Ingress { origin, policy };
    if let Some(decision) = policy.blanket
        && !ingress.may_have_flow_verdicts()
    {
        let action = PacketAction { decision, action: PackedAction::AS_DECIDED };
        return dispatch(dp, &ingress, Alike { action, bytes }, &mut burst.batch);
    }
    match classify(&mut Classifier::of(dp), &ingress, burst) {
        Classified::Alike(alike) => dispatch(dp, &ingress, alike, &mut burst.batch),
        Classified::Each => dispatch_each(dp, &ingress, burst),
    }
}

/// Sends packets by the action that the results have for each; the batch is empty afterwards.
#[inline]
fn dispatch_each(dp: &mut Datapath, ingress: &Ingress<'_>, burst: &mut Burst) {
    let Burst { batch, results } = burst;
    let count = batch.len();
    if count == 0 {
        return;
    }
    let first = results.action(0);
    if (1..count).all(|n| results.action(n) == first) {
        let alike = Alike { action: first, bytes: results.bytes(count) };
        return dispatch(dp, ingress, alike, batch);
    }
    groups(
        batch,
        |n| results.action(n),
        |action, batch| {
            let bytes = batch.as_slice().iter().map(|mbuf| u64::from(mbuf.pkt_len())).sum();
            dispatch(dp, ingress, Alike { action, bytes }, batch);
        },
    );
}

/// Sends packets by the action that they share; the batch is empty afterwards.
#[inline]
fn dispatch(dp: &mut Datapath, ingress: &Ingress<'_>, alike: Alike, batch: &mut Batch) {
    let Alike { action, bytes } = alike;
    let origin = ingress.origin;
    let snapshot = origin.cx.snapshot;
    if let Some(hits) = snapshot.hits.get(action.decision as usize) {
        hits.add(batch.len(), bytes);
    }
    let decision = snapshot.policy.decision(action.decision);
    if let Some(extras) = &decision.extras {
        do_extras(dp, extras, origin, batch);
    }
    match decision.outcome.resolved(ingress.policy.forward, ingress.policy.undecided) {
        Outcome::Port(out) => send_out(dp, origin.cx, out, batch),
        Outcome::Chain(chain) => match action.action.unpack() {
            Action::SkipHops(hops) => enter_without_hops(dp, origin, (chain, hops), batch),
            Action::DropFlow => dp.drop_in_chain(chain, DropReason::FlowVerdict, batch),
            _ => enter(dp, origin, chain, batch),
        },
        Outcome::Normal => switching::send(dp, origin, action.action.unpack(), batch),
        Outcome::Router(router) => route(dp, origin, router, batch),
        Outcome::Drop(reason) => dp.drop_at_port(origin.port, reason, batch),
        Outcome::Reject => reject::reject(dp, origin, batch),
        // A port's own forward and default are none of these.
        Outcome::Allow | Outcome::Undecided => dp.drop_at_port(origin.port, DropReason::NoRule, batch),
    }
}
