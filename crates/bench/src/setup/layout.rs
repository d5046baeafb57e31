// SPDX-License-Identifier: Apache-2.0
//! Builds configurations for benchmarks.

use netvm_model::{
    Action, Actions, Balance, Chain, ChainId, EngineConfig, FlowMonitorConfig, Group, GroupId, Host, Idle,
    Match, NfConfig, NfStart, OnFailure, Output, PairConfig, PortConfig, PortId, PortKind, RoleId, Rule,
    RuleId, RuleParts, SourceConfig,
};
use netvm_wire::Ipv4Net;

use crate::machine::huge_pages_are_worthwhile;

/// Builder of a host; ids are indexes in its lists.
#[derive(Debug)]
pub struct Layout {
    host: Host,
}

impl Layout {
    /// A host with one worker on `core`.
    pub fn new(core: u32, idle: Idle) -> Self {
        Self::on(&[core], idle)
    }

    /// A host with a worker on each of these cores.
    pub fn on(cores: &[u32], idle: Idle) -> Self {
        let engine = EngineConfig {
            cores: cores.to_vec(),
            idle,
            huge_pages: huge_pages_are_worthwhile(),
            ..EngineConfig::default()
        };
        Self { host: Host { engine, ..Host::default() } }
    }

    /// Whether memory is in huge pages, whatever is free.
    #[must_use]
    pub const fn with_huge_pages(mut self, are_used: bool) -> Self {
        self.host.engine.huge_pages = are_used;
        self
    }

    /// Counts flows of what ports receive.
    pub fn monitor_flows(&mut self) {
        self.host.engine.flow_monitor = Some(FlowMonitorConfig::default());
    }

    /// A trust group.
    pub fn group(&mut self, name: &str, buffers: u32, buffer_size: u32) -> GroupId {
        let id = GroupId(self.host.groups.len() as u16);
        let name = name.to_owned();
        self.host.groups.push(Group { id, name, buffers, buffer_size, headroom: 128, ..Group::default() });
        id
    }

    /// A port with one queue.
    pub fn port(&mut self, name: &str, kind: PortKind, mtu: u16) -> PortId {
        let id = PortId(self.host.ports.len() as u16);
        self.host.ports.push(PortConfig { mtu, ..PortConfig::new(id, name, kind) });
        id
    }

    /// Gives a port this number of queues.
    pub fn set_queues(&mut self, port: PortId, queues: u16) {
        self.host.ports[port.index()].queues = queues;
    }

    /// Makes a port one of another kind.
    pub fn set_kind(&mut self, port: PortId, kind: PortKind) {
        self.host.ports[port.index()].kind = kind;
    }

    /// An external NF, which the benchmark starts.
    pub fn nf(&mut self, role: &str, group: GroupId) -> RoleId {
        let id = RoleId(self.host.nfs.len() as u16);
        let start = NfStart::External { users: Vec::new() };
        self.host.nfs.push(NfConfig {
            id,
            role: role.to_owned(),
            group,
            balance: Balance::default(),
            flow_verdicts: 0,
            steer: Vec::new(),
            hang_timeout: 1,
            allocate: 256,
            hold: 0,
            start,
        });
        id
    }

    /// A program with ports. [`Layout::build`] adds these.
    pub fn program(&mut self, role: &str, group: GroupId, pair: PairConfig) -> RoleId {
        let id = self.nf(role, group);
        self.host.nfs[id.index()].start = NfStart::Ports(pair);
        id
    }

    /// The chain of the other direction of another one, whose programs it passes from right to left.
    pub fn reverse(&mut self, chain: ChainId, of: ChainId) {
        self.host.chains[chain.index()].reverse = Some(of);
    }

    /// A chain for all packets from `from`.
    pub fn chain(&mut self, name: &str, from: PortId, hops: &[RoleId], output: Output) -> ChainId {
        let id = self.add_chain(name, hops, output);
        self.rule(from, Action::Chain(id));
        id
    }

    /// A chain for packets of the source `from` whose addresses are in `network`, before the chain that gets the
    /// others. It ends at the source.
    pub fn chain_of(&mut self, network: Ipv4Net, from: PortId, hops: &[RoleId]) {
        let id = self.add_chain("branch", hops, Output::Port(from));
        let matches = Match { from: vec![from], source: vec![network.into()], ..Match::default() };
        self.add_rule(matches, Action::Chain(id));
    }

    fn add_chain(&mut self, name: &str, hops: &[RoleId], output: Output) -> ChainId {
        let id = ChainId(self.host.chains.len() as u16);
        let (name, hops, on_failure) = (name.to_owned(), hops.to_vec(), OnFailure::Drop);
        self.host.chains.push(Chain { id, name, hops, on_failure, output, reverse: None });
        id
    }

    /// What a chain does while one of its NFs is down; [`Layout::chain`] drops its packets.
    pub fn on_failure(&mut self, chain: ChainId, on_failure: OnFailure) {
        self.host.chains[chain.index()].on_failure = on_failure;
    }

    /// A rule for all packets from `from`.
    pub fn rule(&mut self, from: PortId, terminal: Action) {
        self.add_rule(Match { from: vec![from], ..Match::default() }, terminal);
    }

    fn add_rule(&mut self, matches: Match, terminal: Action) {
        self.host.rules.push(Rule::from(RuleParts {
            id: RuleId(self.host.rules.len() as u32),
            name: String::new(),
            matches,
            actions: Actions { terminal: Some(terminal), ..Actions::default() },
        }));
    }

    /// The host.
    pub fn build(mut self) -> Host {
        self.host.add_pair_ports();
        self.host
    }
}

/// A source that waits for room, so that the engine spends no work on drops.
pub fn lossless(size: u16) -> PortKind {
    PortKind::Source(SourceConfig { size, lossless: true, ..SourceConfig::default() })
}

/// A source that sends `rate` packets per second, whether or not there is room.
pub fn paced(size: u16, rate: u64) -> PortKind {
    PortKind::Source(SourceConfig { size, rate: Some(rate), ..SourceConfig::default() })
}
