// SPDX-License-Identifier: Apache-2.0
//! The graph of stages, and the only loop that runs them. A stage takes a burst and says [`Next`] for it: of all its
//! packets, or of each. No stage calls another. What all stages need is here, once: counters, captures, latency,
//! traces.
//!
//! ```text
//!  rx ──▶ Decision ──▶ Chain ──▶ Hop ──▶ Ring ──▶ (NF) ──▶ collect ──▶ Hop ─┐
//!            │                                                              │
//!            ├──▶ Bridge ──▶ Flood ──▶ Bridged ──┐                          │
//!            ├──▶ Router ──▶ Forwarded ──────────┤                          │
//!            │        └────▶ Punt ──▶ Kernel ────┤                          │
//!            └──▶ Interface ◀────────────────────┴──────────────────────────┘
//!                     └──▶ EgressRules ──▶ Decision ──▶ SourceNat ──▶ EgressRate ──▶ Tx
//!                                                        Decision ◀── Rx ◀── (a port without a device)
//! ```
//!
//! - [`rx`] and [`collect`] begin: packets that a port has received, and packets that an NF has returned.
//! - `Tx`, `Ring` and `Drop` end: the packets are with a device, with an NF, or free. What a port without a device
//!   sends goes on at once: another one receives it (`Rx`), L2 switching, or a port for which it gets a tag; as far
//!   as that is no loop.
//!
//! A burst that stays together is moved nowhere. The parts of one that does not are brought to their ends one after the
//! other, so packets of a flow keep their order.
//!
//! Cost: a jump for each stage and burst. A burst that is split: 16 bytes for each packet and stage that splits, and
//! two moves of the mbuf pointer.

pub(crate) mod arrivals;
pub(crate) mod collect;
pub(crate) mod handoff;
pub(crate) mod observe;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod rx;
pub(crate) mod tx;
pub(crate) mod verdicts;

use dpdk::Batch;

use super::act::{decision, reject};
use super::chain::entry::{self, AtRole};
use super::chain::hop::{self, Hop};
use super::chain::{pair, routed};
use super::forward::{bond, bridge, egress, nat, punt, route, tunnel, vlan};
use super::next::{Dispatch, Entering, Exit, Next, Split, Step};
use super::packet::groups::groups;
use super::state::Datapath;
use super::state::burst::Context;
use super::tx::offload::{AcceptedPackets, Finished, Receiver, finish};

/// Brings packets to their ends; the batch is empty afterwards.
#[inline]
pub(crate) fn walk(dp: &mut Datapath, cx: Context<'_>, first: Next, batch: &mut Batch) {
    let mut at = first;
    while !batch.is_empty() {
        if dp.recorder.is_some() {
            at = record::visited(dp, cx, at, batch);
        }
        at = match at {
            Next::Chain(entering) => entry::enter(dp, cx, entering),
            Next::ChainRole { from, chain, role, hop } => {
                entry::enter_at_role(dp, cx, Entering { from, chain, skipped: 0 }, AtRole { role, hop })
            }
            Next::Hop(chain, position) => hop::go(dp, cx, Hop { chain, position }, batch),
            Next::Replica(chain, position) => hop::choose(dp, cx, Hop { chain, position }),
            Next::Pair(chain, position) => pair::choose(cx, Hop { chain, position }),
            Next::WaitForStart(chain, position) => {
                return ring::start_queue::wait(dp, cx, Hop { chain, position }, batch);
            }
            Next::IntoPair(end) => {
                observe::into_pair(dp, cx, end, batch);
                if cx.snapshot.pairs.prepare() {
                    routed::go_in(dp, cx, end, batch);
                }
                Next::Tx(end.port)
            }
            Next::LeaveChain { chain, to, entered } => {
                observe::left_chain(dp, chain, batch);
                if entered {
                    observe::entered_chain(dp, chain, batch.len());
                }
                match to {
                    Exit::Port(out) => Next::Interface(out),
                    _ => Next::ByIngress(to),
                }
            }
            Next::HopUnfinished(chain, position) => {
                let hop = Hop { chain, position };
                let receiver = hop::receiver(dp, cx, hop);
                return finish(dp, receiver, batch, |dp, finished| match finished {
                    Finished::Packets(batch) => {
                        let next = hop::go_finished(dp, cx, hop);
                        walk(dp, cx, next, batch);
                    }
                    Finished::Lost(reason, mbuf) => observe::drop_one(dp, reason, mbuf),
                });
            }
            Next::TunnelEnd { .. } if dp.ports.has_offload_work && tunnel::has_joined(batch) => {
                let receiver = Receiver { memory: cx.memory, takes: AcceptedPackets::OfTunnels };
                return finish(dp, receiver, batch, |dp, finished| match finished {
                    Finished::Packets(batch) => walk(dp, cx, at, batch),
                    Finished::Lost(reason, mbuf) => observe::drop_one(dp, reason, mbuf),
                });
            }
            Next::Ring(end) => return ring::hand_out(dp, cx, end, batch),
            Next::Bridge { from, action } => {
                bridge::switch(cx.snapshot.policy.switching.as_ref(), from, action)
            }
            Next::Interface(out) => egress::interface(cx, out, batch),
            Next::Router { from, router } => route::enter(cx, from, router),
            Next::Tx(port) => match tx::passed_on(dp, cx.snapshot, port, batch) {
                Some(next) => next,
                None => return tx::transmit(dp, port, cx.memory, batch),
            },
            Next::Rx(port) => return rx::pass(dp, cx, port, batch),
            Next::Discard => return batch.clear(),
            Next::MalformedAt(port) => return observe::drop_malformed(dp, port, batch),
            Next::Drop(at, reason) => return observe::drop(dp, at, reason, batch),
            Next::Forwarded { router, out } => {
                observe::forwarded(dp, router, batch);
                Next::Interface(out)
            }
            _ => match branch(dp, cx, at, batch) {
                Some(next) => next,
                None => return,
            },
        };
    }
}

