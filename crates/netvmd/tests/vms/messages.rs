// SPDX-License-Identifier: Apache-2.0
//! Messages of an NF in a VM: to an NF of its trust group that runs as a process, from it, and from netvmd.

use std::sync::Arc;

use netlib::{MAX_COUNTERS, MAX_PAYLOAD, Message, NetworkFunction, Options, Outgoing, Packet, Verdict};
use netvm_api::{ApplyReply, path};

use crate::common::guest::{Image, Reaper};
use crate::common::vm_nf::{config_with, until_flowing};
use crate::common::{Daemon, program};

/// Sends long messages to a role, each with its number, and counts those that it gets.
struct Messenger {
    to: &'static str,
    sent: u64,
    turns: u64,
    /// Messages of the other NF that came, and those that came with another content or out of order.
    received: u64,
    wrong: u64,
    last: u64,
    configured: u64,
}

impl NetworkFunction for Messenger {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        Verdict::Next
    }

    fn sends(&mut self) -> Option<Outgoing> {
        self.turns += 1;
        if self.turns.is_multiple_of(2) {
            return None;
        }
        self.sent += 1;
        let mut payload = vec![self.sent as u8; MAX_PAYLOAD];
        payload[..8].copy_from_slice(&self.sent.to_le_bytes());
        Some(Outgoing { to: self.to.to_owned(), version: 3, payload })
    }

    fn message(&mut self, message: &Message) {
        match message {
            Message::FromNf { role, version: 3, payload, .. } => {
                let number = payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                let is_right = role == self.to
                    && number > self.last
                    && payload.len() == MAX_PAYLOAD
                    && payload[8..].iter().all(|byte| *byte == number as u8);
                self.received += 1;
                self.wrong += u64::from(!is_right);
                self.last = number;
            }
            Message::Configured => self.configured += 1,
            _ => {}
        }
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        counters[..3].copy_from_slice(&[self.received, self.wrong, self.configured]);
    }
}

/// Runs as an NF that exchanges messages with those of a role.
pub fn run(to: &'static str) {
    let options =
        Options::new("messenger").with_messages().with_counters(&["received", "wrong", "configured"]);
    netlib::run(&options, |_| Messenger {
        to,
        sent: 0,
        turns: 0,
        received: 0,
        wrong: 0,
        last: 0,
        configured: 0,
    })
    .unwrap();
}

#[test]
fn an_nf_in_a_vm_exchanges_messages_with_a_process_and_with_netvmd() {
    let Some(image) = Image::of_this_program() else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let beside = format!("\n[[nf]]\nrole = \"b-nf\"\n{}", program("beside-the-vm"));
    let text = config_with(&image, "poll", "in-the-vm") + &beside;
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    until_flowing(&daemon);
    let counter =
        |daemon: &Daemon, role: &str, name: &str| daemon.nf(role).counters.get(name).copied().unwrap_or(0);
    // More than a mailbox has room for.
    for role in ["a-nf", "b-nf"] {
        daemon.until_slowly(role, |daemon| counter(daemon, role, "received") > 40);
        assert_eq!(counter(&daemon, role, "wrong"), 0, "{role}");
    }
    let before = counter(&daemon, "a-nf", "configured");
    let _: ApplyReply = daemon.post(path::APPLY, &text.replace("rate = 500", "rate = 400"));
    daemon.until_slowly("a new configuration", |daemon| counter(daemon, "a-nf", "configured") > before);
}
