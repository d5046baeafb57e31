// SPDX-License-Identifier: Apache-2.0
//! The status of the daemon, and its current problems.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use netvm_api::{ChainState, HugePages, NfInfo, NfState, Status, WorkerInfo};
use netvm_clock as clock;
use netvm_engine::{InterfaceState, PortView};
use netvm_model::{HealthConfig, Host};

use super::Failure;
use super::routers::is_full;
use super::traffic::{self, Views};
use crate::daemon::{Daemon, stats};
use crate::lookup::labels;
use crate::routers::{Rib, TargetView};
use crate::vms::VmPhase;

/// From this load on, ports begin to lose packets.
const BUSY_PERCENT: f64 = 90.0;

pub(super) async fn status(State(daemon): State<Arc<Daemon>>) -> Result<Json<Status>, Failure> {
    let views = traffic::views(&daemon).await?;
    let nfs = traffic::nf_infos(&daemon, &views);
    let running = nfs.iter().filter(|nf| nf.state.gets_packets()).count();
    let drift = daemon.configuration().drift(&views.host).await;
    let mut problems = problems(&daemon, &views, &nfs);
    for router in &views.host.routers {
        let counts = daemon.routers().query(router.id, Rib::counts).await.unwrap_or_default();
        if is_full(&views, router, counts) {
            problems.push(format!(
                "router {}: its kernel forwards packets of some routes, slowly, as the engine's table or next hops are full",
                router.name
            ));
        }
        if counts.has_nat {
            problems.push(format!(
                "router {}: NAT in its namespace ({}) does not apply to what the engine forwards",
                router.name,
                router.namespace()
            ));
        }
    }
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dpdk: dpdk::version().to_owned(),
        pid: std::process::id(),
        config: Some(daemon.configuration().options().config.clone()),
        drift,
        revision: daemon.configuration().history().last(),
        confirm_within_s: daemon.configuration().left().map(|left| left.as_secs()),
        uptime_s: daemon.statistics().uptime().as_secs_f64(),
        clock_hz: clock::cycles_per_second(),
        huge_pages: huge_pages(&views),
        workers: traffic::worker_infos(&daemon, &views),
        ports: number(views.host.ports.len()),
        nfs: number(running),
        chains: number(views.host.chains.len()),
        dropped: traffic::drops(&views).total,
        problems,
    }))
}

fn huge_pages(views: &Views) -> HugePages {
    let mut memories = views.groups.iter().flat_map(|group| &group.memories);
    let (has, all) =
        (memories.clone().any(|memory| memory.huge_pages), memories.all(|memory| memory.huge_pages));
    match (has, all) {
        (false, _) => HugePages::None,
        (true, true) => HugePages::All,
        (true, false) => HugePages::Some,
    }
}

pub(super) fn problems(daemon: &Daemon, views: &Views, nfs: &[NfInfo]) -> Vec<String> {
    let mut problems: Vec<String> = daemon.configuration().start_warning().into_iter().collect();
    problems.extend(daemon.web_problem());
    problems.extend(daemon.remote_problem());
    problems.extend(daemon.fleet_problem());
    problems.extend(daemon.audit().problem());
    for (what, (name, problem)) in (daemon.supervisor().waiting().into_iter().map(|nf| ("nf", nf)))
        .chain(daemon.machines().waiting().into_iter().map(|vm| ("vm", vm)))
    {
        let problem = problem.strip_prefix(&format!("vm {name}: ")).unwrap_or(&problem);
        problems.push(format!("{what} {name} cannot be started: {problem}"));
    }
    problems.extend(daemon.routers().waiting());
    problems.extend(daemon.routers().targets().iter().filter_map(target_problem));
    for vm in daemon.machines().status() {
        if vm.phase == VmPhase::Backoff {
            let how = vm.last_exit.as_deref().unwrap_or("it ended");
            problems.push(format!("vm {} keeps failing: {how}", vm.name));
        }
        problems.extend(vm.problem().map(|problem| format!("vm {}: {problem}", vm.name)));
    }
    for nf in nfs.iter().filter(|nf| nf.state == NfState::Backoff) {
        let how = nf.last_exit.as_deref().unwrap_or("it ended");
        problems.push(format!("nf {}/{} keeps failing: {how}", nf.role, nf.instance));
    }
    for nf in nfs.iter().filter(|nf| nf.state == NfState::Hung) {
        problems.push(format!(
            "nf {}/{} hangs: it makes no progress although packets wait for it",
            nf.role, nf.instance
        ));
    }
    for nf in nfs.iter().filter(|nf| nf.state == NfState::Starved) {
        problems.push(format!(
            "nf {}/{} is starved: packets wait for it, but it gets no core: give it `cores` that others leave idle",
            nf.role, nf.instance
        ));
    }
    for chain in traffic::chain_infos(views, nfs) {
        let missing = |role: &&String| !nfs.iter().any(|nf| nf.role == **role && nf.state.gets_packets());
        let missing: Vec<&str> = chain.hops.iter().filter(missing).map(String::as_str).collect();
        let what = match chain.state {
            ChainState::Up => continue,
            ChainState::Bypassed => "bypasses",
            ChainState::Down => "drops its traffic: no running NF for",
        };
        problems.push(format!("chain {} {what} {}", chain.name, missing.join(", ")));
    }
    problems.extend(views.ports.iter().flat_map(|view| port_problems(&views.host, view)));
    problems.extend(labels::problems(&views.host));
    problems.extend(worker_problem(&traffic::worker_infos(daemon, views)));
    problems.extend(views.workers.iter().filter(|worker| worker.is_leaving).map(|worker| {
        format!(
            "worker {} is to leave core {}, and waits for packets that NFs have of it",
            worker.id, worker.core
        )
    }));
    problems
}

