// SPDX-License-Identifier: Apache-2.0
//! Random rulesets, decided by a small interpreter of nftables: what an import promises holds.
//!
//! Conditions that netvm does not have, limits included, hold or do not hold by chance (a [`World`]). Imported rules
//! must decide like the file in every world; with notes of effect "stricter", they must pass nothing that the file
//! drops. Imports with notes of effect "wider" are refused, and say no more.

mod random;

use netvm_policy::{Action, PortId};
use netvm_policy_import::nft::parse;
use netvm_policy_import::{Effect, Imported};
use netvm_wire::{ConnState, EtherType, FlowKey, Fragment, IpProto};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::{compare, interfaces, meta, payload};
use random::StateMatch;

/// Family, table and name of the chains: three base chains in the order of priority, and three that the first two lead
/// to.
const CHAINS: [[&str; 3]; 6] = [
    ["inet", "t", "forward"],
    ["inet", "t", "later"],
    ["ip", "u", "last"],
    ["inet", "t", "one"],
    ["inet", "t", "two"],
    ["inet", "t", "three"],
];
const BASES: usize = 3;
/// Names in rules; the last is not of a port.
const NAMES: [&str; 4] = ["eth0", "eth1", "tap0", "wan"];
/// Addresses are this and a small number.
const NET: u32 = 0x0a00_0000;

/// What holds of the conditions that netvm does not have, by their number.
type World = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Source,
    Destination,
    TcpPort,
    UdpPort,
    /// `th dport` of TCP and UDP.
    AnyPort,
    Dscp4,
    Dscp6,
}

/// The right side of a comparison.
#[derive(Clone, Debug)]
enum Values {
    One(u16),
    Range(u16, u16),
    Set(Vec<(u16, u16)>),
}

#[derive(Clone, Debug)]
enum Fit {
    Compare {
        field: Field,
        operator: &'static str,
        values: Values,
    },
    /// `meta l4proto`, or `ip protocol`.
    Protocol {
        of_v4: bool,
        list: Vec<u8>,
        negated: bool,
    },
    Family {
        v6: bool,
        negated: bool,
    },
    /// Of the bits in the mask, exactly these are set.
    Flags {
        mask: u8,
        bits: u8,
        negated: bool,
    },
    /// Any of the bits is set, or none.
    AnyFlag {
        bits: u8,
        negated: bool,
    },
    IcmpType {
        v6: bool,
        kind: u8,
        negated: bool,
    },
    LaterFragment {
        negated: bool,
    },
    In {
        names: Vec<usize>,
        negated: bool,
    },
    Out {
        name: usize,
        negated: bool,
    },
    /// `ip saddr . tcp dport`.
    Pairs {
        list: Vec<(u16, u16)>,
        negated: bool,
    },
    State {
        how: StateMatch,
        states: Vec<ConnState>,
    },
    /// A condition that netvm does not have.
    Unknown(u32),
    /// Within a limit.
    Limit(u32),
    /// Beyond a limit.
    Above(u32),
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    Accept,
    Drop,
    Return,
    Continue,
    Jump(usize),
    Goto(usize),
}

#[derive(Clone, Debug)]
enum Target {
    None,
    Log,
    Reject,
    /// A program of the user, which drops or accepts.
    Queue(u32),
    Verdict(Verdict),
    /// A verdict map of a field, and its verdict for other values.
    Map(Field, Vec<((u16, u16), Verdict)>, Option<Verdict>),
}

#[derive(Clone, Debug)]
struct Rule {
    fits: Vec<Fit>,
    target: Target,
}

#[derive(Clone, Debug)]
struct File {
    /// As [`CHAINS`].
    chains: Vec<Vec<Rule>>,
    /// The policies of the base chains.
    accepts: [bool; BASES],
    is_complete: bool,
}

#[derive(Debug)]
struct Packet {
    key: FlowKey,
    from: PortId,
    to: PortId,
}

impl File {
    /// Each object has a line.
    fn text(&self) -> String {
        let chain = |(n, [family, table, name]): (usize, [&str; 3])| {
            let mut chain = json!({"family": family, "table": table, "name": name, "handle": n});
            if let Some(accepts) = self.accepts.get(n) {
                let policy = if *accepts { "accept" } else { "drop" };
                let hook = json!({"type": "filter", "hook": "forward", "prio": n, "policy": policy});
                chain.as_object_mut().unwrap().extend(hook.as_object().unwrap().clone());
            }
            json!({"chain": chain})
        };
        let rules = CHAINS.iter().zip(&self.chains).flat_map(|([family, table, name], rules)| {
            let rule = |rule: &Rule| {
                let expr = rule.statements();
                json!({"rule": {"family": family, "table": table, "chain": name, "expr": expr}})
            };
            rules.iter().map(rule).collect::<Vec<_>>()
        });
        let objects: Vec<_> =
            CHAINS.into_iter().enumerate().map(chain).chain(rules).map(|object| object.to_string()).collect();
        format!("{{\"nftables\": [\n{}\n]}}", objects.join(",\n"))
    }

