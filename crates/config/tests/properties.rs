//! What holds for every legal host: its TOML form gives it back, numbers stay, plans say everything.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

use netvm_config::model::{
    Balance, Chain, ChainId, EngineConfig, Group, GroupId, Host, Idle, MAX_PORTS, Match, NfConfig, NfStart,
    OnFailure, Output, PortConfig, PortId, PortKind, RoleId, SourceConfig, Steer, SteerAction,
};
use netvm_config::{Action, assign_ids, parse, plan};
use netvm_wire::{IpNet, IpProto, PortRange, VlanId};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const SUFFIX: &str = "[A-Za-z0-9_.-]{0,6}";
/// Texts that need care in TOML.
const TEXT: &str = "[ -~é\t\n\"'\\\\]{0,12}";

/// Name, cells, cell size, headroom, ports it may send to.
type RawGroup = (String, u32, u32, u16, Option<Vec<Index>>);

fn engine() -> impl Strategy<Value = EngineConfig> {
    let cores = btree_set(0u32..64, 0..5).prop_map(Vec::from_iter).prop_shuffle();
    (cores, any::<bool>(), any::<bool>(), any::<bool>(), 4u32..=16).prop_map(
        |(cores, poll, huge, split, size)| {
            let (even, odd) = cores.iter().partition(|core| *core % 2 == 0);
            EngineConfig {
                idle: if poll { Idle::Poll } else { Idle::Adaptive },
                huge_pages: huge,
                nodes: if split { vec![even, odd] } else { Vec::new() },
                ring_size: 1 << size,
                cores,
            }
        },
    )
}

/// Cells in which every frame of [`port`] fits.
fn group() -> impl Strategy<Value = RawGroup> {
    let ports = option::of(vec(any::<Index>(), 0..3));
    (SUFFIX, 1u32..=1 << 24, 160u32..=1023, 0u16..=512, ports)
        .prop_map(|(name, cells, size, headroom, ports)| (name, cells, size * 64, headroom, ports))
}

fn kind() -> impl Strategy<Value = PortKind> {
    let source = (
        60u16..=9014,
        1u32..=1 << 24,
        option::of(1u64..=i64::MAX as u64),
        any::<bool>(),
        option::of(1u64..1000),
    );
    let path = || option::of("[a-z/.]{1,9}");
    // Every interface, address and file is made unique later.
    prop_oneof![
        any::<bool>().prop_map(|generic| PortKind::AfXdp { interface: String::new(), generic }),
        Just(PortKind::AfPacket { interface: String::new() }),
        Just(PortKind::Tap { interface: String::new() }),
        Just(PortKind::Pci { address: String::new() }),
        (path(), any::<bool>(), any::<bool>()).prop_map(|(input, output, paced)| PortKind::Pcap {
            output: (output || input.is_none()).then(Default::default),
            input: input.map(Into::into),
            paced,
        }),
        (60u16..=9014).prop_map(|size| PortKind::Null { size }),
        source.prop_map(|(size, flows, rate, lossless, count)| {
            PortKind::Source(SourceConfig { size, flows, rate, lossless, count })
        }),
        Just(PortKind::Sink),
    ]
}

fn port() -> impl Strategy<Value = (String, PortKind, u16, u16, Option<Index>)> {
    (SUFFIX, kind(), 1u16..=32, 68u16..=9000, option::of(any::<Index>()))
}

fn start() -> impl Strategy<Value = NfStart> {
    let managed = (
        vec(TEXT, 0..3),
        "[a-z0-9_.-]{1,32}",
        (1u16..=2, 0u16..=1, 1u16..=4),
        btree_set(0u32..64, 0..4),
        vec((TEXT, TEXT), 0..3),
    );
    prop_oneof![
        managed.prop_map(|(arguments, user, (replicas, standby, threads), cores, variables)| {
            let names =
                variables.into_iter().map(|(name, value)| (format!("V{}", name.replace('=', "")), value));
            let environment: std::collections::BTreeMap<_, _> = names.collect();
            NfStart::Managed {
                command: std::iter::once("program".to_owned()).chain(arguments).collect(),
                user,
                replicas,
                standby,
                cores: cores.into_iter().collect(),
                environment: environment.into_iter().collect(),
                threads,
            }
        }),
        vec("[a-z0-9]{1,8}", 0..3).prop_map(|users| NfStart::External { users }),
    ]
}

fn nf() -> impl Strategy<Value = (String, Index, bool, NfStart)> {
    (SUFFIX, any::<Index>(), any::<bool>(), start())
}

