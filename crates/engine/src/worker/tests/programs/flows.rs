// SPDX-License-Identifier: Apache-2.0
//! Programs with one port, and programs that route: both directions of a chain lead to them.

use std::net::IpAddr;
use std::sync::Arc;

use netvm_model::Forward;
use netvm_wire::{EtherType, FrameBuilder, IpProto, MacAddr, TcpFlags, parse};

use super::{CLIENT, LEFT, RIGHT, SERVER, back, passed, path};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::snapshot::{PairPorts, PairTarget, ProgramFlows, Snapshot, Target};
use crate::worker::tests::rig::{CHAIN, Rig};

/// The chain from the server to the client.
const REVERSE: ChainId = ChainId(1);
/// The MAC address of the program's port on each side.
const OWN: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 9, 0]), MacAddr([2, 0, 0, 0, 9, 1])];

/// What the program is.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    OnePort,
    Router,
}

/// Chains from client to server and back, through a program.
fn rig(program: Program) -> Rig {
    let forwards = [Forward::Chain(CHAIN), Forward::Chain(REVERSE), Forward::None, Forward::None];
    let mut rig = Rig::new(&forwards);
    let routes = program == Program::Router;
    let [left, right] = if routes { [LEFT, RIGHT] } else { [LEFT, LEFT] };
    let target = |side: u8| {
        let ports = Box::new([[left, right][usize::from(side)]]);
        Target::Pair(PairTarget { hop: 0, side, routes, ports })
    };
    let flows = Some(Arc::new(ProgramFlows::new()));
    let [out, answers] = [passed(CHAIN, CLIENT), passed(REVERSE, SERVER)];
    let returns = match program {
        Program::OnePort => vec![back(LEFT, LEFT, [Some(out), Some(answers)])],
        Program::Router => {
            vec![back(LEFT, RIGHT, [None, Some(answers)]), back(RIGHT, LEFT, [Some(out), None])]
        }
    };
    let returns = returns.into_iter().map(|mut one| {
        one.flows.clone_from(&flows);
        one.mac = routes.then(|| OWN[usize::from(one.port == RIGHT)]);
        one.raises_ttl = routes;
        one
    });
    let mut snapshot = Snapshot::clone(&rig.worker.snapshot);
    snapshot.chains = vec![Some(path(target(0), SERVER)), Some(path(target(1), CLIENT))];
    snapshot.pairs = PairPorts::new(returns.collect());
    rig.worker.snapshot = Arc::new(snapshot);
    rig
}

fn mac(host: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host])
}

fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

/// A segment of TCP from one host to another one.
fn tcp(from: u8, to: u8, ports: (u16, u16)) -> Vec<u8> {
    let frame = FrameBuilder::new(mac(from), mac(to)).ip(address(from), address(to));
    frame.tcp(ports.0, ports.1, TcpFlags::ACK).payload(b"data").to_vec().unwrap()
}

fn arp(from: u8, to: MacAddr) -> Vec<u8> {
    let mut frame = [to.0, mac(from).0].concat();
    frame.extend(0x0806u16.to_be_bytes());
    frame.resize(60, 0);
    frame
}

/// Has a port receive a frame, and returns what the program gets.
fn into(rig: &mut Rig, from: PortId, frame: &[u8]) -> Vec<Vec<u8>> {
    rig.receive(from.index(), frame);
    rig.turn();
    [LEFT, RIGHT].iter().flat_map(|port| rig.sent(port.index())).collect()
}

/// Has the program send a frame. Returns what client and server get.
fn out(rig: &mut Rig, by: PortId, frame: &[u8]) -> [usize; 2] {
    rig.receive(by.index(), frame);
    rig.turn();
    [CLIENT, SERVER].map(|port| rig.sent(port.index()).len())
}

const CLIENT_HOST: u8 = 1;
const SERVER_HOST: u8 = 2;

#[test]
fn what_goes_into_one_port_from_the_left_leaves_to_the_right() {
    let mut rig = rig(Program::OnePort);
    let request = tcp(CLIENT_HOST, SERVER_HOST, (1000, 80));
    let answer = tcp(SERVER_HOST, CLIENT_HOST, (80, 1000));
    assert_eq!(into(&mut rig, CLIENT, &request), std::slice::from_ref(&request));
    assert_eq!(out(&mut rig, LEFT, &request), [0, 1]);
    assert_eq!(into(&mut rig, SERVER, &answer), std::slice::from_ref(&answer));
    assert_eq!(out(&mut rig, LEFT, &answer), [1, 0]);
    // Both at once.
    for (port, frame) in [(CLIENT, &request), (SERVER, &answer)] {
        rig.receive(port.index(), frame);
    }
    rig.turn();
    for frame in rig.sent(LEFT.index()) {
        rig.receive(LEFT.index(), &frame);
    }
    rig.turn();
    assert_eq!((rig.sent(CLIENT.index()), rig.sent(SERVER.index())), (vec![answer], vec![request]));
    let chains = &rig.counters().chains;
    assert_eq!([chains[0].left.get(), chains[1].left.get()], [2, 2]);
    rig.assert_nothing_leaked();
}

