// SPDX-License-Identifier: Apache-2.0
//! `netvm stats`: totals once, or totals and rates at an interval.

use std::time::Duration;

use netvm_api::{Client, Drops, FlowMonitorInfo, LatencyInfo, NfInfo, NfPackets, Stats};

use super::connections::present;
use crate::cli::StatsArgs;
use crate::error::CliError;
use crate::format::{count, rate};
use crate::output::{Output, lines};

/// How long to measure latencies before the first output.
const MEASURED: Duration = Duration::from_secs(2);

/// Clears the terminal and moves the cursor to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints statistics.
pub async fn stats(client: &Client, output: &Output, arguments: &StatsArgs) -> Result<(), CliError> {
    if arguments.latency {
        return latency(client, output, arguments).await;
    }
    let mut before = client.stats().await?;
    let Some(interval) = arguments.watch else {
        return if output.json {
            output.value(&before)
        } else {
            output.text(&draw(&before, None, arguments, output))
        };
    };
    loop {
        tokio::time::sleep(interval).await;
        let now = client.stats().await?;
        if output.json {
            // One line a sample (JSON Lines).
            output.text(&(serde_json::to_string(&now)? + "\n"))?;
        } else {
            let clear = if output.terminal { CLEAR } else { "" };
            output.text(&format!("{clear}{}\n", draw(&now, Some(&before), arguments, output)))?;
        }
        before = now;
    }
}

/// Prints latencies once, or at an interval.
async fn latency(client: &Client, output: &Output, arguments: &StatsArgs) -> Result<(), CliError> {
    // The first request starts the measurement, unless there was one in the last minute.
    if client.latency().await?.is_empty() {
        tokio::time::sleep(MEASURED).await;
    }
    loop {
        let now = client.latency().await?;
        if output.json {
            output.value(&now)?;
        } else {
            let clear = if output.terminal && arguments.watch.is_some() { CLEAR } else { "" };
            output.text(&format!("{clear}{}", latencies(&now, output)))?;
        }
        match arguments.watch {
            None => return Ok(()),
            Some(interval) => tokio::time::sleep(interval).await,
        }
    }
}

fn latencies(now: &[LatencyInfo], output: &Output) -> String {
    if now.is_empty() {
        return "no packet has been measured\n".to_owned();
    }
    let mut table =
        output.table(&["OF", "NAME", ">SAMPLES", ">MEAN US", ">P50 US", ">P99 US", ">P99.9 US", ">MAX US"]);
    for info in now {
        let micros = [info.mean_us, info.p50_us, info.p99_us, info.p999_us, info.max_us];
        let micros = micros.map(|micros| format!("{micros:.1}"));
        table.add_row(
            [vec![info.of.clone(), info.name.clone(), count(info.samples)], micros.to_vec()].concat(),
        );
    }
    lines(table)
}

fn draw(now: &Stats, before: Option<&Stats>, arguments: &StatsArgs, output: &Output) -> String {
    let mut parts = Vec::new();
    if !arguments.stages && !arguments.drops {
        parts.extend([ports(now, before, output), chains(now, before, output), nfs(now, before, output)]);
        let mut last = format!("dropped: {}{}\n", count(now.drops.total), drop_rate(now, before));
        if let Some(info) = &now.flow_monitor {
            last += &format!("flow monitor: {}", monitor(info));
        }
        last.extend(now.connections.as_ref().map(present));
        parts.push(last);
    }
    if arguments.stages {
        parts.push(stages(now, output));
    }
    if arguments.drops {
        parts.push(drops(&now.drops, before.map(|before| &before.drops), seconds(now, before), output));
    }
    parts.join("\n")
}

/// The counters of the engine's flow monitor.
pub fn monitor(info: &FlowMonitorInfo) -> String {
    let FlowMonitorInfo { packets, flows, records, exported, .. } = *info;
    let (packets, flows) = (count(packets), count(flows));
    let mut text = format!("{packets} packets, flows in the tables: {flows}");
    text += &format!(", {} records, of these exported: {}", count(records), count(exported));
    let lost = [
        (info.evicted, "flows evicted: raise flow_monitor.flows"),
        (info.lost_records, "records lost, as the exporter was too slow"),
        (info.unexported, "records lost, as the collector was unreachable"),
    ];
    for (number, what) in lost.into_iter().filter(|(number, _)| *number > 0) {
        text += &format!(", {} {what}", count(number));
    }
    if info.is_collector_away {
        text += ", the collector is unreachable";
    }
    text + "\n"
}

/// Seconds between two samples.
fn seconds(now: &Stats, before: Option<&Stats>) -> f64 {
    before.map_or(0.0, |before| now.uptime_s - before.uptime_s)
}

/// A counter's rate; `-` if unknown. A counter that decreased belongs to a new object.
fn speed(now: u64, before: Option<u64>, seconds: f64) -> String {
    match before.and_then(|before| now.checked_sub(before)) {
        Some(difference) if seconds > 0.0 => rate(difference as f64 / seconds),
        _ => "-".to_owned(),
    }
}

fn drop_rate(now: &Stats, before: Option<&Stats>) -> String {
    match before {
        None => String::new(),
        Some(known) => {
            format!(" ({} per second)", speed(now.drops.total, Some(known.drops.total), seconds(now, before)))
        }
    }
}

/// The columns, without rates if there is no earlier sample.
fn columns<'a>(all: &[&'a str], before: Option<&Stats>) -> Vec<&'a str> {
    all.iter().copied().filter(|column| before.is_some() || !column.ends_with("/S")).collect()
}

