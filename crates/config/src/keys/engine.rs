// SPDX-License-Identifier: Apache-2.0
//! `[engine]`, `[switch]`, `[policy]` and `[[group]]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use netvm_model::{
    ConnectionLog, ConnectionTimeouts, ConnectionsConfig, EngineConfig, FlowCacheConfig, FlowMonitorConfig,
    Group, GroupId, Host, MAX_NODES, MAX_WORKERS, PolicyConfig, SnoopingConfig, SwitchConfig,
};
use toml::Value;

use crate::syntax::field;
use crate::syntax::finding::{Kind, Span};
use crate::syntax::form::{
    Flag, List, NUMBERS, Name, Nested, Number, OneOrMore, Optional, Spanned, TEXTS, Text, ToPort, Word,
};
use crate::syntax::names;
use crate::syntax::table::{Form, Keys, Numbered, Table, ValueLocation};

mod api;
mod health;

/// Highest core number in Linux's CPU sets (`CPU_SETSIZE`).
const LAST_CORE: u64 = 1023;
/// Seconds of a week, the longest time to keep a connection without packets.
const WEEK: u64 = 7 * DAY;
/// Most connections of a worker.
const MAX_CONNECTIONS: u64 = 1 << 24;
/// Seconds of a day, the longest time to keep an unused entry.
const DAY: u64 = 86_400;
/// Most MAC addresses of a port, or of all ports together.
pub(super) const MAX_MACS: u64 = 1 << 20;

impl Keys for EngineConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("cores", &mut self.cores, Cores);
        if let Some(reader) = table.reader()
            && self.cores.len() > MAX_WORKERS
        {
            reader
                .note(Kind::TooMany, format!("{} cores, which means as many workers", self.cores.len()))
                .at(reader.place.element("cores", MAX_WORKERS), "exceeds the limit")
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
            at.bad_value(&format!("is {slots}"))
                .help(format!("must be a power of two, such as {} or {above}", above / 2))
                .keep();
        }
        table.key("flow_cache", &mut self.flow_cache, Nested("flow_cache"));
        table.key("flow_monitor", &mut self.flow_monitor, Optional(Nested("flow_monitor")));
        table.key("connections", &mut self.connections, Nested("connections"));
        table.key("nodes", &mut self.nodes, Nodes);
    }
}

/// Core numbers, each once.
pub(super) struct Cores;

impl Form<Vec<u32>> for Cores {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<u32>> {
        let cores = List(Number(0..=LAST_CORE), NUMBERS).read(at, value)?;
        each_once(at, &cores, value.get_ref().as_array().into_iter().flatten(), "list every core once");
        Some(cores)
    }

    fn write(&self, host: &Host, item: &mut Vec<u32>) -> Option<Value> {
        List(Number(0..=LAST_CORE), NUMBERS).write(host, item)
    }
}

/// Reports cores that occur twice.
fn each_once<'a>(
    at: &ValueLocation<'_>,
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
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<Vec<u32>>> {
        let what = "a list of lists of whole numbers, such as [[0], [1]]";
        let list = value.get_ref().as_array();
        if let Some(item) = list.into_iter().flatten().find(|item| !item.get_ref().is_array()) {
            return at.element(item.span()).wrong_type(item.get_ref(), what);
        }
        let nodes: Vec<Vec<u32>> = List(List(Number(0..=LAST_CORE), what), what).read(at, value)?;
        if let Some(extra) = list.and_then(|list| list.get(MAX_NODES)) {
            at.note(Kind::TooMany, format!("{} NUMA nodes", nodes.len()))
                .at(extra.span(), "exceeds the limit")
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

impl Keys for FlowCacheConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("entries", &mut self.entries, Number(64..=1 << 24));
        table.key("eviction", &mut self.eviction, Word);
        table.key("idle", &mut self.idle, Number(1..=DAY));
    }
}

impl Keys for FlowMonitorConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        let show = |path: &PathBuf| path.display().to_string();
        table.key("table", &mut self.table, Word);
        table.key("flows", &mut self.flows, Number(1..=1 << 24));
        table.key("idle_timeout", &mut self.idle_timeout, Number(1..=DAY));
        table.key("active_timeout", &mut self.active_timeout, Number(1..=DAY));
        table.key("sampling", &mut self.sampling, Number(1..=1_000_000));
        table.key("names", &mut self.names, Flag);
        table.key("export", &mut self.export, Optional(Text(str::parse, ToString::to_string)));
        table.key("eve", &mut self.eve, Optional(Text(field::absolute_path, show)));
    }
}

