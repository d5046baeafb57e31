// SPDX-License-Identifier: Apache-2.0
//! What becomes of connections, and their packets.

use netvm_conntrack::nat64::Prefix;
use netvm_conntrack::{
    Allocation, ConnectionId, Connections, Filtering, Nat64, Origin, Packet, Pool, Refusal, Target,
    Translation, Tuple, Zone,
};
use netvm_wire::{Address, FlowKey, FrameBuilder, IpProto, MacAddr, PortRange, TcpFlags, parse};
use proptest::prelude::*;

use crate::nat::{OUTSIDE, address, pool, to};
use crate::sctp::{INIT, offer, sctp};

/// What a port of hosts does with connections.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// All ports of an address outside.
    Masquerade,
    /// So few ports that answers cannot come back to one worker by themselves.
    FewPorts,
    Blocks,
    Deterministic,
    /// To a service, which leads to a server.
    Service,
    /// To a service from the network of its server: the source is translated, too.
    Hairpin,
    /// A network for another one, by arithmetic.
    Network,
    /// From IPv6 to IPv4.
    Nat64,
    /// The same with a prefix that divides addresses.
    Nat64Divided,
    None,
}

pub const RULES: [Rule; 10] = [
    Rule::Masquerade,
    Rule::FewPorts,
    Rule::Blocks,
    Rule::Deterministic,
    Rule::Service,
    Rule::Hairpin,
    Rule::Network,
    Rule::Nat64,
    Rule::Nat64Divided,
    Rule::None,
];

pub const PROTOCOLS: [IpProto; 5] = [IpProto::UDP, IpProto::TCP, IpProto::ICMP, IpProto::SCTP, IpProto(47)];

pub fn key(frame: &[u8]) -> FlowKey {
    *parse(frame).unwrap().key()
}

pub fn packet<'a>(key: &'a FlowKey, frame: &'a [u8]) -> Packet<'a> {
    Packet { key, zone: Zone(0), front: &frame[..frame.len().min(256)], length: frame.len() }
}

pub fn pools_of(rule: Rule, frame: &[u8]) -> Vec<Pool> {
    let key = key(frame);
    let all = pool(OUTSIDE, OUTSIDE, [1024, u16::MAX]);
    match rule {
        Rule::Masquerade => vec![Pool { filtering: Filtering::EndpointIndependent, ..all }],
        Rule::FewPorts => vec![pool("203.0.113.2", "203.0.113.9", [4000, 4031])],
        Rule::Blocks => {
            let allocation = Allocation::Blocks { size: 16, most: 8 };
            vec![Pool { allocation, ..pool("203.0.113.10", "203.0.113.11", [1024, u16::MAX]) }]
        }
        Rule::Deterministic => {
            let allocation = Allocation::Deterministic { inside: "10.0.0.0/24".parse().unwrap() };
            vec![Pool { allocation, ..pool("203.0.113.12", "203.0.113.13", [1024, u16::MAX]) }]
        }
        Rule::Hairpin => vec![pool("203.0.113.20", "203.0.113.20", [1024, u16::MAX])],
        Rule::Network => {
            let outside = address(&format!("203.0.112.{}", key.source.v6_bits() & 0xff));
            vec![Pool::new(outside, outside, PortRange::single(key.source_port))]
        }
        Rule::Nat64 | Rule::Nat64Divided => vec![pool("203.0.113.30", "203.0.113.30", [1024, u16::MAX])],
        Rule::Service | Rule::None => Vec::new(),
    }
}

pub fn prefix_of(rule: Rule) -> &'static str {
    if matches!(rule, Rule::Nat64) { "64:ff9b::/96" } else { "2001:db8:64::/48" }
}

/// Begins a connection as an engine does: its destination first, and its source as it leaves.
pub fn begin(table: &mut Connections, frame: &[u8], rule: Rule) -> Result<ConnectionId, Refusal> {
    let key = key(frame);
    let packet = packet(&key, frame);
    let pools = pools_of(rule, frame);
    if matches!(rule, Rule::Nat64 | Rule::Nat64Divided) {
        let prefix = Prefix::new(prefix_of(rule).parse().unwrap()).unwrap();
        return table.confirm_nat64(&packet, Origin::default(), 0, &Nat64 { prefix, pools: &pools });
    }
    let destination = match rule {
        Rule::Service | Rule::Hairpin if key.protocol.has_ports() && key.protocol != IpProto::SCTP => {
            to("10.0.0.200", 80)
        }
        Rule::Service | Rule::Hairpin => Some(Target { address: address("10.0.0.200"), port: None }),
        // By the mapping of another connection.
        _ => table.targets().of(&packet, true),
    };
    let translation = Translation { sources: &[], destination };
    let id = table.confirm_translated(&packet, Origin::default(), 0, translation)?;
    let settled = table.settle_source(id, &pools);
    if settled.is_err() {
        assert!(table.end(id));
    }
    settled.map(|()| id)
}

