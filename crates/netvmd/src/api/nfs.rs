// SPDX-License-Identifier: Apache-2.0
//! NF instances: the engine's counters of attached ones, combined with the supervisor's state.

use std::collections::BTreeMap;
use std::time::Instant;

use netvm_api::{NfInfo, NfPackets, NfState, RoleInfo, ThreadInfo};
use netvm_engine::{
    InstanceState, InstanceView, LinkCounts, ProgramState, ProgramView, RoleTotals, ThreadView, Violation,
};
use netvm_model::{Host, NfConfig, NfStart, PairConfig};
use netvm_region::NfCounter;

use crate::attach::Externals;
use crate::programs::Programs;
use crate::supervisor::{Phase, Status};

/// All instances of all NFs, in the order of the configuration.
pub(super) fn infos(
    host: &Host,
    views: &[InstanceView],
    replicas: &[Status],
    externals: &Externals,
) -> Vec<NfInfo> {
    let view = |id| views.iter().find(|view| view.id == id);
    let mut infos = Vec::new();
    for nf in &host.nfs {
        let group = host.group(nf.group).map(|group| group.name.clone()).unwrap_or_default();
        match nf.start {
            NfStart::Managed { .. } => {
                let replicas = replicas.iter().filter(|status| status.role == nf.role);
                infos.extend(replicas.map(|status| {
                    let view = match status.phase {
                        Phase::Attached(id) => view(id),
                        _ => None,
                    };
                    managed(nf, &group, status, view)
                }));
            }
            NfStart::Ports(_) => {}
            NfStart::External { .. } => {
                let here = externals.iter().filter(|(_, external)| external.role == nf.role);
                let before = infos.len();
                infos.extend(here.map(|(id, external)| {
                    let mut info = blank(nf, &group, external.number);
                    info.pid = external.pid;
                    info.uptime_s = Some(seconds_since(external.attached_at));
                    if let Some(view) = view(*id) {
                        info.state = state_of(view);
                        count(&mut info, view);
                    }
                    info
                }));
                if infos.len() == before {
                    infos.push(blank(nf, &group, 0));
                }
            }
        }
    }
    infos
}

fn blank(nf: &NfConfig, group: &str, instance: u32) -> NfInfo {
    NfInfo {
        role: nf.role.clone(),
        instance,
        pid: None,
        state: NfState::External,
        managed: !matches!(nf.start, NfStart::External { .. }),
        group: group.to_owned(),
        threads: Vec::new(),
        restarts: 0,
        last_exit: None,
        uptime_s: None,
        counters: BTreeMap::new(),
        violations: BTreeMap::new(),
    }
}

fn managed(nf: &NfConfig, group: &str, status: &Status, view: Option<&InstanceView>) -> NfInfo {
    let mut info = blank(nf, group, u32::from(status.slot));
    info.pid = status.pid;
    info.restarts = status.restarts;
    info.last_exit.clone_from(&status.last_exit);
    info.uptime_s = status.attached_at.map(seconds_since);
    info.state = match status.phase {
        Phase::Starting => NfState::Starting,
        Phase::Attached(_) => view.map_or(NfState::Starting, state_of),
        Phase::Backoff => NfState::Backoff,
        Phase::Stopping | Phase::Stopped => NfState::Stopped,
    };
    if let Some(view) = view {
        count(&mut info, view);
    }
    info
}

/// The instances of programs with two ports.
pub(super) fn programs(host: &Host, views: &[ProgramView], programs: &Programs) -> Vec<NfInfo> {
    let info = |view: &ProgramView| {
        let nf = host.nf(view.role)?;
        let group = host.group(nf.group).map(|group| group.name.clone()).unwrap_or_default();
        let mut info = blank(nf, &group, view.instance.into());
        let status = programs.status(&nf.role, view.instance);
        info.pid = status.pid;
        info.restarts = status.restarts;
        info.uptime_s = status.started_at.map(seconds_since);
        info.state = match view.state {
            _ if status.is_paused || status.problem.is_some() => NfState::Backoff,
            ProgramState::Starting => NfState::Starting,
            ProgramState::Down => NfState::Hung,
            ProgramState::Up if view.is_standby => NfState::Standby,
            ProgramState::Up => NfState::Running,
        };
        info.last_exit = status.problem.or(status.last_exit);
        let sides = nf.pair().map(PairConfig::sides).unwrap_or_default();
        for (side, (into, back)) in sides.iter().zip(view.packets) {
            info.counters.insert(format!("{}_in", side.word()), into);
            info.counters.insert(format!("{}_out", side.word()), back);
        }
        Some(info)
    };
    views.iter().filter_map(info).collect()
}

/// The totals of a role.
pub(super) fn role(name: &str, totals: &RoleTotals) -> RoleInfo {
    let value = |counter: NfCounter| totals.standard[counter as usize];
    let violations = Violation::ALL.into_iter().zip(totals.violations).filter(|(_, count)| *count > 0);
    RoleInfo {
        role: name.to_owned(),
        packets: packets(value, totals.counts),
        counters: totals.own.clone(),
        violations: violations.map(|(violation, count)| (violation.name().to_owned(), count)).collect(),
    }
}

const fn state_of(view: &InstanceView) -> NfState {
    match view.state {
        InstanceState::Attaching => NfState::Starting,
        InstanceState::Active if view.is_starved => NfState::Starved,
        InstanceState::Active if view.is_draining => NfState::Draining,
        InstanceState::Active => NfState::Running,
        InstanceState::Standby => NfState::Standby,
        InstanceState::Hung => NfState::Hung,
        InstanceState::Leaving => NfState::Stopped,
    }
}

fn count(info: &mut NfInfo, view: &InstanceView) {
    info.threads = view.threads.iter().map(thread).collect();
    info.counters = view.own.iter().cloned().collect();
    for (violation, count) in view.threads.iter().flat_map(|thread| &thread.violations) {
        *info.violations.entry(violation.name().to_owned()).or_default() += count;
    }
}

fn thread(view: &ThreadView) -> ThreadInfo {
    let value = |counter: NfCounter| view.standard[counter as usize];
    let received = value(NfCounter::Received);
    let per_packet = |counter| if received == 0 { 0.0 } else { value(counter) as f64 / received as f64 };
    ThreadInfo {
        nf_thread: view.nf_thread.0,
        packets: packets(value, view.counts),
        cycles_per_packet: per_packet(NfCounter::Cycles),
        nf_cycles_per_packet: per_packet(NfCounter::NfCycles),
        bursts: value(NfCounter::Bursts),
        sleeps: value(NfCounter::Sleeps),
        cycles: value(NfCounter::Cycles),
        ring_percent: f64::from(view.fill) * 100.0,
        buffers: view.buffers,
    }
}

/// What netlib counts, by `value`, and what workers count.
macro_rules! packets {
    (
        { $value:ident, $counts:ident }
        table $about:tt
        netlib { $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            netlib $variant:ident = $index:literal;
            $($how:tt)*
        })* }
        counted { $({
            $(#[$counted_json:meta])*
            $counted:ident: $counted_type:ty, $counted_unit:ident, $counted_text:literal;
            $($counted_how:tt)*
        })* }
        derived {}
    ) => {
        NfPackets {
            $($field: $value(NfCounter::$variant),)*
            $($counted: $counts.$counted,)*
        }
    };
}

fn packets(value: impl Fn(NfCounter) -> u64, counts: LinkCounts) -> NfPackets {
    netvm_counters::nf!(packets! { value, counts })
}

fn seconds_since(instant: Instant) -> f64 {
    instant.elapsed().as_secs_f64()
}
