// SPDX-License-Identifier: Apache-2.0
//! NAT in a whole worker: which half is translated where, and what rules see.

mod nat64;
mod traces;

use netvm_model::{
    AddressRange, ConnectionsConfig, DestinationNat, Filtering, Host, Match, NatAction, NatAddresses,
    NatRule, NatTarget, PortAllocation, SourceNat,
};
use netvm_wire::{FrameBuilder, PortRange};

use super::super::rig::{Rig, mac};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::{Command, WorkerConnections};

const INSIDE: &str = "10.0.0.1";
const SERVER: &str = "10.0.0.8";
const OUTSIDE: &str = "203.0.113.1";
const REMOTE: &str = "198.51.100.7";
/// The ports of the hosts inside, and of those outside.
const LAN: PortId = PortId(0);
const WAN: PortId = PortId(1);

/// Two ports that track and send to each other, with further lines of each and rules.
fn host(lan: &str, wan: &str, rules: &str) -> Host {
    let port = |n: usize, lines: &str| {
        let to = if lines.contains("forward") {
            String::new()
        } else {
            format!("forward = {{ out = \"p{}\" }}", 1 - n)
        };
        format!("[[port]]\nname = \"p{n}\"\nkind = \"sink\"\ntrack = true\n{to}\n{lines}\n")
    };
    let text = format!("{}{}{rules}", port(0, lan), port(1, wan));
    netvm_config::parse("nat", &text).unwrap_or_else(|error| panic!("{}", error.render(false))).host
}

/// Sources that leave by `WAN` get these ports of the address outside.
pub(super) fn masquerade(ports: [u16; 2]) -> NatRule {
    let outside = OUTSIDE.parse::<std::net::IpAddr>().unwrap().into();
    let action = NatAction::Source(SourceNat {
        addresses: NatAddresses::Ranges(vec![AddressRange { first: outside, last: outside }]),
        ports: PortRange::new(ports[0], ports[1]).unwrap(),
        allocation: PortAllocation::Any,
        filtering: Filtering::AddressAndPort,
    });
    NatRule {
        name: "masquerade".into(),
        matches: Match { to: vec![WAN], ..Match::default() },
        local_to: None,
        action,
    }
}

/// Port 8080 of the address outside leads to port 80 of the server.
pub(super) fn publish(from: PortId) -> NatRule {
    let target = NatTarget {
        address: Some(SERVER.parse::<std::net::IpAddr>().unwrap().into()),
        port: Some(80),
        weight: 1,
    };
    let matches = Match {
        from: vec![from],
        destination: vec![format!("{OUTSIDE}/32").parse().unwrap()],
        destination_ports: vec![PortRange::single(8080)],
        ..Match::default()
    };
    let action = NatAction::Destination(DestinationNat { targets: vec![target], health: None });
    NatRule { name: "web".into(), matches, local_to: None, action }
}

fn rig(host: Host, nat: &[NatRule]) -> Rig {
    let host = Host { nat: nat.to_vec(), ..host };
    let mut rig = Rig::of(&host);
    let table = Box::new(WorkerConnections::new(&ConnectionsConfig::default(), None).unwrap());
    rig.command(Command::SetConnections(Some(table)));
    rig
}

fn udp(from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    let frame = FrameBuilder::new(mac(1), mac(2)).ip(from.parse().unwrap(), to.parse().unwrap());
    frame.udp(ports[0], ports[1]).payload(b"payload").to_vec().unwrap()
}

/// What leaves by the other port when one receives a frame.
fn through(rig: &mut Rig, port: PortId, frame: &[u8]) -> Vec<Vec<u8>> {
    rig.receive(port.index(), frame);
    rig.turn();
    rig.sent(1 - port.index())
}