/// Both ends of a packet.
#[derive(Clone, Copy)]
pub struct Ends {
    pub source: Address,
    pub destination: Address,
    pub ports: [u16; 2],
    pub protocol: IpProto,
}

impl Ends {
    pub const fn of(tuple: &Tuple) -> Self {
        let Tuple { source, destination, source_port, destination_port, protocol, .. } = *tuple;
        Self { source, destination, ports: [source_port, destination_port], protocol }
    }
}

pub fn frame_of(ends: &Ends, is_reply: bool) -> Vec<u8> {
    let Ends { source, destination, ports: [source_port, destination_port], protocol } = *ends;
    let frame = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ip(source.to_ip(), destination.to_ip());
    match protocol {
        IpProto::UDP => frame.udp(source_port, destination_port).payload(b"payload").to_vec().unwrap(),
        IpProto::TCP => {
            let flags = if is_reply { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN };
            frame.tcp(source_port, destination_port, flags).numbers(77, 78).to_vec().unwrap()
        }
        IpProto::SCTP => sctp(frame, [source_port, destination_port], 0, &[offer(INIT, 7)]),
        IpProto::ICMP | IpProto::ICMPV6 => frame.echo(is_reply, source_port, 1).to_vec().unwrap(),
        protocol => frame.protocol(protocol).payload(b"payload").to_vec().unwrap(),
    }
}

/// Two fragments of one packet.
pub fn fragments_of(ends: &Ends) -> [Vec<u8>; 2] {
    let fragment = |offset, has_more| {
        let frame = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
        frame.ip(ends.source.to_ip(), ends.destination.to_ip()).fragment(5, offset, has_more)
    };
    let first = fragment(0, true).udp(ends.ports[0], ends.ports[1]).payload(&[9; 24]);
    let later = fragment(4, false).protocol(IpProto::UDP).payload(&[9; 40]);
    [first.to_vec().unwrap(), later.to_vec().unwrap()]
}

/// The first packet of a connection.
#[derive(Clone, Copy, Debug)]
pub struct First {
    pub rule: Rule,
    pub protocol: IpProto,
    pub host: u8,
    pub port: u16,
    pub remote: u8,
    pub remote_port: u16,
    /// The end outside of a masqueraded host in place of the remote one.
    pub is_inwards: bool,
}

impl First {
    pub fn any() -> impl Strategy<Value = Self> {
        let kind = (0..RULES.len(), 0..PROTOCOLS.len(), prop::bool::weighted(0.2));
        (kind, 0u8..4, 1u16.., 0u8..4, 1u16..).prop_map(|(kind, host, port, remote, remote_port)| {
            let (rule, protocol, is_inwards) = (RULES[kind.0], PROTOCOLS[kind.1], kind.2);
            Self { rule, protocol, host, port, remote, remote_port, is_inwards }
        })
    }

    pub fn frame(&self, outside: Option<&Tuple>) -> Vec<u8> {
        let Self { rule, protocol, host, port, remote, remote_port, .. } = *self;
        let (source, destination) = match rule {
            Rule::Nat64 => (format!("2001:db8:1::{host:x}"), format!("64:ff9b::198.51.100.{remote}")),
            // 198.51.100.N after 48 bits, around the eight in the middle.
            Rule::Nat64Divided => {
                (format!("2001:db8:2::{host:x}"), format!("2001:db8:64:c633:64:{remote:02x}00::"))
            }
            Rule::Service | Rule::Hairpin => (format!("10.0.0.{host}"), "203.0.113.40".to_owned()),
            _ => (format!("10.0.0.{host}"), format!("198.51.100.{remote}")),
        };
        let is_v6 = source.contains(':');
        let mut ends = Ends {
            source: address(&source),
            destination: address(&destination),
            ports: [port, remote_port],
            protocol: if is_v6 && protocol == IpProto::ICMP { IpProto::ICMPV6 } else { protocol },
        };
        if let Some(outside) = outside.filter(|_| self.is_inwards && !is_v6 && protocol == IpProto::UDP) {
            (ends.destination, ends.ports[1]) = (outside.destination, outside.destination_port);
        }
        frame_of(&ends, false)
    }
}