impl Keys for ConnectionsConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("limit", &mut self.limit, Number(64..=MAX_CONNECTIONS));
        table.key("pick_up", &mut self.pick_up, Flag);
        table.key("per_source", &mut self.per_source, Number(0..=MAX_CONNECTIONS));
        table.key("per_port", &mut self.per_port, Number(0..=MAX_CONNECTIONS));
        table.key("per_zone", &mut self.per_zone, Number(0..=MAX_CONNECTIONS));
        table.key("half_open_per_source", &mut self.half_open_per_source, Number(0..=MAX_CONNECTIONS));
        table.key("half_open_per_port", &mut self.half_open_per_port, Number(0..=MAX_CONNECTIONS));
        table.key("mappings", &mut self.mappings, Optional(Number(64..=MAX_CONNECTIONS)));
        table.key("log", &mut self.log, Optional(Nested("log")));
        table.key("timeouts", &mut self.timeouts, Nested("timeouts"));
    }
}

impl Keys for ConnectionLog {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("file", &mut self.file, Optional(Text(field::log_path, field::path_text)));
        table.key("collector", &mut self.collector, Optional(Text(field::collector, ToString::to_string)));
        table.key("what", &mut self.what, OneOrMore(Word));
        if let Some(reader) = table.reader()
            && reader.given(&["file", "collector"]).is_empty()
        {
            let help = "name a `file`, such as \"/var/log/netvm/connections.jsonl\", a `collector`, such as \"192.0.2.1:4739\", or both";
            reader.missing("file", help);
        }
    }
}

impl Keys for ConnectionTimeouts {
    fn keys(&mut self, table: &mut Table<'_>) {
        for (name, seconds) in self.each() {
            table.key(name, seconds, Number(1..=WEEK));
        }
    }
}

impl Keys for SwitchConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("macs", &mut self.macs, Number(64..=MAX_MACS));
        table.key("mac_age", &mut self.mac_age, Number(1..=DAY));
        table.key("mac_hold", &mut self.mac_hold, Number(0..=60));
        table.key("forward_bpdu", &mut self.forward_bpdu, Flag);
        self.multicast.keys(table);
    }
}

impl Keys for SnoopingConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("mcast_snooping", &mut self.snooping, Flag);
        if let Some(at) = table.key("mcast_querier", &mut self.querier, Flag)
            && self.querier
            && !self.snooping
        {
            at.bad_value("has no effect without `mcast_snooping`")
                .help("set `mcast_snooping = true`, too, or remove it")
                .keep();
        }
        let address = Text(field::querier_address, ToString::to_string);
        table.key("mcast_querier_address", &mut self.querier_address, address);
        let (interval, response) = (&mut self.query_interval, &mut self.query_response_interval);
        let at_interval = table.key("mcast_query_interval", interval, Number(2..=31_744));
        let at_response = table.key("mcast_query_response_interval", response, Number(1..=120));
        if let Some(at) = at_response.or(at_interval)
            && *response >= *interval
        {
            at.bad_value("leaves hosts no time")
                .help(format!(
                    "`mcast_query_response_interval` is {response}, and must be less than `mcast_query_interval`, which is \
                     {interval}"
                ))
                .keep();
        }
        table.key("mcast_last_member_interval", &mut self.last_member_interval, Number(1..=25));
        table.key("mcast_flood_unregistered", &mut self.flood_unregistered, Flag);
    }
}

impl Keys for PolicyConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("memory", &mut self.memory, Number(1..=1 << 20));
    }
}

impl Numbered for Group {
    fn numbered(number: usize) -> Self {
        Self { id: GroupId(number as u16), name: String::new(), ..Self::default() }
    }
}

impl Keys for Group {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "edge", &mut self.name, Name(names::any));
        table.key("buffers", &mut self.buffers, Number(1..=1 << 23));
        let bytes = &mut self.buffer_size;
        if let Some(at) = table.key("buffer_size", bytes, Number(256..=65_472))
            && !bytes.is_multiple_of(64)
        {
            at.bad_value(&format!("is {bytes}"))
                .help(format!(
                    "must be a multiple of 64, such as {} or {}",
                    *bytes / 64 * 64,
                    bytes.next_multiple_of(64)
                ))
                .keep();
        }
        table.key("headroom", &mut self.headroom, Number(0..=32_736));
        table.key("large_buffers", &mut self.large_buffers, Number(0..=8192));
        table.key("may_send_to", &mut self.may_send_to, Optional(List(ToPort, TEXTS)));
    }
}
