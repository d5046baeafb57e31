// SPDX-License-Identifier: Apache-2.0
//! The programs in a real kernel, between two network namespaces. The test itself is the slow path.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod hooks;
mod random;
mod rig;
mod routed;
mod sockets;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use netvm_kernel_flows::{Field, FlowCounts, Hook, Key, Mask, PortEnds, PortPrograms, Table, TableSize};
use netvm_testing::{until, until_some};
use rig::{Rig, Seen, host};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
const TCP: u8 = 6;
const UDP: u8 = 17;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A socket at an address that a process may still have for a moment, which another test has just forked.
fn bind(address: Ipv4Addr, port: u16) -> UdpSocket {
    until_some("the address is free", || match UdpSocket::bind((address, port)) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        outcome => Some(outcome.unwrap()),
    })
}

/// Sends a datagram of so many bytes from `a` to `b`, and says how it arrived.
fn datagram(rig: &Rig, ports: [u16; 2], bytes: usize) -> Seen {
    rig.arrives(|| {
        let to = (host(1), ports[1]);
        let receiver = rig.inside(1, || bind(host(1), ports[1]));
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = rig.inside(0, || bind(host(0), ports[0]));
        let sent = vec![7; bytes];
        sender.send_to(&sent, to).unwrap();
        let mut received = vec![0; bytes + 1];
        let length = receiver.recv(&mut received).unwrap();
        assert_eq!(received[..length], sent);
    })
}

#[test]
fn a_packet_without_a_flow_takes_the_slow_path() {
    let Some(rig) = Rig::new("ms", 64) else { return };
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Slow);
    // A packet to another MAC address is seen by the container's interface as one for somebody else.
    rig.table.renew(rig::now() + LONG);
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Slow);
}

#[test]
fn a_flow_is_forwarded_by_the_kernel_and_counted() {
    let Some(rig) = Rig::new("fl", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let key = rig.key(UDP, [1000, 2000]);
    rig.table.insert(&key, rig.flow()).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast);
    assert_eq!(datagram(&rig, [1000, 2000], 1000), Seen::Fast);
    let counts = rig.table.counts(&key).unwrap().unwrap();
    assert_eq!((counts.packets, counts.bytes), (2, 1100 + 2 * 42));
    assert!(rig::now() - counts.last < Duration::from_secs(5), "{counts:?}");
    // Another port is another flow.
    assert_eq!(datagram(&rig, [1001, 2000], 100), Seen::Slow);
    assert_eq!(datagram(&rig, [1000, 2001], 100), Seen::Slow);
    assert!(rig.table.remove(&key).unwrap());
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Slow);
    assert!(!rig.table.remove(&key).unwrap());
}

#[test]
fn a_mask_joins_flows() {
    let Some(rig) = Rig::new("mk", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let mask = Mask::default().with(Field::DestinationMac).with(Field::DestinationPort);
    rig.set_mask(0, &mask);
    let key = rig.key(UDP, [1, 2000]).masked(&mask);
    rig.table.insert(&key, rig.flow()).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast);
    assert_eq!(datagram(&rig, [1001, 2000], 100), Seen::Fast);
    assert_eq!(datagram(&rig, [1000, 2001], 100), Seen::Slow);
    assert_eq!(rig.table.counts(&key).unwrap().unwrap().packets, 2);
}

#[test]
fn another_epoch_of_either_port_ends_a_flow() {
    let Some(rig) = Rig::new("ep", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let key = rig.key(UDP, [1000, 2000]);
    for slot in [0, 1] {
        rig.table.insert(&key, rig.flow()).unwrap();
        assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast);
        rig.table.set_epoch(slot, 7);
        assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Slow, "port {slot}");
        rig.table.set_epoch(slot, 0);
        assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Slow, "port {slot}");
        rig.table.set_epoch(slot, rig::EPOCH);
    }
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast);
}

