// SPDX-License-Identifier: Apache-2.0
//! A program as a hop between the namespaces, attached by veth: the kernel's bridge in a namespace of its own.

use std::time::{Duration, Instant};

use netvm_engine::ProgramState;
use netvm_model::{Attach, PairConfig, PairEnd, PairSide};

use super::hosts::run;
use crate::error::BenchError;
use crate::setup::rig::Rig;

/// The role of the program.
pub const ROLE: &str = "bridge";
/// The bridge.
const BRIDGE: &str = "br0";
/// Time limit for the first probe to come through.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the engine's manager runs.
const MANAGER_INTERVAL: Duration = Duration::from_millis(5);

fn ends() -> [PairEnd<'static>; 2] {
    PairSide::BOTH.map(|side| PairEnd { role: ROLE, instance: 0, side })
}

/// The program's namespace; removed on drop.
pub struct BridgeHop;

impl BridgeHop {
    /// Makes the namespace with the bridge, as netvmd does before it starts a program.
    ///
    /// # Errors
    /// A command failed.
    pub fn new() -> Result<Self, BenchError> {
        let namespace = ends()[0].namespace();
        run(&format!("netns add {namespace}"))?;
        let hop = Self;
        run(&format!("-n {namespace} link add {BRIDGE} type bridge"))?;
        run(&format!("-n {namespace} link set {BRIDGE} up"))?;
        for end in ends() {
            let (outer, inner) = (end.outer_name(), end.side.word());
            let queues = "numtxqueues 1 numrxqueues 1";
            run(&format!(
                "link add {outer} {queues} type veth peer name {inner} netns {namespace} {queues}"
            ))?;
            run(&format!("link set {outer} up"))?;
            run(&format!("-n {namespace} link set {inner} up master {BRIDGE}"))?;
        }
        Ok(hop)
    }

    /// How the program is attached.
    pub fn config() -> PairConfig {
        PairConfig { offloads: true, ..PairConfig::new(Attach::Veth) }
    }

    /// Runs the engine until probes pass the program.
    ///
    /// # Errors
    /// They do not within ten seconds.
    pub fn until_up(rig: &mut Rig) -> Result<(), BenchError> {
        let start = Instant::now();
        while rig.engine().programs().iter().any(|program| program.state != ProgramState::Up) {
            if start.elapsed() > TIMEOUT {
                return Err(BenchError::Nothing { what: ROLE.to_owned(), seconds: TIMEOUT.as_secs_f64() });
            }
            rig.run(MANAGER_INTERVAL)?;
        }
        Ok(())
    }
}

impl Drop for BridgeHop {
    fn drop(&mut self) {
        for end in ends() {
            let _ = run(&format!("link delete {}", end.outer_name()));
        }
        let _ = run(&format!("netns delete {}", ends()[0].namespace()));
    }
}
