// SPDX-License-Identifier: Apache-2.0
//! Ports, NFs, chains, groups and workers, with their counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use netvm_api::{
    BondInfo, BondMemberInfo, ChainInfo, ChainState, ConnectionCounts, Drops, FlowMonitorInfo, GroupInfo,
    Idle, NatTargetInfo, NfInfo, PortInfo, PortWorkerInfo, Reasons, RegionInfo, RouterShareInfo, ShareInfo,
    StageInfo, Stats, TunnelInfo, TxQueueInfo, WorkerInfo,
};
use netvm_clock as clock;
use netvm_counters::filled;
use netvm_engine::{
    BondMemberView, BondView, ChainView, DropCounts, DropReason, GroupView, InstanceView, PortId, PortView,
    PortWorker, ProgramView, PuntCounts, PuntReason, QueueView, RoleTotals, RouterView, StageView,
    WorkerView,
};
use netvm_model::{self as model, Chain, Host, OnFailure, Output, PortConfig, RouterConfig, VxlanConfig};

use super::{Failure, nfs};
use crate::daemon::{ConnectionEvents, Daemon, LogCounts};
use crate::process::cores::node_of;
use crate::routers::TargetView;

type Answer<T> = Result<Json<T>, Failure>;

/// A consistent snapshot of the engine's views.
pub(super) struct Views {
    pub(super) host: Arc<Host>,
    /// The owners of ports beside the configuration file, by the names of the ports.
    pub(super) owners: BTreeMap<String, String>,
    pub(super) ports: Vec<PortView>,
    pub(super) chains: Vec<ChainView>,
    pub(super) instances: Vec<InstanceView>,
    pub(super) programs: Vec<ProgramView>,
    pub(super) roles: BTreeMap<String, RoleTotals>,
    pub(super) groups: Vec<GroupView>,
    pub(super) workers: Vec<WorkerView>,
    pub(super) stages: Vec<StageView>,
    pub(super) routers: Vec<RouterView>,
    pub(super) punts: BTreeMap<PortId, [PuntCounts; PuntReason::COUNT]>,
    pub(super) monitor: Option<FlowMonitorInfo>,
    pub(super) connections: Option<ConnectionCounts>,
}

pub(super) async fn views(daemon: &Daemon) -> Result<Views, Failure> {
    let log = daemon.statistics().connections().clone();
    let live = daemon.configuration().live().all().ports.into_iter();
    let owners = live.filter(|port| port.problem.is_none()).map(|port| (port.port, port.owner)).collect();
    let read = move |engine: &mut netvm_engine::Engine| Views {
        host: engine.shared_host(),
        owners,
        ports: engine.ports(),
        chains: engine.chains(),
        instances: engine.instances(),
        programs: engine.programs(),
        roles: engine.role_totals(),
        groups: engine.groups(),
        workers: engine.workers().collect(),
        stages: engine.stages(),
        routers: engine.routers(),
        punts: engine.punt_counts(),
        monitor: monitor(engine),
        connections: connection_counts(engine, &log),
    };
    let mut views = daemon.engine().call(read).await?;
    if let (Some(info), Some(exporter)) = (&mut views.monitor, daemon.statistics().flows()) {
        let totals = exporter.totals();
        (info.exported, info.unexported, info.is_collector_away) =
            (totals.exported, totals.lost, totals.is_away);
    }
    Ok(views)
}

/// The counters of the workers' flow monitors, if there are any.
fn monitor(engine: &netvm_engine::Engine) -> Option<FlowMonitorInfo> {
    engine.host().engine.flow_monitor.as_ref()?;
    let counts = engine.monitor_counts();
    Some(netvm_counters::monitor!(filled! { FlowMonitorInfo from counts { ..FlowMonitorInfo::default() } }))
}

/// What the workers have counted of connections, if any are tracked.
pub(super) fn connection_counts(
    engine: &netvm_engine::Engine,
    log: &ConnectionEvents,
) -> Option<ConnectionCounts> {
    let host = engine.host();
    if !host.tracks() {
        return None;
    }
    let counts = engine.connection_counts();
    let limit = u64::from(host.engine.connections.limit) * engine.workers().count() as u64;
    let LogCounts { lines: log_lines, lost: log_lost, nat_events, nat_events_lost } = log.counts();
    Some(netvm_counters::connections!(
        filled! { ConnectionCounts from counts { log_lines, log_lost, nat_events, nat_events_lost, limit } }
    ))
}

