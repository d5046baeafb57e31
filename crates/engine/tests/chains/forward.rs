// SPDX-License-Identifier: Apache-2.0
//! Packets through chains of real NF processes.

use std::time::Duration;

use crate::support::{Rig, line};
use netvm_model::EngineConfig;

fn passes_all(roles: &[&str]) {
    const COUNT: u64 = 200_000;
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(roles, Some(COUNT), true)).unwrap();
    for role in roles {
        rig.attach(role, "forward", false);
    }
    let done = rig.until(Duration::from_secs(30), |engine| engine.ports()[1].tx_packets == COUNT);
    assert!(done, "{}", rig.describe());
    assert_eq!(rig.buffers_out(), 0, "{}", rig.describe());
    for instance in rig.engine.instances() {
        assert!(rig.until_received(instance.id, COUNT), "{}", rig.describe());
        assert!(instance.threads[0].violations.is_empty(), "{}", rig.describe());
    }
}

#[test]
fn one_nf_passes_every_packet() {
    passes_all(&["a"]);
}

#[test]
fn three_nfs_in_a_row_pass_every_packet_by_direct_rings() {
    passes_all(&["a", "b", "c"]);
}
