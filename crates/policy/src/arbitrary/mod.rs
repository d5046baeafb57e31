// SPDX-License-Identifier: Apache-2.0
//! Random keys, matches and rules for tests, with values from small ranges, so that they intersect.
//!
//! [`matches()`], [`rules()`] and [`keys()`] are strategies that shrink; [`Generator`] makes keys by the million.

mod generator;

use std::net::{Ipv4Addr, Ipv6Addr};

use netvm_ids::{ChainId, PortId, QueueId, RouterId, RuleId};
use netvm_wire::{
    ConnState, EtherType, FlowKey, Fragment, IpNet, IpProto, Ipv4Net, Ipv6Net, PortRange, VlanId,
};
use proptest::collection::{SizeRange, vec};
use proptest::option::{of, weighted};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;

use crate::matching::Match;
use crate::rule::{Action, Actions, Police, Rate, Rule, RuleParts, SetVlan, When};
use crate::span::{Masked, Span};

pub use generator::{Generator, parsed};

/// The highest port and chain that random rules name.
pub const LAST_PORT: PortId = PortId(3);

/// Times of random rules that do not always apply.
const TIMES: [&str; 2] = ["Mon", "Tue"];

/// A port that random rules may name.
pub fn port() -> impl Strategy<Value = PortId> {
    (0..=LAST_PORT.0).prop_map(PortId)
}

/// Keys for rules: half of them in a match, half uniform, as from [`Generator::key`].
pub fn keys(rules: &[Rule], count: SizeRange) -> impl Strategy<Value = Vec<FlowKey>> + use<> {
    let cubes: Vec<_> = rules.iter().flat_map(|rule| rule.matches.cubes().unwrap_or_default()).collect();
    vec(any::<u64>().prop_map(move |seed| Generator::new(seed).key(&cubes)), count)
}

/// Rules with numbers from 0, and keys for them.
pub fn rules_and_keys(
    count: impl Into<SizeRange>,
    headers: impl Into<SizeRange>,
) -> impl Strategy<Value = (Vec<Rule>, Vec<FlowKey>)> {
    let headers = headers.into();
    rules(count).prop_flat_map(move |rules| {
        let keys = keys(&rules, headers.clone());
        (Just(rules), keys)
    })
}

/// Rules with numbers from 0, of which one in four has no terminal action, and some do not apply now.
pub fn rules(count: impl Into<SizeRange>) -> impl Strategy<Value = Vec<Rule>> {
    let rules = vec((matches(), actions(), weighted(0.2, 0..TIMES.len())), count);
    (rules, any::<[bool; TIMES.len()]>()).prop_map(|(rules, active)| {
        let numbered = rules.into_iter().enumerate();
        numbered
            .map(|(n, (matches, actions, time))| {
                let id = RuleId(n as u32);
                let mut rule = Rule::from(RuleParts { id, name: String::new(), matches, actions });
                if let Some(time) = time {
                    rule.set_when(When { times: TIMES[time].parse().into_iter().collect(), load: None });
                    rule.set_active(active[time]);
                }
                rule
            })
            .collect()
    })
}

/// Actions of all kinds.
pub fn actions() -> impl Strategy<Value = Actions> {
    let terminal = prop_oneof![
        Just(Action::Allow),
        Just(Action::Drop),
        Just(Action::Reject),
        Just(Action::Normal),
        port().prop_map(Action::Port),
        (0..=LAST_PORT.0).prop_map(|n| Action::Chain(ChainId(n))),
        (0..=LAST_PORT.0).prop_map(|n| Action::Router(RouterId(n))),
    ];
    let vlan = prop_oneof![
        Just(SetVlan::Strip),
        VLANS.prop_filter_map("no VLAN", |n| { VlanId::new(n).ok().map(SetVlan::Tag) })
    ];
    let rate = || of((1u64..5, 1u64..5).prop_map(|(per_second, burst)| Rate { per_second, burst }));
    let police = (rate(), rate()).prop_map(|(packets, bits)| Police { packets, bits });
    let queue = (0u8..3).prop_map(QueueId);
    let besides = (weighted(0.1, vlan), weighted(0.2, queue), weighted(0.1, port()), weighted(0.1, police));
    (weighted(0.75, terminal), besides, any::<bool>()).prop_map(
        |(terminal, (set_vlan, queue, mirror, police), syn_proxy)| {
            let syn_proxy = syn_proxy && terminal == Some(Action::Allow);
            Actions { terminal, set_vlan, queue, mirror, police, syn_proxy }
        },
    )
}

