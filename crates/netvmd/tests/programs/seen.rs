// SPDX-License-Identifier: Apache-2.0
//! What captures, latencies and traces show of packets that pass a program, for each way to attach one.

use std::time::Duration;

use netvm_api::{CaptureRequest, Client, LatencyInfo, LiveTraceRequest, NfState, TracedPacket};
use netvm_capture_client::{Session, compile};

use crate::common::Daemon;
use crate::common::captured::{gather, read};
use crate::common::hosts::within;
use crate::foreign::{KINDS, transparent};
use crate::site::Site;

/// Pings, each answered.
const PINGS: usize = 4;

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub fn client(daemon: &Daemon) -> Client {
    Client::new(Some(&daemon.api_socket()))
}

#[test]
fn captures_before_and_after_a_program_show_each_packet() {
    for attach in KINDS {
        let Some(site) = Site::new("se") else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        let daemon = site.start(&program, "");
        site.until(&daemon, NfState::Running);
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let folder = tempfile::tempdir().unwrap();
        let [left, right] = ["left", "right"].map(|side| format!("{}.0.{side}", site.role));
        // Requests and answers; at a hop, what goes in and what comes out.
        let points = ["client", "server", &left, &right, "out:1", "in:1", &site.role];
        let counts = [2, 2, 2, 2, 2, 2, 4].map(|times| times * PINGS);
        let readers: Vec<_> = points
            .into_iter()
            .zip(counts)
            .map(|(point, count)| {
                let request = CaptureRequest {
                    at: vec![point.to_owned()],
                    filter: compile("icmp").unwrap(),
                    ..CaptureRequest::default()
                };
                let session = runtime().block_on(Session::start(&client(&daemon), &request)).unwrap();
                (point, count, gather(session, count, &folder.path().join(point)))
            })
            .collect();
        for _ in 0..PINGS {
            assert!(site.pings_once(), "{attach}: {}", daemon.log());
        }
        let sorted = |point: &str| {
            let captured = read(&folder.path().join(point)).into_iter();
            let mut frames: Vec<_> = captured.map(|packet| packet.data).collect();
            frames.sort();
            frames
        };
        for (point, count, reader) in readers {
            let has_all = within(Duration::from_secs(20), || reader.is_finished());
            assert!(has_all, "{attach}, {point}: {count} packets: {}", daemon.log());
            assert_eq!(reader.join().unwrap().lost, 0, "{attach}, {point}");
        }
        // The program has changed nothing.
        let all = sorted("client");
        for point in [&left, &right, "server"] {
            assert_eq!(sorted(point), all, "{attach}, {point}");
        }
        let twice: Vec<_> = all.iter().flat_map(|frame| [frame.clone(), frame.clone()]).collect();
        assert_eq!(sorted(&site.role), twice, "{attach}");
        let mut of_hops = [sorted("out:1"), sorted("in:1")].concat();
        of_hops.sort();
        assert_eq!(of_hops, twice, "{attach}");
    }
}

#[test]
fn a_program_its_chain_and_the_ports_around_it_have_a_latency() {
    for attach in KINDS {
        let Some(site) = Site::new("sq") else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        let daemon = site.start(&program, "");
        site.until(&daemon, NfState::Running);
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let hop = |chain: &str| format!("{chain}: {}", site.role);
        let names = [
            ("hop", hop("out")),
            ("hop", hop("in")),
            ("chain", "out".to_owned()),
            ("port", "client > server".to_owned()),
            ("port", "server > client".to_owned()),
        ];
        let mut all: Vec<LatencyInfo> = Vec::new();
        let are_there = within(Duration::from_secs(30), || {
            site.pings_once();
            all = daemon.get(netvm_api::path::LATENCY);
            names.iter().all(|(of, name)| all.iter().any(|one| (&*one.of, &one.name) == (of, name)))
        });
        assert!(are_there, "{attach}: {all:#?}");
    }
}

/// The first packet from the client that passes a filter, traced; a ping is one, with its ARP.
pub fn traced_from_client(site: &Site, daemon: &Daemon, filter: &str) -> TracedPacket {
    let request = LiveTraceRequest {
        from: Some("client".to_owned()),
        filter: compile(filter).unwrap(),
        packets: 1,
        seconds: 60,
        ..LiveTraceRequest::default()
    };
    runtime().block_on(async {
        let mut stream = client(daemon).live_trace(&request).await.unwrap();
        site.pings_once();
        stream.next().await.unwrap().unwrap()
    })
}

#[test]
fn a_trace_goes_on_behind_a_program() {
    for attach in KINDS {
        let Some(site) = Site::new("st") else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        let daemon = site.start(&program, "");
        site.until(&daemon, NfState::Running);
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let packet = traced_from_client(&site, &daemon, "icmp");
        let texts: Vec<&str> = packet.steps.iter().map(|step| &*step.text).collect();
        let role = &site.role;
        let end = [
            format!("to NF {role}, hop 1"),
            format!("sent on port {role}.0.left"),
            format!("came back on port {role}.0.right: the next packet of its flow"),
            format!("returned by NF {role}, hop 1: verdict next"),
            "leaves the chain".to_owned(),
            "sent on port server".to_owned(),
        ];
        assert!(texts.ends_with(&end.each_ref().map(|text| &**text)), "{attach}: {texts:#?}");
    }
}
