//! NFs that die: no buffer is lost, other chains go on, policies hold.
//!
//! `NETVM_KILLS` says how often an NF is killed under load (10 by default).

use std::time::Duration;

use crate::support::{Rig, line, source, two_lines};
use netvm_config::model::{EngineConfig, Host, OnFailure};
use netvm_engine::{DropReason, Notice};

const SOON: Duration = Duration::from_secs(20);

/// Two chains of two NFs each, in two groups, at full load.
fn two_chains() -> Host {
    two_lines([&["a", "b"], &["c", "d"]], [source(60, None, false), source(60, None, false)])
}

#[test]
fn killed_nfs_lose_no_buffer_and_stop_no_other_chain() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&two_chains()).unwrap();
    for role in ["a", "b", "c", "d"] {
        rig.attach(role, "forward", false);
    }
    assert!(rig.until(SOON, |engine| engine.chains()[1].left > 10_000), "{}", rig.story());
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
        assert!(rig.until(SOON, |engine| !engine.is_settling()), "{}", rig.story());
        let Some(Notice::Reclaimed { first_sweep, .. }) = rig.notices.iter().find(|n| is_back(n)) else {
            panic!("no notice of {id}: {:?}", rig.notices)
        };
        assert!(*first_sweep < Duration::from_millis(100), "round {round}: {first_sweep:?}");
        let passed = rig.engine.chains()[0].left;
        assert!(rig.until(SOON, |engine| engine.chains()[0].left > passed + 1000), "{}", rig.story());
        assert!(rig.sent(3) > before, "the other chain stood still: {}", rig.story());
    }
    // The sources stop; everything that is out comes home.
    rig.engine.apply(&Host { rules: Vec::new(), ..two_chains() }).unwrap();
    assert!(
        rig.until(SOON, |engine| {
            engine.groups().iter().flat_map(|group| &group.memories).all(|memory| memory.out == 0)
        }),
        "{}",
        rig.story()
    );
}

#[test]
fn a_dead_hop_drops_at_the_entry_or_is_bypassed() {
    for (policy, passes) in [(OnFailure::Drop, false), (OnFailure::Bypass, true)] {
        let mut host = line(&["a", "b"], None, false);
        host.chains[0].on_failure = policy;
        let mut rig = Rig::new(&EngineConfig::default());
        rig.engine.apply(&host).unwrap();
        rig.attach("a", "forward", false);
        let b = rig.attach("b", "forward", false);
        assert!(rig.until(SOON, |engine| engine.chains()[0].left > 1000), "{}", rig.story());
        rig.kill(b);
        assert!(rig.until(SOON, |engine| !engine.is_settling()), "{}", rig.story());
        let chain = rig.engine.chains().remove(0);
        rig.until(Duration::from_millis(200), |_| false);
        let after = rig.engine.chains().remove(0);
        let down = |view: &netvm_engine::ChainView| {
            view.drops.iter().find(|(r, _)| *r == DropReason::NfDown).map_or(0, |d| d.1)
        };
        assert_eq!(after.left > chain.left, passes, "{policy:?}: {}", rig.story());
        assert_eq!(down(&after) > down(&chain), !passes, "{policy:?}: {}", rig.story());
    }
}

#[test]
fn an_nf_that_panics_sends_no_packet_without_a_verdict() {
    const FIRST: u64 = 40;
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a"], Some(100), true)).unwrap();
    let id = rig.attach("a", &format!("panic={FIRST}"), false);
    let index = rig.nfs.iter().position(|nf| nf.id == id).unwrap();
    let mut nf = rig.nfs.remove(index);
    assert!(rig.until(SOON, |_| nf.child.try_wait().unwrap().is_some()), "{}", rig.story());
    rig.engine.departed(id);
    assert!(rig.until(SOON, |engine| !engine.is_settling()), "{}", rig.story());
    assert_eq!(rig.sent(1), FIRST - 1, "{}", rig.story());
    assert_eq!(rig.buffers_out(), 0, "{}", rig.story());
}

#[test]
fn a_standby_takes_over() {
    let mut host = line(&["a"], None, false);
    host.chains[0].on_failure = OnFailure::Standby;
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    let first = rig.attach("a", "forward", false);
    let second = rig.attach("a", "forward", true);
    assert!(rig.until(SOON, |engine| engine.chains()[0].left > 1000), "{}", rig.story());
    assert_eq!(rig.engine.instances()[1].threads[0].delivered, 0, "a standby gets nothing");
    rig.kill(first);
    let left = rig.engine.chains()[0].left;
    assert!(rig.until(SOON, |engine| engine.chains()[0].left > left + 1000), "{}", rig.story());
    assert!(
        rig.notices
            .iter()
            .any(|n| matches!(n, Notice::StandbyTookOver { instance, .. } if *instance == second))
    );
}

#[test]
fn an_nf_that_is_asked_to_leave_loses_nothing() {
    const COUNT: u64 = 2_000_000;
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a", "b"], Some(COUNT), true)).unwrap();
    rig.attach("a", "forward", false);
    let old = rig.attach("b", "forward", false);
    rig.attach("b", "forward", false);
    assert!(rig.until(SOON, |engine| engine.chains()[0].left > 1000), "{}", rig.story());
    rig.engine.dismiss(old);
    let index = rig.nfs.iter().position(|nf| nf.id == old).unwrap();
    let mut leaver = rig.nfs.remove(index);
    assert!(rig.until(SOON, |_| leaver.child.try_wait().unwrap().is_some()), "{}", rig.story());
    rig.engine.departed(old);
    assert!(rig.until(SOON, |engine| engine.chains()[0].left == COUNT), "{}", rig.story());
    let reclaimed: u64 = rig
        .notices
        .iter()
        .map(|n| if let Notice::Reclaimed { buffers, .. } = n { *buffers } else { 0 })
        .sum();
    assert_eq!(reclaimed, 0, "{:?}", rig.notices);
}