#[test]
fn own_packets_of_a_program_with_one_port_go_to_their_addressee() {
    let mut rig = rig(Program::OnePort);
    into(&mut rig, CLIENT, &tcp(CLIENT_HOST, SERVER_HOST, (1000, 80)));
    // Resets to both ends, of a connection of which it has seen one packet.
    assert_eq!(out(&mut rig, LEFT, &tcp(SERVER_HOST, CLIENT_HOST, (80, 1000))), [1, 0]);
    assert_eq!(out(&mut rig, LEFT, &tcp(CLIENT_HOST, SERVER_HOST, (1000, 80))), [0, 1]);
    // An error of its own address to the sender, and a connection of its own to the server.
    assert_eq!(out(&mut rig, LEFT, &tcp(99, CLIENT_HOST, (7, 8))), [1, 0]);
    assert_eq!(out(&mut rig, LEFT, &tcp(99, SERVER_HOST, (7, 8))), [0, 1]);
    // To somebody unknown.
    assert_eq!(out(&mut rig, LEFT, &tcp(99, 98, (7, 8))), [0, 0]);
    assert_eq!(rig.dropped_at(LEFT.index(), DropReason::NotOfHop), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn frames_without_ip_pass_one_port_by_their_mac_addresses() {
    let mut rig = rig(Program::OnePort);
    let (request, answer) = (arp(CLIENT_HOST, MacAddr([0xff; 6])), arp(SERVER_HOST, mac(CLIENT_HOST)));
    assert_eq!(into(&mut rig, CLIENT, &request).len(), 1);
    assert_eq!(out(&mut rig, LEFT, &request), [0, 1]);
    assert_eq!(into(&mut rig, SERVER, &answer).len(), 1);
    assert_eq!(out(&mut rig, LEFT, &answer), [1, 0]);
}

/// What a router makes of a frame: the MAC addresses of its own, and a lower TTL.
fn route(frame: &[u8], by: MacAddr) -> Vec<u8> {
    let mut frame = [by.0, by.0].concat().into_iter().chain(frame[12..].iter().copied()).collect::<Vec<_>>();
    let headers = parse(&frame).unwrap();
    netvm_wire::rewrite::decrement_ttl(&mut frame, &headers).unwrap();
    frame
}

#[test]
fn a_router_is_not_seen_by_the_hosts() {
    let mut rig = rig(Program::Router);
    let request = tcp(CLIENT_HOST, SERVER_HOST, (1000, 80));
    let answer = tcp(SERVER_HOST, CLIENT_HOST, (80, 1000));
    let ways = [(CLIENT, LEFT, RIGHT, &request, [0, 1]), (SERVER, RIGHT, LEFT, &answer, [1, 0])];
    for (from, enters, leaves, frame, _) in ways {
        let got = into(&mut rig, from, frame);
        let own = OWN[usize::from(enters == RIGHT)];
        assert_eq!(got[0][..6], own.0, "it is for the program's port");
        assert_eq!(got[0][22], frame[22] + 1, "one more for the router to take");
        rig.receive(leaves.index(), &route(&got[0], OWN[usize::from(leaves == RIGHT)]));
        rig.turn();
        let to = if from == CLIENT { SERVER } else { CLIENT };
        assert_eq!(rig.sent(to.index()), std::slice::from_ref(frame), "byte for byte");
    }
    rig.assert_nothing_leaked();
}

#[test]
fn a_router_gets_no_frames_between_neighbours() {
    let mut rig = rig(Program::Router);
    let discovery = {
        let [from, to] = ["fe80::1", "fe80::2"].map(|text| text.parse().unwrap());
        let frame =
            FrameBuilder::new(mac(1), mac(2)).ip(from, to).protocol(IpProto::ICMPV6).payload(&[135; 24]);
        frame.to_vec().unwrap()
    };
    let multicast = {
        let mut frame = tcp(CLIENT_HOST, SERVER_HOST, (1, 2));
        frame[0] = 1;
        frame
    };
    let other = {
        let mut frame = arp(1, mac(2));
        frame[12..14].copy_from_slice(&EtherType(0x88cc).0.to_be_bytes());
        frame
    };
    for frame in [arp(1, MacAddr([0xff; 6])), discovery, multicast, other] {
        assert!(into(&mut rig, CLIENT, &frame).is_empty());
        assert_eq!(rig.sent(SERVER.index()), [frame]);
    }
    let chain = &rig.counters().chains[CHAIN.index()];
    assert_eq!((chain.entered.get(), chain.left.get()), (4, 4));
    assert_eq!(rig.counters().ports[LEFT.index()].into_hop.get(), 0);
    rig.assert_nothing_leaked();
}

#[test]
fn what_a_router_translates_gets_the_addresses_of_what_enters_for_its_destination() {
    let mut rig = rig(Program::Router);
    into(&mut rig, CLIENT, &tcp(CLIENT_HOST, SERVER_HOST, (1000, 80)));
    // Source NAT: an address of the namespace.
    let translated = route(&tcp(50, SERVER_HOST, (2000, 80)), OWN[1]);
    rig.receive(RIGHT.index(), &translated);
    rig.turn();
    let sent = rig.sent(SERVER.index());
    assert_eq!((&sent[0][..6], &sent[0][6..12]), (&mac(SERVER_HOST).0[..], &mac(CLIENT_HOST).0[..]));
    assert_eq!(sent[0][12..], translated[12..]);
}