#[test]
fn a_masqueraded_connection_goes_out_and_its_answers_come_back() {
    let mut rig = rig(host("", "", ""), &[masquerade([1024, 65535])]);
    let query = udp(INSIDE, REMOTE, [5000, 53]);
    for _ in 0..2 {
        assert_eq!(through(&mut rig, LAN, &query), [udp(OUTSIDE, REMOTE, [5000, 53])]);
        assert_eq!(
            through(&mut rig, WAN, &udp(REMOTE, OUTSIDE, [53, 5000])),
            [udp(REMOTE, INSIDE, [53, 5000])]
        );
    }
    // Another end with the same port gets another one, and its answers are its own.
    let other = through(&mut rig, LAN, &udp(SERVER, REMOTE, [5000, 53])).remove(0);
    let port = u16::from_be_bytes([other[34], other[35]]);
    assert!(port != 5000 && other == udp(OUTSIDE, REMOTE, [port, 53]));
    assert_eq!(through(&mut rig, WAN, &udp(REMOTE, OUTSIDE, [53, port])), [udp(REMOTE, SERVER, [53, 5000])]);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_of_one_burst_share_a_new_connection() {
    let mut rig = rig(host("", "", ""), &[masquerade([1024, 65535])]);
    (0..20).for_each(|_| rig.receive(0, &udp(INSIDE, REMOTE, [5000, 53])));
    rig.turn();
    assert_eq!(rig.sent(1), vec![udp(OUTSIDE, REMOTE, [5000, 53]); 20]);
}

#[test]
fn a_published_port_leads_to_its_target_and_rules_see_the_target() {
    let rule = format!(
        "[[rule]]\nfrom = \"p1\"\nmatch = {{ destination = \"{SERVER}\", destination_ports = 80, protocol = \"udp\", \
         state = \"new\" }}\nallow = true\n[[rule]]\nfrom = \"p1\"\nmatch = {{ state = \"established\" }}\nallow = true\n"
    );
    let mut rig = rig(host("", "acl_in = \"deny\"", &rule), &[publish(WAN)]);
    for _ in 0..2 {
        let query = udp(REMOTE, OUTSIDE, [1000, 8080]);
        assert_eq!(through(&mut rig, WAN, &query), [udp(REMOTE, SERVER, [1000, 80])]);
        assert_eq!(
            through(&mut rig, LAN, &udp(SERVER, REMOTE, [80, 1000])),
            [udp(OUTSIDE, REMOTE, [8080, 1000])]
        );
    }
    assert!(through(&mut rig, WAN, &udp(REMOTE, OUTSIDE, [1000, 8081])).is_empty());
    assert_eq!(rig.dropped_at(1, DropReason::Denied), 1);
}

#[test]
fn rules_of_the_port_that_packets_leave_by_see_the_source_itself() {
    let rule = format!("[[rule]]\nto = \"p1\"\nmatch = {{ source = \"{INSIDE}\" }}\ndrop = true\n");
    let mut rig = rig(host("", "", &rule), &[masquerade([1024, 65535])]);
    assert!(through(&mut rig, LAN, &udp(INSIDE, REMOTE, [5000, 53])).is_empty());
    assert_eq!(through(&mut rig, LAN, &udp(SERVER, REMOTE, [5000, 53])), [udp(OUTSIDE, REMOTE, [5000, 53])]);
}

#[test]
fn a_pool_without_a_free_port_drops_new_connections_and_keeps_others() {
    let mut rig = rig(host("", "", ""), &[masquerade([5000, 5000])]);
    let query = udp(INSIDE, REMOTE, [5000, 53]);
    assert_eq!(through(&mut rig, LAN, &query).len(), 1);
    assert!(through(&mut rig, LAN, &udp(SERVER, REMOTE, [5000, 53])).is_empty());
    assert_eq!(rig.dropped_at(1, DropReason::NatNoPort), 1);
    assert_eq!(rig.worker.dp.connections.as_ref().unwrap().table.len(), 1, "the refused one is gone");
    assert_eq!(through(&mut rig, LAN, &query), [udp(OUTSIDE, REMOTE, [5000, 53])]);
    rig.assert_nothing_leaked();
}

#[test]
fn masquerading_takes_no_published_port() {
    let mut rig = rig(host("", "", ""), &[publish(WAN), masquerade([8080, 8081])]);
    assert_eq!(through(&mut rig, LAN, &udp(INSIDE, REMOTE, [8080, 53])), [udp(OUTSIDE, REMOTE, [8081, 53])]);
    assert!(through(&mut rig, LAN, &udp(INSIDE, REMOTE, [8081, 53])).is_empty(), "no other is left");
    assert_eq!(through(&mut rig, WAN, &udp(REMOTE, OUTSIDE, [53, 8080])), [udp(REMOTE, SERVER, [53, 80])]);
}

#[test]
fn hosts_behind_one_port_reach_each_other_by_a_published_port() {
    let mut rig = rig(host("forward = { out = \"p0\" }", "", ""), &[publish(LAN)]);
    rig.receive(0, &udp(INSIDE, OUTSIDE, [5000, 8080]));
    rig.turn();
    assert_eq!(rig.sent(0), [udp(OUTSIDE, SERVER, [5000, 80])]);
    rig.receive(0, &udp(SERVER, OUTSIDE, [80, 5000]));
    rig.turn();
    assert_eq!(rig.sent(0), [udp(OUTSIDE, INSIDE, [8080, 5000])]);
}

#[test]
fn a_rule_that_keeps_ends_the_search() {
    let keep = NatRule {
        name: "local".into(),
        local_to: None,
        matches: Match {
            to: vec![WAN],
            destination: vec!["198.51.100.0/24".parse().unwrap()],
            ..Match::default()
        },
        action: NatAction::Keep,
    };
    let mut rig = rig(host("", "", ""), &[keep, masquerade([1024, 65535])]);
    let near = udp(INSIDE, REMOTE, [5000, 53]);
    assert_eq!(through(&mut rig, LAN, &near), [near]);
    assert_eq!(
        through(&mut rig, LAN, &udp(INSIDE, "192.0.2.1", [5000, 53])),
        [udp(OUTSIDE, "192.0.2.1", [5000, 53])]
    );
}

#[test]
fn segments_and_unfinished_checksums_are_translated() {
    let mut rig = rig(host("", "", ""), &[masquerade([1024, 65535])]);
    let payload = vec![7; 900];
    let segment = |from: &str| {
        let frame = FrameBuilder::new(mac(1), mac(2)).ip(from.parse().unwrap(), REMOTE.parse().unwrap());
        frame.tcp(5000, 80, netvm_wire::TcpFlags::ACK).numbers(1, 1).payload(&payload).to_vec().unwrap()
    };
    rig.worker.dp.ports.has_offload_work = true;
    rig.wires[0].lock().unwrap().segment_size = Some(300);
    let sent = through(&mut rig, LAN, &segment(INSIDE));
    assert_eq!(sent.len(), 3, "the port takes no segments");
    for frame in &sent {
        let parsed = netvm_wire::parse(frame).unwrap();
        assert_eq!(parsed.key().source.to_ip().to_string(), OUTSIDE);
        netvm_wire::checksum::verify(frame, &parsed).unwrap();
    }
    rig.assert_nothing_leaked();
}
