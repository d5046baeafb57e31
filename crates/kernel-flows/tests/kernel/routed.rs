// SPDX-License-Identifier: Apache-2.0
//! Packets of routed and translated flows: they arrive as `wire` would rewrite them.

use std::time::Duration;

use netvm_kernel_flows::{Ends, Flow, Key};
use netvm_wire::rewrite::decrement_ttl;
use netvm_wire::{FrameBuilder, MacAddr, checksum, parse};

use crate::rig::{self, Rig, host, mac};
use crate::sockets::{self, packet_socket};

const LONG: Duration = Duration::from_secs(3600);
const SOURCE: MacAddr = MacAddr([2, 0, 0, 0, 9, 99]);

/// A datagram from `a` to `b` with this TTL.
fn frame(is_ipv6: bool, ttl: u8, number: u16) -> Vec<u8> {
    let mut frame = [mac(1).0, mac(0).0].concat();
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 17, ttl]);
        for n in [1, 2] {
            frame.extend(std::net::Ipv6Addr::from(0xfd09_u128 << 112 | n).octets());
        }
    } else {
        let mut header = vec![0x45, 0, 0, 32, number as u8, (number >> 8) as u8, 0x40, 0, ttl, 17, 0, 0];
        header.extend(host(0).octets());
        header.extend(host(1).octets());
        let sum = checksum::internet_checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend([8, 0]);
        frame.extend(header);
    }
    frame.extend([0x03, 0xe8, 0x07, 0xd0, 0, 12, 0, 0]);
    frame.extend([number.to_be_bytes(), 0xf10e_u16.to_be_bytes()].concat());
    frame
}

#[test]
fn routed_packets_get_the_next_addresses_and_ttl() {
    let Some(rig) = Rig::new("ro", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let flow = Flow { routed: Some([mac(1), SOURCE]), ..rig.flow() };
    for is_ipv6 in [false, true] {
        let key = Key::of_frame(0, &frame(is_ipv6, 64, 0)).unwrap();
        rig.table.insert(&key, flow).unwrap();
    }
    let receiver = rig.inside(1, || packet_socket("eth0"));
    let sender = rig.inside(0, || packet_socket("eth0"));
    let send = |frame: &[u8]| {
        rustix::net::send(&sender, frame, rustix::net::SendFlags::empty()).unwrap();
    };
    // All checksums of IPv4, which depend on the number.
    for number in (0..=u16::MAX).step_by(61) {
        for is_ipv6 in [false, true] {
            let ttl = [2, 64, 255][usize::from(number) % 3];
            let sent = frame(is_ipv6, ttl, number);
            send(&sent);
            let mut expected = sent.clone();
            let headers = parse(&sent).unwrap();
            decrement_ttl(&mut expected, &headers).unwrap();
            expected[..6].copy_from_slice(&mac(1).0);
            expected[6..12].copy_from_slice(&SOURCE.0);
            assert!(sockets::receives(&receiver, &expected), "{sent:02x?}");
        }
    }
    rig.take_slow_frames();
    // What a router would not forward comes to netvm, as it was.
    let mut wrong = frame(false, 64, 7);
    wrong[24] ^= 1;
    for sent in [frame(false, 1, 1), frame(false, 0, 2), frame(true, 1, 3), frame(true, 0, 4), wrong] {
        send(&sent);
        let mut seen = Vec::new();
        let is_seen = netvm_testing::within(netvm_testing::LIMIT, || {
            seen.extend(rig.take_slow_frames());
            seen.contains(&sent)
        });
        assert!(is_seen, "{sent:02x?}");
    }
}

#[test]
fn translated_packets_get_the_next_ends_and_checksums() {
    let Some(rig) = Rig::new("nt", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let (addresses, ports) =
        ([[192, 0, 2, 7], [198, 51, 100, 9]].map(std::net::Ipv4Addr::from), [41_000, 53]);
    let translated = Some(Ends { addresses, ports });
    let receiver = rig.inside(1, || packet_socket("eth0"));
    let sender = rig.inside(0, || packet_socket("eth0"));
    let build = |ends: [std::net::Ipv4Addr; 2], ports: [u16; 2], is_tcp: bool, payload: &[u8]| {
        let frame = FrameBuilder::new(mac(0), mac(1)).ip(ends[0].into(), ends[1].into());
        let frame = if is_tcp {
            frame.tcp(ports[0], ports[1], netvm_wire::TcpFlags::ACK)
        } else {
            frame.udp(ports[0], ports[1])
        };
        frame.payload(payload).to_vec().unwrap()
    };
    let hosts = [host(0), host(1)];
    for is_tcp in [false, true] {
        for routed in [None, Some([mac(1), SOURCE])] {
            let before = |payload: &[u8]| build(hosts, [1000, 2000], is_tcp, payload);
            let key = Key::of_frame(0, &before(b"")).unwrap();
            rig.table.insert(&key, Flow { translated, routed, ..rig.flow() }).unwrap();
            for number in (0..=u16::MAX).step_by(241) {
                let payload = number.to_be_bytes();
                let sent = before(&payload);
                let mut expected = build(addresses, ports, is_tcp, &payload);
                if routed.is_some() {
                    decrement_ttl(&mut expected, &parse(&sent).unwrap()).unwrap();
                    expected[..12].copy_from_slice(&[mac(1).0, SOURCE.0].concat());
                }
                rustix::net::send(&sender, &sent, rustix::net::SendFlags::empty()).unwrap();
                assert!(sockets::receives(&receiver, &expected), "{sent:02x?} {expected:02x?}");
            }
        }
    }
    // UDP without a checksum stays so.
    let without = |ends, ports| {
        let mut frame = build(ends, ports, false, b"none");
        frame[40..42].fill(0);
        frame
    };
    rig.table
        .insert(&Key::of_frame(0, &without(hosts, [1000, 2000])).unwrap(), Flow { translated, ..rig.flow() })
        .unwrap();
    rustix::net::send(&sender, &without(hosts, [1000, 2000]), rustix::net::SendFlags::empty()).unwrap();
    assert!(sockets::receives(&receiver, &without(addresses, ports)));
}

/// Sockets leave checksums and segmentation to the other end.
#[test]
fn a_connection_goes_through_translated_flows() {
    let Some(rig) = Rig::new("nc", 64) else { return };
    rig.table.renew(rig::now() + LONG);
    let service = std::net::Ipv4Addr::new(10, 9, 0, 99);
    rig.run(&format!("ip -n {{a}} neighbor add {service} lladdr {} dev eth0", mac(1)));
    let there = rig.key_of(6, [host(0).into(), service.into()], [1000, 80]);
    let to_host = Ends { addresses: [host(0), host(1)], ports: [1000, 2000] };
    rig.table.insert(&there, Flow { translated: Some(to_host), ..rig.flow() }).unwrap();
    let from_service = Ends { addresses: [service, host(0)], ports: [80, 1000] };
    let back = Flow { translated: Some(from_service), ..rig.flow_back() };
    rig.table.insert(&rig.back(6, [2000, 1000]), back).unwrap();
    let seen = rig.arrives(|| {
        rig.transfer_to(std::net::SocketAddrV4::new(service, 80), [1000, 2000], 5_000_000);
    });
    assert_eq!(seen, rig::Seen::Fast);
}
