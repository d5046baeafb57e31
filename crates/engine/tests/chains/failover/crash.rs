// SPDX-License-Identifier: Apache-2.0
//! NFs that die: no buffer is lost, other chains go on, policies hold.
//!
//! `NETVM_KILLS` says how often an NF is killed under load (10 by default).

use std::time::Duration;

use super::{TIMEOUT, all_come_home, chain_of, down, flows_on, rig_of, takeovers};
use crate::support::{line, source, two_lines};
use netvm_engine::Notice;
use netvm_model::{Host, OnFailure};

/// Two chains of two NFs each, in two groups, at full load.
fn two_chains() -> Host {
    two_lines([&["a", "b"], &["c", "d"]], [source(60, None, false), source(60, None, false)])
}

#[test]
fn killed_nfs_lose_no_buffer_and_stop_no_other_chain() {
    let mut rig = rig_of(&two_chains());
    for role in ["a", "b", "c", "d"] {
        rig.attach(role, "forward", false);
    }
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[1].left > 10_000), "{}", rig.describe());
    let kills = std::env::var("NETVM_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let mut chaos = std::process::id();
    for round in 0..kills {
        chaos = chaos.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        let role = ["a", "b"][(chaos >> 16) as usize % 2];
        let id = rig.nfs.iter().find(|nf| nf.role == role).unwrap().id;
        let before = rig.sent(3);
        rig.kill(id);
        rig.attach(role, "forward", false);
        let is_back =
            |notice: &Notice| matches!(notice, Notice::Reclaimed { instance, .. } if *instance == id);
        assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
        let Some(Notice::Reclaimed { first_sweep, .. }) = rig.notices.iter().find(|n| is_back(n)) else {
            panic!("no notice of {id}: {:?}", rig.notices)
        };
        assert!(*first_sweep < Duration::from_millis(100), "round {round}: {first_sweep:?}");
        assert!(flows_on(&mut rig), "{}", rig.describe());
        assert!(rig.sent(3) > before, "the other chain stood still: {}", rig.describe());
    }
    all_come_home(&mut rig, two_chains());
}

#[test]
fn a_dead_hop_drops_at_the_entry_or_is_bypassed() {
    for (policy, passes) in [(OnFailure::Drop, false), (OnFailure::Bypass, true)] {
        let mut rig = rig_of(&chain_of(&["a", "b"], policy));
        rig.attach("a", "forward", false);
        let b = rig.attach("b", "forward", false);
        assert!(flows_on(&mut rig), "{}", rig.describe());
        rig.kill(b);
        assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
        let (left, dropped) = (rig.engine.chains()[0].left, down(&rig.engine));
        rig.until(Duration::from_millis(200), |_| false);
        assert_eq!(rig.engine.chains()[0].left > left, passes, "{policy:?}: {}", rig.describe());
        assert_eq!(down(&rig.engine) > dropped, !passes, "{policy:?}: {}", rig.describe());
    }
}

#[test]
fn an_nf_that_panics_sends_no_packet_without_a_verdict() {
    const FIRST: u64 = 40;
    let mut rig = rig_of(&line(&["a"], Some(100), true));
    let id = rig.attach("a", &format!("panic={FIRST}"), false);
    rig.await_end(id);
    assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
    assert_eq!(rig.sent(1), FIRST - 1, "{}", rig.describe());
    assert_eq!(rig.buffers_out(), 0, "{}", rig.describe());
}

#[test]
fn a_standby_takes_over() {
    let mut rig = rig_of(&chain_of(&["a"], OnFailure::Standby));
    let first = rig.attach("a", "forward", false);
    let second = rig.attach("a", "forward", true);
    assert!(flows_on(&mut rig), "{}", rig.describe());
    assert_eq!(rig.engine.instances()[1].threads[0].delivered, 0, "a standby gets nothing");
    rig.kill(first);
    assert!(flows_on(&mut rig), "{}", rig.describe());
    assert_eq!(takeovers(&rig), [second]);
}

#[test]
fn an_nf_that_is_asked_to_leave_loses_nothing() {
    const COUNT: u64 = 2_000_000;
    let mut rig = rig_of(&line(&["a", "b"], Some(COUNT), true));
    rig.attach("a", "forward", false);
    let old = rig.attach("b", "forward", false);
    rig.attach("b", "forward", false);
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left > 1000), "{}", rig.describe());
    rig.engine.dismiss(old);
    rig.await_end(old);
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left == COUNT), "{}", rig.describe());
    let reclaimed: u64 = rig
        .notices
        .iter()
        .map(|n| if let Notice::Reclaimed { buffers, .. } = n { *buffers } else { 0 })
        .sum();
    assert_eq!(reclaimed, 0, "{:?}", rig.notices);
}