pub(super) async fn ports(State(daemon): State<Arc<Daemon>>) -> Answer<Vec<PortInfo>> {
    Ok(Json(port_infos(&views(&daemon).await?)))
}

pub(super) async fn nfs(State(daemon): State<Arc<Daemon>>) -> Answer<Vec<NfInfo>> {
    Ok(Json(nf_infos(&daemon, &views(&daemon).await?)))
}

pub(super) async fn chains(State(daemon): State<Arc<Daemon>>) -> Answer<Vec<ChainInfo>> {
    let views = views(&daemon).await?;
    Ok(Json(chain_infos(&views, &nf_infos(&daemon, &views))))
}

pub(super) async fn groups(State(daemon): State<Arc<Daemon>>) -> Answer<Vec<GroupInfo>> {
    Ok(Json(group_infos(&daemon, &views(&daemon).await?)))
}

pub(super) async fn stats(State(daemon): State<Arc<Daemon>>) -> Answer<Stats> {
    let views = views(&daemon).await?;
    Ok(Json(stats_of(&daemon, &views)))
}

/// All counters.
pub(super) fn stats_of(daemon: &Daemon, views: &Views) -> Stats {
    let nfs = nf_infos(daemon, views);
    Stats {
        uptime_s: daemon.statistics().uptime().as_secs_f64(),
        ports: port_infos(views),
        chains: chain_infos(views, &nfs),
        nfs,
        roles: views.roles.iter().map(|(name, totals)| nfs::role(name, totals)).collect(),
        groups: group_infos(daemon, views),
        workers: worker_infos(daemon, views),
        drops: drops(views),
        stages: views.stages.iter().map(stage).collect(),
        flow_monitor: views.monitor,
        connections: views.connections,
        nat_targets: daemon.routers().targets().into_iter().map(nat_target).collect(),
    }
}

fn nat_target(view: TargetView) -> NatTargetInfo {
    let TargetView { router, address, rules, is_healthy, checks, failed, problem } = view;
    NatTargetInfo { target: address.to_string(), router, rules, up: is_healthy, problem, checks, failed }
}

pub(super) fn nf_infos(daemon: &Daemon, views: &Views) -> Vec<NfInfo> {
    let mut infos =
        nfs::infos(&views.host, &views.instances, &daemon.supervisor().status(), &daemon.externals());
    infos.extend(nfs::programs(&views.host, &views.programs, daemon.programs()));
    let place = |info: &NfInfo| views.host.nfs.iter().position(|nf| nf.role == info.role);
    infos.sort_by_key(place);
    infos
}

fn port_infos(views: &Views) -> Vec<PortInfo> {
    let view = |port: &PortConfig| views.ports.iter().find(|view| view.id == port.id);
    let shares = |port: &PortConfig| (port.policy.weight, port.policy.reserve) != (1, 0);
    let is_shared =
        views.host.ports.iter().any(shares) || views.host.routers.iter().any(RouterConfig::has_share);
    let info = |port: &PortConfig| {
        let view = view(port)?;
        let share = is_shared.then(|| share_info(&views.host, port, view));
        let owner = views.owners.get(&port.name).cloned();
        Some(PortInfo { share, owner, ..port_info(&views.host, port, view) })
    };
    views.host.ports.iter().filter_map(info).collect()
}

