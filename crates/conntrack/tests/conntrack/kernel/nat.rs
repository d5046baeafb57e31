// SPDX-License-Identifier: Apache-2.0
//! The kernel's NAT beside the table's: packets of connections that both translate, in any order, must leave alike.
//!
//! Both choose ports as they like, so each has its own end outside for a connection, which the first packet shows. Then
//! all packets must be as if they had been built with that end, and nothing else may pass.
//!
//! Differences, with reasons:
//! - The chosen port. The kernel gives an end outside to several ends inside if their remote ends differ. Here an end
//!   outside is that of one end inside, for all remote ends (RFC 4787 REQ-1 and REQ-3).
//! - Fragments. The kernel sends them when the last one has come. Here each goes on at once, and the first one must
//!   come first. What leaves in the end is the same.
//! - Lifetimes and identifications. The kernel's router changes the former, and the test numbers packets by the latter.

use std::collections::BTreeMap;
use std::time::Instant;

use netvm_conntrack::{
    Config, Connections, Half, Origin, Packet, Pool, Rewrite, Target, Tracked, Translation, Zone,
};
use netvm_wire::{ConnState, FrameBuilder, IpProto, checksum, parse};

use super::conversation::{Conversation, Random, Segment, seal};
use super::has_router;
use super::router::{Router, mac};
use crate::nat::{address, pool};

/// Packets of the test.
const PACKETS: u32 = 20_000;
/// Connections at a time.
const FLOWS: usize = 24;

/// Masquerading, a pool of ports, and published ports.
const RULES: &str = "table ip t {
 chain pre { type nat hook prerouting priority -100;
  iifname servers ip daddr 10.0.1.254 tcp dport 8080 dnat to 10.0.0.1:80
  iifname servers ip daddr 10.0.1.254 udp dport 8080 dnat to 10.0.0.1:53
 }
 chain post { type nat hook postrouting priority 100;
  oifname servers ip saddr 10.0.0.2 meta l4proto { tcp, udp } snat to 10.0.1.100:40000-49999
  oifname servers ip saddr 10.0.0.2 snat to 10.0.1.100
  oifname servers masquerade
 }
 chain f { type filter hook forward priority 0;
  ct state invalid drop
  iifname servers oifname servers drop
 }
 chain i { type filter hook input priority 0; policy drop; }
 chain o { type filter hook output priority 0; policy drop; }
}";

/// The address of the kernel's router outside.
const OUTSIDE: [u8; 4] = [10, 0, 1, 254];
/// Routers between it and the hosts, by side.
const HOPS: [[u8; 4]; 2] = [[10, 0, 0, 77], [10, 0, 1, 77]];

/// An address and a port, or the identifier of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    address: [u8; 4],
    port: u16,
}

/// What an end sends.
#[derive(Clone, Debug)]
enum What {
    Tcp(Segment),
    /// With so many bytes, in fragments of so many.
    Udp(usize, Option<usize>),
    Echo(bool),
    /// About a packet of the other end. The other end, or a router before it has sent the error.
    Error(Box<What>, bool),
}

/// A connection that both translate.
struct Flow {
    protocol: IpProto,
    inside: End,
    remote: End,
    /// The published end by which it began; `None`: it began inside.
    published: Option<End>,
    /// Segments that are left, the next one last.
    segments: Vec<Segment>,
    /// Of this crate, and of the kernel.
    outside: [Option<End>; 2],
    /// The last packet from outside, and from inside.
    last: [Option<What>; 2],
    packets_left: u32,
}

impl Flow {
    fn random(random: &mut Random, number: u32) -> Self {
        let protocol = [IpProto::TCP, IpProto::TCP, IpProto::UDP, IpProto::ICMP][random.below(4) as usize];
        // Ports of several hosts meet.
        let port = 1024 + (number / 4) as u16;
        let remote = |port| End { address: [10, 0, 1, 1 + (number % 2) as u8], port };
        let mut flow = Self {
            protocol,
            inside: End { address: [10, 0, 0, 1 + (number / 2 % 2) as u8], port },
            remote: remote(if protocol == IpProto::UDP { 53 } else { 80 }),
            published: None,
            segments: Conversation::random(random).segments,
            outside: [None; 2],
            last: [None, None],
            packets_left: 2 + random.below(40),
        };
        if protocol != IpProto::ICMP && random.below(3) == 0 {
            let inside_port = if protocol == IpProto::UDP { 53 } else { 80 };
            flow.inside = End { address: [10, 0, 0, 1], port: inside_port };
            flow.remote = remote(20_000 + number as u16);
            flow.published = Some(End { address: OUTSIDE, port: 8080 });
            flow.outside = [flow.published; 2];
        }
        flow.segments.reverse();
        flow
    }

