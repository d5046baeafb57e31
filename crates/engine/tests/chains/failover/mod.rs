// SPDX-License-Identifier: Apache-2.0
//! NFs that die, hang or leave: what the engine does with their packets, and who takes their place.

mod crash;
mod hang;
mod standby;

use std::time::Duration;

use crate::support::{Rig, line, nothing_is_out};
use netvm_engine::{DropReason, Engine, InstanceId, InstanceState, Notice};
use netvm_model::{EngineConfig, Host, OnFailure};

const TIMEOUT: Duration = Duration::from_secs(20);

/// One chain at full load, and what becomes of it without one of its NFs.
fn chain_of(roles: &[&str], on_failure: OnFailure) -> Host {
    let mut host = line(roles, None, false);
    host.chains[0].on_failure = on_failure;
    host
}

fn rig_of(host: &Host) -> Rig {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(host).unwrap();
    rig
}

/// Whether packets leave the first chain: more of them than its rings hold.
fn flows_on(rig: &mut Rig) -> bool {
    let left = rig.engine.chains()[0].left;
    rig.until(TIMEOUT, |engine| engine.chains()[0].left > left + 10_000)
}

/// Packets of the first chain that were dropped because an NF was down.
fn down(engine: &Engine) -> u64 {
    let drops = engine.chains().remove(0).drops;
    drops.iter().find(|(reason, _)| *reason == DropReason::NfDown).map_or(0, |drop| drop.1)
}

fn state(engine: &Engine, id: InstanceId) -> Option<InstanceState> {
    engine.instances().iter().find(|nf| nf.id == id).map(|nf| nf.state)
}

/// The standbys that took over, in order.
fn takeovers(rig: &Rig) -> Vec<InstanceId> {
    let of = |notice: &Notice| match notice {
        Notice::StandbyTookOver { instance, .. } => Some(*instance),
        _ => None,
    };
    rig.notices.iter().filter_map(of).collect()
}

/// The sources stop, and everything that is out comes home.
fn all_come_home(rig: &mut Rig, host: Host) {
    rig.engine.apply(&Host { rules: Vec::new(), ..host }).unwrap();
    assert!(rig.until(TIMEOUT, nothing_is_out), "{}", rig.describe());
}
