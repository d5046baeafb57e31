// SPDX-License-Identifier: Apache-2.0
//! Random NAT rules, and routers that translate addresses.

use netvm_model::{
    DestinationNat, Filtering, HealthCheck, Host, Match, Nat64, NatAction, NatAddresses, NatRule, NatTarget,
    PortAllocation, PortConfig, PortId, RouterId, SourceNat,
};
use netvm_wire::{IpProto, PortRange};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Whether it has a name, is for packets that leave, ports, router, what it does.
type RawRule = (bool, bool, Vec<Index>, Option<Index>, NatAction);

/// Rules; by router, what its first interface has, and whether it has NAT64.
pub type Translated = (Vec<RawRule>, Vec<(Option<SourceNat>, bool)>);

pub fn translated() -> impl Strategy<Value = Translated> {
    let action = prop_oneof![
        Just(NatAction::Keep),
        source().prop_map(NatAction::Source),
        destination().prop_map(NatAction::Destination),
        select(vec!["198.51.100.0/24", "2001:db8:1::/48"])
            .prop_map(|net| NatAction::Network(net.parse().unwrap())),
    ];
    let rule = (any::<bool>(), any::<bool>(), vec(any::<Index>(), 0..3), option::of(any::<Index>()), action);
    (vec(rule, 0..5), vec((option::of(source()), any::<bool>()), 3))
}

/// Pools that [`fill`] keeps apart.
fn source() -> impl Strategy<Value = SourceNat> {
    let addresses = prop_oneof![
        Just(NatAddresses::Interface),
        Just(NatAddresses::Ranges(vec!["203.0.113.0/28".parse().unwrap()])),
        Just(NatAddresses::Ranges(vec![
            "203.0.113.0/28".parse().unwrap(),
            "203.0.113.32-203.0.113.33".parse().unwrap(),
        ])),
        Just(NatAddresses::Ranges(vec!["2001:db8::5".parse().unwrap()])),
    ];
    let filtering =
        select(vec![Filtering::AddressAndPort, Filtering::AddressDependent, Filtering::EndpointIndependent]);
    (addresses, filtering, 0u16..8, 0u16..7).prop_map(|(addresses, filtering, allocation, order)| {
        let source = SourceNat { addresses, filtering, ..SourceNat::default() };
        let blocks = 1 << order;
        let allocation = match allocation {
            0..4 => PortAllocation::Any,
            4..6 => PortAllocation::Blocks { size: blocks, most: 3 },
            _ if source.is_v4() == Some(true) => {
                PortAllocation::Deterministic { inside: "100.64.0.0/24".parse().unwrap() }
            }
            _ => PortAllocation::Any,
        };
        // A whole number of blocks.
        let has_blocks = matches!(allocation, PortAllocation::Blocks { .. });
        let last = if has_blocks { 1023 + 64 * blocks * 15 } else { 2999 };
        SourceNat { ports: PortRange::new(1024, last).unwrap(), allocation, ..source }
    })
}

fn destination() -> impl Strategy<Value = DestinationNat> {
    let target = (option::of(1u16..), 1u16..=1000);
    let health = option::of(
        (1u16..=3600, 1u16..=100).prop_map(|(interval, failures)| HealthCheck { interval, failures }),
    );
    (vec(target, 1..4), any::<bool>(), any::<bool>(), health).prop_map(|(targets, is_v4, is_own, health)| {
        if is_own {
            let target = NatTarget { port: targets[0].0, ..NatTarget::default() };
            return DestinationNat { targets: vec![target], health: None };
        }
        let all_have_ports = targets.iter().all(|(port, _)| port.is_some());
        let targets = (0u8..).zip(targets).map(|(n, (port, weight))| {
            let text = if is_v4 { format!("10.0.0.{}", n + 2) } else { format!("fd00::{}", n + 2) };
            let address: std::net::IpAddr = text.parse().unwrap();
            NatTarget { address: Some(address.into()), port, weight }
        });
        DestinationNat { targets: targets.collect(), health: health.filter(|_| all_have_ports) }
    })
}