    /// What an end sends next, and whether it is the one inside.
    fn next(&mut self, random: &mut Random) -> Option<(What, bool)> {
        self.packets_left = self.packets_left.checked_sub(1)?;
        let begins_inside = self.published.is_none();
        let is_answered = random.below(2) == 1 && self.last[usize::from(begins_inside)].is_some();
        if random.below(5) == 0 && self.last.iter().any(Option::is_some) {
            let by_inside = random.below(2) == 1;
            let about = self.last[usize::from(!by_inside)].clone()?;
            return Some((What::Error(about.into(), random.below(2) == 1), by_inside));
        }
        match self.protocol {
            IpProto::TCP => self.segments.pop().map(|it| (What::Tcp(it), (it.from == 0) == begins_inside)),
            IpProto::UDP => {
                let (size, cut) = (random.below(120) as usize, 8 * (1 + random.below(8) as usize));
                let cut = (random.below(3) == 0 && size + 8 > cut).then_some(cut);
                Some((What::Udp(size, cut), begins_inside != is_answered))
            }
            _ => Some((What::Echo(is_answered), begins_inside != is_answered)),
        }
    }

    /// The frames of what an end sends, as they are on the wire inside (0) or outside (1), where `outside` stands for
    /// the end inside.
    fn frames(&self, what: &What, by_inside: bool, wire: usize, outside: End) -> Vec<Vec<u8>> {
        let own = if wire == 0 { self.inside } else { outside };
        let [from, to] = if by_inside { [own, self.remote] } else { [self.remote, own] };
        let builder = |from: [u8; 4]| {
            FrameBuilder::new(mac(wire, false), mac(wire, true)).ip(from.into(), to.address.into())
        };
        let (ports, between) = ([from.port, to.port], builder(from.address));
        match what {
            What::Tcp(segment) => vec![segment.frame(between, ports)],
            What::Udp(size, cut) => {
                let frame = between.udp(from.port, to.port).payload(&vec![9; *size]).to_vec().unwrap();
                cut.map_or_else(|| vec![frame.clone()], |cut| fragments(&frame, cut))
            }
            What::Echo(is_reply) => vec![between.echo(*is_reply, own.port, 1).to_vec().unwrap()],
            What::Error(about, by_hop) => {
                let quoted = &self.frames(about, !by_inside, wire, outside)[0];
                let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
                message.extend(&quoted[14..quoted.len().min(14 + 20 + 20)]);
                let sum = checksum::internet_checksum(&message);
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                // What is inside is hidden from outside.
                let is_hidden = by_inside && wire == 1;
                let hop = HOPS[usize::from(!by_inside)];
                let sender = if *by_hop && !is_hidden { builder(hop) } else { between };
                vec![sender.protocol(IpProto::ICMP).payload(&message).to_vec().unwrap()]
            }
        }
    }
}

