//! `netvm conn`.

use netvm_api::{Client, ConnectionCounts, ConnectionList, ConnectionQuery};

use crate::cli::{ConnCommand, ConnFilter};
use crate::error::CliError;
use crate::format::{bytes, count, duration};
use crate::output::{Output, lines};

/// Runs a `conn` command.
pub async fn connections(client: &Client, output: &Output, command: ConnCommand) -> Result<(), CliError> {
    match command {
        ConnCommand::List { limit, filter } => {
            let list = client.connections(&query(filter, Some(limit))).await?;
            if output.json { output.value(&list) } else { output.text(&draw(&list, output)) }
        }
        ConnCommand::Flush { filter, all: _ } => {
            let flushed = client.flush_connections(&query(filter, None)).await?;
            if output.json {
                output.value(&flushed)
            } else {
                output.text(&format!("connections ended: {}\n", count(flushed.ended)))
            }
        }
        ConnCommand::Stats => {
            let counts = client.connections(&query(ConnFilter::default(), Some(0))).await?.counts;
            if output.json { output.value(&counts) } else { output.text(&draw_counts(&counts)) }
        }
    }
}

fn query(filter: ConnFilter, limit: Option<usize>) -> ConnectionQuery {
    let ConnFilter { address, l4_port, protocol, port, zone } = filter;
    ConnectionQuery { address, l4_port, protocol, port, zone, limit }
}

fn draw(list: &ConnectionList, output: &Output) -> String {
    let mut table = output.table(&[
        "PROTOCOL",
        "SOURCE",
        "DESTINATION",
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
    ]);
    for one in &list.connections {
        table.add_row([
            one.protocol.clone(),
            one.source.clone(),
            one.destination.clone(),
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
        ]);
    }
    lines(table) + &present(&list.counts)
}

fn draw_counts(counts: &ConnectionCounts) -> String {
    let ConnectionCounts { begun, expired, evicted, flushed, invalid, .. } = *counts;
    let [begun, expired, evicted, flushed, invalid] = [begun, expired, evicted, flushed, invalid].map(count);
    format!(
        "{}begun: {begun}\nended: {expired} by time-out, {evicted} evicted, {flushed} flushed\n\
         invalid packets: {invalid}\n",
        present(counts)
    )
}

/// How many connections there are.
pub fn present(counts: &ConnectionCounts) -> String {
    let [connections, limit, unanswered] = [counts.connections, counts.limit, counts.unanswered].map(count);
    format!("connections: {connections} of at most {limit}, {unanswered} of them unanswered\n")
}
