// SPDX-License-Identifier: Apache-2.0
//! `netvm status`.

use std::time::{Duration, Instant};

use netvm_api::{Client, ClientError, Drift, HugePages, Idle, NfInfo, NfState, Status};
use tokio::time::sleep;

use crate::commands::change::{age, problems_of};
use crate::commands::counters::Columns;
use crate::error::CliError;
use crate::format::{count, duration, plural};
use crate::output::{Output, lines};

/// Interval between attempts to reach a netvmd that starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Prints the state of netvmd and its workers, after waiting at most `wait` seconds for a netvmd that starts, and for
/// the NFs that it starts for its chains.
pub async fn status(client: &Client, output: &Output, wait: Option<u64>) -> Result<(), CliError> {
    let end = Instant::now() + Duration::from_secs(wait.unwrap_or(0));
    let status = loop {
        match client.status().await {
            Err(ClientError::NotRunning { .. } | ClientError::Unreachable { .. }) if Instant::now() < end => {
                sleep(RETRY_INTERVAL).await;
            }
            Ok(_) if Instant::now() < end && lacks_nfs(client).await? => sleep(RETRY_INTERVAL).await,
            status => break status?,
        }
    };
    if output.json { output.value(&status) } else { output.text(&draw_status(&status, output)) }
}

/// `1 packet`, `1,234 packets`.
fn plural_of(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", count(number)) }
}

/// Whether a chain lacks an NF that netvmd starts. Others start when somebody starts them.
async fn lacks_nfs(client: &Client) -> Result<bool, CliError> {
    let (chains, nfs) = (client.chains().await?, client.nfs().await?);
    let is_missing = |role: &String| {
        let is_one = |nf: &&NfInfo| nf.role == *role;
        nfs.iter().filter(is_one).any(|nf| nf.managed) && !nfs.iter().filter(is_one).any(runs)
    };
    Ok(chains.iter().flat_map(|chain| &chain.hops).any(is_missing))
}

fn runs(nf: &NfInfo) -> bool {
    nf.state == NfState::Running
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
    let counters = Columns::of(&status.workers);
    let first = ["WORKER", ">CORE", ">NODE", "IDLE", ">QUEUES", ">BUSY"];
    let mut table = Columns::table(output, &first, &[&counters]);
    for worker in &status.workers {
        let row = [
            worker.id.to_string(),
            worker.core.to_string(),
            worker.node.to_string(),
            match worker.idle {
                Idle::Poll => "poll".to_owned(),
                Idle::Adaptive => "adaptive".to_owned(),
            },
            worker.queues.to_string(),
            format!("{:.1} %", worker.busy_percent),
        ];
        table.add_row(row.into_iter().chain(counters.cells(worker)));
    }
    text.push_str(&lines(table));
    if status.dropped > 0 {
        text += &format!("\ndropped: {} (netvm stats --drops)\n", plural_of(status.dropped, "packet"));
    }
    text.push_str(&draw_configuration(status, &file));
    if !status.problems.is_empty() {
        text.push('\n');
        text.push_str(&problems_of(status));
    }
    text
}

/// The running configuration, if it differs from the file.
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
                "the running configuration differs from {file}: {count}{runs}. To see them: netvm plan {file}"
            ));
        }
        Drift::Unreadable { reason } => notes.push(format!("a restart would fail: {reason}")),
    }
    notes.iter().map(|note| format!("\n{note}\n")).collect()
}
