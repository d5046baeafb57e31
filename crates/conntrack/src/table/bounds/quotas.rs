// SPDX-License-Identifier: Apache-2.0
//! How many connections each source, port and zone has, and whether it may have another one.

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{Address, FlowHasher};

use crate::config::Quotas;
use crate::connection::Connection;
use crate::index::Index;
use crate::numbers::Numbers;
use crate::packet::tuple::Zone;
use crate::protocol::Stage;

/// Ports that have a quota of their own: more than an engine has.
const PORTS: usize = 1024;

/// Numbers of connections.
#[derive(Clone, Copy, Default)]
struct Count {
    all: u32,
    /// Those that are half-open.
    half_open: u32,
}

impl Count {
    const ZERO: Self = Self { all: 0, half_open: 0 };

    /// Counts a connection that begins.
    const fn add(&mut self) {
        self.all += 1;
        self.half_open += 1;
    }

    /// Counts a connection that becomes half-open, or is no longer so.
    const fn follow_half_open(&mut self, is_half_open: bool) {
        if is_half_open {
            self.half_open += 1;
        } else {
            self.half_open -= 1;
        }
    }

    /// Undoes [`Count::add`], from this stage.
    fn remove(&mut self, stage: Stage) {
        self.all -= 1;
        self.half_open -= u32::from(stage == Stage::HalfOpen);
    }
}

/// What a connection counts for.
pub(crate) struct Origins {
    /// The part of its source by which sources are counted: all of an IPv4 address, 64 bits of an IPv6 address.
    prefix: Address,
    zone: Zone,
    port: u16,
}

impl Origins {
    pub(crate) fn of(connection: &Connection) -> Self {
        let original = connection.original();
        let v6_prefix = || Address::from_v6_bits(original.source.v6_bits() & !u128::from(u64::MAX));
        let prefix = if original.source.is_v4() { original.source } else { v6_prefix() };
        Self { prefix, zone: original.zone, port: connection.from }
    }

    fn hash(&self, hasher: &FlowHasher) -> u32 {
        let [a, b] = self.prefix.words();
        hasher.words([a, b, self.zone.0.into(), 0, 0]) as u32
    }
}

/// The quota that a connection would exceed.
#[derive(Clone, Copy)]
pub(crate) enum Exceeded {
    Source,
    Port,
    Zone,
    HalfOpen,
}

/// A source, and how many connections it has.
#[derive(Clone, Copy)]
struct Source {
    prefix: Address,
    zone: Zone,
    count: Count,
}

const FREE: Source = Source { prefix: Address::UNSPECIFIED, zone: Zone(0), count: Count::ZERO };

/// Counts of connections.
pub(crate) struct Counts {
    quotas: Quotas,
    index: Index,
    sources: Table<Source>,
    numbers: Numbers,
    ports: Box<[Count]>,
    zones: Box<[u32]>,
}

impl Counts {
    /// For so many connections.
    pub(crate) fn new(quotas: Quotas, sessions: u32) -> Result<Self, NoMemory> {
        // Without a quota, sources are not counted.
        let sources = if has_sources(&quotas) { sessions.max(1) } else { 1 };
        let zones = if quotas.per_zone == 0 { 0 } else { 1 + usize::from(u16::MAX) };
        Ok(Self {
            quotas,
            index: Index::new(sources)?,
            sources: Table::try_new(FREE, sources.next_power_of_two().trailing_zeros())?,
            numbers: Numbers::new(sources)?,
            ports: vec![Count::ZERO; PORTS].into(),
            zones: vec![0; zones].into(),
        })
    }

    fn source(&self, hash: u32, of: &Origins) -> Option<u32> {
        if !has_sources(&self.quotas) {
            return None;
        }
        self.index.find(hash, |it| {
            let source = self.sources.at(it as usize);
            (source.prefix, source.zone) == (of.prefix, of.zone)
        })
    }

    /// Whether there may be another connection, at this stage.
    pub(crate) fn admit(&self, hasher: &FlowHasher, of: &Origins, stage: Stage) -> Result<(), Exceeded> {
        let exceeds = |count: u32, quota: u32| quota != 0 && count >= quota;
        let source = self.source(of.hash(hasher), of);
        let source = source.map_or(Count::ZERO, |it| self.sources.at(it as usize).count);
        let port = self.ports.get(usize::from(of.port)).copied().unwrap_or_default();
        let zone = self.zones.get(usize::from(of.zone.0)).copied().unwrap_or_default();
        let Quotas { per_source, per_port, per_zone, half_open_per_source, half_open_per_port } = self.quotas;
        let has_half_open_room =
            !exceeds(source.half_open, half_open_per_source) && !exceeds(port.half_open, half_open_per_port);
        match stage {
            _ if exceeds(source.all, per_source) => Err(Exceeded::Source),
            _ if exceeds(port.all, per_port) => Err(Exceeded::Port),
            _ if exceeds(zone, per_zone) => Err(Exceeded::Zone),
            Stage::HalfOpen if !has_half_open_room => Err(Exceeded::HalfOpen),
            _ => Ok(()),
        }
    }

    /// Counts a connection, which is half-open.
    pub(crate) fn add(&mut self, hasher: &FlowHasher, of: &Origins) {
        if let Some(count) = self.ports.get_mut(usize::from(of.port)) {
            count.add();
        }
        if let Some(count) = self.zones.get_mut(usize::from(of.zone.0)) {
            *count += 1;
        }
        if !has_sources(&self.quotas) {
            return;
        }
        let hash = of.hash(hasher);
        if let Some(it) = self.source(hash, of) {
            self.sources.at_mut(it as usize).count.add();
            return;
        }
        // There is one, as each source has a connection, and there is room for another connection.
        if let Some(it) = self.numbers.take() {
            let mut source = Source { prefix: of.prefix, zone: of.zone, count: Count::ZERO };
            source.count.add();
            *self.sources.at_mut(it as usize) = source;
            self.index.insert(hash, it);
        }
    }

    /// Notes that a connection has become half-open, or is no longer so.
    pub(crate) fn follow_half_open(&mut self, hasher: &FlowHasher, of: &Origins, is_half_open: bool) {
        if let Some(count) = self.ports.get_mut(usize::from(of.port)) {
            count.follow_half_open(is_half_open);
        }
        if let Some(it) = self.source(of.hash(hasher), of) {
            self.sources.at_mut(it as usize).count.follow_half_open(is_half_open);
        }
    }

    /// Undoes [`Counts::add`], from this stage.
    pub(crate) fn remove(&mut self, hasher: &FlowHasher, of: &Origins, stage: Stage) {
        if let Some(count) = self.ports.get_mut(usize::from(of.port)) {
            count.remove(stage);
        }
        if let Some(count) = self.zones.get_mut(usize::from(of.zone.0)) {
            *count -= 1;
        }
        let hash = of.hash(hasher);
        let Some(it) = self.source(hash, of) else { return };
        let source = self.sources.at_mut(it as usize);
        source.count.remove(stage);
        if source.count.all == 0 {
            self.numbers.give(it);
            self.index.remove(hash, it);
        }
    }
}

/// Whether sources are counted.
const fn has_sources(quotas: &Quotas) -> bool {
    quotas.per_source != 0 || quotas.half_open_per_source != 0
}
