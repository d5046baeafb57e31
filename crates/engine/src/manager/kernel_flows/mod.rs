// SPDX-License-Identifier: Apache-2.0
//! The kernel's flow table: which packets from one port with a fast path to another the kernel forwards by itself. In:
//! samples that workers take of what such ports receive. Out: flows in the table, epochs of ports, and counts of what
//! the kernel has forwarded.
//!
//! - A sample takes the way of a hypothetical packet through the real stages. [`decide`] says whether the kernel can do
//!   what happens to it. So the table never knows more than the workers do.
//! - A flow has the fields that rules for its port read ([`ports`]): where rules are coarse, it is many connections.
//! - It holds as long as both ports keep their epochs. A port gets another one when something changes that may change
//!   decisions about its packets, and only then.
//! - A lease ends what is decided when this thread has not been here for [`LEASE`], whatever keeps it.
//! - Where workers keep something of a flow, [`kept`] asks them whether nobody needs to see its packets.
//! - While a capture or a trace has to see the packets of a port, it has no flows ([`watched`]).
//! - [`account`] counts what the kernel has forwarded as if workers had done it.

mod account;
mod decide;
mod kept;
mod ports;
mod route;
mod watched;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_kernel_flows::{Ends, Flow, Key};
use netvm_model::Host;
use netvm_wire::ConnState;
use rtrb::Consumer;
use rustix::time::{ClockId, clock_gettime};

use super::memory::Memories;
use super::ports::{Configured, Ports};
use super::publish::policy::Rules;
use super::routers::Routers;
use super::views::flows::FlowView;
use super::views::trace::PacketTracer;
use super::workers::Workers;
use crate::ids::PortId;
use crate::kernel_flows::{Intervals, Sample, Sampler, Shared};
use crate::policy::Policy;
use crate::snapshot::Snapshot;
use crate::worker::trace::Step;
use crate::worker::{Command, Hypothetical, Keeps};
use account::{Counting, Flows, Installed};
use decide::{Decided, decide};
use kept::Questions;
use ports::FastPathPort;
use route::{Paths, leaves_so};
use watched::Paused;
pub(crate) use watched::Watching;

/// How long the kernel forwards without a sign of life.
const LEASE: Duration = Duration::from_millis(200);
/// Samples that are decided at once, as others wait for the manager meanwhile.
const DECIDED_AT_ONCE: usize = 64;
/// Samples of a flow before it is decided, at ports whose rules tell connections apart: most of these are short.
const SAMPLES_OF_FLOW: u8 = 2;
/// Flows whose samples are counted.
const SAMPLED_FLOWS: usize = 1 << 16;
/// A port whose packets the kernel cannot forward is sampled once in so many bursts.
const MAX_INTERVAL: u16 = 256;
/// The longest sample that is decided; the table bounds lengths by itself.
const DECIDED_LENGTH: u16 = 1514;
/// Interval at which the kernel's counts are read.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;

/// What the table needs of the engine's other parts.
pub(crate) struct Context<'a> {
    pub(crate) host: &'a Host,
    pub(crate) rules: &'a mut Rules,
    pub(crate) ports: &'a Ports,
    pub(crate) workers: &'a mut Workers,
    pub(crate) routers: &'a Routers,
    pub(crate) watching: Watching<'a>,
}

/// A sample of a flow that is to be decided.
struct Candidate {
    sample: Sample,
    key: Key,
    /// What NAT makes of its packets, once that is known.
    translated: Option<Option<Ends>>,
}

impl Candidate {
    /// The sample as rules and routers see it.
    fn seen(&self) -> Sample {
        let sample = self.sample.shortened(DECIDED_LENGTH);
        match self.translated {
            Some(Some(Ends { addresses: [_, destination], ports: [_, port] })) => {
                sample.to(destination, port)
            }
            Some(None) | None => sample,
        }
    }
}

