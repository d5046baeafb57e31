// SPDX-License-Identifier: Apache-2.0
//! Received packets that GRO coalesces leave as they came, byte by byte, whatever receives them.

use std::collections::BTreeMap;

use netvm_capture::{CaptureReader, Timestamp};
use netvm_model::{EngineConfig, Host, OnFailure, PortConfig};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags, VlanId, checksum, parse};

use crate::support::pcap::{Scratch, finish, start};
use crate::support::{Rig, chain, group, nf, rule};

const FRAMES: usize = 6000;
const SIZE: usize = 700;

/// A sender of one flow.
struct Sender {
    flow: u8,
    sequence: u32,
    id: u16,
}

impl Sender {
    /// Its next packet; `chance` says what is special about it.
    fn next(&mut self, chance: u64) -> Vec<u8> {
        let v6 = self.flow & 1 == 1;
        let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let builder = if self.flow & 4 == 4 { builder.vlan(VlanId::new(9).unwrap()) } else { builder };
        let builder = builder.ip(a.parse().unwrap(), b.parse().unwrap());
        let length = if chance.is_multiple_of(7) { (chance % 700) as usize } else { SIZE };
        let payload: Vec<u8> = (0..length).map(|at| (at as u64 + chance) as u8).collect();
        let flags = match chance % 23 {
            0 => TcpFlags::ACK | TcpFlags::PSH,
            1 => TcpFlags::ACK | TcpFlags::FIN,
            2 => TcpFlags::ACK | TcpFlags::ECE,
            3 => TcpFlags::ACK | TcpFlags::CWR,
            _ => TcpFlags::ACK,
        };
        let port = 1000 + u16::from(self.flow);
        let builder = if self.flow & 2 == 2 {
            builder.udp(port, 80)
        } else {
            builder.tcp(port, 80, flags).numbers(self.sequence, 9)
        };
        let builder = builder.payload(&payload);
        let builder = if v6 { builder } else { builder.fragment(self.id, 0, false) };
        let mut frame = builder.to_vec().unwrap();
        let headers = parse(&frame).unwrap();
        checksum::fill(&mut frame, &headers).unwrap();
        if chance % 31 == 5 {
            // Another time to live (the hop limit of IPv6), or a wrong checksum.
            let lives = headers.l3_offset() + if v6 { 7 } else { 8 };
            let at = if chance.is_multiple_of(2) { lives } else { frame.len() - 1 };
            frame[at] ^= 1;
        }
        self.id = self.id.wrapping_add(1 + u16::from(chance.is_multiple_of(41)));
        self.sequence = self.sequence.wrapping_add(length as u32 + u32::from(chance.is_multiple_of(43)));
        frame
    }
}

/// Packets of twelve flows, some in a row.
fn frames() -> Vec<Vec<u8>> {
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let sender = |flow| Sender { flow, sequence: u32::MAX - 90_000, id: u16::MAX - 9 };
    let mut senders: Vec<Sender> = (0..12).map(sender).collect();
    let mut frames = vec![vec![0xff; 60]];
    while frames.len() < FRAMES {
        let sender = &mut senders[next() as usize % 12];
        frames.extend((0..1 + next() % 20).map(|_| sender.next(next())));
        if next() % 10 == 0 {
            frames.push(vec![0xff; 60]);
        }
    }
    frames
}

/// By their source and destination ports, in order: the order of packets of different flows may change.
fn by_flow(frames: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Vec<&[u8]>> {
    let mut flows: BTreeMap<_, Vec<&[u8]>> = BTreeMap::new();
    for frame in frames {
        let l4 = parse(frame).ok().and_then(|headers| headers.l4_offset());
        let flow = l4.map_or_else(Vec::new, |at| [&frame[12..16], &frame[at..at + 4]].concat());
        flows.entry(flow).or_default().push(frame);
    }
    flows
}

/// What leaves port 1, and how many packets were coalesced, when port 0 receives `sent` and passes them through `nfs`.
fn through(nfs: &[&str], sent: &[Vec<u8>]) -> (Vec<Vec<u8>>, Vec<Timestamp>, u64) {
    let folder = Scratch::new();
    let hops: Vec<u16> = (0..nfs.len() as u16).collect();
    // How many packets come at a time decides how many are joined: one worker.
    let engine = EngineConfig { cores: vec![0], ..EngineConfig::default() };
    let host = Host {
        engine: engine.clone(),
        groups: vec![group(0, 2048, 2048)],
        ports: vec![PortConfig { gro: true, ..folder.port(0, sent) }, folder.port(1, &[])],
        nfs: hops.iter().zip(nfs).map(|(n, role)| nf(*n, role, 0)).collect(),
        chains: vec![chain(0, &hops, OnFailure::Drop, 1)],
        rules: vec![rule(0, 0)],
        ..Host::default()
    };
    let mut rig = Rig::new(&engine);
    start(&mut rig, &host, nfs);
    finish(&mut rig);
    let view = rig.engine.ports().swap_remove(0);
    assert_eq!(view.rx_packets + view.rx_coalesced, sent.len() as u64);
    assert!(view.drops.is_empty(), "{:?}", view.drops);
    drop(rig);
    let mut times = Vec::new();
    let mut reader = CaptureReader::open(&folder.file("out1.pcap")).unwrap();
    while let Some(frame) = reader.next_frame().unwrap() {
        times.push(frame.timestamp);
    }
    (folder.sent(1), times, view.rx_coalesced)
}

#[test]
fn packets_leave_as_they_came() {
    let sent = frames();
    for nfs in [&[][..], &["nf"]] {
        let (left, times, coalesced) = through(nfs, &sent);
        assert!(coalesced > FRAMES as u64 / 4, "{coalesced}");
        assert_eq!(left.len(), sent.len());
        assert!(by_flow(&left) == by_flow(&sent), "{nfs:?}");
        // Times of the capture that was read, not of earlier packets in the same buffers or of now.
        let last = sent.len() as u32 - 1;
        let last = Timestamp::new(last / 1000, last % 1000 * 1_000_000);
        assert!(times.iter().all(|time| *time <= last), "{nfs:?}");
    }
}
