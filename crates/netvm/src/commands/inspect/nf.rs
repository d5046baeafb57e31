// SPDX-License-Identifier: Apache-2.0
//! `netvm nf`.

use comfy_table::Cell;
use netvm_api::{Client, NfInfo, NfState};

use super::{select, show};
use crate::commands::counters::Columns;
use crate::error::CliError;
use crate::format::{count, duration};
use crate::output::{Output, StateColour, lines};

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

const fn state_word(state: NfState) -> (&'static str, StateColour) {
    match state {
        NfState::Starting => ("starting", StateColour::Warning),
        NfState::Running => ("running", StateColour::Good),
        NfState::Standby => ("standby", StateColour::Good),
        NfState::Hung => ("hung", StateColour::Bad),
        NfState::Starved => ("starved", StateColour::Bad),
        NfState::Draining => ("draining", StateColour::Warning),
        NfState::Backoff => ("backoff", StateColour::Bad),
        NfState::Stopped => ("stopped", StateColour::Warning),
        NfState::External => ("external", StateColour::Warning),
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
        let (word, colour) = state_word(nf.state);
        let received: u64 = nf.threads.iter().map(|thread| thread.packets.received).sum();
        let dropped: u64 = nf.threads.iter().map(|thread| thread.packets.dropped).sum();
        let cycles: f64 =
            nf.threads.iter().map(|thread| thread.cycles_per_packet * thread.packets.received as f64).sum();
        table.add_row(vec![
            Cell::new(&nf.role),
            Cell::new(nf.instance),
            Cell::new(nf.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
            output.cell(word, colour),
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
    let packets = Columns::of(nf.threads.iter().map(|thread| &thread.packets));
    let further = Columns::of(&nf.threads);
    let mut table = Columns::table(output, &[">THREAD"], &[&packets, &further]);
    for thread in &nf.threads {
        let number = thread.nf_thread.to_string();
        table.add_row([vec![number], packets.cells(&thread.packets), further.cells(thread)].concat());
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
