// SPDX-License-Identifier: Apache-2.0
//! Flows of which workers keep something: a connection, per-flow verdicts of NFs, a place in the flow monitor. In:
//! decisions that depend on it. Out: questions to the workers, and what the kernel has forwarded, so that what they
//! keep does not age. A flow is forwarded only as long as each answer says that nobody needs to see its packets.
//!
//! All workers are asked: the one that owns a flow is the only one that keeps something of it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netvm_conntrack::{Tuple, Unseen};
use netvm_kernel_flows::{Ends, Key};
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{FlowKey, TcpFlags};

use super::decide::Decided;
use super::{Candidate, FastPaths};
use crate::kernel_flows::Sample;
use crate::manager::workers::Workers;
use crate::worker::{Keeps, VISITED_AT_ONCE, Visit, Visited};

/// Flows that are reported in one interval of counting: workers look at 64 of them between two turns.
const REPORTED_AT_ONCE: usize = 32 * VISITED_AT_ONCE;
/// A worker that has ended does not answer.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// A decision that depends on what is kept.
pub(super) struct Question {
    pub(super) candidate: Candidate,
    /// `None`: what NAT makes of its packets has to be known first.
    pub(super) decided: Option<Decided>,
    /// The header fields of the flow.
    pub(super) fields: FlowKey,
    /// Of both ports when it was decided.
    pub(super) epochs: [u32; 2],
    /// Of the routers then.
    routers_version: u64,
}

/// What a visit is about.
enum About {
    Questions(Vec<Question>),
    /// Flows that the kernel forwards.
    Flows(Vec<Key>),
}

/// What the workers have answered about a flow.
#[derive(Clone, Copy, Default)]
struct Answer {
    /// Nobody needs to see its packets.
    may_pass: bool,
    /// As long as there are some within this time.
    idle: Option<Duration>,
    /// What NAT makes of its packets, if they are translated.
    after: Option<Tuple>,
}

/// A visit that has not been answered by all workers.
struct Asked {
    about: About,
    answers: Vec<Answer>,
    awaited: usize,
    since: Instant,
}

/// Questions, asked and not.
#[derive(Default)]
pub(super) struct Questions {
    waiting: Vec<Question>,
    asked: BTreeMap<u64, Asked>,
    last_ticket: u64,
}

/// The header fields of a sample.
pub(super) fn fields_of(sample: &Sample) -> Option<FlowKey> {
    let mut key = FlowKey::EMPTY;
    key.read_frame(sample.headers(), sample.length as usize).ok().map(|()| key)
}

impl Questions {
    /// Whether a flow waits for an answer already.
    pub(super) fn are_about(&self, key: &Key) -> bool {
        let asked = self.asked.values().filter_map(|asked| match &asked.about {
            About::Questions(questions) => Some(questions),
            About::Flows(_) => None,
        });
        self.waiting.iter().chain(asked.flatten()).any(|question| question.candidate.key == *key)
    }

    fn ask(&mut self, about: About, flows: Vec<Visited>, workers: &mut Workers) {
        self.last_ticket += 1;
        let (answers, awaited) = (vec![Answer::default(); flows.len()], workers.len());
        self.asked.insert(self.last_ticket, Asked { about, answers, awaited, since: Instant::now() });
        let visit = Visit { ticket: self.last_ticket, flows };
        workers.send_all(|_| crate::worker::Command::Visit(Box::new(visit.clone())));
    }

    /// Adds the answer of a worker. Returns what all have answered, if none is missing.
    fn answered(&mut self, visit: &Visit) -> Option<(About, Vec<Answer>)> {
        let asked = self.asked.get_mut(&visit.ticket)?;
        for (answer, flow) in asked.answers.iter_mut().zip(&visit.flows) {
            if flow.may_pass {
                let idle = flow.idle.map(duration_of);
                *answer = Answer { may_pass: true, idle, after: flow.after };
            }
        }
        asked.awaited = asked.awaited.saturating_sub(1);
        let is_whole = asked.awaited == 0;
        let asked = is_whole.then(|| self.asked.remove(&visit.ticket)).flatten()?;
        Some((asked.about, asked.answers))
    }
}

impl FastPaths {
    /// Puts a decision off until the workers have said what they keep of the flow; `None`: it is to be made then, as
    /// NAT may translate the packets.
    pub(super) fn put_off(&mut self, candidate: Candidate, decided: Option<Decided>) {
        let epoch = |port| self.ports.get(&port).map_or(0, |port| port.epoch);
        let to = decided.as_ref().map_or(candidate.sample.port, |decided| decided.to);
        let epochs = [epoch(candidate.sample.port), epoch(to)];
        let fields = fields_of(&candidate.sample.shortened(super::DECIDED_LENGTH));
        if let Some(fields) = fields.filter(|_| !epochs.contains(&0)) {
            let routers_version = self.routers_version;
            let question = Question { candidate, decided, fields, epochs, routers_version };
            self.questions.waiting.push(question);
        }
    }

