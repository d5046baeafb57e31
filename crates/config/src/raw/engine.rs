//! `[engine]`, `[switch]`, `[policy]` and `[[group]]`.

use toml::Spanned;

use super::port_policy::MOST_MACS;
use super::{RawEngine, RawGroup, name};
use crate::document::{EVICTION, IDLE};
use crate::finding::{Kind, Span};
use crate::model::{
    EngineConfig, FlowCacheConfig, Group, MAX_NODES, MAX_WORKERS, PolicyConfig, SwitchConfig,
};
use crate::read::{Reader, at};

/// Highest core number that Linux's CPU sets hold (`CPU_SETSIZE`).
pub(super) const LAST_CORE: u64 = 1023;

pub(super) fn read(table: &Reader<'_>) -> RawEngine {
    let default = EngineConfig::default();
    let cores = cores(table, "cores");
    if let Some((_, extra)) = cores.get(MAX_WORKERS) {
        table
            .findings
            .note(Kind::TooMany, format!("{} cores, which is as many workers", cores.len()))
            .at(extra.clone(), "one too many")
            .help(format!("there can be {MAX_WORKERS} workers"))
            .keep();
    }
    let config = EngineConfig {
        cores: cores.iter().map(|(core, _)| *core).collect(),
        idle: table.word("idle", IDLE).map_or(default.idle, Spanned::into_inner),
        huge_pages: table.flag("huge_pages").unwrap_or(default.huge_pages),
        ring_size: ring_size(table).unwrap_or(default.ring_size),
        nodes: nodes(table).unwrap_or_default(),
        flow_cache: table
            .table("flow_cache", "flow_cache")
            .map(|table| flow_cache(&table))
            .unwrap_or_default(),
    };
    table.finish(&[]);
    RawEngine { config, cores: cores.into_iter().map(|(_, span)| span).collect() }
}

/// Seconds of a day: the longest that something unused is remembered.
const DAY: u64 = 86_400;

fn flow_cache(table: &Reader<'_>) -> FlowCacheConfig {
    let default = FlowCacheConfig::default();
    let cache = FlowCacheConfig {
        entries: table.number("entries", 64..=1 << 24).map_or(default.entries, Spanned::into_inner),
        eviction: table.word("eviction", EVICTION).map_or(default.eviction, Spanned::into_inner),
        idle: table.number("idle", 1..=DAY).map_or(default.idle, Spanned::into_inner),
    };
    table.finish(&[]);
    cache
}

pub(super) fn read_switch(table: &Reader<'_>) -> SwitchConfig {
    let default = SwitchConfig::default();
    let switch = SwitchConfig {
        macs: table.number("macs", 64..=MOST_MACS).map_or(default.macs, Spanned::into_inner),
        mac_age: table.number("mac_age", 1..=DAY).map_or(default.mac_age, Spanned::into_inner),
    };
    table.finish(&[]);
    switch
}

pub(super) fn read_policy(table: &Reader<'_>) -> PolicyConfig {
    let default = PolicyConfig::default();
    let memory = table.number("memory", 1..=1 << 20).map_or(default.memory, Spanned::into_inner);
    table.finish(&[]);
    PolicyConfig { memory }
}

/// A list of cores, each once.
pub(super) fn cores(table: &Reader<'_>, key: &'static str) -> Vec<(u32, Span)> {
    let Some(list) = table.numbers(key, 0..=LAST_CORE) else { return Vec::new() };
    let mut cores: Vec<(u32, Span)> = Vec::new();
    for core in list.into_inner() {
        match cores.iter().find(|(known, _)| known == core.get_ref()) {
            Some((_, first)) => table
                .findings
                .note(Kind::Duplicate, format!("core {} is in `{key}` twice", core.get_ref()))
                .at(core.span(), "again")
                .at(first.clone(), "first here")
                .help("name every core once")
                .keep(),
            None => cores.push((*core.get_ref(), core.span())),
        }
    }
    cores
}

fn ring_size(table: &Reader<'_>) -> Option<u32> {
    let size: Spanned<u32> = table.number("ring_size", 16..=65_536)?;
    let slots = *size.get_ref();
    if !slots.is_power_of_two() {
        table
            .bad_value("ring_size", size.span(), &format!("is {slots}, which is not a power of two"))
            .help(format!("{} and {} are", slots.next_power_of_two() / 2, slots.next_power_of_two()))
            .keep();
        return None;
    }
    Some(slots)
}

fn nodes(table: &Reader<'_>) -> Option<Vec<Vec<u32>>> {
    let lists = table.number_lists("nodes", 0..=LAST_CORE)?;
    if let Some(extra) = lists.get_ref().get(MAX_NODES) {
        table
            .findings
            .note(Kind::TooMany, format!("{} NUMA nodes", lists.get_ref().len()))
            .at(extra.span(), "one too many")
            .help(format!("there can be {MAX_NODES} nodes"))
            .keep();
    }
    let mut seen: Vec<&Spanned<u32>> = Vec::new();
    for core in lists.get_ref().iter().flat_map(Spanned::get_ref) {
        if let Some(first) = seen.iter().find(|known| known.get_ref() == core.get_ref()) {
            table
                .findings
                .note(Kind::Duplicate, format!("core {} is in two places of `nodes`", core.get_ref()))
                .at(core.span(), "again")
                .at(first.span(), "first here")
                .help("a core is on one node")
                .keep();
        }
        seen.push(core);
    }
    let list =
        |list: Spanned<Vec<Spanned<u32>>>| list.into_inner().into_iter().map(Spanned::into_inner).collect();
    Some(lists.into_inner().into_iter().map(list).collect())
}

pub(super) fn read_group(table: &Reader<'_>) -> RawGroup {
    let default = Group::default();
    let group = RawGroup {
        name: name(table, "name", "edge"),
        buffers: table.number("buffers", 1..=1 << 24).map_or(default.buffers, Spanned::into_inner),
        buffer_size: buffer_size(table).unwrap_or_else(|| at(table.span.clone(), default.buffer_size)),
        headroom: table
            .number("headroom", 0..=32_736)
            .unwrap_or_else(|| at(table.span.clone(), default.headroom)),
        may_send_to: table.texts("may_send_to").map(Spanned::into_inner),
    };
    table.finish(&[]);
    group
}

fn buffer_size(table: &Reader<'_>) -> Option<Spanned<u32>> {
    let size: Spanned<u32> = table.number("buffer_size", 256..=65_472)?;
    let bytes = *size.get_ref();
    if !bytes.is_multiple_of(64) {
        table
            .bad_value("buffer_size", size.span(), &format!("is {bytes}, which is not a multiple of 64"))
            .help(format!("{} and {} are", bytes / 64 * 64, bytes.next_multiple_of(64)))
            .keep();
        return None;
    }
    Some(size)
}
