// SPDX-License-Identifier: Apache-2.0
//! `netvm port`.

use comfy_table::Cell;
use netvm_api::{Client, PortInfo, PortWorkerInfo, RouterShareInfo, ShareInfo};

use super::{select, show};
use crate::commands::counters::Columns;
use crate::error::CliError;
use crate::format::{count, labels, or_dash};
use crate::output::{Output, StateColour, lines};

/// Prints ports.
pub async fn port(client: &Client, output: &Output, name: Option<&str>) -> Result<(), CliError> {
    let ports = select("port", client.ports().await?, name, |port: &PortInfo| &port.name)?;
    show(&ports, output, |ports| draw_ports(ports, output))
}

fn draw_ports(ports: &[PortInfo], output: &Output) -> String {
    let counters = Columns::of(ports).with_exact_bytes();
    let first = [">ID", "PORT", "KIND", "DRIVER", "LINK", ">QUEUES", "WORKER", ">LOAD", ">MTU", "GROUP"];
    let mut table = Columns::table(output, &first, &[&counters]);
    for port in ports {
        let link = if port.link {
            output.cell("up", StateColour::Good)
        } else {
            output.cell("down", StateColour::Bad)
        };
        let mut row = vec![
            Cell::new(port.id),
            Cell::new(&port.name),
            Cell::new(&port.kind),
            Cell::new(&port.driver_mode),
            link,
            Cell::new(port.queues),
            Cell::new(workers(port)),
            Cell::new(loads(port)),
            Cell::new(port.mtu),
            Cell::new(port.group.as_deref().unwrap_or("-")),
        ];
        row.extend(counters.cells(port).into_iter().map(Cell::new));
        table.add_row(row);
    }
    let mut text = lines(table);
    if ports.iter().any(|port| port.owner.is_some() || !port.labels.is_empty()) {
        text.push('\n');
        text.push_str(&draw_names(ports, output));
    }
    if ports.iter().any(|port| port.share.is_some()) {
        text.push('\n');
        text.push_str(&draw_shares(ports, output));
    }
    if ports.iter().any(|port| port.bond.is_some()) {
        text.push('\n');
        text.push_str(&draw_bonds(ports, output));
    }
    if ports.iter().any(|port| !port.tx_queues.is_empty()) {
        text.push('\n');
        text.push_str(&draw_queues(ports, output));
    }
    if ports.iter().any(|port| port.tunnel.is_some()) {
        text.push('\n');
        text.push_str(&draw_tunnels(ports, output));
    }
    text
}

/// Owners and labels.
fn draw_names(ports: &[PortInfo], output: &Output) -> String {
    let mut table = output.table(&["PORT", "OWNER", "LABELS"]);
    for port in ports.iter().filter(|port| port.owner.is_some() || !port.labels.is_empty()) {
        let owner = port.owner.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([port.name.clone(), owner, or_dash(labels(&port.labels))]);
    }
    lines(table)
}

/// The workers of a port's queues, such as `0` or `0 (2), 1`.
fn workers(port: &PortInfo) -> String {
    let one = |part: &PortWorkerInfo| match part.queues {
        0 | 1 => part.worker.to_string(),
        queues => format!("{} ({queues})", part.worker),
    };
    listed(port.workers.iter().map(one))
}

/// What the port takes of each of them.
fn loads(port: &PortInfo) -> String {
    listed(port.workers.iter().map(|part| format!("{:.0} %", part.load_percent)))
}

fn listed(parts: impl Iterator<Item = String>) -> String {
    or_dash(parts.collect::<Vec<_>>().join(", "))
}

/// The shares of workers.
fn draw_shares(ports: &[PortInfo], output: &Output) -> String {
    let columns =
        ["PORT", "OF ROUTER", ">WEIGHT", ">RESERVE", ">WORKER S", ">US/PACKET", ">WAITED", ">RX DROPPED"];
    let shares = || ports.iter().filter_map(|port| Some((port, port.share.as_ref()?)));
    let has_routers = shares().any(|(_, share)| share.router.is_some());
    let is_shown = |(n, _): &(usize, &str)| has_routers || *n != 1;
    let shown: Vec<&str> =
        columns.into_iter().enumerate().filter(is_shown).map(|(_, column)| column).collect();
    let mut table = output.table(&shown);
    let of_router = |share: &ShareInfo| match &share.router {
        Some(RouterShareInfo { name, weight, reserve }) => format!("{name} ({weight}, {reserve} %)"),
        None => "-".to_owned(),
    };
    for (port, share) in shares() {
        let each = if port.rx_packets == 0 {
            "-".to_owned()
        } else {
            format!("{:.3}", share.worker_s * 1e6 / port.rx_packets as f64)
        };
        let mut row = vec![Cell::new(&port.name)];
        if has_routers {
            row.push(Cell::new(of_router(share)));
        }
        row.extend([
            Cell::new(share.weight),
            Cell::new(format!("{} %", share.reserve)),
            Cell::new(format!("{:.1}", share.worker_s)),
            Cell::new(each),
            Cell::new(count(share.waited)),
            Cell::new(count(port.rx_dropped)),
        ]);
        table.add_row(row);
    }
    lines(table)
}

/// The members of bonds.
fn draw_bonds(ports: &[PortInfo], output: &Output) -> String {
    let mut table = output.table(&["BOND", "MEMBER", "LINK", "CARRIES", "LACP PARTNER"]);
    let bonds = ports.iter().filter_map(|port| Some((port, port.bond.as_ref()?)));
    for (port, member) in bonds.flat_map(|(port, bond)| bond.members.iter().map(move |member| (port, member)))
    {
        let link = if member.link {
            output.cell("up", StateColour::Good)
        } else {
            output.cell("down", StateColour::Bad)
        };
        let carries = match (member.sends, member.receives) {
            (true, _) => "packets",
            (false, true) => "received packets",
            (false, false) => "-",
        };
        table.add_row([
            Cell::new(&port.name),
            Cell::new(&member.port),
            link,
            Cell::new(carries),
            Cell::new(member.partner.as_deref().unwrap_or("-")),
        ]);
    }
    lines(table)
}

/// The queues of shapers.
fn draw_queues(ports: &[PortInfo], output: &Output) -> String {
    let queues = || ports.iter().flat_map(|port| port.tx_queues.iter().map(move |queue| (port, queue)));
    let counters = Columns::of(queues().map(|(_, queue)| queue)).with_exact_bytes();
    let mut table = Columns::table(output, &["PORT", "QUEUE"], &[&counters]);
    for (port, queue) in queues() {
        table.add_row([vec![port.name.clone(), queue.name.clone()], counters.cells(queue)].concat());
    }
    lines(table)
}

/// The tunnels to other servers.
fn draw_tunnels(ports: &[PortInfo], output: &Output) -> String {
    let mut table = output.table(&["PORT", ">VNI", "BY ROUTER", "LOCAL", "REMOTE"]);
    for (port, tunnel) in ports.iter().filter_map(|port| Some((port, port.tunnel.as_ref()?))) {
        table.add_row([
            Cell::new(&port.name),
            Cell::new(tunnel.vni),
            Cell::new(&tunnel.router),
            Cell::new(&tunnel.local),
            Cell::new(tunnel.remote.join(", ")),
        ]);
    }
    lines(table)
}
