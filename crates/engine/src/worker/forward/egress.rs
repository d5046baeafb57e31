// SPDX-License-Identifier: Apache-2.0
//! The rules and the rate of a port for packets to send. In: packets to send by a port. Out: to the tx stage, the
//! packets that they allow.
//!
//! A port without either costs one check of the policy per burst. Otherwise packets are looked up again with their
//! current key, because an NF may have changed them. The flow cache stores the decisions under the egress port and the
//! class of the ingress port.

use dpdk::Batch;

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::act::police::admitted;
use crate::worker::classify::classifier::{Classified, Classifier};
use crate::worker::classify::{classify, scope::Scope};
use crate::worker::next::{Dispatch, Next, Side, Step};
use crate::worker::state::burst::{Burst, Context};

/// Sends packets out of a port, as far as its rules and rate allow.
#[inline]
pub(crate) fn interface(cx: Context<'_>, out: PortId, batch: &Batch) -> Next {
    let policy = cx.snapshot.policy.egress(out);
    let Some(policy) = policy.filter(|policy| policy.looks) else { return Next::allowed(cx.snapshot, out) };
    let class = |mbuf: &dpdk::Mbuf| policy.class(PortId(mbuf.port().0));
    let mut classes = batch.as_slice().iter().map(class);
    match classes.next() {
        // Packets whose ingress ports have the same class share a rule list.
        Some(class) if classes.all(|other| other == class) => Next::EgressRules { out, class },
        _ => Next::EgressClasses(out),
    }
}

/// Divides packets by the classes of their ingress ports.
pub(crate) fn divide(burst: &mut Dispatch<'_>, out: PortId) -> Step {
    let Some(policy) = burst.cx.snapshot.policy.egress(out) else { return Step::All(Next::Tx(out)) };
    for (next, mbuf) in burst.split.nexts.iter_mut().zip(burst.batch.as_slice()) {
        *next = Next::EgressRules { out, class: policy.class(PortId(mbuf.port().0)) };
    }
    Step::Each
}

/// Finds the decision of a port's egress rules for each packet.
pub(crate) fn look_up(burst: &mut Dispatch<'_>, out: PortId, class: u16) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let policy = cx.snapshot.policy.egress(out);
    let Some(scope) = policy.and_then(|policy| Scope::egress(cx.snapshot, out, policy, class)) else {
        return Step::All(Next::allowed(cx.snapshot, out));
    };
    // There always is one: packets do not pass so many ports.
    let mut looked_up = dp.bursts.pop().unwrap_or_else(|| Box::new(Burst::new()));
    looked_up.batch.append(batch);
    let classified = classify(&mut Classifier::of(dp), &scope, &mut looked_up);
    let side = Side::Egress(out);
    batch.append(&mut looked_up.batch);
    for (n, next) in split.nexts[..batch.len()].iter_mut().enumerate() {
        *next = Next::Decision(
            side,
            match classified {
                Classified::Uniform(same_class) => same_class.action,
                Classified::Each => looked_up.results.action(n),
            },
        );
    }
    for mbuf in looked_up.malformed.drain() {
        split.nexts[batch.len()] = Next::MalformedAt(out);
        batch.add(mbuf);
    }
    dp.bursts.push(looked_up);
    Step::Each
}

/// Drops packets that exceed the rate of a port.
pub(crate) fn meter(burst: &mut Dispatch<'_>, out: PortId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let meter = cx.snapshot.policy.egress(out).and_then(|policy| policy.meter.as_ref());
    let Some(meter) = meter.filter(|_| !dp.is_dry) else {
        return Step::All(Next::Tx(out));
    };
    let conform = admitted(meter, dp.clock.now, batch.as_slice());
    split.nexts[..conform].fill(Next::Tx(out));
    split.nexts[conform..].fill(Next::drop_at(out, DropReason::Policed));
    Step::Each
}
