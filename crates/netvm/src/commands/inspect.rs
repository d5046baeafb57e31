//! `netvm status`, `port`, `nf`, `chain` and `group`.

use comfy_table::Cell;
use netvm_api::{
    ChainInfo, ChainState, Client, Drift, GroupInfo, HugePages, Idle, NfInfo, NfState, PortInfo,
    RouterShareInfo, ShareInfo, Status,
};
use serde::Serialize;

use super::change::age;
use crate::error::CliError;
use crate::format::{bytes, count, duration, plural};
use crate::output::{Output, Tone, lines};

/// Prints the state of netvmd and its workers.
pub async fn status(client: &Client, output: &Output) -> Result<(), CliError> {
    let status = client.status().await?;
    if output.json { output.value(&status) } else { output.text(&draw_status(&status, output)) }
}

fn draw_status(status: &Status, output: &Output) -> String {
    let file = status.config.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string());
    let pages = match status.huge_pages {
        HugePages::All => "all packet memory in huge pages",
        HugePages::Some => "packet memory partly in huge pages",
        HugePages::None => "no packet memory in huge pages",
    };
    let mut text = format!(
        "netvmd {} on {}, process {}, up {}\nconfiguration {file}: {}, {}, {}\n{pages}, clock {:.3} GHz\n\n",
        status.version,
        status.dpdk,
        status.pid,
        duration(status.uptime_s),
        plural(status.ports as usize, "port"),
        plural(status.nfs as usize, "NF instance"),
        plural(status.chains as usize, "chain"),
        status.clock_hz as f64 / 1e9,
    );
    let mut table = output.table(&[
        "WORKER",
        ">CORE",
        ">NODE",
        "IDLE",
        ">BUSY",
        ">SLEEPS",
        ">COPIES",
        ">COPIED",
        ">LONGEST TURN",
    ]);
    for worker in &status.workers {
        table.add_row([
            worker.id.to_string(),
            worker.core.to_string(),
            worker.node.to_string(),
            match worker.idle {
                Idle::Poll => "poll".to_owned(),
                Idle::Adaptive => "adaptive".to_owned(),
            },
            format!("{:.1} %", worker.busy_percent),
            count(worker.sleeps),
            count(worker.copies),
            bytes(worker.copied_bytes),
            format!("{:.0} µs", worker.longest_turn_us),
        ]);
    }
    text.push_str(&lines(table));
    text.push_str(&draw_configuration(status, &file));
    if !status.problems.is_empty() {
        text.push_str("\nproblems:\n");
        text.extend(status.problems.iter().map(|problem| format!("  {problem}\n")));
    }
    text
}

/// What runs, if it is something else than the configuration file.
fn draw_configuration(status: &Status, file: &str) -> String {
    let mut notes = Vec::new();
    if let Some(seconds) = status.confirm_within_s {
        notes.push(format!("netvmd goes back in {seconds} s unless you confirm: netvm config confirm"));
    }
    match &status.drift {
        Drift::None => {}
        Drift::Changes { changes } => {
            let runs = status.revision.as_ref().map_or_else(String::new, |revision| {
                format!(" (last applied: {}, {} ago)", revision.source, age(revision))
            });
            let count = plural(usize::try_from(*changes).unwrap_or(usize::MAX), "difference");
            notes.push(format!(
                "what runs is not what {file} has: {count}{runs}. See them: netvm plan {file}"
            ));
        }
        Drift::Unreadable { reason } => notes.push(format!("a restart would fail: {reason}")),
    }
    notes.iter().map(|note| format!("\n{note}\n")).collect()
}

/// The items named `name`, or all.
fn select<T>(
    what: &'static str,
    all: Vec<T>,
    name: Option<&str>,
    name_of: impl Fn(&T) -> &str,
) -> Result<Vec<T>, CliError> {
    let Some(name) = name else { return Ok(all) };
    let mut known: Vec<String> = all.iter().map(|item| name_of(item).to_owned()).collect();
    known.dedup();
    let found: Vec<T> = all.into_iter().filter(|item| name_of(item) == name).collect();
    if found.is_empty() { Err(CliError::Unknown { what, name: name.to_owned(), known }) } else { Ok(found) }
}

fn show<T: Serialize>(items: &T, output: &Output, draw: impl FnOnce(&T) -> String) -> Result<(), CliError> {
    if output.json { output.value(items) } else { output.text(&draw(items)) }
}

/// Prints ports.
pub async fn port(client: &Client, output: &Output, name: Option<&str>) -> Result<(), CliError> {
    let ports = select("port", client.ports().await?, name, |port: &PortInfo| &port.name)?;
    show(&ports, output, |ports| draw_ports(ports, output))
}