#[test]
fn without_a_lease_all_packets_are_misses() {
    let Some(rig) = Rig::new("le", 64) else { return };
    rig.table.insert(&rig.key(UDP, [1000, 2000]), rig.flow()).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Slow);
    rig.table.renew(rig::now() + Duration::from_millis(300));
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast);
    until("the lease has run out", || datagram(&rig, [1000, 2000], 100) == Seen::Slow);
    let flow = netvm_kernel_flows::Flow { continues: true, ..rig.flow() };
    rig.table.insert(&rig.key(UDP, [1000, 2000]), flow).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast, "it does not need one");
}

#[test]
fn frames_that_are_too_long_for_the_target_and_fragments_take_the_slow_path() {
    let Some(rig) = Rig::new("lo", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let flow = netvm_kernel_flows::Flow { max_frame: 542, ..rig.flow() };
    rig.table.insert(&rig.key(UDP, [1000, 2000]), flow).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 500), Seen::Fast);
    assert_eq!(datagram(&rig, [1000, 2000], 501), Seen::Slow);
    rig.table.insert(&rig.key(UDP, [1000, 2000]), rig.flow()).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 1472), Seen::Fast);
    assert_eq!(datagram(&rig, [1000, 2000], 4000), Seen::Slow);
}

#[test]
fn netvm_sees_a_tracked_connection_open_and_close() {
    let Some(rig) = Rig::new("tr", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let flows = [rig.key(TCP, [1000, 2000]), rig.back(TCP, [2000, 1000])];
    for is_tracked in [true, false] {
        rig.table.insert(&flows[0], netvm_kernel_flows::Flow { is_tracked, ..rig.flow() }).unwrap();
        rig.table.insert(&flows[1], netvm_kernel_flows::Flow { is_tracked, ..rig.flow_back() }).unwrap();
        let seen = rig.arrives(|| {
            rig.transfer([1000, 2000], 100_000);
        });
        assert_eq!(seen, if is_tracked { Seen::Both } else { Seen::Fast });
    }
}

#[test]
fn segments_are_counted_as_on_the_wire() {
    let Some(rig) = Rig::new("sg", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let (there, back) = (rig.key(TCP, [1000, 2000]), rig.back(TCP, [2000, 1000]));
    rig.table.insert(&there, rig.flow()).unwrap();
    rig.table.insert(&back, rig.flow_back()).unwrap();
    let payload = 10_000_000;
    let mut sent = 0;
    assert_eq!(rig.arrives(|| sent = rig.transfer([1000, 2000], payload)), Seen::Fast);
    assert!(sent >= payload as u64, "{sent}");
    let FlowCounts { packets, bytes, .. } = rig.table.counts(&there).unwrap().unwrap();
    // Ethernet, IP, and TCP with its time stamps; the SYN has eight bytes of options more.
    assert_eq!(bytes, sent + 66 * packets + 8, "{packets}");
    assert!(packets > payload as u64 / 1448, "{packets}");
    assert!(rig.table.counts(&back).unwrap().unwrap().packets > 0);
}

#[test]
fn ipv6_is_forwarded_too() {
    let Some(rig) = Rig::new("v6", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let key = rig.key_of(UDP, [address("fd09::1"), address("fd09::2")], [1000, 2000]);
    let send = || {
        rig.arrives(|| {
            let receiver = rig.inside(1, || UdpSocket::bind("[fd09::2]:2000").unwrap());
            receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let sender = rig.inside(0, || UdpSocket::bind("[fd09::1]:1000").unwrap());
            sender.send_to(b"six", "[fd09::2]:2000").unwrap();
            assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 3);
        })
    };
    assert_eq!(send(), Seen::Slow);
    rig.table.insert(&key, rig.flow()).unwrap();
    assert_eq!(send(), Seen::Fast);
}

#[test]
fn a_full_table_refuses_flows_and_a_dump_shows_all() {
    let Some(rig) = Rig::new("fu", 256) else { return };
    let mut refused = 0;
    let keys: Vec<Key> = (0..300).map(|n| rig.key(UDP, [3000 + n, 2000])).collect();
    for key in &keys {
        refused += u32::from(rig.table.insert(key, rig.flow()).is_err());
    }
    let mut all = Vec::new();
    rig.table.dump(|key, counts| all.push((key, counts))).unwrap();
    assert!((1..=44).contains(&refused), "{refused}");
    assert_eq!(all.len(), 300 - refused as usize);
    assert!(all.iter().all(|(key, counts)| keys.contains(key) && *counts == FlowCounts::default()));
    // What has found no room takes the way that it would take without a table.
    rig.table.renew(rig::now() + LONG);
    let has = |key: &&Key| all.iter().any(|(known, _)| known == *key);
    let port_of = |key: Option<&Key>| key.unwrap().transport().ports[0];
    let [inside, outside] = [port_of(keys.iter().rfind(has)), port_of(keys.iter().rfind(|key| !has(key)))];
    assert_eq!(datagram(&rig, [inside, 2000], 100), Seen::Fast);
    assert_eq!(datagram(&rig, [outside, 2000], 100), Seen::Slow);
}

#[test]
fn a_packet_to_a_container_that_has_gone_is_counted_and_goes_nowhere_else() {
    let Some(rig) = Rig::new("go", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    rig.table.insert(&rig.key(UDP, [1000, 2000]), rig.flow()).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast);
    rig.run("ip -n {b} link delete eth0");
    let sender = rig.inside(0, || UdpSocket::bind((host(0), 1000)).unwrap());
    // netvm gets it, and sends it to nobody.
    assert_eq!(rig.arrives(|| drop(sender.send_to(b"to nobody", (host(1), 2000)))), Seen::Slow);
    until("what was sent to nobody is counted", || rig.table.undelivered(1) > 0);
    // The container's kernel may send something of its own, too.
    let [of_a, of_b, of_none] = [0, 1, 2].map(|slot| rig.table.undelivered(slot));
    assert!(of_b > 0 && [of_a, of_none] == [0, 0], "{of_a} {of_b} {of_none}");
}

#[test]
fn a_kernel_with_these_programs_passes_the_probe() {
    let Some(_rig) = Rig::new("pr", 64) else { return };
    assert_eq!(netvm_kernel_flows::probe().unwrap(), Hook::allowed());
}

/// Another container's interface may get the index of one that has gone.
#[test]
fn the_index_of_an_interface_that_has_gone_leads_nowhere_else() {
    let Some(rig) = Rig::new("ix", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    rig.table.insert(&rig.key(UDP, [1000, 2000]), rig.flow()).unwrap();
    let index = rig.flow().interface;
    rig.run("ip -n {b} link delete eth0");
    rig.run(&format!("ip -n {{f}} link add vx index {index} up type veth peer name other netns {{b}}"));
    rig.run("ip -n {b} link set other up");
    let other = rig.inside(1, || sockets::packet_socket("other"));
    let sender = rig.inside(0, || UdpSocket::bind((host(0), 1000)).unwrap());
    let send = || drop(sender.send_to(b"to nobody else", (host(1), 2000)));
    // Even before the port has got another epoch.
    assert_eq!(rig.arrives(send), Seen::Slow);
    // A port that gets an interface gets an epoch with it.
    rig.table.set_epoch(1, rig::EPOCH + 1);
    assert_eq!(rig.arrives(send), Seen::Slow);
    assert_eq!(sockets::frames_of(&other, b"to nobody else"), 0);
}

#[test]
fn the_program_of_a_port_that_the_table_has_not_is_refused() {
    let table = Table::new(TableSize { ports: 2, flows: 16 }).unwrap();
    let ends = PortEnds { slot: 2, veth: 1, tap: 1 };
    let error = PortPrograms::attach(&table, &ends, Hook::Tcx).unwrap_err();
    assert_eq!(error.to_string(), "the kernel flow table has no port 2");
}
