// SPDX-License-Identifier: Apache-2.0
//! A port that floods reports.

use netvm_api::MulticastPort;
use netvm_wire::checksum::internet_checksum;
use netvm_wire::{FrameBuilder, IpProto, MacAddr};

use super::*;
use crate::common::Folder;

/// Groups that the port reports: far more than it may have.
const GROUPS: u32 = 5000;

/// A capture with a report of IGMPv2 for each of many groups.
fn reports() -> Vec<u8> {
    // Microseconds, Ethernet.
    let head = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = head.into_iter().flat_map(u32::to_ne_bytes).collect();
    for n in 0..GROUPS {
        let [_, b, c, d] = n.to_be_bytes();
        let mut message = [0x16, 0, 0, 0, 239, b, c, d];
        let sum = internet_checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([1, 0, 0x5e, b, c, d]));
        let builder = builder.ip([10, 0, 0, 9].into(), [239, b, c, d].into()).ttl(1).protocol(IpProto(2));
        let frame = builder.payload(&message).to_vec().unwrap();
        let length = frame.len() as u32;
        file.extend([0, n, length, length].into_iter().flat_map(u32::to_ne_bytes));
        file.extend(frame);
    }
    file
}

#[test]
fn a_port_that_floods_reports_harms_no_other() {
    if !hosts::are_possible() {
        return;
    }
    let hosts = ["mfa", "mfv", "mfo"].map(Host::bare);
    let [camera, viewer, other] = &hosts;
    let folder = Folder::new();
    let input = folder.0.join("reports.pcap");
    std::fs::write(&input, reports()).unwrap();
    let config = page(&[camera, viewer, other]);
    let mut daemon = Daemon::start(&config);
    let mut flooding = format!("{config}[[port]]\nname = \"flood\"\nkind = \"pcap\"\ninput = {input:?}\n");
    flooding.push_str("forward = { normal = true }\n");
    let _: serde_json::Value = daemon.post(path::APPLY, &flooding);
    let port = |daemon: &Daemon, name: &str| -> MulticastPort {
        mdb(daemon).ports.into_iter().find(|port| port.port == name).unwrap()
    };
    // The manager reads them after the workers have counted them.
    daemon.until("all reports have come", |daemon| {
        let flood = port(daemon, "flood");
        flood.messages >= GROUPS.into() && flood.over_limit > 0
    });
    let flood = port(&daemon, "flood");
    assert!(flood.groups <= 128 && flood.over_limit > 0 && flood.refused > 1000, "{flood:?}");
    assert!(format!("{:?}", daemon.stats().drops).contains("mcast-refused"));
    let told = |daemon: &Daemon| -> Vec<String> {
        let events: Vec<netvm_api::Event> = daemon.get(path::EVENTS);
        let limit = events.into_iter().filter(|event| event.kind == netvm_api::EventKind::MulticastLimit);
        limit.map(|event| event.subject).collect()
    };
    daemon.until("it is told, once, and of no other", |daemon| told(daemon) == ["flood"]);
    // Others join as before.
    let membership = join(viewer, "239.7.7.7");
    daemon.until("the viewer has joined", |daemon| ports_of(daemon, "239.7.7.7") == ["viewer"]);
    let viewer = port(&daemon, "viewer");
    assert_eq!((viewer.groups, viewer.refused, viewer.over_limit), (1, 0, 0));
    daemon.until("packets are pruned", |daemon| domain(daemon, "igmp").is_some_and(|igmp| igmp.pruned));
    assert_eq!(reached(&[&hosts[1], other], camera, "239.7.7.7"), [true, false], "{}", daemon.log());
    drop(membership);
    daemon.purge();
}
