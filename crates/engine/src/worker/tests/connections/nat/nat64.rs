// SPDX-License-Identifier: Apache-2.0
//! NAT64 of a router: packets that arrive by its ports leave in the other family.

use netvm_model::{Host, RouterConfig};
use netvm_wire::{FrameBuilder, IpProto, TcpFlags, checksum, parse};

use super::{LAN, WAN, host, mac, rig, through};
use crate::drop_reason::DropReason;
use crate::worker::tests::rig::Rig;

pub(super) const HOST: &str = "2001:db8:1::1";
const OTHER_HOST: &str = "2001:db8:1::2";
pub(super) const SERVER: &str = "198.51.100.7";
pub(super) const SERVER_INSIDE: &str = "2001:db8:64::c633:6407";
pub(super) const POOL: &str = "203.0.113.5";
const POOL_INSIDE: &str = "2001:db8:64::cb00:7105";

/// Two ports that track and send to each other, and a router with NAT64 that has both.
pub(super) fn nat64() -> Rig {
    let port = |n| {
        let what = format!("kind = \"tap\"\ninterface = \"t{n}\"\nforward = {{ router = \"r\" }}");
        format!("[[port]]\nname = \"p{n}\"\n{what}\n")
    };
    let interface = |n| {
        format!("[[router.interface]]\nname = \"i{n}\"\nport = \"p{n}\"\naddresses = [\"10.{n}.0.1/24\"]\n")
    };
    let options = format!("nat64 = {{ prefix = \"2001:db8:64::/96\", addresses = \"{POOL}\" }}");
    let router = format!("[[router]]\nname = \"r\"\n{options}\n{}{}", interface(0), interface(1));
    let text = format!("{}{}{router}", port(0), port(1));
    let parsed =
        netvm_config::parse("nat64", &text).unwrap_or_else(|error| panic!("{}", error.render(false)));
    let routers: Vec<RouterConfig> = parsed.host.routers;
    rig(Host { routers, ..host("", "", "") }, &[])
}

fn between(from: &str, to: &str) -> FrameBuilder<'static> {
    FrameBuilder::new(mac(1), mac(2)).ip(from.parse().unwrap(), to.parse().unwrap())
}

fn udp(from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    between(from, to).udp(ports[0], ports[1]).payload(b"payload").to_vec().unwrap()
}

/// With the identification and the flags of a built packet.
fn normal(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = parse(&frame).unwrap();
    assert_eq!(checksum::verify(&frame, &headers), Ok(()));
    if headers.key().source.is_v4() {
        frame[18..22].copy_from_slice(&[0, 0, 0x40, 0]);
        checksum::fill(&mut frame, &headers).unwrap();
    }
    frame
}

#[test]
fn a_host_reaches_a_server_and_answers_come_back() {
    let mut rig = nat64();
    for _ in 0..2 {
        let mut out = through(&mut rig, LAN, &udp(HOST, SERVER_INSIDE, [5000, 53]));
        assert_eq!(out.len(), 1);
        assert_eq!(normal(out.remove(0)), udp(POOL, SERVER, [5000, 53]));
        let back = through(&mut rig, WAN, &udp(SERVER, POOL, [53, 5000]));
        assert_eq!(back, [udp(SERVER_INSIDE, HOST, [53, 5000])]);
    }
    // Other packets pass as they are.
    for frame in [udp(HOST, "2001:db8:2::1", [5000, 53]), udp("10.0.0.1", SERVER, [5000, 53])] {
        assert_eq!(through(&mut rig, LAN, &frame), [frame]);
    }
    rig.assert_nothing_leaked();
}

#[test]
fn padding_goes_and_what_cannot_be_translated_is_dropped() {
    let mut rig = nat64();
    let mut padded = udp(HOST, SERVER_INSIDE, [5000, 53]);
    padded.extend([0xaa; 20]);
    let mut out = through(&mut rig, LAN, &padded);
    assert_eq!(normal(out.remove(0)), udp(POOL, SERVER, [5000, 53]));
    let other = between(HOST, SERVER_INSIDE).protocol(IpProto(136)).payload(&[0; 20]).to_vec().unwrap();
    assert!(through(&mut rig, LAN, &other).is_empty());
    assert_eq!(rig.dropped_at(0, DropReason::NatUnsupported), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn hosts_reach_each_other_by_their_ends_outside() {
    let mut rig = nat64();
    let mut port_of = |host: &str| {
        let out = through(&mut rig, LAN, &udp(host, SERVER_INSIDE, [5000, 53])).remove(0);
        parse(&out).unwrap().key().source_port
    };
    let [first, other] = [HOST, OTHER_HOST].map(&mut port_of);
    let to = through(&mut rig, LAN, &udp(HOST, POOL_INSIDE, [5000, other]));
    assert_eq!(to, [udp(POOL_INSIDE, OTHER_HOST, [first, 5000])]);
    let back = through(&mut rig, LAN, &udp(OTHER_HOST, POOL_INSIDE, [5000, first]));
    assert_eq!(back, [udp(POOL_INSIDE, HOST, [other, 5000])]);
    rig.assert_nothing_leaked();
}

#[test]
fn segments_are_cut_in_the_other_family() {
    let mut rig = nat64();
    let payload: Vec<u8> = (0..900u16).map(|n| n as u8).collect();
    let segment = |from: &str, to: &str, ports: [u16; 2]| {
        let built = between(from, to).tcp(ports[0], ports[1], TcpFlags::ACK).numbers(1, 1);
        built.payload(&payload).to_vec().unwrap()
    };
    rig.worker.dp.ports.has_offload_work = true;
    for wire in &rig.wires {
        wire.lock().unwrap().segment_size = Some(300);
    }
    let sent = through(&mut rig, LAN, &segment(HOST, SERVER_INSIDE, [5000, 80]));
    let back = through(&mut rig, WAN, &segment(SERVER, POOL, [80, 5000]));
    for (frames, source) in [(sent, POOL), (back, SERVER_INSIDE)] {
        assert_eq!(frames.len(), 3, "the port takes no segments");
        let mut data: Vec<u8> = Vec::new();
        for frame in &frames {
            let headers = parse(frame).unwrap();
            assert_eq!(headers.key().source.to_ip().to_string(), source);
            assert_eq!(checksum::verify(frame, &headers), Ok(()));
            data.extend(headers.payload(frame));
        }
        assert_eq!(data, payload);
    }
    rig.assert_nothing_leaked();
}