/// The fragments of a frame with so many bytes each.
fn fragments(frame: &[u8], size: usize) -> Vec<Vec<u8>> {
    const MORE: u16 = 0x2000;
    let (header, payload) = frame.split_at(34);
    let cut = |(n, part): (usize, &[u8])| {
        let is_last = (n + 1) * size >= payload.len();
        let field = (n * size / 8) as u16 | if is_last { 0 } else { MORE };
        let mut fragment = [header, part].concat();
        fragment[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        fragment[20..22].copy_from_slice(&field.to_be_bytes());
        fragment
    };
    payload.chunks(size).enumerate().map(cut).collect()
}

/// A frame from its IP header on, with this lifetime and identification, which a router may change.
fn plain(frame: &[u8], identification: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[22] = 64;
    seal(&mut frame, identification);
    frame[14..].to_vec()
}

/// The end of the side inside of a frame outside.
fn end_outside(frame: &[u8]) -> End {
    let key = *parse(frame).unwrap().key();
    let identifier = || u16::from_be_bytes([frame[38], frame[39]]);
    let port = if key.protocol == IpProto::ICMP { identifier() } else { key.source_port };
    End { address: key.source.v4_bits().unwrap().to_be_bytes(), port }
}

/// The table with the same rules.
struct Ours {
    table: Connections,
    masquerade: Pool,
    ports: Pool,
    queries: Pool,
    begin: Instant,
}

impl Ours {
    fn new() -> Self {
        let config = Config { mappings: 65_536, ..Config::default() };
        Self {
            table: Connections::new(&config).unwrap(),
            masquerade: pool("10.0.1.254", "10.0.1.254", [1, u16::MAX]),
            ports: pool("10.0.1.100", "10.0.1.100", [40_000, 49_999]),
            queries: pool("10.0.1.100", "10.0.1.100", [0, u16::MAX]),
            begin: Instant::now(),
        }
    }

    /// What leaves.
    fn pass(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let key = *parse(frame).unwrap().key();
        let now = (self.begin.elapsed().as_millis() / 100) as u32;
        let packet = Packet { key: &key, zone: Zone(0), front: frame, length: frame.len() };
        let mut tracked = [Tracked::default()];
        self.table.track(&[packet], now, &mut tracked);
        let [tracked] = tracked;
        let (id, is_reply) = match (tracked.connection, tracked.state) {
            (Some(id), _) => (id, tracked.is_reply),
            (None, ConnState::New) => {
                let is_from_inside = key.source.v4_bits().unwrap().to_be_bytes()[2] == 0;
                let is_published = key.destination_port == 8080 && key.destination == address("10.0.1.254");
                let port = if key.protocol == IpProto::UDP { 53 } else { 80 };
                let inside = Target { address: address("10.0.0.1"), port: Some(port) };
                let source = match key.protocol {
                    _ if key.source == address("10.0.0.1") => self.masquerade,
                    IpProto::ICMP => self.queries,
                    _ => self.ports,
                };
                let sources = [source];
                let translation = match (is_from_inside, is_published) {
                    (true, _) => Translation { sources: &sources, destination: None },
                    (false, true) => Translation { sources: &[], destination: Some(inside) },
                    (false, false) => return None,
                };
                let begun = self.table.confirm_translated(&packet, Origin::default(), now, translation);
                (begun.unwrap(), false)
            }
            _ => return None,
        };
        let (connection, mut frame) = (*self.table.get(id).unwrap(), frame.to_vec());
        let length = frame.len();
        for half in [Half::Destination, Half::Source] {
            let mut packet = Rewrite { front: &mut frame, length, is_partial: false };
            connection.rewrite(half, is_reply, &mut packet).unwrap();
        }
        Some(frame)
    }
}

#[test]
fn the_kernel_translates_the_same() {
    if !has_router() {
        return;
    }
    let (mut router, mut ours, mut random) = (Router::new(RULES), Ours::new(), Random(4));
    let (mut number, mut passed, mut stray) = (0, 0, 0);
    let mut flows: Vec<Flow> = Vec::new();
    let mut different: BTreeMap<String, (u32, String)> = BTreeMap::new();
    for n in 0..PACKETS {
        let identification = (n % 60_000) as u16 + 1;
        while flows.len() < FLOWS {
            flows.push(Flow::random(&mut random, number));
            number += 1;
        }
        let at = random.below(FLOWS as u32) as usize;
        let Some((what, by_inside)) = flows[at].next(&mut random) else {
            flows.swap_remove(at);
            continue;
        };
        // Another host outside uses the end of a connection.
        let is_stray = !by_inside && flows[at].published.is_none() && random.below(10) == 0;
        let remote = flows[at].remote;
        if is_stray {
            flows[at].remote.address = [10, 0, 1, 9];
        }
        let flow = &flows[at];
        let wire = usize::from(!by_inside);
        let guess = End { address: OUTSIDE, port: flow.inside.port };
        let frames = |outside: Option<End>, wire: usize| -> Vec<Vec<u8>> {
            let mut frames = flow.frames(&what, by_inside, wire, outside.unwrap_or(guess));
            frames.iter_mut().for_each(|frame| seal(frame, identification));
            frames
        };
        let by_us: Vec<_> =
            frames(flow.outside[0], wire).iter().filter_map(|frame| ours.pass(frame)).collect();
        let by_kernel = router.pass(wire, &frames(flow.outside[1], wire), identification, by_us.len());
        let mut outside = flow.outside;
        for (outside, left) in outside.iter_mut().zip([&by_us, &by_kernel]) {
            if by_inside && !matches!(what, What::Error(..)) && !left.is_empty() {
                outside.get_or_insert(end_outside(&left[0]));
            }
        }
        let all = |frames: &[Vec<u8>]| -> Vec<_> {
            frames.iter().map(|frame| plain(frame, identification)).collect()
        };
        let is_as_built =
            |left: &[Vec<u8>], outside| left.is_empty() || all(left) == all(&frames(outside, 1 - wire));
        let verdicts = [by_us.len(), by_kernel.len()];
        let as_built = [is_as_built(&by_us, outside[0]), is_as_built(&by_kernel, outside[1])];
        if verdicts[0] != verdicts[1] || as_built != [true; 2] {
            let kind = match &what {
                What::Error(about, by_hop) => format!("error, by a router: {by_hop}, about {about:?}"),
                other => format!("{other:?}"),
            };
            let kind: String = kind.chars().take_while(|it| !it.is_numeric() && *it != '{').collect();
            let case = format!("{kind} by inside: {by_inside}: {verdicts:?} left, as built: {as_built:?}");
            let text =
                || format!("{what:?} {:?} {outside:?}\n  {by_us:02x?}\n  {by_kernel:02x?}", flow.inside);
            different.entry(case).or_insert_with(|| (0, text())).0 += 1;
        }
        passed += u32::from(verdicts[0] > 0);
        stray += u32::from(is_stray && verdicts == [0; 2]);
        let did_pass = verdicts.iter().all(|count| *count > 0);
        let flow = &mut flows[at];
        (flow.outside, flow.remote) = (outside, remote);
        if let (true, What::Tcp(segment)) = (is_stray, &what) {
            // It was the other host's, and is still to come.
            flow.segments.push(*segment);
        }
        if did_pass && !matches!(what, What::Error(..) | What::Udp(_, Some(_))) {
            flow.last[usize::from(by_inside)] = Some(what);
        }
    }
    different.iter().for_each(|(case, (count, first))| println!("{case}: {count} times, first\n  {first}"));
    assert!(different.is_empty());
    assert!(passed > PACKETS / 2 && stray > 100, "{passed} passed, {stray} of another host did not");
}
