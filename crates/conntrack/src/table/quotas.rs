//! How many connections each source, port and zone has, and whether it may have another one.

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{Address, FlowHasher};

use crate::config::Quotas;
use crate::index::Index;
use crate::numbers::Numbers;
use crate::packet::tuple::Zone;

/// Ports that have a quota of their own: more than an engine has.
const PORTS: usize = 1024;

/// A source, and how many connections it has.
#[derive(Clone, Copy)]
struct Source {
    prefix: Address,
    zone: Zone,
    count: u32,
}

const FREE: Source = Source { prefix: Address::UNSPECIFIED, zone: Zone(0), count: 0 };

/// Counts of connections.
pub(crate) struct Counts {
    quotas: Quotas,
    index: Index,
    sources: Table<Source>,
    numbers: Numbers,
    ports: Box<[u32]>,
    zones: Box<[u32]>,
}

/// The part of an address by which sources are counted: all of an IPv4 address, 64 bits of an IPv6 address.
pub(crate) fn prefix_of(source: Address) -> Address {
    if source.is_v4() { source } else { Address::from_v6_bits(source.v6_bits() & !u128::from(u64::MAX)) }
}

impl Counts {
    /// For so many connections.
    pub(crate) fn new(quotas: Quotas, sessions: u32) -> Result<Self, NoMemory> {
        // Without a quota, sources are not counted.
        let sources = if quotas.per_source == 0 { 1 } else { sessions.max(1) };
        let zones = if quotas.per_zone == 0 { 0 } else { 1 + usize::from(u16::MAX) };
        Ok(Self {
            quotas,
            index: Index::new(sources)?,
            sources: Table::try_new(FREE, sources.next_power_of_two().trailing_zeros())?,
            numbers: Numbers::new(sources)?,
            ports: vec![0; PORTS].into(),
            zones: vec![0; zones].into(),
        })
    }

    fn source(&self, hash: u32, prefix: Address, zone: Zone) -> Option<u32> {
        self.index.find(hash, |it| {
            let source = self.sources.at(it as usize);
            (source.prefix, source.zone) == (prefix, zone)
        })
    }

    /// Whether a source may have another connection.
    pub(crate) fn admits_source(&self, hasher: &FlowHasher, prefix: Address, zone: Zone) -> bool {
        let quota = self.quotas.per_source;
        quota == 0
            || self
                .source(hash_of(hasher, prefix, zone), prefix, zone)
                .is_none_or(|it| self.sources.at(it as usize).count < quota)
    }

    pub(crate) fn admits_port(&self, port: u16) -> bool {
        let quota = self.quotas.per_port;
        quota == 0 || self.ports.get(usize::from(port)).is_none_or(|count| *count < quota)
    }

    pub(crate) fn admits_zone(&self, zone: Zone) -> bool {
        let quota = self.quotas.per_zone;
        quota == 0 || self.zones.get(usize::from(zone.0)).is_none_or(|count| *count < quota)
    }

    /// Counts a connection.
    pub(crate) fn add(&mut self, hasher: &FlowHasher, prefix: Address, zone: Zone, port: u16) {
        if let Some(count) = self.ports.get_mut(usize::from(port)) {
            *count += 1;
        }
        if let Some(count) = self.zones.get_mut(usize::from(zone.0)) {
            *count += 1;
        }
        if self.quotas.per_source == 0 {
            return;
        }
        let hash = hash_of(hasher, prefix, zone);
        if let Some(it) = self.source(hash, prefix, zone) {
            self.sources.at_mut(it as usize).count += 1;
            return;
        }
        // There is one, as each source has a connection, and there is room for another connection.
        if let Some(it) = self.numbers.take() {
            *self.sources.at_mut(it as usize) = Source { prefix, zone, count: 1 };
            self.index.insert(hash, it);
        }
    }

    /// Undoes [`Counts::add`].
    pub(crate) fn remove(&mut self, hasher: &FlowHasher, prefix: Address, zone: Zone, port: u16) {
        if let Some(count) = self.ports.get_mut(usize::from(port)) {
            *count -= 1;
        }
        if let Some(count) = self.zones.get_mut(usize::from(zone.0)) {
            *count -= 1;
        }
        let hash = hash_of(hasher, prefix, zone);
        let known = if self.quotas.per_source == 0 { None } else { self.source(hash, prefix, zone) };
        let Some(it) = known else { return };
        let source = self.sources.at_mut(it as usize);
        source.count -= 1;
        if source.count == 0 {
            self.numbers.give(it);
            self.index.remove(hash, it);
        }
    }
}

fn hash_of(hasher: &FlowHasher, prefix: Address, zone: Zone) -> u32 {
    let [a, b] = prefix.words();
    hasher.words([a, b, zone.0.into(), 0, 0]) as u32
}
