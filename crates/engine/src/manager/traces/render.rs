// SPDX-License-Identifier: Apache-2.0
//! Makes steps of the events of a packet. In: events of a recorder, and the rules that were in force. Out: what a user
//! sees. The same for hypothetical and real packets.

use std::sync::Arc;
use std::time::SystemTime;

use netvm_clock as clock;
use netvm_wire::FlowKey;

use super::history::History;
use crate::drop_reason::DropReason;
use crate::ids::WorkerId;
use crate::policy::{Decision, Outcome, Policy};
use crate::worker::record::{Events, PacketEvent, RawEvent, TraceRecord};
use crate::worker::trace::{Lost, Origin, Step, TimedStep, TracedPacket, Translated};

/// The steps of a packet under one policy.
pub(crate) fn steps(events: &Events, policy: &Policy) -> Vec<Step> {
    let (mut steps, mut fields) = (Vec::new(), None);
    events.list().iter().for_each(|event| add_steps(&event.what, policy, &mut fields, &mut steps));
    steps
}

/// What became of a packet that workers have followed: of all records of it.
pub(super) fn traced<'a>(records: &'a [TraceRecord], history: &History) -> Option<TracedPacket> {
    let (first, from) = records.iter().find_map(|record| Some((record, origin_of(record)?)))?;
    let age = clock::duration_of(clock::cycles().saturating_sub(first.received));
    let list = |record: &'a TraceRecord| record.events.list().iter().map(move |event| (record.by, event));
    let mut events: Vec<(WorkerId, &RawEvent)> = records.iter().flat_map(list).collect();
    events.sort_by_key(|(_, event)| event.cycles);
    let (mut steps, mut fields) = (Vec::new(), None);
    for (worker, RawEvent { cycles, snapshot, what }) in events {
        let after = clock::duration_of(cycles.saturating_sub(first.received));
        let Some(published) = history.of(*snapshot) else {
            let host = Arc::clone(&history.current()?.host);
            steps.push(TimedStep { after, worker, step: Step::Lost(Lost::Forgotten), host });
            break;
        };
        let mut some = Vec::new();
        add_steps(what, &published.policy, &mut fields, &mut some);
        let timed = |step| TimedStep { after, worker, step, host: Arc::clone(&published.host) };
        steps.extend(some.into_iter().map(timed));
    }
    let at = SystemTime::now().checked_sub(age)?;
    Some(TracedPacket { worker: first.by, at, from, bytes: first.bytes, steps })
}

/// Where the packet of a record comes from; `None` of a record that goes on with one of another worker.
fn origin_of(record: &TraceRecord) -> Option<Origin> {
    match record.events.list().first()?.what {
        PacketEvent::Step(Step::In(port)) => Some(Origin::Port(port)),
        PacketEvent::Step(Step::Made { role, .. }) => Some(Origin::Nf(role)),
        _ => None,
    }
}

/// Adds the steps of an event. `fields`: the header fields when an NF last got or returned the packet.
fn add_steps(what: &PacketEvent, policy: &Policy, fields: &mut Option<FlowKey>, steps: &mut Vec<Step>) {
    match what {
        PacketEvent::Ingress { port, decision, key, translated } => {
            let by_nat64 = |translated: &Translated| translated.is_nat64;
            steps.extend(translated.filter(|it| !by_nat64(it)).map(Step::Translated));
            steps.extend(key.map(|key| Step::Key(Box::new(key))));
            add_actions(policy.decision(*decision), steps);
            steps.extend(policy.ingress(*port).and_then(|ingress| {
                default_of(policy, ingress.undecided, ingress.lookup.otherwise, *decision)
            }));
            steps.extend(translated.filter(by_nat64).map(Step::Translated));
        }
        PacketEvent::Egress { out, from, decision } => {
            add_actions(policy.decision(*decision), steps);
            steps.extend(policy.egress(*out).and_then(|egress| {
                default_of(policy, egress.undecided, egress.lookup(*from)?.otherwise, *decision)
            }));
        }
        PacketEvent::ToNf { role, hop, key } => {
            steps.push(Step::ToNf { role: *role, hop: *hop });
            *fields = *key;
        }
        PacketEvent::FromNf { role, hop, verdict, key } => {
            steps.push(Step::FromNf { role: *role, hop: *hop, verdict: *verdict });
            let rewritten = key.filter(|key| fields.is_some_and(|before| before != *key));
            steps.extend(rewritten.map(|key| Step::Rewritten(Box::new(key))));
            *fields = *key;
        }
        PacketEvent::Step(step) => steps.push(step.clone()),
    }
}

/// Adds the rules of a decision and their actions.
fn add_actions(decision: &Decision, steps: &mut Vec<Step>) {
    if !decision.rules.is_empty() {
        let decided = decision.outcome != Outcome::Undecided;
        steps.push(Step::Rules { rules: decision.rules.to_vec(), decided });
    }
    if let Some(extras) = &decision.extras {
        if !extras.meters.is_empty() {
            steps.push(Step::Policed(extras.meters.len()));
        }
        steps.extend(extras.set_vlan.iter().map(|_| Step::Retagged));
    }
    steps.extend(decision.queue.map(Step::Queued));
    if let Some(extras) = &decision.extras {
        steps.extend(extras.mirrors.iter().map(|port| Step::Mirrored(*port)));
    }
}

/// The default of a port, whose rules leave a packet undecided.
fn default_of(policy: &Policy, undecided: Outcome, otherwise: u32, number: u32) -> Option<Step> {
    let is_default = policy.decision(number).outcome == Outcome::Undecided || number == otherwise;
    let allowed = undecided != Outcome::Drop(DropReason::Denied);
    is_default.then_some(Step::Default { allowed })
}
