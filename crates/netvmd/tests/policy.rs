// SPDX-License-Identifier: Apache-2.0
//! Rules are added and deleted by the API under full load.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{Daemon, engine, waited};
use netvm_api::{AddRule, ApplyReply, Client, Position, RuleInfo, path};

/// Number of rules added and deleted.
const CHANGES: u32 = 50;
const MAX_RULE_DELAY: Duration = Duration::from_millis(10);

/// One test at a time: each keeps a core busy.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A source at full rate, a sink, a second sink for packets redirected by a rule, and `rules` rules that match no
/// packet.
fn config(with_source: bool, rules: u32) -> String {
    let mut text = engine("huge_pages = false\n")
        + "\n[[port]]\nname = \"out\"\nkind = \"sink\"\n\n[[port]]\nname = \"diverted\"\nkind = \"sink\"\n";
    if with_source {
        text += "\n[[port]]\nname = \"in\"\nkind = \"source\"\nsize = 60\nflows = 64\nforward = { out = \"out\" }\n";
    }
    for n in 0..rules {
        let (high, low, first) = (n / 256, n % 256, n % 500);
        let last = first + n % 7;
        write!(
            text,
            "\n[[rule]]\nmatch = {{ source = \"172.16.{high}.{low}\", protocol = \"udp\", \
             destination_ports = \"{first}-{last}\" }}\ndrop = true\n"
        )
        .unwrap();
    }
    text
}

/// Adds a rule for a flow of the source, waits for its first match, and deletes it. Returns the times to the
/// acknowledgement, the match and the deletion.
async fn add_and_delete(client: &Client, n: u32) -> [Duration; 3] {
    let name = format!("new-{n}");
    let flow = n % 64;
    let toml = format!("name = \"{name}\"\nmatch = {{ source = \"10.0.0.{flow}\" }}\nout = \"diverted\"\n");
    let started = Instant::now();
    client.add_rule(&AddRule { toml, position: Position::First }).await.unwrap();
    let acknowledged = started.elapsed();
    let is_met = |rule: &RuleInfo| rule.name == name && rule.packets > 0;
    while !client.policy().await.unwrap().rules.iter().any(is_met) {
        assert!(started.elapsed() < Duration::from_secs(10), "no packet matched {name}");
    }
    let met = started.elapsed();
    let started = Instant::now();
    client.delete_rule(&name).await.unwrap();
    let deleted = started.elapsed();
    assert!(client.policy().await.unwrap().rules.iter().all(|rule| rule.name != name));
    [acknowledged, met, deleted]
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn rule_changes_act_at_once_without_loss() {
    among(1000);
}

#[test]
fn rule_changes_among_thousands_act_at_once_without_loss() {
    among(7665);
}

fn among(rules: u32) {
    let _alone = alone();
    // The sinks first, so that every packet can leave.
    let daemon = Daemon::start(&config(false, rules));
    let _: ApplyReply = daemon.post(path::APPLY, &config(true, rules));
    let sent = |daemon: &Daemon, name: &str| {
        daemon.stats().ports.iter().find(|port| port.name == name).map_or(0, |port| port.tx_packets)
    };
    daemon.until("packets flow", |daemon| sent(daemon, "out") > 1000);
    let client = Client::new(Some(&daemon.api_socket()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let before = waited(daemon.child.id());
    let times: Vec<_> = (0..CHANGES).map(|n| runtime.block_on(add_and_delete(&client, n))).collect();
    let delayed = (waited(daemon.child.id()) - before) / CHANGES;
    let of = |n: usize| -> Vec<Duration> { times.iter().map(|times| times[n]).collect() };
    let (mut acknowledged, mut met) = (of(0), of(1));
    let (acknowledged, middle, deleted) = (median(&mut acknowledged), median(&mut met), median(&mut of(2)));
    let stats = daemon.stats();
    println!(
        "{CHANGES} rules added to {rules} and deleted: acknowledged after {acknowledged:.1?}, the first packet seen to have met \
         each after {middle:.1?} (medians; longest {:.1?}), deleted after {deleted:.1?}, {} packets diverted",
        met.last().unwrap(),
        sent(&daemon, "diverted")
    );
    assert!(sent(&daemon, "diverted") >= CHANGES.into());
    assert_eq!(stats.drops.total, 0, "{:?}", stats.drops);
    assert!(daemon.get::<netvm_api::PolicyInfo>(path::POLICY).rules.len() == rules as usize);
    if delayed > MAX_RULE_DELAY / 10 {
        println!("SKIP: times of rule changes: netvmd waited {delayed:.1?} for a CPU each time");
        return;
    }
    assert!(acknowledged < MAX_RULE_DELAY && deleted < MAX_RULE_DELAY, "{acknowledged:?} {deleted:?}");
}
