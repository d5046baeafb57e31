// SPDX-License-Identifier: Apache-2.0
//! Programs that are hops: sends probes through them, watches what comes back, and decides which of them get packets.
//!
//! In: the counters of their ports, and from netvmd whether their processes run. Out: probes, notices, and for each
//! role the ports of the programs that get packets. What a chain does while a hop has none is the snapshot's affair
//! ([`publish`](super::publish)).

mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_model::{Host, NfConfig, PairConfig, PairSide, WhileStarting};

use super::notice::{Notice, Notices, ProgramChange};
use super::workers::Workers;
use crate::counters::PortCounters;
use crate::drop_reason::DropReason;
use crate::ids::{PortId, RoleId, WorkerId};
use crate::snapshot::ProgramFlows;
use crate::worker::{Command, Probe};
pub use state::ProgramState;
use state::{Health, Observation, SideSums, Watch};

/// Interval of probes and of the looks at what came back.
const INTERVAL: Duration = Duration::from_millis(40);

/// The programs of a role that get packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairMembers {
    /// The ports of each one, left and right.
    pub(crate) ports: Vec<[PortId; 2]>,
    /// Those of `ports` that are to get no more packets: what they return is too late.
    pub(crate) leaving: Vec<[PortId; 2]>,
    /// What happens to packets meanwhile, if none gets packets and one is starting.
    pub(crate) while_starting: Option<WhileStarting>,
    /// What is known of the flows of each instance that needs it, by its ports.
    pub(crate) flows: Vec<([PortId; 2], Arc<ProgramFlows>)>,
}

/// A worker that sends by a port; `None` if the port is closed.
type Senders<'a> = &'a dyn Fn(PortId) -> Option<WorkerId>;

/// One instance of a program.
#[derive(Debug)]
struct Pair {
    role: RoleId,
    ports: [PortId; 2],
    /// Whether its process runs; always, if netvmd does not start it.
    runs: bool,
    /// Whether it gets packets when it is up; else it is a standby.
    is_active: bool,
    /// Whether it gets packets by the snapshots so far.
    gets_packets: bool,
    health: Health,
    /// What had been counted when it was configured.
    base: [SideSums; 2],
    /// What is known of its flows, if that is needed.
    flows: Option<Arc<ProgramFlows>>,
}

/// A program, for statistics.
#[derive(Clone, Debug)]
pub struct ProgramView {
    /// Its role.
    pub role: RoleId,
    /// The number of the instance.
    pub instance: u16,
    /// Its state.
    pub state: ProgramState,
    /// The time in this state.
    pub since: Duration,
    /// It waits to replace another one.
    pub is_standby: bool,
    /// By side, left and right: packets of chains that entered by the port, and that came back by it.
    pub packets: [(u64, u64); 2],
}

/// The programs.
#[derive(Debug)]
pub(crate) struct Pairs {
    /// By role and number of the instance.
    pairs: BTreeMap<(String, u16), Pair>,
    looked: Instant,
}

impl Pairs {
    pub(crate) fn new() -> Self {
        Self { pairs: BTreeMap::new(), looked: Instant::now() }
    }

    /// Follows a new host: adds and removes programs.
    pub(crate) fn follow(&mut self, host: &Host, workers: &Workers) {
        let mut before = std::mem::take(&mut self.pairs);
        for nf in &host.nfs {
            let Some(pair) = nf.pair() else { continue };
            for (instance, ports) in (0..).zip(&pair.ports) {
                let key = (nf.role.clone(), instance);
                let known = before.remove(&key).filter(|known| known.ports == *ports);
                let new = || Pair::new(nf, *ports, instance < pair.replicas, sums_of(*ports, workers));
                let mut known = known.unwrap_or_else(new);
                if pair.notes_flows() {
                    known.flows.get_or_insert_with(|| Arc::new(ProgramFlows::new()));
                } else {
                    known.flows = None;
                }
                self.pairs.insert(key, known);
            }
            if pair.standby == 0 {
                self.of_role_mut(&nf.role).for_each(|pair| pair.is_active = true);
            }
        }
        self.settle();
    }

