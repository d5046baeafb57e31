// SPDX-License-Identifier: Apache-2.0
//! Random rulesets as nft prints them, and random packets.

use netvm_policy::PortId;
use netvm_wire::{Address, ConnState, EtherType, FlowKey, Fragment, IpProto, TcpFlags};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::{
    BASES, CHAINS, Field, File, Fit, NAMES, NET, Packet, Rule, Target, Value, Values, Verdict, World,
    compare, json, meta, payload,
};

const HOWS: [StateMatch; 5] =
    [StateMatch::Any, StateMatch::None, StateMatch::In, StateMatch::NotIn, StateMatch::Masked];
/// Flags in rules and packets, and their names.
const FLAGS: [(&str, u8); 3] = [("fin", 1), ("syn", 2), ("ack", 16)];
/// Values of small fields.
const VALUES: u16 = 6;

/// How a rule names states.
#[derive(Clone, Copy, Debug)]
pub(super) enum StateMatch {
    /// `ct state established,related`.
    Any,
    /// `ct state ! established,related`.
    None,
    /// `ct state { established, related }`.
    In,
    /// `ct state != { established, related }`.
    NotIn,
    /// `ct state & (established | related) == 0`.
    Masked,
}

impl StateMatch {
    pub(super) const fn negates(self) -> bool {
        matches!(self, Self::None | Self::NotIn | Self::Masked)
    }
}

impl Rule {
    pub(super) fn statements(&self) -> Value {
        let mut all: Vec<Value> = self.fits.iter().flat_map(Fit::statements).collect();
        match &self.target {
            Target::None => all.push(json!({"counter": {"packets": 0, "bytes": 0}})),
            Target::Log => all.push(json!({"log": {"prefix": "x"}})),
            Target::Reject => all.push(json!({"reject": null})),
            Target::Queue(_) => all.push(json!({"queue": {"num": 0}})),
            Target::Verdict(verdict) => all.push(verdict.statement()),
            Target::Map(field, list, rest) => {
                let named =
                    list.iter().map(|(values, verdict)| json!([field.element(*values), verdict.statement()]));
                let rest = rest.iter().map(|verdict| json!(["*", verdict.statement()]));
                let set: Vec<Value> = named.chain(rest).collect();
                all.push(json!({"vmap": {"key": field.left(), "data": {"set": set}}}));
            }
        }
        Value::Array(all)
    }
}

impl Verdict {
    fn statement(self) -> Value {
        let target = |to: usize| json!({"target": CHAINS[to][2]});
        match self {
            Self::Accept => json!({"accept": null}),
            Self::Drop => json!({"drop": null}),
            Self::Return => json!({"return": null}),
            Self::Continue => json!({"continue": null}),
            Self::Jump(to) => json!({"jump": target(to)}),
            Self::Goto(to) => json!({"goto": target(to)}),
        }
    }
}

impl Fit {
    fn statements(&self) -> Vec<Value> {
        let equal = |negated: &bool| if *negated { "!=" } else { "==" };
        let names = |bits: u8| {
            json!(FLAGS.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name).collect::<Vec<_>>())
        };
        let flags = || payload("tcp", "flags");
        vec![match self {
            Self::Compare { field, operator, values } => {
                let right = match values {
                    Values::One(one) => field.value(*one),
                    Values::Range(first, last) => field.element((*first, *last)),
                    Values::Set(list) => {
                        json!({"set": list.iter().map(|values| field.element(*values)).collect::<Vec<_>>()})
                    }
                };
                let matched = compare(operator, field.left(), right);
                if *field == Field::AnyPort {
                    return vec![compare("==", meta("l4proto"), json!({"set": ["tcp", "udp"]})), matched];
                }
                matched
            }
            Self::Protocol { of_v4, list, negated } => {
                let left = if *of_v4 { payload("ip", "protocol") } else { meta("l4proto") };
                compare(equal(negated), left, json!({"set": list}))
            }
            Self::Family { v6, negated } => {
                compare(equal(negated), meta("nfproto"), json!(if *v6 { "ipv6" } else { "ipv4" }))
            }
            Self::Flags { mask, bits, negated } => {
                compare(equal(negated), json!({"&": [flags(), names(*mask)]}), names(*bits))
            }
            Self::AnyFlag { bits, negated } => {
                compare(if *negated { "!" } else { "in" }, flags(), names(*bits))
            }
            Self::IcmpType { v6, kind, negated } => {
                compare(equal(negated), payload(if *v6 { "icmpv6" } else { "icmp" }, "type"), json!(kind))
            }
            Self::LaterFragment { negated } => {
                compare(equal(&!negated), json!({"&": [payload("ip", "frag-off"), 0x1fff]}), json!(0))
            }
            Self::In { names, negated } => {
                let set = json!({"set": names.iter().map(|name| NAMES[*name]).collect::<Vec<_>>()});
                compare(equal(negated), meta("iifname"), set)
            }
            Self::Out { name, negated } => compare(equal(negated), meta("oifname"), json!(NAMES[*name])),
            Self::Pairs { list, negated } => {
                let pair = |(last, port): &(u16, u16)| json!({"concat": [Field::Source.value(*last), port]});
                let left = json!({"concat": [Field::Source.left(), Field::TcpPort.left()]});
                compare(equal(negated), left, json!({"set": list.iter().map(pair).collect::<Vec<_>>()}))
            }
            Self::State { how, states } => {
                let names: Vec<&str> = states.iter().map(|state| state.name()).collect();
                let left = json!({"ct": {"key": "state"}});
                match how {
                    StateMatch::Any => compare("in", left, json!(names)),
                    StateMatch::None => compare("!", left, json!(names)),
                    StateMatch::In => compare("==", left, json!({"set": names})),
                    StateMatch::NotIn => compare("!=", left, json!({"set": names})),
                    StateMatch::Masked => compare("==", json!({"&": [left, names]}), json!(0)),
                }
            }
            Self::Unknown(_) => compare("in", json!({"ct": {"key": "status"}}), json!("assured")),
            Self::Limit(_) => json!({"limit": {"rate": 10, "burst": 5, "per": "second"}}),
            Self::Above(_) => json!({"limit": {"rate": 10, "burst": 5, "per": "second", "inv": true}}),
        }]
    }
}