fn ports(now: &Stats, before: Option<&Stats>, output: &Output) -> String {
    let all = [
        "PORT",
        ">RX PACKETS",
        ">RX/S",
        ">RX BIT/S",
        ">TX PACKETS",
        ">TX/S",
        ">TX BIT/S",
        ">RX DROPPED",
        ">TX DROPPED",
    ];
    let mut table = output.table(&columns(&all, before));
    let span = seconds(now, before);
    for port in &now.ports {
        let old = before
            .and_then(|before| before.ports.iter().find(|old| old.id == port.id && old.name == port.name));
        let bits = |bytes: u64| bytes.saturating_mul(8);
        let mut row = vec![port.name.clone(), count(port.rx_packets)];
        if before.is_some() {
            row.push(speed(port.rx_packets, old.map(|old| old.rx_packets), span));
            row.push(speed(bits(port.rx_bytes), old.map(|old| bits(old.rx_bytes)), span));
        }
        row.push(count(port.tx_packets));
        if before.is_some() {
            row.push(speed(port.tx_packets, old.map(|old| old.tx_packets), span));
            row.push(speed(bits(port.tx_bytes), old.map(|old| bits(old.tx_bytes)), span));
        }
        row.extend([count(port.rx_dropped), count(port.tx_dropped)]);
        table.add_row(row);
    }
    lines(table)
}

fn chains(now: &Stats, before: Option<&Stats>, output: &Output) -> String {
    let all = ["CHAIN", ">ENTERED", ">ENTERED/S", ">LEFT", ">LEFT/S", ">DROPPED AT ENTRY", ">DROPPED INSIDE"];
    let mut table = output.table(&columns(&all, before));
    let span = seconds(now, before);
    for chain in &now.chains {
        let old = before
            .and_then(|before| before.chains.iter().find(|old| old.id == chain.id && old.name == chain.name));
        let mut row = vec![chain.name.clone(), count(chain.entered)];
        if before.is_some() {
            row.push(speed(chain.entered, old.map(|old| old.entered), span));
        }
        row.push(count(chain.left));
        if before.is_some() {
            row.push(speed(chain.left, old.map(|old| old.left), span));
        }
        row.extend([count(chain.dropped_at_entry), count(chain.dropped_inside)]);
        table.add_row(row);
    }
    lines(table)
}

fn nfs(now: &Stats, before: Option<&Stats>, output: &Output) -> String {
    let mut all =
        vec!["NF", ">#", ">RECEIVED", ">RECEIVED/S", ">NEXT", ">PORT", ">ROLE", ">DROPPED", ">DETOURED"];
    // Few NFs give per-flow verdicts.
    let has_verdicts =
        now.roles.iter().any(|role| role.packets.flows_decided + role.packets.flows_refused > 0);
    if has_verdicts {
        all.extend([">FLOWS DECIDED", ">REFUSED"]);
    }
    let mut table = output.table(&columns(&all, before));
    let mut add = |role: &str, number: String, packets: NfPackets, old: Option<NfPackets>| {
        let mut row = vec![role.to_owned(), number, count(packets.received)];
        if before.is_some() {
            row.push(speed(packets.received, old.map(|old| old.received), seconds(now, before)));
        }
        let NfPackets { next, to_port, to_role, dropped, detoured, .. } = packets;
        row.extend([next, to_port, to_role, dropped, detoured].map(count));
        if has_verdicts {
            row.extend([packets.flows_decided, packets.flows_refused].map(count));
        }
        table.add_row(row);
    };
    let total = |nf: &NfInfo| nf.threads.iter().map(|thread| thread.packets).sum::<NfPackets>();
    for nf in &now.nfs {
        let is_same = |old: &&NfInfo| (&old.role, old.instance, old.pid) == (&nf.role, nf.instance, nf.pid);
        let old = before.and_then(|before| before.nfs.iter().find(is_same));
        add(&nf.role, nf.instance.to_string(), total(nf), old.map(total));
    }
    for role in &now.roles {
        let present: NfPackets = now.nfs.iter().filter(|nf| nf.role == role.role).map(total).sum();
        // The role's total includes instances that have gone.
        if role.packets.received != present.received {
            let old = before.and_then(|before| before.roles.iter().find(|old| old.role == role.role));
            add(&role.role, "all".to_owned(), role.packets, old.map(|old| old.packets));
        }
    }
    lines(table)
}

fn stages(now: &Stats, output: &Output) -> String {
    let mut table = output.table(&["STAGE", ">PACKETS TIMED", ">CYCLES/PACKET", ">NS/PACKET"]);
    for stage in &now.stages {
        table.add_row([
            stage.stage.clone(),
            count(stage.packets),
            format!("{:.1}", stage.cycles_per_packet),
            format!("{:.1}", stage.ns_per_packet),
        ]);
    }
    lines(table)
}

fn drops(now: &Drops, before: Option<&Drops>, seconds: f64, output: &Output) -> String {
    if now.total == 0 {
        return "no drops\n".to_owned();
    }
    let mut columns = vec!["AT", "NAME", "REASON", ">PACKETS"];
    columns.extend(before.map(|_| ">PACKETS/S"));
    let mut table = output.table(&columns);
    let by_location = |drops: &Drops| {
        [("port", drops.ports.clone()), ("chain", drops.chains.clone()), ("nf", drops.nfs.clone())]
    };
    let old = before.map(by_location);
    for (n, (location, names)) in by_location(now).into_iter().enumerate() {
        for (name, reasons) in names {
            for (reason, packets) in reasons {
                let known = old.as_ref().map(|old| {
                    old[n].1.get(&name).and_then(|reasons| reasons.get(&reason)).copied().unwrap_or(0)
                });
                let mut row = vec![location.to_owned(), name.clone(), reason, count(packets)];
                row.extend(known.map(|known| speed(packets, Some(known), seconds)));
                table.add_row(row);
            }
        }
    }
    lines(table)
}