fn draw_ports(ports: &[PortInfo], output: &Output) -> String {
    let mut table = output.table(&[
        ">ID",
        "PORT",
        "KIND",
        "DRIVER",
        "LINK",
        ">QUEUES",
        ">MTU",
        "GROUP",
        ">RX PACKETS",
        ">RX BYTES",
        ">TX PACKETS",
        ">TX BYTES",
        ">RX DROPPED",
        ">TX DROPPED",
    ]);
    for port in ports {
        let link = if port.link { output.cell("up", Tone::Good) } else { output.cell("down", Tone::Bad) };
        table.add_row(vec![
            Cell::new(port.id),
            Cell::new(&port.name),
            Cell::new(&port.kind),
            Cell::new(&port.driver_mode),
            link,
            Cell::new(port.queues),
            Cell::new(port.mtu),
            Cell::new(port.group.as_deref().unwrap_or("-")),
            Cell::new(count(port.rx_packets)),
            Cell::new(count(port.rx_bytes)),
            Cell::new(count(port.tx_packets)),
            Cell::new(count(port.tx_bytes)),
            Cell::new(count(port.rx_dropped)),
            Cell::new(count(port.tx_dropped)),
        ]);
    }
    let mut text = lines(table);
    if ports.iter().any(|port| port.share.is_some()) {
        text.push('\n');
        text.push_str(&draw_shares(ports, output));
    }
    if ports.iter().any(|port| !port.tx_queues.is_empty()) {
        text.push('\n');
        text.push_str(&draw_queues(ports, output));
    }
    text
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

/// The queues of shapers.
fn draw_queues(ports: &[PortInfo], output: &Output) -> String {
    let columns =
        ["PORT", "QUEUE", ">TX PACKETS", ">TX BYTES", ">WAITING", ">WAITING BYTES", ">QUEUE FULL", ">CODEL"];
    let mut table = output.table(&columns);
    for (port, queue) in ports.iter().flat_map(|port| port.tx_queues.iter().map(move |queue| (port, queue))) {
        table.add_row(vec![
            Cell::new(&port.name),
            Cell::new(&queue.name),
            Cell::new(count(queue.packets)),
            Cell::new(count(queue.bytes)),
            Cell::new(count(queue.waiting_packets)),
            Cell::new(count(queue.waiting_bytes)),
            Cell::new(count(queue.dropped_full)),
            Cell::new(count(queue.dropped_codel)),
        ]);
    }
    lines(table)
}

/// Prints NFs.
pub async fn nf(client: &Client, output: &Output, role: Option<&str>) -> Result<(), CliError> {
    let nfs = select("role", client.nfs().await?, role, |nf: &NfInfo| &nf.role)?;
    show(&nfs, output, |nfs| {
        let mut text = draw_nfs(nfs, output);
        if role.is_some() {
            text.extend(nfs.iter().map(|nf| draw_details(nf, output)));
        }
        text
    })
}

const fn state_word(state: NfState) -> (&'static str, Tone) {
    match state {
        NfState::Starting => ("starting", Tone::Doubtful),
        NfState::Running => ("running", Tone::Good),
        NfState::Standby => ("standby", Tone::Good),
        NfState::Hung => ("hung", Tone::Bad),
        NfState::Backoff => ("backoff", Tone::Bad),
        NfState::Stopped => ("stopped", Tone::Doubtful),
        NfState::External => ("external", Tone::Doubtful),
    }
}

fn draw_nfs(nfs: &[NfInfo], output: &Output) -> String {
    let mut table = output.table(&[
        "ROLE",
        ">#",
        ">PID",
        "STATE",
        "GROUP",
        ">THREADS",
        ">UP",
        ">RECEIVED",
        ">DROPPED",
        ">CYCLES/PACKET",
        ">RESTARTS",
        "LAST EXIT",
    ]);
    for nf in nfs {
        let (word, tone) = state_word(nf.state);
        let received: u64 = nf.threads.iter().map(|thread| thread.packets.received).sum();
        let dropped: u64 = nf.threads.iter().map(|thread| thread.packets.dropped).sum();
        let cycles: f64 =
            nf.threads.iter().map(|thread| thread.cycles_per_packet * thread.packets.received as f64).sum();
        table.add_row(vec![
            Cell::new(&nf.role),
            Cell::new(nf.instance),
            Cell::new(nf.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
            output.cell(word, tone),
            Cell::new(&nf.group),
            Cell::new(nf.threads.len()),
            Cell::new(nf.uptime_s.map_or_else(|| "-".to_owned(), duration)),
            Cell::new(count(received)),
            Cell::new(count(dropped)),
            Cell::new(if received == 0 {
                "-".to_owned()
            } else {
                format!("{:.0}", cycles / received as f64)
            }),
            Cell::new(nf.restarts),
            Cell::new(nf.last_exit.as_deref().unwrap_or("-")),
        ]);
    }
    lines(table)
}

/// The threads and counters of an instance.
fn draw_details(nf: &NfInfo, output: &Output) -> String {
    let mut text = format!("\n{} #{}\n", nf.role, nf.instance);
    let mut table = output.table(&[
        ">THREAD",
        ">RECEIVED",
        ">NEXT",
        ">PORT",
        ">ROLE",
        ">DROPPED",
        ">DETOURED",
        ">FLOWS DECIDED",
        ">REFUSED",
        ">CYCLES/PACKET",
        ">OWN",
        ">BURSTS",
        ">SLEEPS",
    ]);
    for thread in &nf.threads {
        table.add_row([
            thread.nf_thread.to_string(),
            count(thread.packets.received),
            count(thread.packets.next),
            count(thread.packets.to_port),
            count(thread.packets.to_role),
            count(thread.packets.dropped),
            count(thread.packets.detoured),
            count(thread.packets.flows_decided),
            count(thread.packets.flows_refused),
            format!("{:.0}", thread.cycles_per_packet),
            format!("{:.0}", thread.nf_cycles_per_packet),
            count(thread.bursts),
            count(thread.sleeps),
        ]);
    }
    text.push_str(&lines(table));
    for (title, numbers) in [("COUNTER", &nf.counters), ("VIOLATION", &nf.violations)] {
        if numbers.is_empty() {
            continue;
        }
        let mut table = output.table(&[title, ">VALUE"]);
        for (name, number) in numbers {
            table.add_row([name.clone(), count(*number)]);
        }
        text.push('\n');
        text.push_str(&lines(table));
    }
    text
}

/// Prints chains.
pub async fn chain(client: &Client, output: &Output, name: Option<&str>) -> Result<(), CliError> {
    let chains = select("chain", client.chains().await?, name, |chain: &ChainInfo| &chain.name)?;
    show(&chains, output, |chains| draw_chains(chains, output))
}

fn draw_chains(chains: &[ChainInfo], output: &Output) -> String {
    let mut table = output.table(&[
        ">ID",
        "CHAIN",
        "HOPS",
        "OUTPUT",
        "STATE",
        ">ENTERED",
        ">LEFT",
        ">DROPPED AT ENTRY",
        ">DROPPED INSIDE",
    ]);
    for chain in chains {
        let state = match chain.state {
            ChainState::Up => output.cell("up", Tone::Good),
            ChainState::Bypassed => output.cell("bypassed", Tone::Doubtful),
            ChainState::Down => output.cell("down", Tone::Bad),
        };
        table.add_row(vec![
            Cell::new(chain.id),
            Cell::new(&chain.name),
            Cell::new(chain.hops.join(" → ")),
            Cell::new(chain.output.as_deref().unwrap_or("-")),
            state,
            Cell::new(count(chain.entered)),
            Cell::new(count(chain.left)),
            Cell::new(count(chain.dropped_at_entry)),
            Cell::new(count(chain.dropped_inside)),
        ]);
    }
    lines(table)
}

/// Prints trust groups.
pub async fn group(client: &Client, output: &Output, name: Option<&str>) -> Result<(), CliError> {
    let groups = select("group", client.groups().await?, name, |group: &GroupInfo| &group.name)?;
    show(&groups, output, |groups| draw_groups(groups, output))
}

fn draw_groups(groups: &[GroupInfo], output: &Output) -> String {
    let mut table = output.table(&[
        ">ID",
        "GROUP",
        ">NFS",
        ">NODE",
        "PAGES",
        ">SIZE",
        ">BUFFERS",
        ">BUFFER SIZE",
        ">FREE",
        ">IN ENGINE",
        ">IN NFS",
        ">RECLAIMED",
        ">LONGEST RECLAIM",
    ]);
    for group in groups {
        for region in &group.regions {
            table.add_row([
                group.id.to_string(),
                group.name.clone(),
                group.instances.to_string(),
                region.node.to_string(),
                region.pages.clone(),
                bytes(region.bytes),
                count(region.buffers.into()),
                region.buffer_size.to_string(),
                count(region.free.into()),
                count(region.in_engine.into()),
                count(region.in_nfs.into()),
                count(group.reclaimed_total),
                format!("{:.1} ms", group.longest_reclaim_ms),
            ]);
        }
    }
    lines(table)
}
