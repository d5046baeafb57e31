// SPDX-License-Identifier: Apache-2.0
//! A hostile NF: attaches like any other, then writes random bytes over everything that it can map.
//!
//! `NETVM_HOSTILE_SECONDS` says for how long (3 by default).

use std::time::{Duration, Instant};

use crate::support::{
    Rig, all_is_free, chain, group, line, nf, nothing_is_out, port, rule, source, two_lines,
};
use netvm_engine::Notice;
use netvm_model::{EngineConfig, Host, OnFailure, PortKind};

#[test]
fn a_hostile_nf_harms_nobody_else() {
    let seconds = std::env::var("NETVM_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut host: Host = line(&["hostile"], None, false);
    host.groups.push(group(1, 4096, 2048));
    host.ports.push(port(2, "in2", source(60, None, true)));
    host.ports.push(port(3, "out2", PortKind::Sink));
    host.nfs.push(nf(1, "honest", 1));
    host.nfs.push(nf(2, "honest2", 1));
    host.chains.push(chain(1, &[1, 2], OnFailure::Drop, 3));
    host.rules.push(rule(2, 1));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("honest", "forward", false);
    rig.attach("honest2", "forward", false);
    let mut hostile = rig.attach("hostile", "hostile", false);
    let start = Instant::now();
    let mut last = 0;
    let mut kills = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        assert!(!rig.until(Duration::from_millis(500), |_| false));
        let left = rig.engine.chains()[1].left;
        assert!(left > last, "the honest chain stands still: {}", rig.describe());
        last = left;
        // The hostile NF dies now and then, at any point, and another attaches.
        if start.elapsed() > Duration::from_secs(kills + 1) {
            kills += 1;
            rig.kill(hostile);
            assert!(rig.until(Duration::from_secs(10), |engine| !engine.is_settling()), "{}", rig.describe());
            hostile = rig.attach("hostile", "hostile", false);
        }
    }
    rig.kill(hostile);
    // No packet of its chain left more often than packets were handed to it.
    let chain = &rig.engine.chains()[0];
    assert!(chain.left <= chain.entered, "{} packets left, {} were handed out", chain.left, chain.entered);
    // The honest chain lost nothing, and only its own packets left by its port.
    rig.engine.apply(&Host { rules: Vec::new(), ..host }).unwrap();
    assert!(rig.until(Duration::from_secs(10), nothing_is_out), "{}", rig.describe());
    let honest = &rig.engine.chains()[1];
    assert!(honest.drops.is_empty() && honest.left == honest.entered, "{}", rig.describe());
    assert_eq!(rig.sent(3), honest.left);
    // The pools have all their buffers again.
    assert!(rig.until(Duration::from_secs(5), all_is_free), "{}", rig.describe());
}

#[test]
fn buffers_of_a_liar_are_found_while_those_it_accuses_live_on() {
    let mut host = line(&["honest"], None, false);
    host.nfs.push(nf(1, "liar", 0));
    host.ports.push(port(2, "in2", source(60, Some(300), true)));
    host.chains.push(chain(1, &[1], OnFailure::Drop, 1));
    host.rules.push(rule(2, 1));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("honest", "forward", false);
    let liar = rig.attach("liar", "liar", false);
    let all_lost = |engine: &netvm_engine::Engine| {
        let views = engine.instances();
        views[1].threads[0].delivered == 300 && views[1].threads[0].buffers == 0
    };
    assert!(rig.until(Duration::from_secs(10), all_lost), "{}", rig.describe());
    rig.kill(liar);
    assert!(rig.until(Duration::from_secs(10), |engine| !engine.is_settling()), "{}", rig.describe());
    let audited = |notice: &Notice| if let Notice::Audited { buffers, .. } = notice { *buffers } else { 0 };
    assert_eq!(rig.notices.iter().map(audited).sum::<u64>(), 300, "{:?}", rig.notices);
    // The honest NF has lost nothing, and goes on.
    let honest = &rig.engine.instances()[0].threads[0];
    assert!(honest.violations.is_empty(), "{}", rig.describe());
    let left = rig.engine.chains()[0].left;
    assert!(
        rig.until(Duration::from_secs(10), |engine| engine.chains()[0].left > left + 1000),
        "{}",
        rig.describe()
    );
}

