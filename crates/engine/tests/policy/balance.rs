// SPDX-License-Identifier: Apache-2.0
//! Two replicas of unequal speed: by occupancy, the faster one gets more, and their rings are equally full.

use std::time::Duration;

use crate::support::{Rig, line};
use netvm_model::EngineConfig;

/// Microseconds that each replica sleeps for a packet, so that neither takes the other's core.
const FAST: u64 = 500;
const SLOW: u64 = 2_000;
const SAMPLES: u32 = 2_000;

#[test]
fn replicas_of_unequal_speed_are_equally_full_by_occupancy() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a"], None, true)).unwrap();
    let replicas = [FAST, SLOW].map(|sleep| rig.attach("a", &format!("sleep={sleep}"), false));
    let controls = replicas.map(|id| rig.control_of(id));
    let rings = controls.each_ref().map(|control| control.ring_to_nf(0, 0));
    let processed = |rig: &Rig| {
        let instances = rig.engine.instances();
        replicas.map(|id| instances.iter().find(|view| view.id == id).unwrap().threads[0].returned)
    };
    assert!(rig.until(Duration::from_secs(20), |engine| engine.chains()[0].left > 500), "{}", rig.describe());
    let before = processed(&rig);
    let mut sums = [0u64; 2];
    let mut apart = 0u64;
    for n in 0..SAMPLES {
        let held = rings.map(|ring| u64::from(ring.occupancy()));
        sums = [sums[0] + held[0], sums[1] + held[1]];
        apart += held[0].abs_diff(held[1]);
        if n % 16 == 0 {
            rig.engine.service();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = processed(&rig);
    let shares = [after[0] - before[0], after[1] - before[1]];
    let means = sums.map(|sum| sum as f64 / f64::from(SAMPLES));
    let apart = apart as f64 / f64::from(SAMPLES);
    println!(
        "packets {shares:?} (fast, slow); mean occupancy {:.1} and {:.1} of {}, apart by {apart:.1} at a time",
        means[0],
        means[1],
        rings[0].capacity()
    );
    // On a loaded machine both sleep for longer than they should be.
    assert!(shares[1] > 0 && shares[0] > shares[1], "{shares:?}");
    assert!((means[0] - means[1]).abs() <= means[0].max(means[1]) / 10.0, "{means:?}");
}
