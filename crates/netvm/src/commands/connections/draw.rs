// SPDX-License-Identifier: Apache-2.0
//! Connections as text.

use comfy_table::Cell;
use netvm_api::{
    ClosedConnection, ConnectionCounts, ConnectionEvent, ConnectionInfo, ConnectionList, LoggedConnection,
    NatTargetInfo, PortBlock, TcpEndInfo,
};

use crate::commands::counters::Columns;
use crate::format::{bytes, count, duration, labels, or_dash};
use crate::output::{Output, StateColour, lines};

/// A line for each connection, and their number.
pub fn list(list: &ConnectionList, output: &Output) -> String {
    let mut head = vec![
        "ID",
        "PROTOCOL",
        "SOURCE",
        "DESTINATION",
        "TRANSLATED",
        "STATE",
        "PORT",
        ">ZONE",
        ">PACKETS",
        ">BYTES",
        ">REPLY PACKETS",
        ">REPLY BYTES",
        ">AGE",
        ">EXPIRES IN",
        ">WORKER",
    ];
    let has_labels = !list.port_labels.is_empty();
    head.extend(has_labels.then_some("PORT LABELS"));
    let mut table = output.table(&head);
    for one in &list.connections {
        let labels_of = || or_dash(list.port_labels.get(&one.port).map(labels).unwrap_or_default());
        let mut row = vec![
            one.id.clone(),
            one.protocol.clone(),
            one.source.clone(),
            one.destination.clone(),
            translated(one.translated_source.as_deref(), one.translated_destination.as_deref()),
            one.state.clone(),
            one.port.clone(),
            one.zone.to_string(),
            count(one.packets),
            bytes(one.bytes),
            count(one.reply_packets),
            bytes(one.reply_bytes),
            duration(one.age_s),
            duration(one.left_s),
            one.worker.to_string(),
        ];
        row.extend(has_labels.then(labels_of));
        table.add_row(row);
    }
    lines(table) + &present(&list.counts)
}

/// What was counted.
pub fn counts(counts: &ConnectionCounts) -> String {
    let ConnectionCounts { begun, expired, evicted, flushed, refused, invalid, decided, .. } = *counts;
    let [begun, expired, evicted] = [begun, expired, evicted].map(count);
    let [flushed, refused, invalid, decided] = [flushed, refused, invalid, decided].map(count);
    let mut text = format!(
        "{}begun: {begun}\nended: {expired} by time-out, {evicted} evicted, {flushed} flushed, {refused} refused \
         by NAT\n\
         invalid packets: {invalid}\ndecided by their connections: {decided} packets\n{}",
        present(counts),
        cookies(counts)
    );
    let ConnectionCounts { log_lines, log_lost, events_lost, .. } = *counts;
    if log_lines + log_lost + events_lost > 0 {
        let [log_lines, log_lost, events_lost] = [log_lines, log_lost, events_lost].map(count);
        text += &format!(
            "log: {log_lines} lines, {log_lost} lost by a full or slow disk; events lost before: {events_lost}\n"
        );
    }
    if counts.nat_events + counts.nat_events_lost > 0 {
        let [sent, lost] = [counts.nat_events, counts.nat_events_lost].map(count);
        text += &format!("collector: {sent} events of NAT, {lost} lost, as it was away or too slow\n");
    }
    text
}

/// What the SYN proxy has done, if it has done anything.
fn cookies(counts: &ConnectionCounts) -> String {
    let cookies = [counts.cookies_sent, counts.cookies_accepted, counts.cookies_wrong];
    if cookies == [0; 3] {
        return String::new();
    }
    let [sent, accepted, wrong] = cookies.map(count);
    format!("SYN cookies: {sent} sent, {accepted} accepted, {wrong} wrong\n")
}

/// A line for each target of NAT rules.
pub fn targets(targets: &[NatTargetInfo], output: &Output) -> String {
    if targets.is_empty() {
        return "no target is checked: add `health = {}` to a [[nat]] with `dnat`\n".to_owned();
    }
    let counters = Columns::of(targets);
    let first = ["TARGET", "STATE", "NAT", "ROUTER", "PROBLEM"];
    let mut table = Columns::table(output, &first, &[&counters]);
    for one in targets {
        let (word, colour) = if one.up { ("up", StateColour::Good) } else { ("down", StateColour::Bad) };
        let row: [Cell; 5] = [
            (&one.target).into(),
            output.cell(word, colour),
            one.rules.join(" ").into(),
            one.router.as_deref().unwrap_or("-").into(),
            one.problem.as_deref().unwrap_or("-").into(),
        ];
        table.add_row(row.into_iter().chain(counters.cells(one).into_iter().map(Cell::from)));
    }
    lines(table)
}

