//! `[engine]`, `[switch]`, `[policy]` and `[[group]]`.

use std::collections::BTreeMap;

use netvm_policy::PortId;
use toml::Value;

use super::{GroupId, Host, MAX_NODES, MAX_WORKERS};
use crate::finding::{Kind, Span};
use crate::form::{Flag, Form, List, Maybe, NUMBERS, Name, Nested, Number, Numbered, Spanned, TEXTS, ToPort};
use crate::names;
use crate::table::{At, Keys, Table};
use crate::words::{Word, words};

/// Highest core number in Linux's CPU sets (`CPU_SETSIZE`).
const LAST_CORE: u64 = 1023;
/// Seconds of a day: the longest for which an unused entry is remembered.
const DAY: u64 = 86_400;
/// Most MAC addresses of a port, or of all ports together.
pub(super) const MOST_MACS: u64 = 1 << 20;

/// What workers without packets do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Idle {
    /// Spin: lowest latency, a whole core for each worker.
    Poll,
    /// Back off to short sleeps; poll again under load.
    #[default]
    Adaptive,
}
words!(Idle: "adaptive" => Adaptive, "poll" => Poll);

/// The engine as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The core of each worker; empty: one worker on the first core this process may use.
    pub cores: Vec<u32>,
    /// How idle workers behave.
    pub idle: Idle,
    /// Whether huge pages are used when there are any.
    pub huge_pages: bool,
    /// Cores of each NUMA node; empty: as the machine says.
    pub nodes: Vec<Vec<u32>>,
    /// Slots of the rings between engine and NFs and between NFs, a power of two.
    pub ring_size: u32,
    /// The flow cache of each worker.
    pub flow_cache: FlowCacheConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            cores: Vec::new(),
            idle: Idle::default(),
            huge_pages: true,
            nodes: Vec::new(),
            ring_size: 512,
            flow_cache: FlowCacheConfig::default(),
        }
    }
}

impl Keys for EngineConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("cores", &mut self.cores, Cores);
        if let Some(reader) = table.reader()
            && self.cores.len() > MAX_WORKERS
        {
            reader
                .note(Kind::TooMany, format!("{} cores, which means as many workers", self.cores.len()))
                .at(reader.place.element("cores", MAX_WORKERS), "one too many")
                .help(format!("an engine can have {MAX_WORKERS} workers"))
                .keep();
        }
        table.key("idle", &mut self.idle, Word);
        table.key("huge_pages", &mut self.huge_pages, Flag);
        let slots = &mut self.ring_size;
        if let Some(at) = table.key("ring_size", slots, Number(16..=65_536))
            && !slots.is_power_of_two()
        {
            let above = slots.next_power_of_two();
            at.bad_value(&format!("is {slots}, which is not a power of two"))
                .help(format!("{} and {above} are", above / 2))
                .keep();
        }
        table.key("flow_cache", &mut self.flow_cache, Nested("flow_cache"));
        table.key("nodes", &mut self.nodes, Nodes);
    }
}

/// Core numbers, each once.
pub(super) struct Cores;

impl Form<Vec<u32>> for Cores {
    fn read<'a>(&self, at: &At<'a>, value: &'a Spanned<'a>) -> Option<Vec<u32>> {
        let cores = List(Number(0..=LAST_CORE), NUMBERS).read(at, value)?;
        each_once(at, &cores, value.get_ref().as_array().into_iter().flatten(), "list every core once");
        Some(cores)
    }

    fn write(&self, host: &Host, item: &mut Vec<u32>) -> Option<Value> {
        List(Number(0..=LAST_CORE), NUMBERS).write(host, item)
    }
}

/// Notes the cores that occur twice.
fn each_once<'a>(
    at: &At<'_>,
    cores: impl IntoIterator<Item = &'a u32>,
    written: impl Iterator<Item = &'a Spanned<'a>>,
    help: &str,
) {
    let mut seen: BTreeMap<u32, Span> = BTreeMap::new();
    for (core, place) in cores.into_iter().zip(written.map(toml::Spanned::span)) {
        match seen.get(core) {
            Some(first) => at
                .note(Kind::Duplicate, format!("core {core} is in `{}` twice", at.key))
                .at(place, "again")
                .at(first.clone(), "first here")
                .help(help)
                .keep(),
            None => drop(seen.insert(*core, place)),
        }
    }
}

/// The cores of each node; each core once.
struct Nodes;