    /// Asks the workers what decisions wait for.
    pub(super) fn ask(&mut self, workers: &mut Workers) {
        self.questions.asked.retain(|_, asked| asked.since.elapsed() < MAX_WAIT);
        while !self.questions.waiting.is_empty() {
            let rest = self.questions.waiting.split_off(VISITED_AT_ONCE.min(self.questions.waiting.len()));
            let now = std::mem::replace(&mut self.questions.waiting, rest);
            let visited = |question: &Question| Visited {
                port: question.candidate.sample.port,
                key: question.fields,
                keeps: question.decided.as_ref().map_or(Keeps::CONNECTION, |decided| decided.keeps),
                unseen: Unseen::default(),
                may_pass: false,
                idle: None,
                after: None,
            };
            let flows = now.iter().map(visited).collect();
            self.questions.ask(About::Questions(now), flows, workers);
        }
    }

    /// Tells the workers what the kernel has forwarded of flows of which they keep something.
    pub(super) fn report(&mut self, workers: &mut Workers) {
        let mut reports = std::mem::take(&mut self.flows.last_reports);
        for (key, flow) in self.flows.iter_mut() {
            if reports.len() >= REPORTED_AT_ONCE {
                break;
            }
            reports.extend(flow.take_report().map(|report| (*key, report)));
        }
        while !reports.is_empty() {
            let rest = reports.split_off(VISITED_AT_ONCE.min(reports.len()));
            let (keys, flows) = std::mem::replace(&mut reports, rest).into_iter().unzip();
            self.questions.ask(About::Flows(keys), flows, workers);
        }
    }

    /// Follows the answer of a worker.
    pub(crate) fn visited(&mut self, visit: &Visit) {
        let Some((about, answers)) = self.questions.answered(visit) else { return };
        match about {
            About::Questions(questions) => {
                for (question, answer) in questions.into_iter().zip(answers) {
                    self.answer(question, answer);
                }
            }
            About::Flows(keys) => {
                for (key, Answer { may_pass, idle, .. }) in keys.iter().zip(answers) {
                    match self.flows.get_mut(key) {
                        Some(flow) if may_pass => flow.set_idle(idle),
                        Some(_) => self.end_flow(key),
                        None => {}
                    }
                }
            }
        }
    }

    fn answer(&mut self, question: Question, answer: Answer) {
        let epoch = |port| self.ports.get(&port).map_or(0, |port| port.epoch);
        let Question { candidate, decided, epochs, routers_version, .. } = question;
        let to = decided.as_ref().map_or(candidate.sample.port, |decided| decided.to);
        let is_as_then =
            epochs == [epoch(candidate.sample.port), epoch(to)] && routers_version == self.routers_version;
        if !is_as_then {
            return;
        }
        let Answer { may_pass, idle, after } = answer;
        // Only IPv4 can be translated.
        let translated = match after.map(ends_of) {
            Some(None) => return self.install(&candidate, None),
            after => after.flatten(),
        };
        match decided {
            None if may_pass => {
                self.candidates.push(Candidate { translated: Some(translated), ..candidate });
            }
            Some(decided) if may_pass && candidate.translated.flatten() == translated => {
                self.keep(&candidate, decided, idle);
            }
            _ => self.install(&candidate, None),
        }
    }

    /// Puts a flow into the table of which workers keep something, for so long without packets.
    pub(super) fn keep(&mut self, candidate: &Candidate, decided: Decided, idle: Option<Duration>) {
        let Some(fields) = fields_of(&candidate.sample.shortened(super::DECIDED_LENGTH)) else { return };
        self.install(candidate, Some(decided));
        if let Some(flow) = self.flows.get_mut(&candidate.key) {
            flow.keep(fields, idle);
        }
    }

    /// Ends a flow. What it has had is counted at once.
    fn end_flow(&mut self, key: &Key) {
        if let Some(flow) = self.flows.get_mut(key) {
            flow.end();
            self.next_count = Instant::now();
        }
    }

    /// Ends a flow whose sample opens or closes its connection, as nobody sees what is left of that otherwise.
    pub(super) fn end_if_over(&mut self, sample: &Sample, key: &Key) {
        const OVER: TcpFlags = TcpFlags::SYN.union(TcpFlags::FIN).union(TcpFlags::RST);
        let sees_ends = self.flows.get(key).is_some_and(|flow| flow.decided.keeps.sees_ends());
        if sees_ends && fields_of(sample).is_some_and(|fields| fields.tcp_flags.intersects(OVER)) {
            self.end_flow(key);
        }
    }

    /// To be set when connections are flushed.
    pub(crate) const fn is_flushed(&mut self) -> &mut bool {
        &mut self.is_flushed
    }

    /// Ends all flows of which workers keep something, as that may be over: at once, by the epochs of their ports.
    pub(crate) fn end_kept(&mut self) {
        let Some(shared) = self.shared.clone() else { return };
        let kept = self.flows.iter().filter(|(_, flow)| flow.decided.keeps != Keeps::NOTHING);
        let from: Vec<_> = kept.map(|(_, flow)| flow.from).collect();
        for id in from {
            if let Some(port) = self.ports.get_mut(&id) {
                port.end(id, &shared.table);
            }
        }
    }
}

/// The ends of translated packets of IPv4; `None` for those of IPv6.
fn ends_of(after: Tuple) -> Option<Ends> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (after.source.to_ip(), after.destination.to_ip())
    else {
        return None;
    };
    Some(Ends { addresses: [source, destination], ports: [after.source_port, after.destination_port] })
}

fn duration_of(ticks: u32) -> Duration {
    Duration::from_secs(ticks.into()) / TICKS_PER_SECOND
}