/// How many connections there are.
pub fn present(counts: &ConnectionCounts) -> String {
    let [connections, limit, unanswered] = [counts.connections, counts.limit, counts.unanswered].map(count);
    format!("connections: {connections} of at most {limit}, {unanswered} of them unanswered\n")
}

/// What NAT makes of source and destination.
fn translated(source: Option<&str>, destination: Option<&str>) -> String {
    let part = |what: &str, end: Option<&str>| Some(format!("{what} {}", end?));
    let parts = [part("from", source), part("to", destination)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// All fields of connections, one a line.
pub fn in_full(connections: &[ConnectionInfo]) -> String {
    connections.iter().map(one_in_full).collect::<Vec<_>>().join("\n")
}

fn one_in_full(one: &ConnectionInfo) -> String {
    let traffic = |packets: u64, all: u64| format!("{} packets, {}", count(packets), bytes(all));
    let mut state = one.state.clone();
    if !one.answered {
        state += ", not answered";
    }
    if !one.assured {
        state += ", evicted first if the table is full";
    }
    let by = one.rule.as_ref().map_or_else(|| "the port's default".to_owned(), |rule| format!("rule {rule}"));
    let translated = translated(one.translated_source.as_deref(), one.translated_destination.as_deref());
    let line = |name: &str, value: &str| format!("  {name:<12}{value}\n");
    let mut text = format!("connection {}: {} {} > {}\n", one.id, one.protocol, one.source, one.destination);
    if !translated.is_empty() {
        text += &line("translated", &translated);
    }
    text += &line("state", &state);
    text += &line("begun", &format!("{} ago, by port {}, accepted by {by}", duration(one.age_s), one.port));
    text += &line("expires", &format!("in {} without packets", duration(one.left_s)));
    text += &line("sent", &traffic(one.packets, one.bytes));
    text += &line("answered", &traffic(one.reply_packets, one.reply_bytes));
    for (end, name) in one.tcp.iter().zip(["tcp source", "tcp dest."]) {
        text += &line(name, &tcp_end(end));
    }
    text + &line("kept by", &format!("worker {}, zone {}", one.worker, one.zone))
}

fn tcp_end(end: &TcpEndInfo) -> String {
    let scale = end.scale.map_or_else(String::new, |scale| format!(", scaled by 2^{scale}"));
    let fin = if end.fin { ", FIN sent" } else { "" };
    let TcpEndInfo { sent, acknowledged, window, .. } = end;
    format!(
        "sent to {sent}, acknowledged {acknowledged}, window {} bytes{scale}{fin}",
        count((*window).into())
    )
}

/// What happened to a connection, in one line.
pub fn event(event: &ConnectionEvent) -> String {
    let line = match event {
        ConnectionEvent::Opened(it) => logged("opened", it),
        ConnectionEvent::Translated(it) => logged("translated", it),
        ConnectionEvent::Closed(it) => {
            let ClosedConnection { why, packets, reply_packets, .. } = it;
            let all = bytes(it.bytes + it.reply_bytes);
            let [packets, answers] = [*packets, *reply_packets].map(count);
            format!(
                "{}: {why}, {packets} packets, {answers} answers, {all}",
                logged("closed", &it.connection)
            )
        }
        ConnectionEvent::BlockAssigned(it) => port_block("assigned", it),
        ConnectionEvent::BlockReleased(it) => port_block("released", it),
        ConnectionEvent::PortsExhausted { time, protocol, zone, inside } => {
            format!("{time}  {:<10}  {protocol} {inside}, zone {zone}: NAT has no port", "exhausted")
        }
        ConnectionEvent::Lost { events } => {
            format!("{} events are missing here: this client reads too slowly", count(*events))
        }
    };
    // Names are chosen by users.
    format!("{}\n", netvm_text::line(&line))
}

fn port_block(what: &str, it: &PortBlock) -> String {
    let PortBlock { time, zone, inside, outside, first_port, last_port } = it;
    format!("{time}  {what:<10}  ports {first_port}-{last_port} of {outside} for {inside}, zone {zone}")
}

fn logged(what: &str, it: &LoggedConnection) -> String {
    let LoggedConnection { time, protocol, port, source, destination, .. } = it;
    let translated = translated(it.translated_source.as_deref(), it.translated_destination.as_deref());
    let translated = if translated.is_empty() { translated } else { format!(" as {translated}") };
    let rule = it.rule.as_ref().map_or_else(String::new, |rule| format!(" by rule {rule}"));
    format!("{time}  {what:<10}  {protocol} {source} > {destination}{translated}, port {port}{rule}")
}
