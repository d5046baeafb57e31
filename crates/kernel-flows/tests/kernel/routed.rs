//! Packets of routed flows: they arrive as `wire` would rewrite them.

use std::time::Duration;

use netvm_kernel_flows::{Flow, Key};
use netvm_wire::rewrite::decrement_ttl;
use netvm_wire::{MacAddr, checksum, parse};

use crate::rig::{self, Rig, host, mac, packet_socket};

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
            assert!(rig::receives(&receiver, &expected), "{sent:02x?}");
        }
    }
    rig.take_slow_frames();
    // What a router would not forward comes to netvm, as it was.
    let mut wrong = frame(false, 64, 7);
    wrong[24] ^= 1;
    for sent in [frame(false, 1, 1), frame(false, 0, 2), frame(true, 1, 3), frame(true, 0, 4), wrong] {
        send(&sent);
        let mut seen = Vec::new();
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while !seen.contains(&sent) && std::time::Instant::now() < end {
            seen.extend(rig.take_slow_frames());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(seen.contains(&sent), "{sent:02x?}");
    }
}