/// Runs a stage that may say several things of a burst. Returns where the packets that are left in the batch go.
#[inline(never)]
fn branch(dp: &mut Datapath, cx: Context<'_>, at: Next, batch: &mut Batch) -> Option<Next> {
    let mut split = Split::all(at);
    match run(&mut Dispatch { dp, cx, batch, split: &mut split }, at) {
        Step::All(next) => Some(next),
        Step::Each => {
            let (first, others) = split.nexts[..batch.len()].split_first()?;
            if others.iter().all(|other| other == first) {
                return Some(*first);
            }
            groups(batch, |n| split.nexts[n], |next, part| walk(dp, cx, next, part));
            None
        }
        Step::Copies(of_copies, next) => {
            walk(dp, cx, of_copies, &mut split.copies);
            Some(next)
        }
    }
}

/// Runs the stage.
fn run(burst: &mut Dispatch<'_>, at: Next) -> Step {
    match at {
        Next::Decision(side, action) => {
            observe::decided(burst.cx, action.decision, burst.batch);
            decision::apply(burst, side, action)
        }
        Next::Mirror(side, action, n) => decision::mirror(burst, side, action, n),
        Next::BridgeLookup { from } => bridge::look_up(burst, from),
        Next::FloodEach { from } => bridge::flood_each(burst, from),
        Next::Flood(flooding) => bridge::flood(burst, flooding),
        Next::Bridged { from, out } => bridge::tag(burst, from, out),
        Next::RouterShared { from, router } => route::share(burst, from, router),
        Next::RouterGroup(group) => route::copy_to_others(burst, group),
        Next::RouterAlone { from, router } => {
            observe::at_router(burst.dp, router, burst.batch);
            route::route(burst, from, router)
        }
        Next::FromKernel { from, router } => {
            observe::from_kernel(burst.dp, router, burst.batch);
            punt::from_kernel(burst, from, router)
        }
        Next::Punt { from, by, cause } => punt::punt(burst, from, by, cause),
        Next::PuntFor { from, by, reason } => punt::limit(burst, from, by, reason),
        Next::Kernel { from, by, .. } => {
            observe::punted(burst.dp, by.router, burst.batch);
            punt::to_kernel(burst, from, by)
        }
        Next::HopCopy(chain, position) => hop::copy(burst, Hop { chain, position }),
        Next::ReplicaOfFlow(chain, position) => hop::choose_each(burst, Hop { chain, position }),
        Next::PairOfFlow(chain, position) => pair::choose_each(burst, Hop { chain, position }),
        Next::ByIngress(exit) => hop::leave_each(burst, exit),
        Next::EgressRules { out, class } => egress::look_up(burst, out, class),
        Next::EgressClasses(out) => egress::divide(burst, out),
        Next::SourceNat(out) => nat::translate(burst, out),
        Next::EgressRate(out) => egress::meter(burst, out),
        Next::Reject { from } => reject::answer(burst, from),
        Next::TellMtu { from, mtu } => reject::tell_mtu(burst, from, mtu),
        Next::Member { bond } => bond::send(burst, bond),
        Next::PushTag { from, parent, tag } => vlan::push(burst, from, parent, tag),
        Next::PopTag { by } => vlan::pop(burst, by),
        Next::TunnelEnd { from, router } => tunnel::divide(burst, from, router),
        Next::PushHeaders { from, router } => tunnel::choose(burst, from, router),
        Next::Encapsulate(to) => tunnel::encapsulate(burst, to),
        Next::EncapsulateAll(to) => tunnel::encapsulate_for_next(burst, to),
        Next::PopHeaders(out) => tunnel::pop(burst, out),
        Next::Chain(_)
        | Next::ChainRole { .. }
        | Next::Bridge { .. }
        | Next::Hop(..)
        | Next::HopUnfinished(..)
        | Next::Replica(..)
        | Next::Pair(..)
        | Next::WaitForStart(..)
        | Next::IntoPair(_)
        | Next::LeaveChain { .. }
        | Next::Ring(_)
        | Next::Interface(_)
        | Next::Router { .. }
        | Next::Tx(_)
        | Next::Rx(_)
        | Next::Discard
        | Next::MalformedAt(_)
        | Next::Drop(..)
        | Next::Forwarded { .. } => Step::All(at),
    }
}
