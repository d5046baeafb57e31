// SPDX-License-Identifier: Apache-2.0
//! Virtual machines.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, StringRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use netvm_api::{Done, StopVm, VmInfo, VmManualStart, VmState};
use netvm_model::{Guest, Host, VmAccel, VmConfig};
use tokio::time::timeout;

use super::{Failure, optional};
use crate::daemon::Daemon;
use crate::daemon::VM_START_TIMEOUT;
use crate::vms::{VmPhase, VmStartup, VmStatus};

pub(super) async fn list(State(daemon): State<Arc<Daemon>>) -> Result<Json<Vec<VmInfo>>, Failure> {
    let host = daemon.running().await?;
    let status = daemon.machines().status();
    let info = |vm: &VmConfig| {
        let status = status.iter().find(|status| status.name == vm.name);
        info(&daemon, &host, vm, status)
    };
    let removed = status.iter().filter(|status| host.vm_named(&status.name).is_none());
    let removed = removed.map(|status| removed_info(&daemon, status));
    Ok(Json(host.vms.iter().map(info).chain(removed).collect()))
}

/// A VM that the configuration no longer has, and that has not ended yet.
fn removed_info(daemon: &Daemon, status: &VmStatus) -> VmInfo {
    let (memory, cpus) = daemon.machines().size_of_removed(&status.name);
    VmInfo {
        name: status.name.clone(),
        state: state(status.phase),
        role: None,
        ports: Vec::new(),
        macs: Vec::new(),
        memory,
        cpus,
        accel: VmAccel::KvmOrTcg,
        pid: status.pid,
        uptime_s: status.since.map(|since| since.elapsed().as_secs_f64()),
        restarts: status.restarts,
        resets: status.resets.count,
        last_exit: status.last_exit.clone(),
        trouble: Some(format!(
            "no longer configured, and shut down: `netvm vm stop --force {}` ends it at once",
            status.name
        )),
        adopted: status.is_adopted,
        outdated: false,
        console: daemon.machines().console(&status.name),
    }
}

fn info(daemon: &Daemon, host: &Host, vm: &VmConfig, status: Option<&VmStatus>) -> VmInfo {
    let (role, cards) = match &vm.guest {
        Guest::Nf { role, .. } => (host.nf(*role).map(|nf| nf.role.clone()), &[][..]),
        Guest::Ordinary { cards } => (None, &cards[..]),
    };
    let ports = cards.iter().filter_map(|card| host.port(card.port)).map(|port| port.name.clone());
    VmInfo {
        name: vm.name.clone(),
        state: status.map_or(VmState::Stopped, |status| state(status.phase)),
        role,
        ports: ports.collect(),
        macs: cards.iter().map(|card| card.mac.to_string()).collect(),
        memory: vm.memory,
        cpus: vm.cpus,
        accel: accel(daemon, vm),
        pid: status.and_then(|status| status.pid),
        uptime_s: status.and_then(|status| status.since).map(|since| since.elapsed().as_secs_f64()),
        restarts: status.map_or(0, |status| status.restarts),
        resets: status.map_or(0, |status| status.resets.count),
        last_exit: status.and_then(|status| status.last_exit.clone()),
        trouble: status.and_then(VmStatus::problem),
        adopted: status.is_some_and(|status| status.is_adopted),
        outdated: status.is_some_and(|status| status.is_outdated),
        console: daemon.machines().console(&vm.name),
    }
}

/// The accelerator that a VM uses: TCG if `kvm:tcg` found no KVM.
fn accel(daemon: &Daemon, vm: &VmConfig) -> VmAccel {
    let is_without = daemon.machines().spec(&vm.name).is_some_and(|spec| spec.without_kvm.is_some());
    if is_without { VmAccel::Tcg } else { vm.accel }
}

const fn state(phase: VmPhase) -> VmState {
    match phase {
        VmPhase::Starting => VmState::Starting,
        VmPhase::Running => VmState::Running,
        VmPhase::Paused => VmState::Paused,
        VmPhase::Stopping => VmState::Stopping,
        VmPhase::Backoff => VmState::Backoff,
        VmPhase::Stopped => VmState::Stopped,
        VmPhase::Awaited => VmState::Awaited,
    }
}

pub(super) async fn start(
    State(daemon): State<Arc<Daemon>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Done>, Failure> {
    let Path(name) = name?;
    if daemon.machines().spec(&name).is_some_and(|spec| spec.is_manual) {
        let message =
            format!("vm {name} has `start = \"manual\"`: run the command that `netvm vm args {name}` prints");
        return Err(Failure::new(StatusCode::CONFLICT, message));
    }
    let mut startup = known(&name, daemon.machines().start(&name))?;
    let failed = |reason| {
        let message = format!("vm {name} did not start: {reason}");
        Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, message))
    };
    match timeout(VM_START_TIMEOUT, startup.started()).await {
        Ok(Ok(())) => Ok(Json(Done { message: format!("vm {name}: running") })),
        Ok(Err(reason)) => failed(reason),
        Err(_) => failed(format!("timeout after {} s", VM_START_TIMEOUT.as_secs())),
    }
}

pub(super) async fn stop(
    State(daemon): State<Arc<Daemon>>,
    name: Result<Path<String>, PathRejection>,
    how: Result<String, StringRejection>,
) -> Result<Json<Done>, Failure> {
    let (Path(name), how) = (name?, how?);
    let StopVm { force } = optional(&how, "{\"force\": true}")?;
    let mut startup = known(&name, daemon.machines().stop(&name, force))?;
    startup.stopped().await;
    Ok(Json(Done { message: format!("vm {name}: stopped") }))
}

pub(super) async fn manual_start(
    State(daemon): State<Arc<Daemon>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<VmManualStart>, Failure> {
    let Path(name) = name?;
    let spec = daemon.machines().spec(&name).ok_or_else(|| unknown(&name))?;
    if spec.nf.is_some() && !spec.is_manual {
        let message = format!(
            "vm {name} is an NF that netvmd starts itself: set `start = \"manual\"` to start it by hand"
        );
        return Err(Failure::new(StatusCode::CONFLICT, message));
    }
    let found = daemon.machines().manual_start(&spec).await?;
    Ok(Json(VmManualStart { command: found.command, shell: found.shell, libvirt_xml: found.libvirt_xml }))
}

fn known(name: &str, startup: Option<VmStartup>) -> Result<VmStartup, Failure> {
    startup.ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, format!("no VM `{name}`: `netvm vm list` lists the VMs"))
}
