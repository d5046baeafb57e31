//! The daemon as a whole.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use netvm_api::{ChainState, HugePages, Idle, NfInfo, NfState, Status, WorkerInfo};
use netvm_config::model;
use netvm_region::clock;

use super::Failure;
use super::traffic::{self, Views};
use crate::daemon::Daemon;
use crate::vms::VmPhase;

pub(super) async fn status(State(daemon): State<Arc<Daemon>>) -> Result<Json<Status>, Failure> {
    let views = traffic::views(&daemon).await?;
    let nfs = traffic::nf_infos(&daemon, &views);
    let running = nfs.iter().filter(|nf| nf.state == NfState::Running).count();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dpdk: dpdk::version().to_owned(),
        pid: std::process::id(),
        config: Some(daemon.options.config.clone()),
        uptime_s: daemon.started.elapsed().as_secs_f64(),
        clock_hz: clock::cycles_per_second(),
        huge_pages: huge_pages(&views),
        workers: worker_infos(&daemon, &views),
        ports: number(views.host.ports.len()),
        nfs: number(running),
        chains: number(views.host.chains.len()),
        problems: problems(&daemon, &views, &nfs),
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

pub(super) fn worker_infos(daemon: &Daemon, views: &Views) -> Vec<WorkerInfo> {
    let hz = clock::cycles_per_second() as f64;
    let info = |view: &netvm_engine::WorkerView| WorkerInfo {
        id: view.id.0,
        core: view.core,
        node: node_of(view.core, &views.host.engine.nodes),
        idle: match views.host.engine.idle {
            model::Idle::Poll => Idle::Poll,
            model::Idle::Adaptive => Idle::Adaptive,
        },
        busy_percent: daemon.load.of(view.id.index()),
        sleeps: view.counters.sleeps.get(),
        copies: view.counters.copies.get(),
        copied_bytes: view.counters.copied_bytes.get(),
        longest_turn_us: view.counters.longest_turn.get() as f64 * 1e6 / hz,
    };
    views.workers.iter().map(info).collect()
}

/// The NUMA node of a core: as the configuration says, else as the machine does.
fn node_of(core: u32, nodes: &[Vec<u32>]) -> u32 {
    let configured = nodes.iter().position(|cores| cores.contains(&core));
    let is_on =
        |node: &u32| std::path::Path::new(&format!("/sys/devices/system/cpu/cpu{core}/node{node}")).exists();
    let of_the_machine = || (0..model::MAX_NODES as u32).find(is_on);
    configured.map(|node| node as u32).or_else(of_the_machine).unwrap_or_default()
}

fn problems(daemon: &Daemon, views: &Views, nfs: &[NfInfo]) -> Vec<String> {
    let mut problems = Vec::new();
    for vm in daemon.machines.status().iter().filter(|vm| vm.phase == VmPhase::Backoff) {
        problems.push(format!(
            "vm {} does not stay up: {}",
            vm.name,
            vm.last_exit.as_deref().unwrap_or("it has ended")
        ));
    }
    for nf in nfs.iter().filter(|nf| nf.state == NfState::Backoff) {
        let how = nf.last_exit.as_deref().unwrap_or("it has ended");
        problems.push(format!("nf {}/{} does not stay up: {how}", nf.role, nf.instance));
    }
    for chain in traffic::chain_infos(views, nfs) {
        let missing =
            |role: &&String| !nfs.iter().any(|nf| nf.role == **role && nf.state == NfState::Running);
        let missing: Vec<&str> = chain.hops.iter().filter(missing).map(String::as_str).collect();
        let what = match chain.state {
            ChainState::Up => continue,
            ChainState::Bypassed => "goes round",
            ChainState::Down => "drops its traffic, as there is no NF for",
        };
        problems.push(format!("chain {} {what} {}", chain.name, missing.join(", ")));
    }
    for view in &views.ports {
        let Some(port) = views.host.port(view.id) else { continue };
        if view.link == Some(false) {
            problems.push(format!("port {} has no link", port.name));
        }
        if let Some(fault) = &view.fault {
            problems.push(format!("port {} has ended: {fault}", port.name));
        }
    }
    problems
}
