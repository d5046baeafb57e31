//! What netvmd counted, as tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use netvm_api::{NfInfo, Stats, ThreadInfo};

use crate::daemon::{CHAIN, nf};

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

/// Numbers are read by their last digit.
fn drawn(mut table: Table, text_columns: usize) -> String {
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A count over all threads.
pub fn total(nf: &NfInfo, of: impl Fn(&ThreadInfo) -> u64) -> u64 {
    nf.threads.iter().map(of).sum()
}

/// The way of the packets: ports, NFs, ports.
pub fn hops(stats: &Stats) -> String {
    let mut table = table(&[
        "hop",
        "process",
        "packets in",
        "to the next",
        "out of a port",
        "dropped",
        "cycles a packet",
    ]);
    let ports = stats.ports.iter();
    for port in ports.clone() {
        let name = format!("from port {}", port.name);
        table.add_row([
            &name,
            &port.driver_mode,
            &count(port.rx_packets),
            "",
            "",
            &count(port.rx_dropped),
            "",
        ]);
    }
    for nf in CHAIN.into_iter().filter_map(|role| nf(stats, role)) {
        let received = total(nf, |thread| thread.received);
        let cycles: f64 =
            nf.threads.iter().map(|thread| thread.nf_cycles_per_packet * thread.received as f64).sum();
        table.add_row([
            nf.role.clone(),
            nf.pid.map_or_else(|| "none".to_owned(), |pid| pid.to_string()),
            count(received),
            count(total(nf, |thread| thread.next)),
            count(total(nf, |thread| thread.port)),
            count(total(nf, |thread| thread.dropped)),
            format!("{:.0}", cycles / received.max(1) as f64),
        ]);
    }
    for port in ports {
        let name = format!("to port {}", port.name);
        table.add_row([
            &name,
            &port.driver_mode,
            "",
            "",
            &count(port.tx_packets),
            &count(port.tx_dropped),
            "",
        ]);
    }
    drawn(table, 2)
}

/// Dropped packets by where and why.
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
    if drops.total() == 0 {
        table.add_row(["nowhere", "", "0"]);
    }
    drawn(table, 2)
}

/// Who has the cells, before and after.
pub fn cells(before: &Stats, after: &Stats) -> String {
    let mut table =
        table(&["cells of group", "memory", "when", "all", "free", "with the engine", "with NFs"]);
    for (when, stats) in [("at the start", before), ("at the end", after)] {
        for group in &stats.groups {
            for region in &group.regions {
                table.add_row([
                    group.name.clone(),
                    region.pages.clone(),
                    when.to_owned(),
                    count(region.cells.into()),
                    count(region.free.into()),
                    count(region.in_engine.into()),
                    count(region.in_nfs.into()),
                ]);
            }
        }
    }
    drawn(table, 3)
}

/// What each stage costs (NetVM, NSDI 2014, Table 1).
pub fn stages(stats: &Stats) -> String {
    let mut table = table(&["stage", "packets", "cycles a packet", "ns a packet"]);
    for stage in stats.stages.iter().filter(|stage| stage.packets > 0) {
        table.add_row([
            stage.stage.clone(),
            count(stage.packets),
            format!("{:.0}", stage.cycles_per_packet),
            format!("{:.0}", stage.ns_per_packet),
        ]);
    }
    drawn(table, 1)
}

/// A count, its thousands set off.
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
    fn thousands_are_set_off() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(count(number), text);
        }
    }
}
