// SPDX-License-Identifier: Apache-2.0
//! netvmd's statistics as tables.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use netvm_api::{NfInfo, Stats, ThreadInfo};

use crate::daemon::{CHAIN, nf};

/// A line below the header only, to keep tables compact.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

/// Aligns numbers to the right.
fn drawn(mut table: Table, text_columns: usize) -> String {
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The sum over all threads.
pub fn total(nf: &NfInfo, of: impl Fn(&ThreadInfo) -> u64) -> u64 {
    nf.threads.iter().map(of).sum()
}

/// Packets along the path: ports, NFs, ports.
pub fn hops(stats: &Stats) -> String {
    let mut table = table(&["hop", "process", "packets in", "to the next", "out of a port", "dropped"]);
    let ports = stats.ports.iter();
    for port in ports.clone() {
        let name = format!("from port {}", port.name);
        table.add_row([&name, &port.driver_mode, &count(port.rx_packets), "", "", &count(port.rx_dropped)]);
    }
    for nf in CHAIN.into_iter().filter_map(|role| nf(stats, role)) {
        table.add_row([
            nf.role.clone(),
            nf.pid.map_or_else(|| "none".to_owned(), |pid| pid.to_string()),
            count(total(nf, |thread| thread.packets.received)),
            count(total(nf, |thread| thread.packets.next)),
            count(total(nf, |thread| thread.packets.to_port)),
            count(total(nf, |thread| thread.packets.dropped)),
        ]);
    }
    for port in ports {
        let name = format!("to port {}", port.name);
        table.add_row([&name, &port.driver_mode, "", "", &count(port.tx_packets), &count(port.tx_dropped)]);
    }
    drawn(table, 2)
}

/// Dropped packets by location and reason.
pub fn drops(stats: &Stats) -> String {
    let drops = &stats.drops;
    let mut table = table(&["dropped at", "why", "packets"]);
    for (what, places) in [("port", &drops.ports), ("chain", &drops.chains), ("nf", &drops.nfs)] {
        for (name, reasons) in places {
            for (reason, packets) in reasons.iter().filter(|(_, packets)| **packets > 0) {
                table.add_row([&format!("{what} {name}"), reason, &count(*packets)]);
            }
        }
    }
    for group in stats.groups.iter().filter(|group| group.reclaimed_total > 0) {
        let place = format!("group {}", group.name);
        table.add_row([&place, "reclaimed from a dead nf", &count(group.reclaimed_total)]);
    }
    drawn(table, 2)
}

/// Where the buffers are, before and after.
pub fn buffers(before: &Stats, after: &Stats) -> String {
    let mut table = table(&["buffers of group", "memory", "when", "all", "free", "in engine", "in NFs"]);
    for (when, stats) in [("at the start", before), ("at the end", after)] {
        for group in &stats.groups {
            for region in &group.regions {
                table.add_row([
                    group.name.clone(),
                    region.pages.clone(),
                    when.to_owned(),
                    count(region.buffers.into()),
                    count(region.free.into()),
                    count(region.in_engine.into()),
                    count(region.in_nfs.into()),
                ]);
            }
        }
    }
    drawn(table, 3)
}

/// Cost of each stage (NetVM, NSDI 2014, Table 1): the engine's stages, then the NFs, netlib included. `clock_hz`:
/// frequency of the cycle counter.
pub fn stages(stats: &Stats, clock_hz: u64) -> String {
    let mut table = table(&["stage", "packets timed", "cycles a packet", "ns a packet"]);
    let mut add = |stage: &str, packets: u64, cycles: f64, ns: f64| {
        table.add_row([stage, &count(packets), &format!("{cycles:.0}"), &format!("{ns:.0}")]);
    };
    // Stages that no packet passed, such as steering without rules, have no cost.
    for stage in stats.stages.iter().filter(|stage| stage.packets > 0) {
        add(&stage.stage, stage.packets, stage.cycles_per_packet, stage.ns_per_packet);
    }
    for nf in CHAIN.into_iter().filter_map(|role| nf(stats, role)) {
        let packets = total(nf, |thread| thread.packets.received);
        let cycles: f64 =
            nf.threads.iter().map(|thread| thread.cycles_per_packet * thread.packets.received as f64).sum();
        let cycles = cycles / packets.max(1) as f64;
        add(&format!("in {}", nf.role), packets, cycles, cycles * 1e9 / clock_hz.max(1) as f64);
    }
    drawn(table, 1)
}

/// A number with thousands separators.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(count(number), text);
        }
    }
}
