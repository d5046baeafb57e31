// SPDX-License-Identifier: Apache-2.0
//! What the engine shows.

use std::time::Duration;

use crate::support::{Rig, line};
use netvm_attach::Hello;
use netvm_engine::{
    ChainId, DropReason, Engine, Hypothetical, NfVerdict, Origin, RoleId, StartTraceError, Step, TraceSpec,
    TracedPacket,
};
use netvm_model::{EngineConfig, Host, Output, PortKind, SourceConfig};
use netvm_region::NfCounter;
use netvm_wire::{FrameBuilder, MacAddr};

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn what_a_device_lost_is_shown() {
    let mut host = line(&[], None, false);
    let source = |rate| SourceConfig { rate, ..SourceConfig::default() };
    // More than any core makes.
    host.ports[0].kind = PortKind::Source(source(Some(10_000_000_000)));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(TIMEOUT, |engine| engine.ports()[0].rx_dropped > 10_000_000), "{}", rig.describe());
    assert_eq!(rig.engine.ports()[1].rx_dropped, 0, "a sink receives nothing");

    host.ports[0].kind = PortKind::Source(source(None));
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(TIMEOUT, |engine| engine.ports()[1].tx_packets > 10_000), "{}", rig.describe());
    assert_eq!(rig.engine.ports()[0].rx_dropped, 0, "flat out is never late");
}

#[test]
fn threads_show_their_nf_threads() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a", "b"], None, false)).unwrap();
    let ids = [rig.attach("a", "forward", false), rig.attach("b", "forward", false)];
    let nf_threads = |rig: &Rig| -> Vec<u8> {
        rig.engine
            .instances()
            .iter()
            .flat_map(|view| &view.threads)
            .map(|thread| thread.nf_thread.0)
            .collect()
    };
    assert_eq!(nf_threads(&rig), [1, 2], "nf_thread 0 is the engine");
    rig.kill(ids[0]);
    assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
    assert_eq!(nf_threads(&rig), [2]);
    rig.attach("a", "forward", false);
    assert_eq!(nf_threads(&rig), [2, 1]);
}

#[test]
fn sums_of_a_role_outlive_its_instances_and_a_new_one_begins_at_zero() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a"], None, false)).unwrap();
    let received = |engine: &Engine| engine.role_totals()["a"].standard[NfCounter::Received as usize];
    let mut last = (0, 0);
    for _ in 0..3 {
        let id = rig.attach("a", "forward", false);
        let delivered = |engine: &Engine| engine.role_totals()["a"].delivered;
        let goal = last.0 + 50_000;
        assert!(rig.until(TIMEOUT, |engine| delivered(engine) > goal), "{}", rig.describe());
        // Those before it, and nothing of theirs in its own counts, though it has their links.
        let around = delivered(&rig.engine);
        let own = &rig.engine.instances()[0].threads[0];
        assert!(
            (around..=delivered(&rig.engine)).contains(&(last.0 + own.delivered)),
            "{last:?} and {own:?}"
        );
        rig.kill(id);
        // At every moment of the way out.
        let never_back = |engine: &Engine| {
            let now = (engine.role_totals()["a"].delivered, received(engine));
            assert!(now.0 >= last.0 && now.1 >= last.1, "{now:?} after {last:?}");
            last = now;
            !engine.is_settling()
        };
        assert!(rig.until(TIMEOUT, never_back), "{}", rig.describe());
        assert!(last.1 > 0 && rig.engine.instances().is_empty());
    }
    rig.engine.apply(&Host { groups: line(&[], None, false).groups, ..Host::default() }).unwrap();
    assert!(rig.engine.role_totals().is_empty(), "roles of the configuration only");
}

#[test]
fn names_of_counters_are_safe_for_a_terminal() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a"], None, false)).unwrap();
    let hello = Hello {
        layout: netvm_region::LAYOUT_VERSION,
        role: "a".to_owned(),
        name: "a".to_owned(),
        threads: 1,
        counters: vec!["\u{1b}[2J\u{9b}31mlost\n".to_owned(), "x".repeat(10_000)],
        offloads: false,
    };
    rig.engine.admit(&hello, false).unwrap();
    let view = rig.engine.instances().remove(0);
    let names: Vec<&str> = view.own.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["\u{fffd}[2J\u{fffd}31mlost\u{fffd}", &"x".repeat(64)]);
}

#[test]
fn what_is_configured_again_counts_from_zero() {
    let mut rig = Rig::new(&EngineConfig::default());
    let rule = |host: &Host| host.rules[0].id;
    for count in [3000, 10] {
        let host = line(&["a"], Some(count), true);
        let nothing = Host { groups: host.groups.clone(), ..Host::default() };
        rig.engine.apply(&host).unwrap();
        let a = rig.attach("a", "forward", false);
        assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left >= count), "{}", rig.describe());
        let (ports, chains) = (rig.engine.ports(), rig.engine.chains());
        assert_eq!([ports[0].rx_packets, ports[1].tx_packets], [count, count]);
        assert_eq!([chains[0].entered, chains[0].left], [count, count]);
        assert_eq!(rig.engine.rule_count(rule(&host)).packets, count);
        assert_eq!(rig.engine.role_totals()["a"].returned, count);
        rig.engine.apply(&nothing).unwrap();
        rig.await_end(a);
        assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
    }
}

