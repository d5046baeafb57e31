// SPDX-License-Identifier: Apache-2.0
//! Rules by time of day and by load: docs/how-to/time-and-load.md, with its configuration, time zone and events.

use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use netvm_api::{Event, EventKind, PolicyInfo, RuleInfo, path};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE, Folder, program};

const PAGE: &str = include_str!("../../../../../docs/how-to/time-and-load.md");
/// Seconds until eight o'clock when netvmd starts: enough for it to serve its API before.
const BEFORE_EIGHT: u64 = 15;

fn rule(daemon: &Daemon, name: &str) -> RuleInfo {
    let rules = daemon.get::<PolicyInfo>(path::POLICY).rules;
    rules.into_iter().find(|rule| rule.name == name).unwrap()
}

/// A time zone, in the words of POSIX, in which it is that long before eight.
fn zone() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let behind = (now - (8 * 3600 - BEFORE_EIGHT)) % 86_400;
    format!("here{}:{}:{}", behind / 3600, behind / 60 % 60, behind % 60)
}

fn sent(daemon: &Daemon) -> u64 {
    daemon.stats().ports.iter().find(|port| port.name == "uplink").map_or(0, |port| port.tx_packets)
}

fn grows(daemon: &Daemon, what: &str, mut count: impl FnMut(&Daemon) -> u64) {
    let before = count(daemon);
    daemon.until(what, |daemon| count(daemon) > before + 100);
}

#[test]
fn rules_follow_the_clock_and_the_load() {
    let config = blocks(PAGE, "toml")[0].replace("command = [\"netvm-monitor\"]\n", &program("forward"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvmd"));
    command.env("TZ", zone());
    let folder = Arc::new(Folder::new());
    let mut daemon = Daemon::launch_as(command, folder, &format!("{ENGINE}{config}"));
    daemon.await_log("serves its API on");
    assert_eq!(
        rule(&daemon, "around").text,
        "from guests (load of monitor above 60 %) → out of uplink",
        "as the page shows it"
    );
    assert!(rule(&daemon, "closed").active && !rule(&daemon, "around").active);
    daemon.until("the rule drops before eight", |daemon| rule(daemon, "closed").packets > 0);
    assert_eq!(sent(&daemon), 0, "before eight");

    daemon.until("it ends at eight", |daemon| !rule(daemon, "closed").active);
    let dropped = rule(&daemon, "closed").packets;
    let monitor = daemon.until_running("monitor");
    grows(&daemon, "packets pass the monitor", |daemon| daemon.left("watched"));
    assert_eq!(rule(&daemon, "closed").packets, dropped, "a rule keeps its count, and gets no packets");
    assert_eq!(rule(&daemon, "around").packets, 0);

    let process = Pid::from_raw(monitor.pid.unwrap().cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    daemon.until("the load is noticed", |daemon| rule(daemon, "around").active);
    let passed = daemon.left("watched");
    grows(&daemon, "packets go around the monitor", |daemon| rule(daemon, "around").packets);
    grows(&daemon, "they leave", sent);
    assert_eq!(daemon.left("watched"), passed);
    kill_process(process, Signal::CONT).unwrap();
    daemon.until("the load has gone", |daemon| !rule(daemon, "around").active);
    grows(&daemon, "packets pass the monitor again", |daemon| daemon.left("watched"));

    let events: Vec<Event> = daemon.get(path::EVENTS);
    let told = events.iter().filter(|event| event.kind == EventKind::RuleSwitched);
    let told: Vec<&str> = told.map(|event| event.message.as_str()).collect();
    let shown = blocks(PAGE, "console")[1].clone();
    assert_eq!(told.len(), 3, "{told:#?}");
    assert!(told.iter().all(|message| shown.contains(message)), "{told:#?}");
}

#[test]
fn a_rule_is_added_while_it_does_not_apply() {
    let config = "[[port]]\nname = \"in\"\nkind = \"source\"\nrate = 5000\nforward = { out = \"out\" }\n\
                  [[port]]\nname = \"out\"\nkind = \"sink\"\n";
    let daemon = Daemon::start(&format!("{ENGINE}{config}"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 60;
    // Two hours that do not hold now, and the others of the day, at most a day behind UTC.
    let hours = |from: u64, to: u64| {
        let text = |minute: u64| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
        format!("time = \"{}-{} UTC\"", text(now + from), text(now + to))
    };
    for (name, time, applies) in [("no", hours(120, 240), false), ("yes", hours(240, 1440 + 120), true)] {
        let toml = format!("name = \"{name}\"\n{time}\nfrom = \"in\"\ndrop = true");
        let body = serde_json::json!({ "toml": toml, "position": "last" }).to_string();
        let _: netvm_api::Done = daemon.post(path::RULES, &body);
        assert_eq!(rule(&daemon, name).active, applies, "{toml}");
    }
    daemon.until("the other rule drops", |daemon| rule(daemon, "yes").packets > 100);
    assert_eq!(rule(&daemon, "no").packets, 0);
}