fn port_info(host: &Host, port: &PortConfig, view: &PortView) -> PortInfo {
    let landing = host.landing_group(port).filter(|_| port.has_queues()).and_then(|id| host.group(id));
    let dropped = |reasons: &[DropReason]| {
        view.drops.iter().filter(|(reason, _)| reasons.contains(reason)).map(|(_, count)| count).sum()
    };
    let policed: u64 = dropped(&[DropReason::Policed]);
    let has_rate = port.policy.police_in.is_some() || port.policy.police_out.is_some();
    let driver_mode = match (&view.fallback, &view.fault) {
        (_, Some(fault)) => format!("{} (failed: {fault})", view.driver),
        (Some(fallback), None) => format!("{} ({fallback})", view.driver),
        (None, None) => view.driver.clone(),
    };
    let info = netvm_counters::port!(filled! { PortInfo from view {
        id: port.id.0,
        name: port.name.clone(),
        kind: port.kind.word().to_owned(),
        driver_mode,
        link: view.link.unwrap_or(true),
        queues: if port.has_queues() { port.queues } else { 0 },
        workers: view.workers.iter().map(port_worker_info).collect(),
        mtu: port.mtu,
        group: landing.map(|group| group.name.clone()),
        rx_dropped: view.rx_dropped,
        tx_dropped: dropped(DropReason::UNSENT),
        policed: Some(policed).filter(|policed| has_rate || *policed > 0),
        spoofed: port.policy.guard.is_some().then(|| dropped(&[DropReason::Spoofed])),
        mac_moves: view.switching.moves.moved,
        mac_moves_held: view.switching.moves.held,
        owner: None,
        labels: crate::names::labels_of(port),
        share: None,
        bond: view.bond.as_ref().map(|bond| bond_info(host, bond)),
        tx_queues: view.queues.iter().map(queue_info).collect(),
        tunnel: port.kind.info().tunnel.map(|tunnel| tunnel_info(host, tunnel, view)),
    } });
    let rx_by_kernel = info.rx_by_kernel.filter(|_| port.has_fast_path());
    let neigh_answered = port.kind.info().tunnel.filter(|one| one.is_evpn()).and(info.neigh_answered);
    let rx_coalesced = info.rx_coalesced.filter(|_| port.gro);
    PortInfo { rx_coalesced, rx_by_kernel, neigh_answered, ..info }
}

fn bond_info(host: &Host, view: &BondView) -> BondInfo {
    let member = |member: &BondMemberView| BondMemberInfo {
        port: host.port(member.port).map_or_else(String::new, |port| port.name.clone()),
        link: member.link,
        sends: member.sends,
        receives: member.receives,
        partner: member.partner.map(|mac| mac.to_string()),
    };
    BondInfo {
        partner: view.partner.map(|mac| mac.to_string()),
        members: view.members.iter().map(member).collect(),
    }
}

fn port_worker_info(view: &PortWorker) -> PortWorkerInfo {
    PortWorkerInfo {
        worker: view.worker.0,
        queues: u16::try_from(view.queues).unwrap_or(u16::MAX),
        load_percent: f64::from(view.load) / 10.0,
    }
}

fn share_info(host: &Host, port: &PortConfig, view: &PortView) -> ShareInfo {
    let router = host.sharing_router(port.id).map(|router| RouterShareInfo {
        name: router.name.clone(),
        weight: router.weight,
        reserve: router.reserve,
    });
    ShareInfo {
        weight: port.policy.weight,
        reserve: port.policy.reserve,
        router,
        worker_s: view.worker_time.as_secs_f64(),
        waited: view.waited,
    }
}

fn tunnel_info(host: &Host, tunnel: &VxlanConfig, view: &PortView) -> TunnelInfo {
    TunnelInfo {
        vni: tunnel.vni,
        router: host.router(tunnel.router).map_or_else(String::new, |router| router.name.clone()),
        local: tunnel.local.to_string(),
        remote: view.vteps.iter().map(ToString::to_string).collect(),
    }
}

fn queue_info(view: &QueueView) -> TxQueueInfo {
    netvm_counters::queue!(filled! { TxQueueInfo from view { name: view.name.clone() } })
}

pub(super) fn chain_infos(views: &Views, nfs: &[NfInfo]) -> Vec<ChainInfo> {
    let host = &views.host;
    let view = |chain: &Chain| views.chains.iter().find(|view| view.id == chain.id);
    let info = |chain: &Chain| {
        let view = view(chain)?;
        let at_entry = [DropReason::NfDown, DropReason::ChainFull];
        let dropped = |entry: bool| {
            let counted = view.drops.iter().filter(|(reason, _)| at_entry.contains(reason) == entry);
            counted.map(|(_, count)| count).sum()
        };
        let output = match chain.output {
            Output::Port(id) => host.port(id).map(|port| port.name.clone()),
            Output::Ingress => Some("ingress".to_owned()),
            Output::Normal => Some("normal".to_owned()),
            Output::Router(id) => host.router(id).map(|router| format!("router {}", router.name)),
            Output::None => None,
        };
        let hops: Vec<String> =
            chain.hops.iter().filter_map(|role| Some(host.nf(*role)?.role.clone())).collect();
        Some(netvm_counters::chain!(filled! { ChainInfo from view {
            id: chain.id.0,
            name: chain.name.clone(),
            state: chain_state(chain, &hops, nfs),
            hops,
            output,
            dropped_at_entry: dropped(true),
            dropped_inside: dropped(false),
        } }))
    };
    host.chains.iter().filter_map(info).collect()
}