    /// The condition of a line's limit.
    fn limit(&self, line: u32) -> Option<u32> {
        let first = 2 + CHAINS.len() as u32;
        let rule = self.chains.iter().flatten().nth(line.checked_sub(first)? as usize)?;
        rule.fits.iter().find_map(|fit| match fit {
            Fit::Limit(number) | Fit::Above(number) => Some(*number),
            _ => None,
        })
    }

    /// What nftables does with a packet: each base chain of its family must accept it.
    fn passes(&self, packet: &Packet, world: World) -> bool {
        (0..BASES).all(|base| {
            let enters = CHAINS[base][0] == "inet" || packet.key.ether_type == EtherType::IPV4;
            !enters || self.run(base, packet, world).unwrap_or(self.accepts[base])
        })
    }

    /// The verdict of a chain's rules; `None` if the packet returns.
    fn run(&self, chain: usize, packet: &Packet, world: World) -> Option<bool> {
        for rule in &self.chains[chain] {
            if !rule.fits.iter().all(|fit| fit.holds(packet, world)) {
                continue;
            }
            let verdict = match &rule.target {
                Target::None | Target::Log => continue,
                Target::Reject => return Some(false),
                Target::Queue(number) => return Some(holds(world, *number)),
                Target::Verdict(verdict) => *verdict,
                Target::Map(field, list, rest) => {
                    let Some(value) = field.of(packet) else { continue };
                    let named = list.iter().find(|((first, last), _)| (*first..=*last).contains(&value));
                    match named.map(|(_, verdict)| *verdict).or(*rest) {
                        Some(verdict) => verdict,
                        None => continue,
                    }
                }
            };
            match verdict {
                Verdict::Accept => return Some(true),
                Verdict::Drop => return Some(false),
                Verdict::Return => return None,
                Verdict::Continue => {}
                Verdict::Goto(to) => return self.run(to, packet, world),
                Verdict::Jump(to) => {
                    if let Some(verdict) = self.run(to, packet, world) {
                        return Some(verdict);
                    }
                }
            }
        }
        None
    }
}

impl Field {
    /// The field of a packet; `None` if it has none, so that the rule does not match.
    fn of(self, packet: &Packet) -> Option<u16> {
        let FlowKey { source, destination, protocol, destination_port, fragment, dscp, ether_type, .. } =
            packet.key;
        let in_net = |address: netvm_wire::Address| address.v4_bits().map(|bits| (bits - NET) as u16);
        let port_of = |protocols: &[IpProto]| {
            let has_port = protocols.contains(&protocol) && fragment != Fragment::Later;
            has_port.then_some(destination_port)
        };
        match self {
            Self::Source => in_net(source),
            Self::Destination => in_net(destination),
            Self::TcpPort => port_of(&[IpProto::TCP]),
            Self::UdpPort => port_of(&[IpProto::UDP]),
            Self::AnyPort => port_of(&[IpProto::TCP, IpProto::UDP]),
            Self::Dscp4 => (ether_type == EtherType::IPV4).then_some(dscp.into()),
            Self::Dscp6 => (ether_type == EtherType::IPV6).then_some(dscp.into()),
        }
    }

    fn left(self) -> Value {
        match self {
            Self::Source => payload("ip", "saddr"),
            Self::Destination => payload("ip", "daddr"),
            Self::TcpPort => payload("tcp", "dport"),
            Self::UdpPort => payload("udp", "dport"),
            Self::AnyPort => payload("th", "dport"),
            Self::Dscp4 => payload("ip", "dscp"),
            Self::Dscp6 => payload("ip6", "dscp"),
        }
    }

    fn value(self, value: u16) -> Value {
        match self {
            Self::Source | Self::Destination => {
                json!(std::net::Ipv4Addr::from_bits(NET + u32::from(value)).to_string())
            }
            _ => json!(value),
        }
    }

    fn element(self, (first, last): (u16, u16)) -> Value {
        if first == last {
            return self.value(first);
        }
        json!({"range": [self.value(first), self.value(last)]})
    }
}