/// What of the tests of health is not so now; pings are not among them.
pub(crate) async fn unhealthy(daemon: &Daemon, health: &HealthConfig) -> Vec<String> {
    let Ok(views) = traffic::views(daemon).await else { return vec!["the engine has ended".to_owned()] };
    let mut problems = Vec::new();
    if health.chains {
        let chains = traffic::chain_infos(&views, &traffic::nf_infos(daemon, &views));
        let down = chains.iter().filter(|chain| chain.state == ChainState::Down);
        problems.extend(down.map(|chain| format!("chain {} is down", chain.name)));
    }
    for name in &health.ports {
        let id = views.host.port_named(name).map(|port| port.id);
        let view = views.ports.iter().find(|view| Some(view.id) == id);
        let problem = match view {
            None => "is not there",
            Some(view) if !view.is_open => view.fault.as_deref().unwrap_or("is not open"),
            Some(view) if view.link == Some(false) => "has no link",
            Some(_) => continue,
        };
        problems.push(format!("port {name}: {problem}"));
    }
    problems
}

fn target_problem(target: &TargetView) -> Option<String> {
    let problem = target.problem.as_deref().unwrap_or("it did not answer");
    let text = || format!("target {} of nat {} is down: {problem}", target.address, target.rules.join(", "));
    (!target.is_healthy).then(text)
}

/// A worker without a queue, while another has too much to do.
fn worker_problem(workers: &[WorkerInfo]) -> Option<String> {
    let idle = workers.iter().find(|worker| worker.queues == 0)?;
    let busy = |worker: &&WorkerInfo| worker.queues > 0 && worker.busy_percent > BUSY_PERCENT;
    let busy = workers.iter().find(busy)?;
    Some(format!(
        "worker {} is {:.0} % busy, and worker {} has no queue: give a port of worker {} `worker = {}`, or several \
         `queues` (netvm port shows the load of each)",
        busy.id, busy.busy_percent, idle.id, busy.id, idle.id
    ))
}

fn port_problems(host: &Host, view: &PortView) -> Vec<String> {
    // The interface of a punt port has the carrier of the router's port.
    let (Some(port), None) = (host.port(view.id), host.punted_by(view.id)) else { return Vec::new() };
    if !view.is_open {
        let fault = view.fault.as_deref().unwrap_or("it cannot be opened");
        return vec![format!("port {}: {fault}; netvmd opens the port when this is mended", port.name)];
    }
    let mut problems = Vec::new();
    let interface = view.interface.as_ref();
    match interface.filter(|interface| interface.state == InterfaceState::Gone) {
        Some(interface) => problems.push(format!("port {}: interface {} is gone", port.name, interface.name)),
        None if view.link == Some(false) => problems.push(format!("port {}: link down", port.name)),
        None => {}
    }
    if let Some(fault) = &view.fault {
        problems.push(format!("port {} failed: {fault}", port.name));
    }
    problems.extend(view.notes.iter().map(|note| format!("port {}: {note}", port.name)));
    let switching = &view.switching;
    problems
        .extend(switching.storms.iter().map(|class| format!("port {}: {}", port.name, stats::storm(*class))));
    if let Some(last) = switching.flapping {
        problems.push(format!("port {}: {}", port.name, stats::flapping(host, last)));
    }
    let mtu = interface.and_then(|interface| interface.mtu).filter(|mtu| *mtu < port.mtu.into());
    if let (Some(interface), Some(mtu)) = (interface, mtu) {
        problems.push(format!(
            "port {}: longer packets are dropped, or fragmented by virtual routers: its MTU is {}, that of interface {} \
             {mtu} (ip link set {} mtu {})",
            port.name, port.mtu, interface.name, interface.name, port.mtu
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: u8, queues: u32, busy_percent: f64) -> WorkerInfo {
        WorkerInfo { id, core: id.into(), queues, busy_percent, ..WorkerInfo::default() }
    }

    #[test]
    fn a_worker_without_a_queue_is_a_problem_only_while_another_is_busy() {
        let text = worker_problem(&[worker(0, 4, 97.0), worker(1, 0, 3.0)]).unwrap();
        assert!(text.contains("worker 0 is 97 % busy, and worker 1 has no queue"), "{text}");
        assert!(text.contains("`worker = 1`"), "{text}");
        assert_eq!(worker_problem(&[worker(0, 4, 80.0), worker(1, 0, 0.0)]), None);
        assert_eq!(worker_problem(&[worker(0, 4, 97.0), worker(1, 1, 0.0)]), None);
        assert_eq!(worker_problem(&[worker(0, 4, 97.0)]), None);
    }
}