    /// Whether a program gets packets that is to get none any more.
    pub(crate) fn any_leaves(&self) -> bool {
        self.pairs.values().any(Pair::leaves)
    }

    /// From the next snapshot on, the programs get packets that are to get some.
    pub(crate) fn settle(&mut self) {
        self.pairs.values_mut().for_each(|pair| pair.gets_packets = pair.may_get_packets());
    }

    fn of_role_mut(&mut self, role: &str) -> impl Iterator<Item = &mut Pair> {
        self.pairs.iter_mut().filter(move |((of, _), _)| of == role).map(|(_, pair)| pair)
    }

    /// Notes that a program's process has started or ended. Returns whether snapshots have to follow.
    pub(crate) fn set_process(&mut self, role: &str, instance: u16, runs: bool) -> bool {
        let Some(pair) = self.pairs.get_mut(&(role.to_owned(), instance)) else { return false };
        let before = pair.health.state;
        pair.runs = runs;
        if runs {
            pair.health.starts();
        }
        // The next look finds the end, at once.
        self.looked = self.looked.checked_sub(INTERVAL).unwrap_or(self.looked);
        pair.health.state != before
    }

    /// Sends probes, and looks at what came back, at intervals. Returns whether other programs get packets now.
    pub(crate) fn service(
        &mut self,
        host: &Host,
        senders: Senders<'_>,
        workers: &mut Workers,
        notices: &mut Notices,
    ) -> bool {
        let elapsed = self.looked.elapsed();
        if elapsed < INTERVAL || self.pairs.is_empty() {
            return false;
        }
        self.looked = Instant::now();
        // This thread may have had something else to do.
        let step = elapsed.min(2 * INTERVAL);
        let mut changed = false;
        for ((role, instance), pair) in &mut self.pairs {
            let Some((nf, config)) = host.nf_named(role).and_then(|nf| Some((nf, nf.pair()?))) else {
                continue;
            };
            let runs = pair.runs || config.command.is_empty();
            let is_open = pair.ports.iter().all(|port| senders(*port).is_some());
            let seen = Observation { runs, is_open, sides: sums_of(pair.ports, workers) };
            let (before, since) = (pair.health.state, pair.health.since);
            let fault = pair.health.observe(seen, step, watch_of(host, nf, config));
            let change = match (fault, pair.health.state) {
                (Some(fault), _) => Some(ProgramChange::Fails(fault)),
                (None, ProgramState::Up) if before != ProgramState::Up => {
                    Some(ProgramChange::Forwards(since))
                }
                _ => None,
            };
            changed |= before != pair.health.state;
            if let Some(change) = change {
                notices.push(Notice::Program { role: pair.role, instance: *instance, change });
            }
            if config.probe && runs && is_open {
                probe(pair.ports, senders, workers);
            }
        }
        self.promote_standbys(host, notices) || changed
    }

    /// Replaces programs that are not up by standbys that are. Returns whether there are any.
    fn promote_standbys(&mut self, host: &Host, notices: &mut Notices) -> bool {
        let mut changed = false;
        for nf in host.nfs.iter().filter(|nf| nf.pair().is_some_and(|pair| pair.standby > 0)) {
            let is_up = |pair: &Pair| pair.health.state == ProgramState::Up;
            let failed = |pair: &Pair| pair.is_active && !is_up(pair);
            let waits = |pair: &Pair| !pair.is_active && is_up(pair);
            let find = |pairs: &Self, is: &dyn Fn(&Pair) -> bool| {
                pairs
                    .pairs
                    .iter()
                    .find(|((role, _), pair)| *role == nf.role && is(pair))
                    .map(|(key, _)| key.clone())
            };
            while let (Some(from), Some(to)) = (find(self, &failed), find(self, &waits)) {
                for (key, is_active) in [(from, false), (to.clone(), true)] {
                    if let Some(pair) = self.pairs.get_mut(&key) {
                        pair.is_active = is_active;
                    }
                }
                notices.push(Notice::Program {
                    role: nf.id,
                    instance: to.1,
                    change: ProgramChange::TookOver,
                });
                changed = true;
            }
        }
        changed
    }