/// What the manager knows of the table.
pub(crate) struct FastPaths {
    /// The table, once a port has a fast path.
    shared: Option<Arc<Shared>>,
    /// What is to be decided.
    candidates: Vec<Candidate>,
    intervals: Arc<Intervals>,
    /// By worker.
    samples: Vec<Consumer<Sample>>,
    ports: BTreeMap<PortId, FastPathPort>,
    flows: Flows,
    /// By port: what its container could not get, as counted.
    undelivered: BTreeMap<PortId, u64>,
    /// How often flows were sampled that are not decided yet.
    sampled: HashMap<Key, u8>,
    last_epoch: u32,
    next_count: Instant,
    /// Of the routers whose tables flows follow.
    routers_version: u64,
    questions: Questions,
    /// Connections are flushed.
    is_flushed: bool,
    paused: Paused,
}

/// Time as the kernel's programs see it.
fn kernel_time() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

impl Default for FastPaths {
    fn default() -> Self {
        Self {
            shared: None,
            candidates: Vec::new(),
            intervals: Arc::default(),
            samples: Vec::new(),
            ports: BTreeMap::new(),
            flows: Flows::default(),
            undelivered: BTreeMap::new(),
            sampled: HashMap::new(),
            last_epoch: 0,
            next_count: Instant::now(),
            routers_version: 0,
            questions: Questions::default(),
            is_flushed: false,
            paused: Paused::default(),
        }
    }
}

impl FastPaths {
    /// Looks after the table, if a port has a fast path. Returns whether there are flows to decide.
    pub(crate) fn service(&mut self, context: &mut Context<'_>) -> bool {
        if self.shared.is_none() {
            self.shared = context.ports.kernel_flows().cloned();
        }
        let Some(shared) = self.shared.clone() else { return false };
        if std::mem::take(&mut self.is_flushed) {
            self.end_kept();
        }
        shared.table.renew(kernel_time() + LEASE);
        self.sample(context.workers);
        let in_force = Configured { host: context.host, policy: context.rules.policy() };
        let mut ends = context.ports.fast_ends();
        self.pause(context.watching, context.host);
        let watched = context.watching.ports(context.host);
        ends.iter_mut().for_each(|(id, end)| end.is_open &= !watched.has(*id));
        self.follow_ports(&shared.table, ends, in_force);
        if self.routers_version != context.routers.version() {
            self.routers_version = context.routers.version();
            self.follow_routers(&shared, context);
        }
        if Instant::now() >= self.next_count {
            self.count(&shared, context);
            self.report(context.workers);
        }
        self.ask(context.workers);
        let samples = self.take_samples();
        self.candidates.extend(samples);
        !self.candidates.is_empty()
    }

    /// Decides the flows of samples as workers with this snapshot do, and puts those into the table that the kernel can
    /// forward.
    pub(crate) fn decide(&mut self, snapshot: Snapshot, tracer: &mut PacketTracer, memory: &mut Memories) {
        // Samples are no traffic.
        let snapshot = Snapshot { hits: Arc::default(), ..snapshot };
        for candidate in std::mem::take(&mut self.candidates) {
            if candidate.translated.is_none()
                && snapshot.nat.is_some()
                && snapshot.tracks(candidate.sample.port)
            {
                self.put_off(candidate, None);
                continue;
            }
            let sample = candidate.seen();
            let key = Key::of_frame(sample.port.0.into(), sample.headers());
            let key = key.filter(|_| candidate.translated.flatten().is_some()).unwrap_or(candidate.key);
            let length = sample.length as usize;
            let packet = Hypothetical {
                length,
                state: ConnState::Established,
                ..Hypothetical::of(sample.port, sample.headers())
            };
            let events = tracer.events(packet, &snapshot, memory);
            let decided = events.ok().and_then(|events| decide(&events, sample.port, &key, &snapshot));
            let monitored = self.ports.get(&sample.port).is_some_and(FastPathPort::is_monitored);
            let decided = decided.map(|decided| decided.kept(monitored));
            match decided {
                // The workers have just said that it is open.
                Some(decided) if candidate.translated.is_some() && decided.keeps == Keeps::CONNECTION => {
                    self.keep(&candidate, decided, None);
                }
                Some(decided) if decided.keeps != Keeps::NOTHING => self.put_off(candidate, Some(decided)),
                decided => self.install(&candidate, decided),
            }
        }
    }

