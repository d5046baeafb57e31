// SPDX-License-Identifier: Apache-2.0
//! Messages between NFs of a trust group, and from netvmd: docs/how-to/messages.md, with its configuration.

use std::time::Duration;

use netlib::{MAX_COUNTERS, Message, NetworkFunction, Options, Outgoing, Packet, Verdict};
use netvm_api::{ApplyReply, path};

use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE, program};

const PAGE: &str = include_str!("../../../../../docs/how-to/messages.md");

/// Sends a message to the other role about ten times a second.
struct Talker(u32);

impl NetworkFunction for Talker {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        Verdict::Next
    }

    fn sends(&mut self) -> Option<Outgoing> {
        self.0 += 1;
        // One now, and one the next time.
        let message =
            Outgoing { to: "blocker".to_owned(), version: 1, payload: self.0.to_be_bytes().to_vec() };
        (self.0 % 2 == 1).then_some(message)
    }
}

pub fn talker() {
    netlib::run(&Options::new("talker"), |_| Talker(0)).unwrap();
}

/// Counts messages by what they are about.
#[derive(Default)]
struct Listener {
    from_nf: u64,
    configured: u64,
    load: u64,
}

impl NetworkFunction for Listener {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        // So that its load changes.
        std::thread::sleep(Duration::from_millis(2));
        Verdict::Next
    }

    fn message(&mut self, message: &Message) {
        match message {
            Message::FromNf { role, version: 1, payload, .. } if role == "watcher" && payload.len() == 4 => {
                self.from_nf += 1;
            }
            Message::Configured => self.configured += 1,
            Message::Load { .. } => self.load += 1,
            _ => {}
        }
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        counters[..3].copy_from_slice(&[self.from_nf, self.configured, self.load]);
    }
}

pub fn listener() {
    let options = Options::new("listener").with_messages().with_counters(&["from_nf", "configured", "load"]);
    netlib::run(&options, |_| Listener::default()).unwrap();
}

#[test]
fn nfs_of_a_group_and_netvmd_send_messages() {
    let mut config = blocks(PAGE, "toml")[0].clone();
    for (role, name) in [("watcher", "talker"), ("blocker", "listener")] {
        let command = format!("command = [\"/usr/bin/python3\", \"/etc/netvm/{role}.py\"]\n");
        assert!(config.contains(&command));
        config = config.replace(&command, &program(name));
    }
    let text = format!("{ENGINE}{config}");
    let daemon = Daemon::start(&text);
    let counter = |daemon: &Daemon, name: &str| daemon.nf("blocker").counters.get(name).copied().unwrap_or(0);
    daemon.until_running("watcher");
    daemon.until_running("blocker");
    // The load is told when it changes, so perhaps only once.
    for (name, most) in [("from_nf", 1), ("load", 0)] {
        daemon.until(name, |daemon| counter(daemon, name) > most);
    }
    let before = counter(&daemon, "configured");
    let _: ApplyReply = daemon.post(path::APPLY, &text.replace("rate = 200", "rate = 100"));
    daemon.until("a new configuration", |daemon| counter(daemon, "configured") > before);
    let metrics = daemon.request("GET", path::METRICS, "").1;
    let delivered =
        metrics.lines().find(|line| line.starts_with("netvm_messages_total{outcome=\"delivered\"}"));
    assert!(delivered.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
}