/// Has routers translate addresses, before it is decided what tracks.
pub fn translate(host: &mut Host, (_, routers): &Translated) {
    for (router, (source, has_nat64)) in host.routers.iter_mut().zip(routers) {
        router.interfaces[0].snat.clone_from(source);
        router.nat64 = has_nat64.then(|| Nat64 {
            prefix: "2001:db8:64::/48".parse().unwrap(),
            addresses: vec!["198.51.100.9".parse().unwrap()],
            ports: PortRange::new(1024, 2047).unwrap(),
            filtering: Filtering::AddressDependent,
        });
    }
}

/// Adds the rules that some packet can match, publishes ports, and adds what follows from it.
pub fn fill(host: &mut Host, (rules, _): Translated) {
    let mut pools = Vec::new();
    for router in &mut host.routers {
        for interface in &mut router.interfaces {
            interface.snat = interface.snat.take().map(|source| apart(source, &mut pools));
        }
    }
    for (n, (is_named, is_egress, ports, router, action)) in rules.into_iter().enumerate() {
        let tracked = |index: &Index| {
            let port = index.get(&host.ports);
            host.tracks_port(port).then_some(port.id)
        };
        let ports: Vec<PortId> = ports.iter().filter_map(tracked).collect();
        let is_egress = matches!(action, NatAction::Source(_))
            || (is_egress && !matches!(action, NatAction::Destination(_)) && !ports.is_empty());
        if !host.tracks() || (is_egress && ports.is_empty()) {
            continue;
        }
        let router = router.filter(|_| !host.routers.is_empty() && !is_egress);
        let local_to = router.map(|router| RouterId(router.index(host.routers.len()) as u16));
        let action = match action {
            NatAction::Source(source) => NatAction::Source(apart(source, &mut pools)),
            other => other,
        };
        let matches = matches_for(&action, is_egress, ports);
        let name = if is_named { format!("nat{n}") } else { String::new() };
        host.nat.push(NatRule { name, matches, local_to, action });
    }
    publish(host);
    host.add_implied_nat();
}

/// Equal pools are shared; others have no address in common.
fn apart(mut source: SourceNat, pools: &mut Vec<SourceNat>) -> SourceNat {
    let is_other = |known: &SourceNat| {
        known.addresses != NatAddresses::Interface
            && source.addresses != NatAddresses::Interface
            && known.is_v4() == source.is_v4()
            && (&known.addresses, known.ports, &known.allocation)
                != (&source.addresses, source.ports, &source.allocation)
    };
    if pools.iter().any(is_other) {
        let ports = PortRange::new(1024, 2999).unwrap();
        let addresses = NatAddresses::Interface;
        source = SourceNat { addresses, ports, allocation: PortAllocation::Any, ..source };
    }
    pools.push(source.clone());
    source
}

fn matches_for(action: &NatAction, is_egress: bool, ports: Vec<PortId>) -> Match {
    let (from, to) = if is_egress { (Vec::new(), ports) } else { (ports, Vec::new()) };
    let mut matches = Match { from, to, ..Match::default() };
    match action {
        NatAction::Network(network) => {
            let inside = if network.is_v4() { "10.1.2.0/24" } else { "fd00:1::/48" };
            let nets = if is_egress { &mut matches.source } else { &mut matches.destination };
            nets.push(inside.parse().unwrap());
        }
        NatAction::Destination(_) => matches.protocol = vec![IpProto::TCP, IpProto::UDP],
        NatAction::Keep | NatAction::Source(_) => {}
    }
    matches
}

/// Has containers publish ports, if a router can.
fn publish(host: &mut Host) {
    let texts = ["80:80", "8000-8010:9000-9010/udp", "[2001:db8::7]:443:443", "203.0.113.1:5000:5000/sctp"];
    let mut published = Vec::new();
    let containers = |port: &&PortConfig| port.kind.info().container().is_some();
    for (port, text) in host.ports.iter().filter(containers).zip(texts) {
        let publish = text.parse().unwrap();
        if host.reaches_for(port, &publish).next().is_some() {
            published.push((port.id, publish));
        }
    }
    for (id, publish) in published {
        host.ports.iter_mut().filter(|port| port.id == id).for_each(|port| port.policy.publish.push(publish));
    }
}
