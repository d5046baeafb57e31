// SPDX-License-Identifier: Apache-2.0
//! The contents of the view: rates between two readings, and the slowest NF of each chain.

use std::collections::BTreeMap;

use netvm_api::{ChainInfo, ChainState, NfInfo, NfState, PortInfo, Stats};
use serde::Serialize;

/// From this share of a ring's slots on, an NF is too slow, in percent.
const FULL_PERCENT: f64 = 25.0;
/// From this load on, an NF is nearly too slow, in percent of its cores.
const BUSY_PERCENT: f64 = 80.0;
/// Load in percent below which an NF does nothing.
const MIN_LOAD: f64 = 1.0;

/// Everything that is shown. Rates are per second.
#[derive(Debug, Default, Serialize)]
pub(super) struct View {
    pub(super) seconds: f64,
    pub(super) uptime_s: f64,
    pub(super) workers: Vec<WorkerRow>,
    pub(super) ports: Vec<PortRow>,
    pub(super) chains: Vec<ChainRow>,
    pub(super) nfs: Vec<NfRow>,
    /// Packets dropped everywhere, each counted once.
    pub(super) dropped: f64,
    pub(super) drops: Vec<DropRow>,
    pub(super) groups: Vec<GroupRow>,
}

#[derive(Debug, Serialize)]
pub(super) struct WorkerRow {
    pub(super) id: u8,
    pub(super) core: u32,
    pub(super) busy_percent: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct PortRow {
    pub(super) name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: BTreeMap<String, String>,
    pub(super) link: bool,
    pub(super) rx_packets: f64,
    pub(super) rx_bits: f64,
    pub(super) tx_packets: f64,
    pub(super) tx_bits: f64,
    pub(super) dropped: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ChainRow {
    pub(super) name: String,
    pub(super) state: ChainState,
    pub(super) entered: f64,
    pub(super) left: f64,
    pub(super) dropped: f64,
    pub(super) output: String,
    pub(super) hops: Vec<HopRow>,
}

/// One hop of a chain: all instances of its role together.
#[derive(Debug, Serialize)]
pub(super) struct HopRow {
    pub(super) role: String,
    pub(super) ring_percent: f64,
    pub(super) load_percent: f64,
    pub(super) is_bottleneck: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct NfRow {
    pub(super) role: String,
    pub(super) instance: u32,
    pub(super) state: NfState,
    pub(super) received: f64,
    pub(super) dropped: f64,
    pub(super) cycles_per_packet: f64,
    /// Share of its threads' time that it spent on packets.
    pub(super) load_percent: f64,
    /// Occupancy of the fullest ring of its threads, in percent.
    pub(super) ring_percent: f64,
    pub(super) buffers: u32,
    pub(super) is_bottleneck: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct DropRow {
    pub(super) at: &'static str,
    pub(super) name: String,
    pub(super) reason: String,
    pub(super) dropped: f64,
    pub(super) total: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct GroupRow {
    pub(super) name: String,
    pub(super) free: u64,
    pub(super) buffers: u64,
}

/// Rates between two readings.
#[derive(Clone, Copy)]
struct Span(f64);

impl Span {
    /// The increase per second. A counter that decreased belongs to a new object.
    fn rate(self, before: u64, now: u64) -> f64 {
        if self.0 > 0.0 { now.saturating_sub(before) as f64 / self.0 } else { 0.0 }
    }
}

impl View {
    /// The view between two readings. `hz`: frequency of the clock that counts cycles.
    pub(super) fn between(before: &Stats, now: &Stats, hz: f64) -> Self {
        // Counters of a netvmd that has started again begin again.
        let before = if now.uptime_s < before.uptime_s { now } else { before };
        let span = Span(now.uptime_s - before.uptime_s);
        let workers = now.workers.iter();
        let groups = now.groups.iter().map(|group| GroupRow {
            name: group.name.clone(),
            free: group.regions.iter().map(|region| u64::from(region.free)).sum(),
            buffers: group.regions.iter().map(|region| u64::from(region.buffers)).sum(),
        });
        let mut nfs: Vec<NfRow> = now.nfs.iter().map(|nf| nf_row(nf, before, span, hz)).collect();
        let chains: Vec<ChainRow> =
            now.chains.iter().map(|chain| chain_row(chain, before, span, &nfs)).collect();
        let slow = |role: &str| {
            chains.iter().flat_map(|chain| &chain.hops).any(|hop| hop.is_bottleneck && hop.role == role)
        };
        nfs.iter_mut().for_each(|nf| nf.is_bottleneck = slow(&nf.role));
        Self {
            seconds: span.0,
            uptime_s: now.uptime_s,
            workers: workers
                .map(|one| WorkerRow { id: one.id, core: one.core, busy_percent: one.busy_percent })
                .collect(),
            ports: now.ports.iter().map(|port| port_row(port, before, now, span)).collect(),
            chains,
            nfs,
            dropped: span.rate(before.drops.total, now.drops.total),
            drops: drop_rows(before, now, span),
            groups: groups.collect(),
        }
    }
}

fn port_row(port: &PortInfo, before: &Stats, now: &Stats, span: Span) -> PortRow {
    let old = before.ports.iter().find(|old| (old.id, &old.name) == (port.id, &port.name)).unwrap_or(port);
    let drops =
        |stats: &Stats| stats.drops.ports.get(&port.name).into_iter().flat_map(BTreeMap::values).sum();
    PortRow {
        name: port.name.clone(),
        labels: port.labels.clone(),
        link: port.link,
        rx_packets: span.rate(old.rx_packets, port.rx_packets),
        rx_bits: span.rate(old.rx_bytes, port.rx_bytes) * 8.0,
        tx_packets: span.rate(old.tx_packets, port.tx_packets),
        tx_bits: span.rate(old.tx_bytes, port.tx_bytes) * 8.0,
        dropped: span.rate(drops(before), drops(now)),
    }
}

fn nf_row(nf: &NfInfo, before: &Stats, span: Span, hz: f64) -> NfRow {
    let is_same = |old: &&NfInfo| (&old.role, old.instance, old.pid) == (&nf.role, nf.instance, nf.pid);
    let old = before.nfs.iter().find(is_same);
    let sums = |nf: &NfInfo| {
        nf.threads.iter().fold((0, 0, 0), |(received, dropped, cycles), thread| {
            let packets = thread.packets;
            (received + packets.received, dropped + packets.dropped, thread.cycles.wrapping_add(cycles))
        })
    };
    let (then, now) = (old.map_or_else(|| sums(nf), sums), sums(nf));
    let (received, cycles) = (span.rate(then.0, now.0), span.rate(then.2, now.2));
    let threads = nf.threads.len().max(1) as f64;
    NfRow {
        role: nf.role.clone(),
        instance: nf.instance,
        state: nf.state,
        received,
        dropped: span.rate(then.1, now.1),
        cycles_per_packet: if received > 0.0 { cycles / received } else { 0.0 },
        load_percent: (cycles / hz.max(1.0) / threads * 100.0).min(100.0),
        ring_percent: nf.threads.iter().map(|thread| thread.ring_percent).fold(0.0, f64::max),
        buffers: nf.threads.iter().map(|thread| thread.buffers).sum(),
        is_bottleneck: false,
    }
}

fn chain_row(chain: &ChainInfo, before: &Stats, span: Span, nfs: &[NfRow]) -> ChainRow {
    let old =
        before.chains.iter().find(|old| (old.id, &old.name) == (chain.id, &chain.name)).unwrap_or(chain);
    let hop = |role: &String| {
        let most =
            |of: fn(&NfRow) -> f64| nfs.iter().filter(|nf| nf.role == *role).map(of).fold(0.0, f64::max);
        HopRow {
            role: role.clone(),
            ring_percent: most(|nf| nf.ring_percent),
            load_percent: most(|nf| nf.load_percent),
            is_bottleneck: false,
        }
    };
    let mut hops: Vec<HopRow> = chain.hops.iter().map(hop).collect();
    if let Some(slowest) = bottleneck(&hops) {
        hops[slowest].is_bottleneck = true;
    }
    let dropped = |chain: &ChainInfo| chain.dropped_at_entry + chain.dropped_inside;
    ChainRow {
        name: chain.name.clone(),
        state: chain.state,
        entered: span.rate(old.entered, chain.entered),
        left: span.rate(old.left, chain.left),
        dropped: span.rate(dropped(old), dropped(chain)),
        output: chain.output.clone().unwrap_or_else(|| "-".to_owned()),
        hops,
    }
}

/// The bottleneck of a chain: the hop with the fullest ring, else the busiest; `None` if no hop is near its limit. A
/// hop that does nothing is none: its NF hangs, or gets no core.
fn bottleneck(hops: &[HopRow]) -> Option<usize> {
    let most = |of: fn(&HopRow) -> f64, limit: f64| {
        let working = hops.iter().enumerate().filter(|(_, hop)| hop.load_percent >= MIN_LOAD);
        let most = working.max_by(|(_, a), (_, b)| of(a).total_cmp(&of(b)));
        most.filter(|(_, hop)| of(hop) >= limit).map(|(n, _)| n)
    };
    most(|hop| hop.ring_percent, FULL_PERCENT).or_else(|| most(|hop| hop.load_percent, BUSY_PERCENT))
}

/// Drops, those with most per second first.
fn drop_rows(before: &Stats, now: &Stats, span: Span) -> Vec<DropRow> {
    let places = [
        ("port", &before.drops.ports, &now.drops.ports),
        ("chain", &before.drops.chains, &now.drops.chains),
        ("nf", &before.drops.nfs, &now.drops.nfs),
    ];
    let mut rows = Vec::new();
    for (at, before, now) in places {
        for (name, reasons) in now {
            for (reason, total) in reasons {
                let old = before.get(name).and_then(|reasons| reasons.get(reason)).copied().unwrap_or(0);
                let dropped = span.rate(old, *total);
                rows.push(DropRow { at, name: name.clone(), reason: reason.clone(), dropped, total: *total });
            }
        }
    }
    rows.sort_by(|a, b| b.dropped.total_cmp(&a.dropped).then(b.total.cmp(&a.total)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bottleneck_has_the_fullest_ring_or_else_the_most_to_do() {
        let hop = |ring_percent, load_percent| HopRow {
            role: String::new(),
            ring_percent,
            load_percent,
            is_bottleneck: false,
        };
        assert_eq!(bottleneck(&[hop(3.0, 99.0), hop(60.0, 40.0), hop(30.0, 90.0)]), Some(1));
        assert_eq!(bottleneck(&[hop(3.0, 85.0), hop(0.0, 95.0)]), Some(1));
        assert_eq!(bottleneck(&[hop(3.0, 20.0), hop(0.0, 30.0)]), None);
        assert_eq!(bottleneck(&[hop(100.0, 0.0), hop(20.0, 30.0)]), None, "hung or starved");
        assert_eq!(bottleneck(&[]), None);
    }
}