#[test]
fn false_backpressure_ends_with_its_writer_and_needs_threads_of_the_chain() {
    let mut host = line(&["a", "b", "hostile"], None, false);
    host.chains[0].hops.pop();
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    for role in ["a", "b"] {
        rig.attach(role, "forward", false);
    }
    let flows_on = |rig: &mut Rig| {
        let left = rig.engine.chains()[0].left;
        rig.until(Duration::from_secs(5), |engine| engine.chains()[0].left > left + 10_000)
    };
    // Bits of threads that the chain does not have: the NF threads 1 and 2 are `a` and `b`.
    let hostile = rig.attach("hostile", "backpressure=3", false);
    assert!(flows_on(&mut rig), "{}", rig.describe());
    rig.kill(hostile);
    // Bits of all threads: they may close the chain while the hostile NF is there, but not for longer.
    let hostile = rig.attach("hostile", "backpressure=0", false);
    rig.until(Duration::from_millis(100), |_| false);
    rig.kill(hostile);
    assert!(flows_on(&mut rig), "{}", rig.describe());
}

/// Reserves huge pages for as long as it lives, if the machine lets it.
struct HugePages(Option<String>);

impl HugePages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve(number: u32) -> Self {
        let before = std::fs::read_to_string(Self::FILE).ok();
        let is_written = std::fs::write(Self::FILE, number.to_string()).is_ok();
        Self(before.filter(|_| is_written))
    }

    fn are_free(&self, number: u64) -> bool {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
        line.and_then(|free| free.trim().parse::<u64>().ok()).is_some_and(|free| free >= number)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = std::fs::write(Self::FILE, before.trim());
        }
    }
}

#[test]
fn a_group_whose_nf_punches_holes_into_its_memory_starts_anew_and_others_flow_on() {
    for huge in [false, true] {
        // Tests beside this one take some.
        let pages = HugePages::reserve(if huge { 256 } else { 0 });
        if huge && !pages.are_free(128) {
            println!("SKIP: no huge pages can be reserved here");
            continue;
        }
        let host = two_lines([&["hostile"], &["a", "b"]], [source(60, None, false), source(60, None, true)]);
        let mut rig = Rig::new(&EngineConfig::default());
        rig.engine.apply(&host).unwrap();
        if huge {
            let groups = rig.engine.groups();
            assert!(groups.iter().flat_map(|group| &group.memories).any(|memory| memory.huge_pages));
        }
        rig.attach("a", "forward", false);
        rig.attach("b", "forward", false);
        let until = |rig: &mut Rig, chain: usize| {
            let left = rig.engine.chains()[chain].left;
            rig.until(Duration::from_secs(20), |engine| engine.chains()[chain].left > left + 10_000)
        };
        assert!(until(&mut rig, 1), "{}", rig.describe());
        let hostile = rig.attach("hostile", "punch", false);
        assert!(
            rig.until(Duration::from_secs(20), |engine| engine.instances().len() == 2),
            "{}",
            rig.describe()
        );
        assert!(rig.notices.iter().any(|n| matches!(n, Notice::GroupReset { group } if group.0 == 0)));
        assert!(
            rig.notices.iter().any(|n| matches!(n, Notice::Evicted { instance, .. } if *instance == hostile))
        );
        assert!(until(&mut rig, 1), "{}", rig.describe());
        rig.kill(hostile);
        // The group takes NFs again, over memory that it has not lost.
        rig.attach("hostile", "forward", false);
        assert!(until(&mut rig, 0) && until(&mut rig, 1), "{}", rig.describe());
        rig.engine.apply(&Host { rules: Vec::new(), ..host }).unwrap();
        assert!(rig.until(Duration::from_secs(10), all_is_free), "{}", rig.describe());
        let honest = &rig.engine.chains()[1];
        assert!(honest.drops.is_empty() && honest.left == honest.entered, "{}", rig.describe());
    }
}