    /// Ends flows about which another policy may decide otherwise, before it is in force.
    pub(crate) fn follow_policy(&mut self, before: &Policy, after: Configured<'_>) {
        self.end_kept();
        let Some(shared) = &self.shared else { return };
        let changes = ports::Changes::between(before, after.policy);
        for (id, port) in &mut self.ports {
            if changes.concern(*id) || port.differs(after, *id) {
                port.end(*id, &shared.table);
            }
        }
    }

    /// Adds to the steps of a hypothetical packet that the kernel forwards such packets, if it does.
    pub(crate) fn complete(&self, packet: Hypothetical<'_>, mut steps: Vec<Step>) -> Vec<Step> {
        let mask = self.ports.get(&packet.from).and_then(|port| port.mask.as_ref());
        let key = mask.zip(Key::of_frame(packet.from.0.into(), packet.headers));
        let flow = key.and_then(|(mask, key)| self.flows.get(&key.masked(mask)));
        if flow.is_some_and(|flow| self.holds(flow)) {
            steps.push(Step::ByKernel);
        }
        steps
    }

    /// At most so many of the flows that the kernel forwards.
    pub(crate) fn views(&self, most: usize) -> Vec<FlowView> {
        let held = self.flows.iter().filter(|(_, flow)| self.holds(flow));
        held.take(most).map(|(key, flow)| flow.view(key)).collect()
    }

    /// Gives a sampler to each worker that has none.
    fn sample(&mut self, workers: &mut Workers) {
        self.samples.truncate(workers.len());
        for worker in workers.ids() {
            let known = self.samples.get_mut(worker.index());
            if known.as_ref().is_some_and(|samples| !samples.is_abandoned()) {
                continue;
            }
            let (sampler, samples) = Sampler::new(&self.intervals);
            match known {
                Some(known) => *known = samples,
                None => self.samples.push(samples),
            }
            workers.send(worker, Command::Sample(sampler));
        }
    }

    /// Samples of flows that are to be decided, each with its key.
    fn take_samples(&mut self) -> Vec<Candidate> {
        let mut taken: Vec<Candidate> = Vec::new();
        for _ in 0..2 * DECIDED_AT_ONCE {
            let Some(sample) = self.samples.iter_mut().find_map(|samples| samples.pop().ok()) else { break };
            let Some(key) = self.key_of(&sample) else { continue };
            let is_taken = taken.iter().any(|known| known.key == key);
            if taken.len() < DECIDED_AT_ONCE && !is_taken && self.is_to_be_decided(&sample, &key) {
                taken.push(Candidate { sample, key, translated: None });
            }
        }
        taken
    }

    /// The key of a sample, if the kernel can forward such packets.
    fn key_of(&mut self, sample: &Sample) -> Option<Key> {
        let port = self.ports.get_mut(&sample.port).filter(|port| port.epoch != 0)?;
        let mask = port.mask.as_ref()?;
        match Key::of_frame(sample.port.0.into(), sample.headers()) {
            Some(key) => Some(key.masked(mask)),
            None => {
                port.sample_less(sample.port, &self.intervals);
                None
            }
        }
    }