#[test]
fn a_trace_follows_a_packet_through_its_chain() {
    let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])).to_vec().unwrap();
    let mut host = line(&["a"], None, false);
    let (from, out, chain) = (host.ports[0].id, host.ports[1].id, host.chains[0].id);
    let cases = [
        (Output::Port(out), vec![Step::Passed, Step::Out(out)]),
        (Output::Ingress, vec![Step::Passed, Step::Out(from)]),
        // No other port is switched.
        (Output::Normal, vec![Step::Passed, Step::Switched(None), Step::Dropped(DropReason::Filtered)]),
        (Output::None, vec![Step::NfDecides]),
    ];
    let mut rig = Rig::new(&EngineConfig::default());
    for (output, expected) in cases {
        host.chains[0].output = output;
        rig.engine.apply(&host).unwrap();
        let steps = rig.engine.trace(Hypothetical::of(from, &frame)).unwrap();
        let entered = steps.iter().position(|step| *step == Step::Chain(chain)).unwrap();
        assert_eq!(steps[entered + 1..], expected, "{output:?}");
    }
}

/// The steps from the chain's entry on, but those between workers.
fn steps_in_chain(packet: &TracedPacket, chain: ChainId) -> Vec<Step> {
    assert!(packet.steps.is_sorted_by_key(|timed| timed.after), "{packet:#?}");
    let steps = packet.steps.iter().map(|timed| timed.step.clone());
    steps
        .skip_while(|step| *step != Step::Chain(chain))
        .skip(1)
        .filter(|step| !matches!(step, Step::HandedOver(_)))
        .collect()
}

#[test]
fn packets_of_traffic_are_followed_through_a_chain() {
    let host = line(&["a", "b"], None, true);
    let (from, out, chain) = (host.ports[0].id, host.ports[1].id, host.chains[0].id);
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    for role in ["a", "b"] {
        rig.attach(role, "forward", false);
    }
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left > 0), "{}", rig.describe());
    let to_nf = |number: u8| Step::ToNf { role: RoleId(number.into()), hop: number };
    let verdict = NfVerdict::Next;
    let from_nf = |number: u8| Step::FromNf { role: RoleId(number.into()), hop: number, verdict };
    let spec = TraceSpec { packets: 20, ..TraceSpec::default() };
    let trace = rig.start_trace(&spec).unwrap();
    let packets = rig.traced(trace);
    assert_eq!(packets.len(), 20);
    for packet in &packets {
        assert_eq!((packet.from, &packet.steps[0].step), (Origin::Port(from), &Step::In(from)));
        // The NFs are of one group: the first hands packets to the second.
        let expected = [to_nf(0), from_nf(1), Step::Left, Step::Out(out)];
        assert_eq!(steps_in_chain(packet, chain), expected, "{packet:#?}");
        assert!(packet.steps.iter().all(|timed| timed.host.chains == host.chains));
    }
    assert!(rig.engine.read_trace(trace).is_none(), "it has ended");

    let each_hop = TraceSpec { each_hop: true, ..spec.clone() };
    let trace = rig.start_trace(&each_hop).unwrap();
    let packets = rig.traced(trace);
    // On a busy machine the second NF's ring may be full.
    let has = |packets: &[TracedPacket], expected: &[Step]| {
        packets.iter().any(|packet| steps_in_chain(packet, chain) == expected)
    };
    let expected = [to_nf(0), from_nf(0), to_nf(1), from_nf(1), Step::Left, Step::Out(out)];
    assert!(has(&packets, &expected), "{packets:#?}");
    let trace = rig.start_trace(&spec).unwrap();
    let packets = rig.traced(trace);
    assert!(has(&packets, &[to_nf(0), from_nf(1), Step::Left, Step::Out(out)]), "{packets:#?}");
}

#[test]
fn workers_follow_no_more_packets_than_are_read() {
    let host = line(&["a"], None, true);
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "forward", false);
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left > 0), "{}", rig.describe());
    let spec = TraceSpec { packets: 20, ..TraceSpec::default() };
    let all: Vec<_> = (0..16).map(|_| rig.start_trace(&spec).unwrap()).collect();
    assert!(matches!(rig.start_trace(&spec), Err(StartTraceError::TooMany)));
    rig.until(Duration::from_millis(200), |_| false);
    let read = rig.engine.read_trace(all[0]).unwrap();
    assert!(!read.is_over && (1..20).contains(&read.packets.len()), "{}", read.packets.len());
    all.iter().for_each(|trace| rig.engine.stop_trace(*trace));
    let trace = rig.start_trace(&spec).unwrap();
    assert_eq!(rig.traced(trace).len(), 20);
}
