// SPDX-License-Identifier: Apache-2.0
//! Random hosts with every legal value of every key.

mod connections;
mod nat;
mod properties;
mod routers;
mod rules;
mod tunnels;
mod vms;

use netvm_model::{
    Balance, BondConfig, CardModel, Chain, ChainId, ContainerConfig, DaemonLoss, Doorbells, EngineConfig,
    FastPath, Group, GroupId, Host, HostConfig, Idle, KeyValue, KindInfo, MemifConfig, MemifRole, NfConfig,
    NfLimits, NfStart, OnFailure, Output, PortConfig, PortId, PortKind, PortPolicy, RoleId, Scale,
    SocketRights, SourceConfig, SteerTo, VhostDma, VhostMode,
};
use netvm_wire::{MacAddr, VlanId};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const SUFFIX: &str = "[A-Za-z0-9_.-]{0,6}";
/// Texts that need care in TOML.
const TEXT: &str = "[ -~é\t\n\"'\\\\]{0,12}";

/// Name, buffers, buffer size, headroom, large buffers, ports it may send to.
type RawGroup = (String, u32, u32, u16, u32, Option<Vec<Index>>);

fn container() -> impl Strategy<Value = ContainerConfig> {
    let namespace = select(vec!["web", "1234", "/var/run/docker/netns/0a1b"]);
    let mac = option::of(any::<[u8; 4]>().prop_map(|[a, b, c, d]| MacAddr([2, a, b, c, d, 9])));
    let addresses = select(vec![vec![], vec!["10.0.0.5/24"], vec!["10.0.0.5/24", "fd00::5/64"]]);
    let gateways = select(vec![vec![], vec!["10.0.0.1"], vec!["fe80::1", "10.0.0.1"]]);
    let fast_path = select(vec![FastPath::Off, FastPath::Auto, FastPath::On]);
    let continues = any::<bool>();
    let all = (namespace, mac, addresses, gateways, fast_path, continues);
    all.prop_map(|(namespace, mac, addresses, gateways, fast_path, continues)| ContainerConfig {
        fast_path,
        on_daemon_loss: match continues && fast_path != FastPath::Off {
            true => DaemonLoss::Continue,
            false => DaemonLoss::Stop,
        },
        namespace: namespace.to_owned(),
        interface: String::new(),
        mac,
        gateways: if addresses.is_empty() { vec![] } else { gateways }
            .iter()
            .map(|gateway| gateway.parse().unwrap())
            .collect(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ..ContainerConfig::default()
    })
}

fn host_interface() -> impl Strategy<Value = HostConfig> {
    container().prop_map(|ContainerConfig { interface, mac, addresses, gateways, fast_path, .. }| {
        HostConfig { interface, mac, addresses, gateways, fast_path }
    })
}

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
                ..EngineConfig::default()
            }
        },
    )
}

/// Buffers in which every frame of [`port`] fits.
fn group() -> impl Strategy<Value = RawGroup> {
    let ports = option::of(vec(any::<Index>(), 0..3));
    (SUFFIX, 1u32..=1 << 23, 160u32..=1023, 0u16..=512, 0u32..=8192, ports).prop_map(
        |(name, buffers, size, headroom, large, ports)| (name, buffers, size * 64, headroom, large, ports),
    )
}