const VLANS: std::ops::RangeInclusive<u16> = 0..=4;

/// Matches on any fields, most on few.
pub fn matches() -> impl Strategy<Value = Match> {
    let ports = (set(0.2, port()), set(0.2, port()));
    let link = (
        set(0.15, mac()),
        set(0.15, mac()),
        set(0.3, select(&[EtherType::IPV4, EtherType::IPV6, EtherType::ARP, EtherType(0x0807)][..])),
        set(0.15, span(VLANS)),
        set(0.1, span(VLANS)),
    );
    let network = (
        set(0.5, net()),
        set(0.5, net()),
        set(0.5, select(&[IpProto::TCP, IpProto::UDP, IpProto::ICMP, IpProto::ICMPV6, IpProto(7)][..])),
        set(0.1, span(0u8..=4)),
        set(0.1, select(&[Fragment::Whole, Fragment::First, Fragment::Later][..])),
        set(0.15, select(&ConnState::ALL[..])),
    );
    let range =
        || (0u16..8, 0u16..8).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap_or(PortRange::ANY));
    let transport = (
        set(0.3, range()),
        set(0.3, range()),
        weighted(
            0.15,
            (any::<u8>(), any::<u8>()).prop_map(|(value, mask)| Masked::<u8>::new(value, mask & 0x13)),
        ),
        set(0.1, span(0u8..=4)),
        set(0.1, span(0u8..=4)),
        set(0.1, span(0u16..=4)),
    );
    (ports, link, network, transport).prop_map(|(ports, link, network, transport)| {
        let (from, to) = ports;
        let (source_mac, destination_mac, ether_type, vlan, inner_vlan) = link;
        let (source, destination, protocol, dscp, fragment, state) = network;
        let (source_ports, destination_ports, tcp_flags, icmp_type, icmp_code, arp_operation) = transport;
        Match {
            from,
            to,
            source_mac,
            destination_mac,
            ether_type,
            vlan,
            inner_vlan,
            source,
            destination,
            protocol,
            source_ports,
            destination_ports,
            tcp_flags,
            dscp,
            icmp_type,
            icmp_code,
            fragment,
            state,
            arp_operation,
        }
    })
}

fn set<T: std::fmt::Debug>(often: f64, element: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    weighted(often, vec(element, 1..4)).prop_map(Option::unwrap_or_default)
}

fn span<T: Copy + Ord + std::fmt::Debug + 'static>(
    values: std::ops::RangeInclusive<T>,
) -> impl Strategy<Value = Span<T>>
where
    std::ops::RangeInclusive<T>: Strategy<Value = T>,
{
    (values.clone(), values).prop_map(|(a, b)| Span { first: a.min(b), last: a.max(b) })
}

fn mac() -> impl Strategy<Value = Masked<u64>> {
    let masks = [0, 1 << 40, 0xffff_ff00_0000, 0xffff_ffff_fffe, 0xffff_ffff_ffff, u64::MAX];
    (0u64..4, select(masks.to_vec())).prop_map(|(low, mask)| Masked::<u64>::new(0x0200_0000_0000 | low, mask))
}

/// Prefixes of either family that often nest, including unspecified addresses.
fn net() -> impl Strategy<Value = IpNet> {
    let bits = prop_oneof![Just(0u32), (0u32..4, 0u32..4).prop_map(|(a, b)| 0x0a00_0000 | a << 22 | b)];
    let v4 = (bits.clone(), select(&[0u8, 1, 8, 9, 10, 30, 31, 32][..]));
    let v6 = (bits, select(&[0u8, 1, 8, 9, 10, 126, 127, 128][..]));
    prop_oneof![
        v4.prop_map(|(bits, length)| {
            Ipv4Net::containing(Ipv4Addr::from_bits(bits), length).map_or(IpNet::V4(Ipv4Net::ALL), IpNet::V4)
        }),
        v6.prop_map(|(bits, length)| {
            let bits = u128::from(bits & 0xffff_fff0) << 96 | u128::from(bits & 15);
            Ipv6Net::containing(Ipv6Addr::from_bits(bits), length).map_or(IpNet::V6(Ipv6Net::ALL), IpNet::V6)
        }),
    ]
}
