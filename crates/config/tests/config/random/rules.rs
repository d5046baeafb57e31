// SPDX-License-Identifier: Apache-2.0
//! Random rules, and what ports do besides.

mod multicast;

use std::collections::{BTreeMap, BTreeSet};

use netvm_model::{
    AclDefault, Action, Actions, Bound, ChainId, Eviction, FlowCacheConfig, Forward, Guard, Host, Labels,
    LoadLimit, Masked, Match, NfConfig, Police, PolicyConfig, PortConfig, PortId, PortKind, PortPolicy,
    QosConfig, QueueConfig, QueueId, Rate, Rule, RuleId, RuleParts, SetVlan, Span, StormLimits, SwitchConfig,
    VlanMode, When,
};
use netvm_wire::{ConnState, EtherType, Fragment, IpNet, IpProto, MacAddr, PortRange, VlanId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A rule whose ports and chain are chosen later: named or not, from, to, what else, and what is done.
pub type RawRule = (bool, (Vec<Index>, Vec<Index>), Match, (u8, Index), RawBesides);
/// Tag, queue, mirror, policer.
type RawBesides = (Option<SetVlan>, Option<Index>, Option<Index>, Option<Police>);
/// What a port does, with its `forward` chosen later.
pub type RawPolicy = (PortPolicy, (u8, Index));

const MAC_BITS: u64 = (1 << 48) - 1;

/// `[switch]`, `[policy]`, `flow_cache`.
pub fn whole() -> impl Strategy<Value = (SwitchConfig, PolicyConfig, FlowCacheConfig)> {
    let numbers = (64u32..=1 << 20, 1u32..=86_400, 1u32..=1 << 20, 64u32..=1 << 24, 1u32..=86_400);
    let l2 = (0u32..=60, any::<bool>(), multicast::of_switch());
    (numbers, any::<bool>(), l2).prop_map(
        |((macs, mac_age, memory, entries, idle), lru, (mac_hold, forward_bpdu, multicast))| {
            let eviction = if lru { Eviction::Lru } else { Eviction::Clock };
            let switch = SwitchConfig { macs, mac_age, mac_hold, forward_bpdu, multicast };
            (switch, PolicyConfig { memory }, FlowCacheConfig { entries, eviction, idle })
        },
    )
}

fn vlan() -> impl Strategy<Value = VlanId> {
    (1u16..=4094).prop_map(|id| VlanId::new(id).unwrap())
}

fn span<T: Copy + Ord + std::fmt::Debug>(
    value: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Span<T>> {
    (value.clone(), value).prop_map(|(a, b)| Span { first: a.min(b), last: a.max(b) })
}

fn police() -> impl Strategy<Value = Police> {
    let rate = || (1u64..=1_000_000_000_000, 1u64..=1_000_000_000_000);
    let rate = move || rate().prop_map(|(per_second, burst)| Rate { per_second, burst });
    prop_oneof![
        rate().prop_map(|rate| Police { packets: Some(rate), bits: None }),
        rate().prop_map(|rate| Police { packets: None, bits: Some(rate) }),
        (rate(), rate()).prop_map(|(packets, bits)| Police { packets: Some(packets), bits: Some(bits) }),
    ]
}

fn guard() -> impl Strategy<Value = Guard> {
    let mac = any::<[u8; 5]>().prop_map(|[b, c, d, e, f]| MacAddr([2, b, c, d, e, f]));
    let nets = any::<bool>().prop_flat_map(|v6| vec(net(v6), 0..3));
    (vec(mac, 1..3), nets).prop_map(|(macs, addresses)| Guard { macs, addresses })
}

pub fn port_policy() -> impl Strategy<Value = RawPolicy> {
    let mode = prop_oneof![
        Just(VlanMode::Unaware),
        vlan().prop_map(VlanMode::Access),
        (vec(span(1u16..=4094), 1..4), option::of(vlan()))
            .prop_map(|(vlans, native)| VlanMode::Trunk { vlans, native }),
    ];
    let acl = || select(vec![AclDefault::Allow, AclDefault::Deny]);
    let limits = (option::of(police()), option::of(police()), option::of(qos()), any::<bool>());
    // Together they reserve no worker as a whole.
    let tracking = (any::<bool>(), prop_oneof![Just(0), any::<u16>()], labels());
    let limits = (limits, (1u16..=1000, 0u8..=9), tracking);
    let flooded = || 0u32..=100_000_000;
    let storm_control =
        (flooded(), flooded(), flooded()).prop_map(|(broadcast, multicast, unknown_unicast)| StormLimits {
            broadcast,
            multicast,
            unknown_unicast,
        });
    let snooping = mode.prop_flat_map(|mode| (multicast::of_port(mode.clone()), Just(mode)));
    let switched = (0u32..=1 << 20, storm_control);
    let rest = (switched, option::of("[A-Za-z0-9_-][A-Za-z0-9_.-]{0,31}"), option::of(guard()), limits);
    (snooping, (acl(), acl()), rest, (0u8..4, any::<Index>())).prop_map(
        |(
            (multicast, vlan),
            (acl_in, acl_out),
            (
                (mac_limit, storm_control),
                split_horizon,
                guard,
                ((police_in, police_out, qos, monitor), (weight, reserve), (track, zone, labels)),
            ),
            forward,
        )| {
            let policy = PortPolicy {
                forward: Forward::None,
                acl_in,
                acl_out,
                vlan,
                mac_limit,
                storm_control,
                multicast,
                split_horizon,
                guard,
                police_in,
                police_out,
                qos,
                track,
                zone,
                labels,
                publish: Vec::new(),
                monitor,
                weight,
                reserve,
            };
            (policy, forward)
        },
    )
}

fn labels() -> impl Strategy<Value = Labels> {
    vec(("[!-<>-~]{1,8}", "[!-~]{0,8}"), 0..3).prop_map(|all| {
        let mut labels = Labels::default();
        all.iter().for_each(|(key, value)| labels.insert(key, value).unwrap());
        labels
    })
}

fn qos() -> impl Strategy<Value = QosConfig> {
    // Queues of several ports often have one name.
    let name = prop_oneof![
        select(vec!["voice", "rest"]).prop_map(str::to_owned),
        "[A-Za-z0-9_-][A-Za-z0-9_.-]{0,31}"
    ];
    let queue = (name, vec(span(0u8..=63), 0..3), any::<bool>(), 1u16..=1000, 1u32..=65_536, 0u32..=10_000);
    let queue = queue.prop_map(|(name, dscp, priority, weight, packets, codel_ms)| {
        // The weight of a queue with priority is not written.
        let weight = if priority { 1 } else { weight };
        // `fill` gives it its id.
        QueueConfig { id: QueueId(0), name, dscp, priority, weight, packets, codel_ms }
    });
    // At least the longest frame.
    let bits = (8_000u64..=1_000_000_000_000, 600_000u64..=1_000_000_000_000)
        .prop_map(|(per_second, burst)| Rate { per_second, burst });
    (bits, vec(queue, 1..=16)).prop_map(|(bits, mut queues): (Rate, Vec<QueueConfig>)| {
        // No two of a port have one name.
        let mut names = BTreeSet::new();
        queues.retain(|queue| names.insert(queue.name.clone()));
        QosConfig { bits, queues }
    })
}

fn net(v6: bool) -> BoxedStrategy<IpNet> {
    let net = |address: std::net::IpAddr, length: u8| format!("{address}/{length}").parse().unwrap();
    if v6 {
        (any::<u128>(), 0u8..=128)
            .prop_map(move |(bits, length)| {
                let bits = bits.checked_shr(128 - u32::from(length)).unwrap_or(0);
                net(
                    std::net::Ipv6Addr::from(bits.checked_shl(128 - u32::from(length)).unwrap_or(0)).into(),
                    length,
                )
            })
            .boxed()
    } else {
        (any::<u32>(), 0u8..=32)
            .prop_map(move |(bits, length)| {
                let bits = bits.checked_shr(32 - u32::from(length)).unwrap_or(0);
                net(
                    std::net::Ipv4Addr::from(bits.checked_shl(32 - u32::from(length)).unwrap_or(0)).into(),
                    length,
                )
            })
            .boxed()
    }
}

fn set<T: std::fmt::Debug>(element: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    option::weighted(0.2, vec(element, 1..4)).prop_map(Option::unwrap_or_default)
}

fn tag() -> impl Strategy<Value = Span<u16>> {
    prop_oneof![Just(Span::single(0)), span(1u16..=4094)]
}

/// The fields of link, network and transport layer, each any; [`possible`] makes them fit each other.
fn matches() -> impl Strategy<Value = Match> {
    let mac = || {
        (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(value, mask, whole)| {
            Masked::<u64>::new(value & MAC_BITS, if whole { MAC_BITS } else { mask & MAC_BITS })
        })
    };
    let range =
        || (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap());
    let kinds = prop_oneof![
        Just(EtherType::ARP),
        Just(EtherType::IPV6),
        (EtherType::MIN..).prop_map(EtherType),
        Just(EtherType::LLC)
    ];
    let fragments = select(vec![Fragment::Whole, Fragment::First, Fragment::Later]);
    let flags = (any::<u8>(), 1u8..).prop_map(|(value, mask)| Masked::<u8>::new(value, mask));
    let link = (set(mac()), set(mac()), set(kinds), set(tag()), set(tag()));
    let network = any::<bool>().prop_flat_map(move |v6| (set(net(v6)), set(net(v6))));
    let states = select(ConnState::ALL.to_vec());
    let over = (set(any::<u8>().prop_map(IpProto)), set(span(0u8..=63)), set(fragments), set(states));
    let transport = (set(range()), set(range()), option::weighted(0.2, flags));
    let control = (set(span(any::<u8>())), set(span(any::<u8>())), set(span(any::<u16>())));
    (link, network, over, transport, control).prop_map(|(link, network, over, transport, control)| {
        possible(Match {
            from: Vec::new(),
            to: Vec::new(),
            source_mac: link.0,
            destination_mac: link.1,
            ether_type: link.2,
            vlan: link.3,
            inner_vlan: link.4,
            source: network.0,
            destination: network.1,
            protocol: over.0,
            source_ports: transport.0,
            destination_ports: transport.1,
            tcp_flags: transport.2,
            dscp: over.1,
            icmp_type: control.0,
            icmp_code: control.1,
            fragment: over.2,
            state: over.3,
            arp_operation: control.2,
        })
    })
}

/// Leaves out what the configuration refuses since no packet has it.
fn possible(mut matches: Match) -> Match {
    if !matches.arp_operation.is_empty() {
        matches.ether_type = vec![EtherType::ARP];
    }
    let is_ip = |kind: &EtherType| [EtherType::IPV4, EtherType::IPV6].contains(kind);
    if !matches.ether_type.is_empty() && !matches.ether_type.iter().any(is_ip) {
        let Match { source_mac, destination_mac, ether_type, vlan, inner_vlan, arp_operation, .. } = matches;
        let link = Match {
            source_mac,
            destination_mac,
            ether_type,
            vlan,
            inner_vlan,
            arp_operation,
            ..Match::default()
        };
        let is_arp = link.ether_type.contains(&EtherType::ARP);
        let (source, destination) = (matches.source, matches.destination);
        return if is_arp { Match { source, destination, ..link } } else { link };
    }
    if matches.tcp_flags.is_some() {
        matches.protocol = vec![IpProto::TCP];
        (matches.icmp_type, matches.icmp_code) = (Vec::new(), Vec::new());
    } else if !matches.icmp_type.is_empty() || !matches.icmp_code.is_empty() {
        matches.protocol = vec![IpProto::ICMP, IpProto::ICMPV6];
    }
    if !matches.protocol.is_empty() && !matches.protocol.iter().any(|protocol| protocol.has_ports()) {
        (matches.source_ports, matches.destination_ports) = (Vec::new(), Vec::new());
    }
    matches
}

pub fn rule() -> impl Strategy<Value = RawRule> {
    let ports = (vec(any::<Index>(), 0..3), option::weighted(0.2, vec(any::<Index>(), 1..3)));
    let tag = prop_oneof![Just(SetVlan::Strip), vlan().prop_map(SetVlan::Tag)];
    let index = || option::weighted(0.2, any::<Index>());
    let besides = (option::weighted(0.2, tag), index(), index(), option::weighted(0.2, police()));
    let ports = ports.prop_map(|(from, to)| (from, to.unwrap_or_default()));
    (any::<bool>(), ports, matches(), (0u8..7, any::<Index>()), besides)
}

/// Gives the ports what they do, and the host its rules.
pub fn fill(host: &mut Host, policies: Vec<RawPolicy>, rules: Vec<RawRule>) {
    let (ports, chains) = (host.ports.len(), host.chains.len());
    let port_at = |index: &Index| PortId(index.index(ports) as u16);
    let chain_at = |index: &Index| ChainId(index.index(chains) as u16);
    // They do not send back to the switch what they get from it.
    let is_bridge = |port: &PortConfig| port.kind == PortKind::Bridge;
    let bridges: Vec<PortId> = host.ports.iter().filter(|port| is_bridge(port)).map(|port| port.id).collect();
    for (port, (policy, (forward, index))) in host.ports.iter_mut().zip(policies) {
        let forward = match forward {
            0 => Forward::None,
            1 if is_bridge(port) => Forward::None,
            1 => Forward::Normal,
            2 => Forward::Port(port_at(&index)),
            // What the engine's own memory holds fits every buffer.
            _ => Forward::Chain(chain_at(&index)),
        };
        if policy.qos.is_some() {
            port.queues = 1;
        }
        port.policy = PortPolicy { forward, ..policy };
    }
    let queues = number_queues(host);
    for (n, (named, (from, to), matches, (terminal, index), (set_vlan, queue, mirror, police))) in
        (0..).zip(rules)
    {
        let is_egress = !to.is_empty();
        let is_of_bridge = from.iter().any(|index| bridges.contains(&port_at(index)));
        let terminal = match terminal {
            0 => None,
            1 => Some(Action::Allow),
            2 => Some(Action::Drop),
            3 => Some(Action::Reject),
            _ if is_egress => None,
            4 if !is_of_bridge => Some(Action::Normal),
            5 => Some(Action::Port(port_at(&index))),
            _ => Some(Action::Chain(chain_at(&index))),
        };
        let matches = Match {
            from: from.iter().map(port_at).collect(),
            to: to.iter().map(port_at).collect(),
            ..matches
        };
        let mirror = mirror.as_ref().map(port_at);
        let queue = queue.filter(|_| queues > 0).map(|index| QueueId(index.index(queues) as u8));
        // Unless a port does not track: `connections::fill`.
        let syn_proxy = named && terminal == Some(Action::Allow) && !is_egress;
        let actions = Actions { terminal, set_vlan, queue, mirror, police, syn_proxy };
        let name = if named { format!("rule{n}") } else { String::new() };
        let id = RuleId(host.rules.len() as u32);
        let mut rule = Rule::from(RuleParts { id, name, matches, actions });
        rule.set_when(when(n, host));
        host.rules.push(rule);
    }
}

/// When the rule of this number applies: of most, always.
fn when(n: u32, host: &Host) -> When {
    let texts = ["Mon-Fri 08:00-18:00", "Sat,Sun UTC", "22:00-06:00"];
    let times = texts.iter().take((n % 7).saturating_sub(3) as usize).filter_map(|text| text.parse().ok());
    let bound = if n.is_multiple_of(2) { Bound::Above(60) } else { Bound::Below(20) };
    let until = if n.is_multiple_of(3) { bound.usual_end() } else { 40 };
    let load = |nf: &NfConfig| LoadLimit { role: nf.id, bound, until, seconds: 1 };
    When { times: times.collect(), load: host.nfs.first().filter(|_| n % 5 == 4).map(load) }
}

/// Numbers the names of queues in their order. Returns how many there are.
fn number_queues(host: &mut Host) -> usize {
    let mut known = BTreeMap::new();
    for queue in host.ports.iter_mut().flat_map(|port| &mut port.policy.qos).flat_map(|qos| &mut qos.queues) {
        let next = QueueId(known.len() as u8);
        queue.id = *known.entry(queue.name.clone()).or_insert(next);
    }
    known.len()
}