fn kind() -> impl Strategy<Value = PortKind> {
    let source = (
        60u16..=9014,
        1u32..=1 << 24,
        option::of((1u64..=i64::MAX as u64, 1u16..)),
        any::<bool>(),
        option::of(1u64..1000),
    );
    let path = || option::of("[a-z/.]{1,9}");
    // Every interface, address and file is made unique later.
    prop_oneof![
        any::<bool>().prop_map(|generic| PortKind::AfXdp { interface: String::new(), generic }),
        Just(PortKind::AfPacket { interface: String::new() }),
        Just(PortKind::Tap { interface: String::new() }),
        container().prop_map(PortKind::Container),
        host_interface().prop_map(PortKind::Host),
        Just(PortKind::Pci { address: String::new() }),
        (
            prop_oneof![Just(VhostMode::Server), Just(VhostMode::Client)],
            prop_oneof![
                Just(VhostDma::Off),
                Just(VhostDma::Auto),
                "wq[0-9]\\.[0-9]".prop_map(VhostDma::Device)
            ]
        )
            .prop_map(|(mode, dma)| PortKind::VhostUser { path: Default::default(), mode, dma }),
        (
            option::of((0u8..).prop_map(|last| MacAddr([2, 0, 0, 0, 1, last]))),
            prop_oneof![Just(CardModel::E1000), Just(CardModel::E1000e)],
            prop_oneof![Just(Doorbells::Auto), Just(Doorbells::Mapped), Just(Doorbells::Posted)],
        )
            .prop_map(|(mac, model, doorbells)| PortKind::E1000 {
                path: Default::default(),
                mac,
                model,
                doorbells
            }),
        (any::<bool>(), any::<u32>(), option::of("[!-~]{1,24}"), 1u32..=14, 256u32..=32_768).prop_map(
            |(is_client, id, secret, log2, buffer_size)| {
                let role = if is_client { MemifRole::Client } else { MemifRole::Server };
                let path = Default::default();
                PortKind::Memif(MemifConfig { path, role, id, secret, ring_size: 1 << log2, buffer_size })
            }
        ),
        (path(), any::<bool>(), any::<bool>()).prop_map(|(input, output, paced)| PortKind::Pcap {
            output: (output || input.is_none()).then(Default::default),
            input: input.map(Into::into),
            paced,
        }),
        (60u16..=9014).prop_map(|size| PortKind::Null { size }),
        source.prop_map(|(size, flows, pace, lossless, count)| {
            let (rate, burst) = pace.map_or((None, 1), |(rate, burst)| (Some(rate), burst));
            PortKind::Source(SourceConfig { size, flows, rate, burst, lossless, count })
        }),
        Just(PortKind::Sink),
        Just(PortKind::Bridge),
        tunnels::vxlan(),
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
                scale: None,
                standby,
                cores: cores.into_iter().collect(),
                environment: environment.into_iter().collect(),
                threads,
                limits: NfLimits {
                    memory: 16 + u32::from(threads),
                    writable: vec!["/a".into()],
                    ..NfLimits::default()
                },
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

prop_compose! {
    /// Any host that a file can say.
    pub fn host()(
        engine in engine(),
        groups in vec(group(), 1..4),
        ports in vec(port(), 1..8),
        nfs in vec(nf(), 1..6),
        chains in vec(chain(), 1..6),
        policies in vec(rules::port_policy(), 8),
        whole in rules::whole(),
        list in vec(rules::rule(), 0..12),
        machines in vec(vms::machine(), 0..4),
        routers in vec(routers::router(), 0..3),
        connections in connections::connections(),
        translated in nat::translated(),
    ) -> Host {
        let mut host = Host { engine, ..build(&groups, ports, nfs, chains) };
        (host.switch, host.policy, host.engine.flow_cache) = whole;
        rules::fill(&mut host, policies, list);
        vms::fill(&mut host, machines);
        tunnels::make_room(&mut host, routers.len());
        routers::fill(&mut host, routers);
        tunnels::fill(&mut host);
        host.engine.connections = connections;
        nat::translate(&mut host, &translated);
        connections::fill(&mut host);
        nat::fill(&mut host, translated);
        routers::place_punts(&mut host);
        host
    }
}

/// Makes two sinks the ends of a link, a third one a port for a tag, and a fifth one a bond of the fourth.
fn join_sinks(ports: &mut [PortConfig]) {
    let parent = ports.iter().find(|port| port.kind != PortKind::Sink).map(|port| port.id);
    let mut sinks: Vec<&mut PortConfig> =
        ports.iter_mut().filter(|port| port.kind == PortKind::Sink).collect();
    if let [one, other, ..] = &mut sinks[..] {
        (one.kind, other.kind) = (PortKind::Patch { peer: other.id }, PortKind::Patch { peer: one.id });
        (one.queues, other.queues) = (1, 1);
    }
    if let [_, _, _, member, bond, ..] = &mut sinks[..] {
        (bond.kind, bond.queues) =
            (PortKind::Bond(BondConfig { members: vec![member.id], ..BondConfig::default() }), 1);
        bond.mtu = member.mtu;
    }
    if let (Some(third), Some(parent)) = (sinks.get_mut(2), parent) {
        (third.kind, third.queues) = (PortKind::Vlan { parent, tag: VlanId::DEFAULT }, 1);
    }
}

type Named<T> = Vec<(String, Vec<Index>, T, Option<Option<Index>>)>;

fn build(
    groups: &[RawGroup],
    ports: Vec<(String, PortKind, u16, u16, Option<Index>)>,
    nfs: Vec<(String, Index, bool, NfStart)>,
    chains: Named<OnFailure>,
) -> Host {
    let (group_count, port_count, nf_count) = (groups.len(), ports.len(), nfs.len());
    let group_at = |index: &Index| GroupId(index.index(group_count) as u16);
    let port_at = |index: &Index| PortId(index.index(port_count) as u16);
    let mut host = Host::default();
    for (n, (name, buffers, buffer_size, headroom, large_buffers, ports)) in (0..).zip(groups) {
        let may_send_to = ports.as_ref().map(|ports| ports.iter().map(port_at).collect());
        let (buffers, buffer_size, headroom, large_buffers) =
            (*buffers, *buffer_size, *headroom, *large_buffers);
        host.groups.push(Group {
            id: GroupId(n),
            name: format!("g{n}{name}"),
            buffers,
            buffer_size,
            headroom,
            large_buffers,
            may_send_to,
        });
    }
    for (n, (name, mut kind, mut queues, mut mtu, group)) in (0..).zip(ports) {
        for key in kind.own_keys() {
            match key.value {
                KeyValue::PciAddress(address) => *address = format!("0000:{n:02x}:1f.{}", n % 8),
                KeyValue::Interface(interface) => *interface = format!("if{n}"),
                KeyValue::Socket(path) => *path = format!("/run/guest {n}.sock").into(),
                KeyValue::Captures(_, Some(output)) => *output = format!("out {n}.pcap").into(),
                _ => {}
            }
        }
        let KindInfo { needed_mtu, one_queue, .. } = kind.info();
        mtu = mtu.max(needed_mtu);
        if one_queue.is_some() {
            queues = 1;
        }
        let mut socket = SocketRights::default();
        if kind.own_socket().is_some() {
            socket.mode = [None, Some(0o660), Some(0o7)][usize::from(mtu) % 3];
        }
        // The socket of a VM's port belongs to the VM's user, and VMs have vhost-user ports here.
        if matches!(kind, PortKind::E1000 { .. }) {
            let owner = [None, Some("qemu"), Some("64055:kvm"), Some(":kvm")][usize::from(mtu) % 4];
            socket.owner = owner.map(str::to_owned);
        }
        // What the engine's own memory would not hold has a group.
        let group = group.as_ref().map(group_at).or((mtu > 1778).then_some(GroupId(0)));
        let worker = (n % 3 == 0).then_some(0);
        host.ports.push(PortConfig {
            id: PortId(n),
            name: format!("p{n}{name}"),
            kind,
            queues,
            worker,
            node: None,
            mtu,
            gro: mtu % 2 == 1,
            group,
            socket,
            policy: PortPolicy::default(),
        });
    }
    join_sinks(&mut host.ports);
    for (n, (role, group, hash, start)) in (0..).zip(nfs) {
        let balance = [Balance::LeastOccupied, Balance::FlowHash, Balance::Sticky]
            [usize::from(hash) * (1 + n as usize % 2)];
        host.nfs.push(NfConfig {
            id: RoleId(n),
            role: format!("r{n}{role}"),
            group: group_at(&group),
            balance,
            flow_verdicts: u16::from(hash) * (n + 1),
            steer: Vec::new(),
            hang_timeout: 1 + u16::from(hash) * n,
            allocate: 200 + 56 * (n % 3),
            hold: u16::from(hash) * n,
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
            Some(None) if n % 2 == 0 => Output::Ingress,
            Some(None) => Output::Normal,
            Some(Some(index)) => Output::Port(port_at(&index)),
        };
        let (id, name, reverse) = (ChainId(n), format!("c{n}{name}"), None);
        host.chains.push(Chain { id, name, hops, on_failure, output, reverse });
    }
    // Their number follows their load.
    for nf in host.nfs.iter_mut().filter(|nf| nf.balance == Balance::Sticky) {
        if let NfStart::Managed { replicas, scale, standby: 0, threads: 1..=2, .. } = &mut nf.start {
            let most = *replicas + 1;
            *scale =
                Some(Scale { most, grow_above: 50 + most as u8, shrink_below: 9, seconds: 3, drain: most });
        }
    }
    let chain = host.chains.first().map(|chain| SteerTo::Chain(chain.id));
    for nf in host.nfs.iter_mut().filter(|nf| nf.flow_verdicts > 0) {
        nf.steer.extend(chain);
        // A role of the same group.
        nf.steer.extend([SteerTo::Port(PortId(0)), SteerTo::Role(nf.id)]);
    }
    host
}