fn chain_state(chain: &Chain, hops: &[String], nfs: &[NfInfo]) -> ChainState {
    let has_nf = |role: &String| nfs.iter().any(|nf| nf.role == *role && nf.state.gets_packets());
    if hops.iter().all(has_nf) {
        ChainState::Up
    } else if chain.on_failure == OnFailure::Bypass {
        ChainState::Bypassed
    } else {
        ChainState::Down
    }
}

fn group_infos(daemon: &Daemon, views: &Views) -> Vec<GroupInfo> {
    let info = |view: &GroupView| {
        let group = views.host.group(view.id?)?;
        let reclaim = daemon.statistics().reclaimed(&group.name);
        Some(GroupInfo {
            id: group.id.0,
            name: group.name.clone(),
            regions: view.memories.iter().map(region).collect(),
            instances: views.instances.iter().filter(|i| i.group == group.id).count() as u32,
            reclaimed_total: reclaim.buffers,
            longest_reclaim_ms: reclaim.longest.as_secs_f64() * 1000.0,
        })
    };
    views.groups.iter().filter_map(info).collect()
}

fn region(view: &netvm_engine::MemoryView) -> RegionInfo {
    RegionInfo {
        node: view.node,
        pages: if view.huge_pages { "2 MiB pages" } else { "4 KiB pages" }.to_owned(),
        bytes: u64::from(view.buffers) * u64::from(view.buffer_size),
        buffers: view.buffers,
        buffer_size: view.buffer_size,
        in_engine: view.buffers.saturating_sub(view.out).saturating_sub(view.free),
        in_nfs: view.out,
        free: view.free,
    }
}

pub(super) fn drops(views: &Views) -> Drops {
    let host = &views.host;
    let mut drops = Drops::default();
    for view in &views.ports {
        let name = host.port(view.id).map(|port| port.name.as_str());
        add(&mut drops.ports, name, &view.drops);
    }
    for view in &views.chains {
        let name = host.chain(view.id).map(|chain| chain.name.as_str());
        add(&mut drops.chains, name, &view.drops);
    }
    for (name, totals) in &views.roles {
        let counts = DropReason::ALL.into_iter().zip(totals.drops).filter(|(_, count)| *count > 0);
        add(&mut drops.nfs, Some(name), &counts.collect());
    }
    drops.total = drops.sum();
    drops
}

fn add(to: &mut BTreeMap<String, Reasons>, name: Option<&str>, counts: &DropCounts) {
    let Some(name) = name.filter(|_| !counts.is_empty()) else { return };
    let reasons = to.entry(name.to_owned()).or_default();
    for (reason, count) in counts {
        *reasons.entry(reason.name().to_owned()).or_default() += count;
    }
}

fn stage(view: &StageView) -> StageInfo {
    let cycles = if view.packets == 0 { 0.0 } else { view.cycles as f64 / view.packets as f64 };
    StageInfo {
        stage: view.stage.name().to_owned(),
        packets: view.packets,
        cycles_per_packet: cycles,
        ns_per_packet: cycles * 1e9 / clock::cycles_per_second() as f64,
    }
}

pub(super) fn worker_infos(daemon: &Daemon, views: &Views) -> Vec<WorkerInfo> {
    let hz = clock::cycles_per_second() as f64;
    let info = |view: &WorkerView| {
        let counts = view.counters.counts();
        netvm_counters::worker!(filled! { WorkerInfo from counts {
            id: view.id.0,
            core: view.core,
            node: node_of(view.core, &views.host.engine.nodes),
            idle: match views.host.engine.idle {
                model::Idle::Poll => Idle::Poll,
                model::Idle::Adaptive => Idle::Adaptive,
            },
            queues: u32::try_from(view.queues).unwrap_or(u32::MAX),
            busy_percent: daemon.statistics().load(view.id.index()),
            longest_turn_us: view.counters.longest_turn.get() as f64 * 1e6 / hz,
        } })
    };
    views.workers.iter().map(info).collect()
}