fn field() -> impl Strategy<Value = Field> {
    select(
        &[
            Field::Source,
            Field::Source,
            Field::Destination,
            Field::TcpPort,
            Field::TcpPort,
            Field::UdpPort,
            Field::AnyPort,
            Field::Dscp4,
            Field::Dscp6,
        ][..],
    )
}

/// Ranges that do not overlap, as nft demands.
fn ranges() -> impl Strategy<Value = Vec<(u16, u16)>> {
    let ends = subsequence((0..2 * VALUES).collect::<Vec<u16>>(), 2..=6);
    ends.prop_map(|ends| ends.chunks_exact(2).map(|ends| (ends[0] / 2, ends[1] / 2)).collect()).prop_map(
        |mut ranges: Vec<(u16, u16)>| {
            ranges.dedup_by(|next, before| next.0 <= before.1);
            ranges
        },
    )
}

fn comparison() -> impl Strategy<Value = Fit> {
    let equal = |negated| if negated { "!=" } else { "==" };
    let operators = select(&["==", "!=", "<", "<=", ">", ">="][..]);
    let values = prop_oneof![
        3 => (0..VALUES, operators).prop_map(|(one, operator)| (Values::One(one), operator)),
        1 => (0..VALUES, 1..3u16, any::<bool>())
            .prop_map(move |(first, more, negated)| (Values::Range(first, first + more), equal(negated))),
        2 => (ranges(), any::<bool>()).prop_map(move |(list, negated)| (Values::Set(list), equal(negated))),
    ];
    (field(), values).prop_map(|(field, (values, operator))| Fit::Compare { field, operator, values })
}

/// Some flags, at least one.
fn flags() -> impl Strategy<Value = u8> {
    subsequence(FLAGS.map(|(_, bit)| bit).to_vec(), 1..=FLAGS.len()).prop_map(|bits| bits.into_iter().sum())
}

fn fit() -> impl Strategy<Value = Fit> {
    let negated = any::<bool>;
    let protocols = subsequence(vec![1u8, 6, 17, 58], 1..=2);
    let pairs = prop::collection::btree_set((0..VALUES, 0..VALUES), 1..3);
    prop_oneof![
        8 => comparison(),
        2 => (any::<bool>(), protocols, negated())
            .prop_map(|(of_v4, list, negated)| Fit::Protocol { of_v4, list, negated }),
        1 => (any::<bool>(), negated()).prop_map(|(v6, negated)| Fit::Family { v6, negated }),
        2 => (flags(), any::<u8>(), negated())
            .prop_map(|(mask, bits, negated)| Fit::Flags { mask, bits: bits & mask, negated }),
        1 => (flags(), negated()).prop_map(|(bits, negated)| Fit::AnyFlag { bits, negated }),
        1 => (any::<bool>(), 0..3u8, negated()).prop_map(|(v6, kind, negated)| Fit::IcmpType { v6, kind, negated }),
        1 => negated().prop_map(|negated| Fit::LaterFragment { negated }),
        1 => (subsequence(vec![0usize, 1, 2], 1..=2), 0..8u8, negated()).prop_map(|(mut names, other, negated)| {
            if other == 0 {
                names.push(NAMES.len() - 1);
            }
            Fit::In { names, negated }
        }),
        1 => (0..20usize, negated()).prop_map(|(name, negated)| Fit::Out { name: (name / 6).min(3), negated }),
        1 => (pairs, negated()).prop_map(|(list, negated)| Fit::Pairs { list: list.into_iter().collect(), negated }),
        4 => (select(&HOWS[..]), subsequence(ConnState::ALL.to_vec(), 1..=3))
            .prop_map(|(how, states)| Fit::State { how, states }),
        2 => Just(Fit::Unknown(0)),
        1 => Just(Fit::Limit(0)),
        1 => Just(Fit::Above(0)),
    ]
}