impl Fit {
    fn holds(&self, packet: &Packet, world: World) -> bool {
        let FlowKey { ether_type, protocol, fragment, tcp_flags, icmp_type, .. } = packet.key;
        let (is_v4, has_header) = (ether_type == EtherType::IPV4, fragment != Fragment::Later);
        let is_tcp = protocol == IpProto::TCP && has_header;
        match self {
            Self::Compare { field, operator, values } => field.of(packet).is_some_and(|value| {
                let is_in = |(first, last): &(u16, u16)| (*first..=*last).contains(&value);
                let (equal, bound) = match values {
                    Values::One(one) => (value == *one, *one),
                    Values::Range(first, last) => (is_in(&(*first, *last)), *first),
                    Values::Set(list) => (list.iter().any(is_in), 0),
                };
                match *operator {
                    "==" => equal,
                    "!=" => !equal,
                    "<" => value < bound,
                    "<=" => value <= bound,
                    ">" => value > bound,
                    _ => value >= bound,
                }
            }),
            Self::Protocol { of_v4, list, negated } => {
                (is_v4 || !of_v4) && list.contains(&protocol.0) != *negated
            }
            Self::Family { v6, negated } => (is_v4 != *v6) != *negated,
            Self::Flags { mask, bits, negated } => is_tcp && (tcp_flags.bits() & mask == *bits) != *negated,
            Self::AnyFlag { bits, negated } => is_tcp && (tcp_flags.bits() & bits != 0) != *negated,
            Self::IcmpType { v6, kind, negated } => {
                let own = if *v6 { IpProto::ICMPV6 } else { IpProto::ICMP };
                is_v4 != *v6 && protocol == own && has_header && (icmp_type == *kind) != *negated
            }
            Self::LaterFragment { negated } => is_v4 && has_header == *negated,
            Self::In { names, negated } => names.contains(&usize::from(packet.from.0)) != *negated,
            Self::Out { name, negated } => (usize::from(packet.to.0) == *name) != *negated,
            Self::Pairs { list, negated } => {
                let pair = Field::Source.of(packet).zip(Field::TcpPort.of(packet));
                pair.is_some_and(|pair| list.contains(&pair) != *negated)
            }
            Self::State { how, states } => states.contains(&packet.key.state) != how.negates(),
            Self::Unknown(number) | Self::Limit(number) => holds(world, *number),
            Self::Above(number) => !holds(world, *number),
        }
    }
}

fn holds(world: World, number: u32) -> bool {
    world >> number & 1 == 1
}

/// What the imported rules do with a packet: a limit admits it or not.
fn imported_passes(file: &File, imported: &Imported, packet: &Packet, world: World) -> bool {
    for rule in &imported.rules {
        let matches = &rule.matches;
        let is_at = |ports: &[PortId], port| ports.is_empty() || ports.contains(&port);
        let is_there = is_at(&matches.from, packet.from) && is_at(&matches.to, packet.to);
        if !is_there || !matches.fits_key(&packet.key) {
            continue;
        }
        if rule.actions.police.is_some() {
            let number = file.limit(rule.line).unwrap_or_else(|| panic!("line {} has no limit", rule.line));
            if !holds(world, number) {
                return false;
            }
        }
        match rule.actions.terminal {
            Some(Action::Allow) => return true,
            Some(_) => return false,
            None => {}
        }
    }
    true
}

#[test]
fn imported_rules_pass_what_the_ruleset_passes() {
    let mut found = [0; 3];
    let counts = std::cell::RefCell::new(&mut found);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
    let all = (random::files(), random::packets());
    let checked = TestRunner::new(config).run(&all, |(file, packets)| {
        let text = file.text();
        let ports = if file.is_complete { interfaces().complete() } else { interfaces() };
        let imported = parse(&text, &ports).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let effect = imported.effect();
        counts.borrow_mut()[effect as usize] += 1;
        if effect == Effect::Wider {
            return Ok(());
        }
        for (packet, world) in &packets {
            let real = file.passes(packet, *world);
            let ours = imported_passes(&file, &imported, packet, *world);
            let right = real == ours || (effect == Effect::Stricter && !ours);
            let (rules, notes) = (&imported.rules, &imported.notes);
            prop_assert!(right, "{packet:?} in world {world:032b}\n{text}\n{rules:#?}\n{notes:#?}");
        }
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    // Same, stricter, refused.
    assert!(found.iter().all(|count| *count > 50), "{found:?}");
}