fn chain() -> impl Strategy<Value = (String, Vec<Index>, OnFailure, Option<Option<Index>>)> {
    let policies = select(vec![OnFailure::Drop, OnFailure::Bypass, OnFailure::Standby]);
    (SUFFIX, vec(any::<Index>(), 1..=16), policies, option::of(option::of(any::<Index>())))
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

fn matches() -> impl Strategy<Value = Match> {
    let range =
        || (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap());
    any::<bool>().prop_flat_map(move |v6| {
        let nets = (option::of(net(v6)), option::of(net(v6)));
        let ports = (option::of(range()), option::of(range()));
        (option::of(1u16..=4094), nets, option::of(any::<u8>()), ports).prop_map(
            |(vlan, nets, protocol, ports)| {
                let protocol = protocol.map(IpProto);
                let has_ports = protocol.is_none_or(IpProto::has_ports);
                Match {
                    vlan: vlan.map(|vlan| VlanId::new(vlan).unwrap()),
                    source: nets.0,
                    destination: nets.1,
                    protocol,
                    source_ports: ports.0.filter(|_| has_ports),
                    destination_ports: ports.1.filter(|_| has_ports),
                }
            },
        )
    })
}

fn steer() -> impl Strategy<Value = (Index, Match, u8, Index)> {
    (any::<Index>(), matches(), 0u8..3, any::<Index>())
}

prop_compose! {
    fn host()(
        engine in engine(),
        groups in vec(group(), 1..4),
        ports in vec(port(), 1..8),
        nfs in vec(nf(), 1..6),
        chains in vec(chain(), 1..6),
        steering in vec(steer(), 0..8),
    ) -> Host {
        build(engine, &groups, ports, nfs, chains, steering)
    }
}

type Named<T> = Vec<(String, Vec<Index>, T, Option<Option<Index>>)>;

fn build(
    engine: EngineConfig,
    groups: &[RawGroup],
    ports: Vec<(String, PortKind, u16, u16, Option<Index>)>,
    nfs: Vec<(String, Index, bool, NfStart)>,
    chains: Named<OnFailure>,
    steering: Vec<(Index, Match, u8, Index)>,
) -> Host {
    let (group_count, port_count, nf_count, chain_count) =
        (groups.len(), ports.len(), nfs.len(), chains.len());
    let group_at = |index: &Index| GroupId(index.index(group_count) as u16);
    let port_at = |index: &Index| PortId(index.index(port_count) as u16);
    let mut host = Host { engine, ..Host::default() };
    for (n, (name, cells, cell_size, headroom, ports)) in (0..).zip(groups) {
        let may_send_to = ports.as_ref().map(|ports| ports.iter().map(port_at).collect());
        let (cells, cell_size, headroom) = (*cells, *cell_size, *headroom);
        host.groups.push(Group {
            id: GroupId(n),
            name: format!("g{n}{name}"),
            cells,
            cell_size,
            headroom,
            may_send_to,
        });
    }
    for (n, (name, mut kind, mut queues, mut mtu, group)) in (0..).zip(ports) {
        match &mut kind {
            PortKind::AfXdp { interface, .. }
            | PortKind::AfPacket { interface }
            | PortKind::Tap { interface } => {
                *interface = format!("if{n}");
            }
            PortKind::Pci { address } => *address = format!("0000:{n:02x}:1f.{}", n % 8),
            PortKind::Pcap { output, .. } => {
                queues = 1;
                if let Some(output) = output {
                    *output = format!("out {n}.pcap").into();
                }
            }
            PortKind::Null { size } => mtu = mtu.max(*size - 14),
            PortKind::Source(source) => mtu = mtu.max(source.size - 14),
            PortKind::Sink => {}
        }
        // What the engine's own memory would not hold has a group.
        let group = group.as_ref().map(group_at).or((mtu > 1778).then_some(GroupId(0)));
        host.ports.push(PortConfig { id: PortId(n), name: format!("p{n}{name}"), kind, queues, mtu, group });
    }
    for (n, (role, group, hash, start)) in (0..).zip(nfs) {
        let balance = if hash { Balance::FlowHash } else { Balance::LeastOccupied };
        host.nfs.push(NfConfig {
            id: RoleId(n),
            role: format!("r{n}{role}"),
            group: group_at(&group),
            balance,
            start,
        });
    }
    for (n, (name, hops, mut on_failure, output)) in (0..).zip(chains) {
        let hops: Vec<RoleId> = hops.iter().map(|index| RoleId(index.index(nf_count) as u16)).collect();
        let waits =
            |role: &RoleId| matches!(host.nf(*role).unwrap().start, NfStart::Managed { standby: 1.., .. });
        if on_failure == OnFailure::Standby && !hops.iter().any(waits) {
            on_failure = OnFailure::Drop;
        }
        let output = match output {
            None => Output::None,
            Some(None) => Output::Ingress,
            Some(Some(index)) => Output::Port(port_at(&index)),
        };
        host.chains.push(Chain { id: ChainId(n), name: format!("c{n}{name}"), hops, on_failure, output });
    }
    for (port, matches, action, index) in steering {
        let port = port_at(&port);
        let action = match action {
            0 => SteerAction::Chain(ChainId(index.index(chain_count) as u16)),
            1 => SteerAction::Port(port_at(&index)),
            _ => SteerAction::Drop,
        };
        if !host.steering.iter().any(|rule| rule.port == port && rule.matches == matches) {
            host.steering.push(Steer { port, matches, action });
        }
    }
    host
}

fn names(host: &Host) -> [Vec<(&str, u16)>; 4] {
    [
        host.groups.iter().map(|item| (item.name.as_str(), item.id.0)).collect(),
        host.ports.iter().map(|item| (item.name.as_str(), item.id.0)).collect(),
        host.nfs.iter().map(|item| (item.role.as_str(), item.id.0)).collect(),
        host.chains.iter().map(|item| (item.name.as_str(), item.id.0)).collect(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is written: it is read or refused, and what is said about it can be drawn.
    #[test]
    fn no_text_is_too_strange(
        host in host(),
        cuts in vec((any::<Index>(), 0usize..12, "[ -~é\n]{0,4}"), 1..4),
    ) {
        let mut text = host.to_toml();
        for (at, length, instead) in cuts {
            let chars: Vec<(usize, char)> = text.char_indices().collect();
            let first = at.index(chars.len());
            let last = (first + length).min(chars.len() - 1);
            text.replace_range(chars[first].0..chars[last].0, &instead);
        }
        let found = match parse("host.toml", &text) {
            Ok(loaded) => loaded.warnings,
            Err(error) => {
                prop_assert!(error.findings().iter().any(|finding| !finding.is_warning()));
                error.findings().to_vec()
            }
        };
        for finding in found {
            let drawn = finding.render(false);
            prop_assert!(drawn.contains(&format!("[host.toml:{}:", finding.position().0)), "{drawn}\n{text}");
        }
    }

    #[test]
    fn the_toml_form_gives_the_host_back(host in host()) {
        let text = host.to_toml();
        match parse("host.toml", &text) {
            Ok(loaded) => prop_assert_eq!(loaded.host, host),
            Err(error) => prop_assert!(false, "{text}\n{}", error.render(false)),
        }
    }

    #[test]
    fn numbers_stay_and_references_follow(old in host(), new in host()) {
        let mut numbered = new.clone();
        assign_ids(&mut numbered, Some(&old));
        // By name nothing has changed.
        prop_assert_eq!(numbered.to_toml(), new.to_toml());
        for (before, after) in names(&old).iter().zip(names(&numbered)) {
            let used: BTreeSet<u16> = before.iter().map(|(_, id)| *id).collect();
            let distinct: BTreeSet<u16> = after.iter().map(|(_, id)| *id).collect();
            prop_assert_eq!(distinct.len(), after.len());
            for (name, id) in after {
                match before.iter().find(|(known, _)| *known == name) {
                    Some((_, kept)) => prop_assert_eq!(id, *kept),
                    None => prop_assert!(!used.contains(&id)),
                }
            }
        }
        // And back again.
        assign_ids(&mut numbered, None);
        prop_assert_eq!(numbered, new);
    }

    #[test]
    fn a_plan_is_empty_only_for_the_same_host(old in host(), new in host()) {
        prop_assert!(plan(&old, &old).is_empty());
        let mut renumbered = old.clone();
        assign_ids(&mut renumbered, Some(&new));
        prop_assert!(plan(&old, &renumbered).is_empty());
        let (forth, back) = (plan(&old, &new), plan(&new, &old));
        prop_assert_eq!(forth.is_empty(), old.to_toml() == new.to_toml());
        let count = |plan: &netvm_config::Plan, action| plan.changes.iter().filter(|change| change.action == action).count();
        prop_assert_eq!(count(&forth, Action::Add), count(&back, Action::Remove));
        prop_assert_eq!(count(&forth, Action::Change), count(&back, Action::Change));
        let memory = |group: &Group| (group.cells, group.cell_size, group.headroom);
        let same_memory =
            |group: &Group| new.group_named(&group.name).is_none_or(|other| memory(other) == memory(group));
        let live = old.engine == new.engine && old.groups.iter().all(same_memory);
        prop_assert_eq!(forth.needs_restart(), !live);
        prop_assert_eq!(serde_json::from_str::<netvm_config::Plan>(&serde_json::to_string(&forth).unwrap()).unwrap(), forth);
    }
}

#[test]
fn freed_numbers_are_used_again_when_nothing_else_is_left() {
    let host = |names: &mut dyn Iterator<Item = String>| {
        let port = |(id, name)| PortConfig {
            id: PortId(id),
            name,
            kind: PortKind::Sink,
            queues: 1,
            mtu: 1500,
            group: None,
        };
        Host { ports: (0..).zip(names).map(port).collect(), ..Host::default() }
    };
    let old = host(&mut (0..MAX_PORTS).map(|n| format!("old{n}")));
    let mut new =
        host(&mut (0..MAX_PORTS).map(|n| if n % 2 == 0 { format!("new{n}") } else { format!("old{n}") }));
    assign_ids(&mut new, Some(&old));
    let ids: BTreeSet<u16> = new.ports.iter().map(|port| port.id.0).collect();
    assert_eq!(ids, (0..MAX_PORTS as u16).collect());
    assert_eq!(new.port_named("old7").unwrap().id, PortId(7));
}