    /// The programs that get packets, by role.
    pub(crate) fn members_by_role(&self, host: &Host) -> BTreeMap<RoleId, PairMembers> {
        let mut roles: BTreeMap<RoleId, PairMembers> = BTreeMap::new();
        for nf in &host.nfs {
            let Some(config) = nf.pair() else { continue };
            let members = roles.entry(nf.id).or_default();
            let own = || self.pairs.iter().filter(|((role, _), _)| *role == nf.role).map(|(_, pair)| pair);
            members.ports.extend(own().filter(|pair| pair.gets_packets).map(|pair| pair.ports));
            members.leaving.extend(own().filter(|pair| pair.leaves()).map(|pair| pair.ports));
            members
                .flows
                .extend(own().filter_map(|pair| Some((pair.ports, Arc::clone(pair.flows.as_ref()?)))));
            let starts = own().any(|pair| pair.health.state == ProgramState::Starting);
            members.while_starting = config.while_starting.filter(|_| members.ports.is_empty() && starts);
        }
        roles
    }

    /// All programs, for statistics.
    pub(crate) fn views(&self, workers: &Workers) -> Vec<ProgramView> {
        let view = |((_, instance), pair): (&(String, u16), &Pair)| {
            let now = sums_of(pair.ports, workers);
            let packets = [0, 1].map(|side: usize| {
                (now[side].into - pair.base[side].into, now[side].back - pair.base[side].back)
            });
            ProgramView {
                role: pair.role,
                instance: *instance,
                state: pair.health.state,
                since: pair.health.since,
                is_standby: !pair.is_active,
                packets,
            }
        };
        self.pairs.iter().map(view).collect()
    }
}

impl Pair {
    fn new(nf: &NfConfig, ports: [PortId; 2], is_active: bool, base: [SideSums; 2]) -> Self {
        let health = Health::new(base);
        Self { role: nf.id, ports, runs: false, is_active, gets_packets: false, health, base, flows: None }
    }

    fn may_get_packets(&self) -> bool {
        self.is_active && self.health.state == ProgramState::Up
    }

    fn leaves(&self) -> bool {
        self.gets_packets && !self.may_get_packets()
    }
}

/// Sends a probe each way.
fn probe([left, right]: [PortId; 2], senders: Senders<'_>, workers: &mut Workers) {
    // A program with one port returns them by that.
    let ways = if left == right { 1 } else { 2 };
    for (enters, leaves) in [(left, right), (right, left)].into_iter().take(ways) {
        if let Some(worker) = senders(enters) {
            workers.send(worker, Command::Probe(Probe { enters, leaves }));
        }
    }
}

fn sums_of(ports: [PortId; 2], workers: &Workers) -> [SideSums; 2] {
    ports.map(|port| {
        let sum = |of: &dyn Fn(&PortCounters) -> u64| -> u64 {
            workers.sum(|counters| counters.ports.get(port.index()).map_or(0, of))
        };
        let sent = |port: &PortCounters| {
            let refused = [DropReason::TxFull, DropReason::NoPeer].map(|reason| port.drops.get(reason));
            port.tx_packets.get() + refused.iter().sum::<u64>()
        };
        SideSums {
            into: sum(&|port| port.into_hop.get()),
            back: sum(&|port| port.from_hop.get()),
            sent: sum(&sent),
            probes: sum(&|port| port.probes.get()),
        }
    })
}

fn watch_of(host: &Host, nf: &NfConfig, pair: &PairConfig) -> Watch {
    let mut expects = [false; 2];
    for hop in host.pair_hops(nf) {
        expects[usize::from(hop.enters == PairSide::Left)] = true;
    }
    if expects == [false; 2] || pair.port_count == 1 {
        expects = [true; 2];
    }
    let hang_timeout = (nf.hang_timeout > 0).then(|| Duration::from_secs(nf.hang_timeout.into()));
    let has_one_port = pair.port_count == 1;
    Watch { probe: pair.probe, expects, hang_timeout, is_started: !pair.command.is_empty(), has_one_port }
}