    /// Whether the table has no flow for a sample, and the flow is worth one.
    fn is_to_be_decided(&mut self, sample: &Sample, key: &Key) -> bool {
        if let Some(flow) = self.flows.get(key) {
            if !self.holds(flow) {
                // It has to be counted before another one takes its place.
                self.next_count = Instant::now();
            }
            self.end_if_over(sample, key);
            return false;
        }
        if self.questions.are_about(key) || self.candidates.iter().any(|known| known.key == *key) {
            return false;
        }
        let is_one_of_many = self.ports.get(&sample.port).is_some_and(|port| port.tells_connections_apart);
        if !is_one_of_many {
            return true;
        }
        if self.sampled.len() >= SAMPLED_FLOWS {
            self.sampled.clear();
        }
        let count = self.sampled.entry(*key).or_insert(0);
        *count += 1;
        let is_long = *count >= SAMPLES_OF_FLOW;
        if is_long {
            self.sampled.remove(key);
        }
        is_long
    }

    fn holds(&self, flow: &Installed) -> bool {
        holds(&self.ports, flow)
    }

    /// Puts a flow into the table, if the kernel can forward it.
    fn install(&mut self, candidate: &Candidate, decided: Option<Decided>) {
        let (Some(shared), Candidate { sample, key, translated }) = (&self.shared, candidate) else { return };
        let to = decided.as_ref().and_then(|decided| self.ports.get(&decided.to));
        let to = to.filter(|to| to.epoch != 0).map(|to| (to.end, to.epoch, &to.config));
        let continues = to.is_some_and(|(_, _, config)| config.continues());
        let to = to.map(|(end, epoch, config)| (end, epoch, config.mtu));
        let Some(port) = self.ports.get_mut(&sample.port) else { return };
        let (Some(decided), Some((end, epoch, mtu))) = (decided, to) else {
            return port.sample_less(sample.port, &self.intervals);
        };
        let continues = continues && port.config.continues();
        let epochs = [port.epoch, epoch];
        let longest = decided.routed.map_or(u32::MAX, |routed| routed.mtu);
        let flow = Flow {
            interface: end.interface,
            slot: decided.to.0.into(),
            epochs,
            max_frame: end.mtu.min(mtu.into()).min(longest) + ETHERNET,
            is_tracked: decided.keeps.sees_ends(),
            continues,
            routed: decided.routed.map(|routed| routed.macs),
            translated: translated.flatten(),
        };
        if shared.table.insert(key, flow).is_err() {
            // It is full: flows that are not used make room.
            self.flows.is_full = true;
            return;
        }
        port.sample_often(sample.port, &self.intervals);
        self.flows.add(*key, Installed::new(decided, sample.port, epochs));
    }

    /// Ends flows that do not leave a router any more as they did.
    fn follow_routers(&mut self, shared: &Shared, context: &mut Context<'_>) {
        let policy = Arc::clone(context.rules.policy());
        let mut counting = Counting::new(&policy, context.workers.by_kernel());
        let paths: &Paths = context.routers.paths();
        let leaves_so = |_: &Key, flow: &Installed| {
            flow.decided.routed.as_ref().is_none_or(|routed| leaves_so(routed, paths, flow.from))
        };
        self.flows.retain(&shared.table, &mut counting, leaves_so);
        context.rules.hits_mut().add(counting.hits());
    }

    /// Counts what the kernel has forwarded, and removes flows that do not hold, or have no packets.
    fn count(&mut self, shared: &Shared, context: &mut Context<'_>) {
        self.next_count = Instant::now() + COUNT_INTERVAL;
        let policy = Arc::clone(context.rules.policy());
        let mut counting = Counting::new(&policy, context.workers.by_kernel());
        let Self { flows, ports, undelivered, .. } = self;
        for (id, counted) in undelivered {
            let now = shared.table.undelivered(id.0.into());
            counting.drop_at(*id, now.saturating_sub(std::mem::replace(counted, now)));
        }
        flows.count(&shared.table, &mut counting, |flow| holds(ports, flow));
        context.rules.hits_mut().add(counting.hits());
    }
}

/// Whether both ports of a flow have their epochs still.
fn holds(ports: &BTreeMap<PortId, FastPathPort>, flow: &Installed) -> bool {
    let epoch = |port: PortId| ports.get(&port).map_or(0, |port| port.epoch);
    flow.epochs == [epoch(flow.from), epoch(flow.decided.to)]
}