fn verdict(chain: usize) -> impl Strategy<Value = Verdict> {
    // Where a chain may lead without a loop; nowhere from the last base chain.
    let ahead: Vec<usize> = match chain {
        2 => vec![],
        0..BASES => (BASES..CHAINS.len()).collect(),
        inner => (inner + 1..CHAINS.len()).collect(),
    };
    (0..20usize, any::<Index>()).prop_map(move |(kind, index)| match kind {
        0..=6 => Verdict::Accept,
        7..=12 => Verdict::Drop,
        13 | 14 => Verdict::Return,
        15 => Verdict::Continue,
        _ if ahead.is_empty() => Verdict::Return,
        16 | 17 => Verdict::Jump(*index.get(&ahead)),
        _ => Verdict::Goto(*index.get(&ahead)),
    })
}

fn rule(chain: usize) -> impl Strategy<Value = Rule> {
    let keys = select(&[Field::Source, Field::TcpPort, Field::UdpPort][..]);
    let map = (keys, ranges(), prop::collection::vec(verdict(chain), 6), prop::option::of(verdict(chain)));
    let target = prop_oneof![
        1 => Just(Target::None),
        1 => Just(Target::Log),
        1 => Just(Target::Reject),
        1 => Just(Target::Queue(0)),
        14 => verdict(chain).prop_map(Target::Verdict),
        2 => map.prop_map(|(field, ranges, verdicts, rest)| {
            Target::Map(field, ranges.into_iter().zip(verdicts).collect(), rest)
        }),
    ];
    (prop::collection::vec(fit(), 0..3), target).prop_map(|(fits, target)| Rule { fits, target })
}

/// Files of few rules; each condition that netvm does not have gets a number of its own.
pub(super) fn files() -> impl Strategy<Value = File> {
    let chain = |chain: usize, most: usize| prop::collection::vec(rule(chain), 0..most);
    // Later base chains are often without rules.
    let chains = (chain(0, 5), chain(1, 2), chain(2, 2), chain(3, 4), chain(4, 4), chain(5, 4));
    let chains = chains.prop_map(|(a, b, c, d, e, f)| vec![a, b, c, d, e, f]);
    // Nor do they often drop.
    let accepts = (any::<bool>(), 0..4u8, 0..4u8).prop_map(|(first, b, c)| [first, b > 0, c > 0]);
    (chains, accepts, any::<bool>()).prop_map(|(mut chains, accepts, is_complete)| {
        let mut next = 0..32;
        let mut number = |of: &mut u32| *of = next.next().unwrap_or(31);
        for rule in chains.iter_mut().flatten() {
            let is_limit = |fit: &Fit| matches!(fit, Fit::Limit(_) | Fit::Above(_));
            let mut limits = 0;
            rule.fits.retain(|fit| {
                limits += usize::from(is_limit(fit));
                limits < 2 || !is_limit(fit)
            });
            for fit in &mut rule.fits {
                if let Fit::Unknown(of) | Fit::Limit(of) | Fit::Above(of) = fit {
                    number(of);
                }
            }
            if let Target::Queue(of) = &mut rule.target {
                number(of);
            }
        }
        File { chains, accepts, is_complete }
    })
}

pub(super) fn packets() -> impl Strategy<Value = Vec<(Packet, World)>> {
    let addresses = (any::<bool>(), 0..VALUES, 0..VALUES);
    let header = (0..3usize, 0..8u8, 0..2 * VALUES, any::<u8>(), 0..3u8);
    let states = select(ConnState::ALL.to_vec());
    let packet = (addresses, header, 0..VALUES as u8, 0..3u16, 0..3u16, states, any::<World>());
    let packet = packet.prop_map(|((v6, source, destination), header, dscp, from, to, state, world)| {
        let (protocol, fragment, port, flags, kind) = header;
        let icmp = if v6 { IpProto::ICMPV6 } else { IpProto::ICMP };
        let protocol = [IpProto::TCP, IpProto::UDP, icmp][protocol];
        let fragment = match fragment {
            0 | 1 => Fragment::Later,
            2 => Fragment::First,
            _ => Fragment::Whole,
        };
        // Later fragments have no header of layer 4.
        let has = |own: IpProto| protocol == own && fragment != Fragment::Later;
        let address = |last: u16| match v6 {
            true => {
                Address::from(std::net::IpAddr::from(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)))
            }
            false => Address::from_v4_bits(NET + u32::from(last)),
        };
        let flags: u8 = FLAGS.iter().map(|(_, bit)| bit & flags).sum();
        let key = FlowKey {
            source: address(source),
            destination: address(destination),
            ether_type: if v6 { EtherType::IPV6 } else { EtherType::IPV4 },
            protocol,
            destination_port: if has(IpProto::TCP) || has(IpProto::UDP) { port } else { 0 },
            tcp_flags: TcpFlags::from_bits_retain(if has(IpProto::TCP) { flags } else { 0 }),
            icmp_type: if has(icmp) { kind } else { 0 },
            fragment,
            dscp,
            state,
            ..FlowKey::EMPTY
        };
        (Packet { key, from: PortId(from), to: PortId(to) }, world)
    });
    prop::collection::vec(packet, 48)
}
