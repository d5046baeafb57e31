// SPDX-License-Identifier: Apache-2.0
//! A flow steered to a scrubber by its first payload packet: docs/how-to/steer-flows.md, with its configuration.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use netlib::{ChainId, NetworkFunction, Options, Packet, Steer, ThreadContext, Verdict};
use netvm_api::{FlowVerdict, Flows, path};

use crate::common::hosts::{self, Host};
use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE, program};

const PAGE: &str = include_str!("../../../../../docs/how-to/steer-flows.md");
/// Where the payload of UDP in IPv4 begins.
const PAYLOAD: usize = 42;
const PORT: u16 = 9;
/// Datagrams before the one at which the flow is steered, and after it.
const BEFORE: u32 = 20;
const AFTER: u32 = 1000;

/// The page's `detector.py`.
struct Detector(Option<ChainId>);

impl NetworkFunction for Detector {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        match self.0 {
            Some(scrubbed) if packet.data().get(PAYLOAD) == Some(&b'!') => {
                Verdict::SteerFlow(Steer::Chain(scrubbed))
            }
            _ => Verdict::Next,
        }
    }

    fn changed(&mut self, context: &ThreadContext<'_>) {
        self.0 = context.chain("scrubbed");
    }
}

pub fn detector() {
    netlib::run(&Options::new("detector"), |context| Detector(context.chain("scrubbed"))).unwrap();
}

/// The page's `scrubber.py`.
struct Scrubber;

impl NetworkFunction for Scrubber {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        if let Some(words) = packet.data_mut().get_mut(PAYLOAD..PAYLOAD + 4) {
            words.rotate_left(2);
        }
        Verdict::Next
    }
}

pub fn scrubber() {
    netlib::run(&Options::new("scrubber"), |_| Scrubber).unwrap();
}

/// The datagrams that a socket gets until `last` or nothing more comes: each one's mark and number.
fn received(socket: &UdpSocket, last: u32) -> Vec<([u8; 4], u32)> {
    let mut found = Vec::new();
    let mut bytes = [0; 64];
    while let Ok(length) = socket.recv(&mut bytes) {
        assert_eq!(length, 8);
        let (mark, number) = bytes[..8].split_at(4);
        found.push((mark.try_into().unwrap(), u32::from_be_bytes(number.try_into().unwrap())));
        if found.last().is_some_and(|(_, number)| *number == last) {
            break;
        }
    }
    found
}

#[test]
fn of_a_flow_steered_to_a_scrubber_no_later_packet_takes_the_old_way() {
    if !hosts::are_possible() {
        return;
    }
    let [client, server] = ["sc", "ss"].map(Host::bare);
    let mut config = blocks(PAGE, "toml")[0].clone();
    for (name, host) in [("client", &client), ("server", &server)] {
        config = config
            .replace(&format!("namespace = \"{name}\""), &format!("namespace = {:?}", host.namespace()));
    }
    for role in ["detector", "scrubber"] {
        let command = format!("command = [\"/usr/bin/python3\", \"/etc/netvm/{role}.py\"]\n");
        assert!(config.contains(&command));
        config = config.replace(&command, &program(role));
    }
    let daemon = Daemon::start(&format!("{ENGINE}{config}"));
    daemon.until_running("detector");
    daemon.until_running("scrubber");
    assert!(client.pings("10.0.0.2"), "{}", daemon.log());
    let bind = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let receiver = server.inside(bind).join().unwrap();
    let last = BEFORE + AFTER;
    let reader = std::thread::spawn(move || received(&receiver, last));
    client
        .inside(move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.connect((Ipv4Addr::new(10, 0, 0, 2), PORT)).unwrap();
            for number in 0..=last {
                let mark = if number == BEFORE { *b"!BCD" } else { *b"ABCD" };
                socket.send(&[mark, number.to_be_bytes()].concat()).unwrap();
                // Bursts, so that packets of the flow are with the detector when it steers it.
                if number % 16 == 15 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        })
        .join()
        .unwrap();
    let found = reader.join().unwrap();
    let (before, after): (Vec<_>, Vec<_>) = found.iter().partition(|(_, number)| *number <= BEFORE);
    assert!(after.len() > AFTER as usize * 9 / 10, "{} of {AFTER}: {}", after.len(), daemon.log());
    assert!(before.iter().all(|(mark, _)| mark == b"ABCD" || mark == b"!BCD"), "{before:?}");
    let old: Vec<_> = after.iter().filter(|(mark, _)| mark != b"CDAB").collect();
    assert!(old.is_empty(), "the old way: {old:?}");

    let flows: Flows = daemon.get(path::FLOWS);
    let steered =
        flows.flows.iter().flat_map(|flow| &flow.verdicts).find(|verdict| verdict.role == "detector");
    let steered = steered.unwrap();
    assert_eq!((steered.verdict, steered.to.as_deref()), (FlowVerdict::Steer, Some("chain scrubbed")));
    let chains = daemon.stats().chains;
    let left = |name: &str| chains.iter().find(|chain| chain.name == name).unwrap().left;
    assert!(left("scrubbed") >= u64::from(AFTER) * 9 / 10 && left("watched") > 0);
}