impl Form<Vec<Vec<u32>>> for Nodes {
    fn read<'a>(&self, at: &At<'a>, value: &'a Spanned<'a>) -> Option<Vec<Vec<u32>>> {
        let what = "a list of lists of whole numbers, such as [[0], [1]]";
        let list = value.get_ref().as_array();
        if let Some(item) = list.into_iter().flatten().find(|item| !item.get_ref().is_array()) {
            return at.element(item.span()).wrong_type(item.get_ref(), what);
        }
        let nodes: Vec<Vec<u32>> = List(List(Number(0..=LAST_CORE), what), what).read(at, value)?;
        if let Some(extra) = list.and_then(|list| list.get(MAX_NODES)) {
            at.note(Kind::TooMany, format!("{} NUMA nodes", nodes.len()))
                .at(extra.span(), "one too many")
                .help(format!("an engine can have {MAX_NODES} nodes"))
                .keep();
        }
        let written = list.into_iter().flatten().filter_map(|node| node.get_ref().as_array()).flatten();
        each_once(at, nodes.iter().flatten(), written, "a core is on one node");
        Some(nodes)
    }

    fn write(&self, host: &Host, item: &mut Vec<Vec<u32>>) -> Option<Value> {
        let list = List(List(Number(0..=LAST_CORE), NUMBERS), NUMBERS);
        if item.is_empty() { None } else { list.write(host, item) }
    }
}

/// The exact-match cache of flows that each worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowCacheConfig {
    /// Flows that it holds.
    pub entries: u32,
    /// Which flow makes room for a new one.
    pub eviction: Eviction,
    /// Seconds after which a flow is forgotten that had no packet.
    pub idle: u32,
}

impl Default for FlowCacheConfig {
    /// 131,072 flows by CLOCK, forgotten after 30 s.
    fn default() -> Self {
        Self { entries: 131_072, eviction: Eviction::default(), idle: 30 }
    }
}

impl Keys for FlowCacheConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("entries", &mut self.entries, Number(64..=1 << 24));
        table.key("eviction", &mut self.eviction, Word);
        table.key("idle", &mut self.idle, Number(1..=DAY));
    }
}

/// Which flow a full cache evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Eviction {
    /// One that was not used since the clock hand last passed it.
    #[default]
    Clock,
    /// The least recently used one.
    Lru,
}
words!(Eviction: "clock" => Clock, "lru" => Lru);

/// L2 switching as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwitchConfig {
    /// Entries of the forwarding database, for all ports together.
    pub macs: u32,
    /// Seconds after which an entry is removed whose address sent nothing (IEEE 802.1Q, ageing time).
    pub mac_age: u32,
}

impl Default for SwitchConfig {
    /// 32,768 addresses; 300 s, the default of IEEE 802.1Q (table 8-7).
    fn default() -> Self {
        Self { macs: 32_768, mac_age: 300 }
    }
}

impl Keys for SwitchConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("macs", &mut self.macs, Number(64..=MOST_MACS));
        table.key("mac_age", &mut self.mac_age, Number(1..=DAY));
    }
}

/// The policy as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyConfig {
    /// MiB that compiled rules may take; rule sets that need more are refused.
    pub memory: u32,
}

impl Default for PolicyConfig {
    /// 256 MiB.
    fn default() -> Self {
        Self { memory: 256 }
    }
}

impl Keys for PolicyConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("memory", &mut self.memory, Number(1..=1 << 20));
    }
}

/// A trust group: NFs that may see each other's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub id: GroupId,
    /// Its name.
    pub name: String,
    /// Buffers of each of its regions.
    pub buffers: u32,
    /// Bytes of a buffer: headroom, packet and tailroom together.
    pub buffer_size: u32,
    /// Bytes before a received packet.
    pub headroom: u16,
    /// Ports that its NFs may send out of, by number; `None`: the ports whose traffic its chains carry or output to.
    pub may_send_to: Option<Vec<PortId>>,
}

impl Default for Group {
    /// The group of a host that declares none: an Ethernet frame of 1,518 bytes fits a buffer, with a headroom of 256.
    fn default() -> Self {
        Self {
            id: GroupId(0),
            name: "default".to_owned(),
            buffers: 16_384,
            buffer_size: 2048,
            headroom: 256,
            may_send_to: None,
        }
    }
}

impl Numbered for Group {
    fn numbered(number: usize) -> Self {
        Self { id: GroupId(number as u16), name: String::new(), ..Self::default() }
    }
}

impl Keys for Group {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name(("name", "edge"), &mut self.name, Name(names::any));
        table.key("buffers", &mut self.buffers, Number(1..=1 << 24));
        let bytes = &mut self.buffer_size;
        if let Some(at) = table.key("buffer_size", bytes, Number(256..=65_472))
            && !bytes.is_multiple_of(64)
        {
            at.bad_value(&format!("is {bytes}, which is not a multiple of 64"))
                .help(format!("{} and {} are", *bytes / 64 * 64, bytes.next_multiple_of(64)))
                .keep();
        }
        table.key("headroom", &mut self.headroom, Number(0..=32_736));
        table.key("may_send_to", &mut self.may_send_to, Maybe(List(ToPort, TEXTS)));
    }
}
