// SPDX-License-Identifier: Apache-2.0
use super::*;
use std::collections::HashMap;

use clap::Parser;
use netlib::PortId;
use netlib::sim::{Outcome, Simulator};
use netvm_nf_common::testing;
use proptest::prelude::*;

const PORTS: [&str; 2] = ["lan", "wan"];
const LAN: PortId = PortId(0);
const WAN: PortId = PortId(1);
const WEB: Verdict = Verdict::Role(RoleId(0));
const API: Verdict = Verdict::Role(RoleId(1));

fn args(args: &[&str]) -> Args {
    Args::try_parse_from([&["nf"], args].concat()).unwrap()
}

fn balancer(options: &[&str], simulator: &Simulator) -> LoadBalancer {
    let args = args(options);
    args.check().unwrap();
    let (hasher, flows) = (args.hasher(), Flows::new(args.flows as usize, args.timeout));
    LoadBalancer::new(args, hasher, flows, &simulator.context())
}

fn with(options: &[&str]) -> (Simulator, LoadBalancer) {
    let simulator = Simulator::new(&PORTS, &["web", "api"]).unwrap();
    let nf = balancer(options, &simulator);
    (simulator, nf)
}

/// A packet of the n-th flow, and its reply.
fn flow(n: u16) -> [Vec<u8>; 2] {
    let (client, server) = (format!("10.0.0.1:{}", 1000 + n), "10.0.1.1:80");
    [testing::tcp(&client, server, b"to"), testing::tcp(server, &client, b"from")]
}

fn inject(simulator: &mut Simulator, nf: &mut LoadBalancer, frames: &[Vec<u8>]) -> Vec<Outcome> {
    let list: Vec<_> = frames.iter().map(|frame| (LAN, frame.as_slice())).collect();
    let outcomes = simulator.inject_all(nf, &list);
    assert!(outcomes.iter().zip(frames).all(|(outcome, frame)| outcome.bytes == *frame));
    outcomes
}

fn counter(nf: &LoadBalancer, name: &str) -> u64 {
    let mut counters = [0; MAX_COUNTERS];
    nf.report(&mut counters);
    counters[nf.args.counters().iter().position(|counter| *counter == name).unwrap()]
}

fn to_web(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.verdict == WEB).count()
}

#[test]
fn flows_are_spread_by_weight_and_both_directions_stay_together() {
    for by in ["hash", "sticky"] {
        let (mut simulator, mut nf) = with(&["--to", "web=3", "--to", "api=1", "--by", by, "--key", "7"]);
        let frames: Vec<_> = (0..2000).flat_map(flow).collect();
        let outcomes = inject(&mut simulator, &mut nf, &frames);
        for pair in outcomes.chunks(2) {
            assert_eq!((pair[0].verdict, pair[0].hash), (pair[1].verdict, pair[1].hash));
        }
        let web = to_web(&outcomes);
        assert!((2700..3300).contains(&web), "{web} of 4000, expected 3000");
        assert_eq!(counter(&nf, "to-web"), web as u64);
        assert_eq!(counter(&nf, "to-api"), 4000 - web as u64);
        let mut replicas = [0; 3];
        outcomes.iter().for_each(|outcome| replicas[usize::from(outcome.hash) % 3] += 1);
        assert!(replicas.iter().all(|count| (1150..1520).contains(count)), "{replicas:?}");
    }
}

#[test]
fn least_rotates_roles_and_leaves_replicas_to_their_rings() {
    let (mut simulator, mut nf) = with(&["--to", "web=2", "--to", "api", "--by", "least"]);
    let [frame, _] = flow(1);
    let outcomes = inject(&mut simulator, &mut nf, &vec![frame; 6]);
    assert!(outcomes.iter().all(|outcome| outcome.hash == 0));
    let verdicts: Vec<_> = outcomes.iter().map(|outcome| outcome.verdict).collect();
    assert_eq!(verdicts, [WEB, API, WEB, WEB, API, WEB]);
}

#[test]
fn fragments_stay_together() {
    let (mut simulator, mut nf) = with(&["--to", "web", "--to", "api"]);
    for n in 0..20 {
        let base = || testing::base(&format!("10.0.0.{n}:0"), "10.0.1.1:0").udp(5, 6).payload(&[0; 64]);
        let frames = [(0, true), (64, true), (128, false)]
            .map(|(offset, more)| testing::built(&base().fragment(9, offset, more)));
        let outcomes = inject(&mut simulator, &mut nf, &frames);
        assert!(outcomes.iter().all(|o| (o.verdict, o.hash) == (outcomes[0].verdict, outcomes[0].hash)));
    }
}

#[test]
fn one_key_is_one_choice() {
    let frames: Vec<_> = (0..300).flat_map(flow).collect();
    let outcomes = |key: &[&str]| {
        let (mut simulator, mut nf) = with(&[&["--to", "web", "--to", "api"], key].concat());
        inject(&mut simulator, &mut nf, &frames)
    };
    assert_eq!(outcomes(&["--key", "1"]), outcomes(&["--key", "1"]));
    assert_ne!(outcomes(&["--key", "1"]), outcomes(&["--key", "2"]));
    assert_ne!(outcomes(&[]), outcomes(&[]), "random keys");
}

#[test]
fn packets_without_a_flow_follow_their_option() {
    let arp = testing::every_kind().into_iter().rev().take(4).collect::<Vec<_>>();
    for (other, expected, no_port) in [
        ("next", Verdict::Next, 0),
        ("drop", Verdict::Drop, 0),
        ("port:wan", Verdict::Port(WAN), 0),
        ("port:none", Verdict::Drop, 4),
    ] {
        let (mut simulator, mut nf) = with(&["--to", "web", "--other", other]);
        let outcomes = inject(&mut simulator, &mut nf, &arp);
        assert!(outcomes.iter().all(|outcome| outcome.verdict == expected), "{other}");
        assert_eq!((counter(&nf, "other"), counter(&nf, "no-port")), (4, no_port));
    }
    let (mut simulator, mut nf) = with(&["--to", "web", "--malformed", "pass"]);
    assert_eq!(simulator.inject(&mut nf, LAN, &[1; 13]).verdict, Verdict::Next);
    assert_eq!((counter(&nf, "malformed"), counter(&nf, "other")), (1, 0));
}

#[test]
fn packets_for_a_missing_role_fall_back() {
    let frames: Vec<_> = (0..400).flat_map(flow).collect();
    for by in ["hash", "sticky", "least"] {
        for (fallback, expected) in [("drop", Verdict::Drop), ("next", Verdict::Next), ("others", WEB)] {
            let options = ["--to", "web", "--to", "gone", "--by", by, "--fallback", fallback];
            let (mut simulator, mut nf) = with(&options);
            let outcomes = inject(&mut simulator, &mut nf, &frames);
            let web = to_web(&outcomes);
            if expected == WEB {
                assert_eq!((web, counter(&nf, "unknown-role")), (800, 0));
                continue;
            }
            assert!((300..500).contains(&web), "{by} {fallback}: {web} of 800");
            assert!(outcomes.iter().all(|outcome| [WEB, expected].contains(&outcome.verdict)));
            assert_eq!(counter(&nf, "unknown-role"), 800 - web as u64);
            assert_eq!(counter(&nf, "to-gone"), 0);
        }
    }
    let (mut simulator, mut nf) = with(&["--to", "gone", "--fallback", "others"]);
    assert_eq!(inject(&mut simulator, &mut nf, &frames)[0].verdict, Verdict::Drop);
    assert_eq!(counter(&nf, "unknown-role"), 800);
}

#[test]
fn sticky_flows_stay_when_roles_come_and_hashed_ones_move() {
    let frames: Vec<_> = (0..200).map(|n| flow(n)[0].clone()).collect();
    for (by, stays) in [("sticky", true), ("hash", false)] {
        let options = ["--to", "web", "--to", "api", "--by", by, "--fallback", "others"];
        let mut few = Simulator::new(&PORTS, &["x", "web"]).unwrap();
        let mut all = Simulator::new(&PORTS, &["web", "api"]).unwrap();
        let mut nf = balancer(&options, &few);
        let outcomes = inject(&mut few, &mut nf, &frames);
        assert!(outcomes.iter().all(|outcome| outcome.verdict == Verdict::Role(RoleId(1))));
        // api is added, and web has another id now.
        nf.changed(&all.context());
        let known = to_web(&inject(&mut all, &mut nf, &frames));
        assert_eq!(known == 200, stays, "{by}: {known}");
        let new: Vec<_> = (200..400).map(|n| flow(n)[0].clone()).collect();
        let new = to_web(&inject(&mut all, &mut nf, &new));
        assert!((50..150).contains(&new), "{by}: new flows are spread: {new}");
        // web is removed: its flows move, and api's stay.
        let mut other = Simulator::new(&PORTS, &["api"]).unwrap();
        nf.changed(&other.context());
        let outcomes = inject(&mut other, &mut nf, &frames);
        assert!(outcomes.iter().all(|outcome| outcome.verdict == Verdict::Role(RoleId(0))));
        assert_eq!(counter(&nf, "moved"), if stays { 200 } else { 0 });
    }
}

#[test]
fn sticky_flows_are_bounded_and_forgotten() {
    let (mut simulator, mut nf) = with(&["--to", "web", "--by", "sticky", "--flows", "32"]);
    let frames: Vec<_> = (0..200).flat_map(flow).collect();
    inject(&mut simulator, &mut nf, &frames);
    nf.tick();
    assert!((1..=32).contains(&counter(&nf, "flows")));
    assert!(counter(&nf, "evicted") >= 168);
    nf.flows.set_timeout(clock::cycles_in_micros(20_000));
    simulator.advance(&mut nf, std::time::Duration::from_millis(40));
    assert_eq!(counter(&nf, "flows"), 0);
}

#[test]
fn wrong_options_are_refused() {
    let refused = |options: &[&str]| args(options).check().unwrap_err().to_string();
    assert!(refused(&["--to", "web", "--to", "web=2"]).contains("twice"));
    assert!(refused(&["--to", "lb", "--role", "lb"]).contains("own role"));
    let many: Vec<_> = (0..=crate::MAX_TARGETS).map(|n| format!("--to=r{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(refused(&many).contains(&format!("limit them to {}", crate::MAX_TARGETS)));
    args(&many[1..]).check().unwrap();
    for options in
        [&[][..], &["--to", "web=0"], &["--to", "web", "--other", "up"], &["--to", "web", "--by", "luck"]]
    {
        assert!(Args::try_parse_from([&["nf"], options].concat()).is_err(), "{options:?}");
    }
}

/// The flow of a packet, by a simple reference.
fn plain_flow(frame: &[u8]) -> Option<(FiveTuple, bool)> {
    let headers = netvm_wire::parse(frame).ok()?;
    let tuple = headers.five_tuple()?.canonical();
    let whole = headers.key().fragment == Fragment::Whole;
    Some((tuple, whole))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_harm_it_and_each_flow_has_one_target(frames in testing::hostile(), sticky in any::<bool>()) {
        let by = if sticky { "sticky" } else { "hash" };
        let (mut simulator, mut nf) = with(&["--to", "web", "--to", "api", "--by", by, "--other", "port:wan"]);
        let outcomes = testing::survives(&mut simulator, &mut nf, &frames);
        let mut targets = HashMap::new();
        for (outcome, frame) in outcomes.iter().zip(&frames) {
            prop_assert_eq!(&outcome.bytes, frame);
            match plain_flow(frame) {
                Some((flow, true)) => {
                    prop_assert!([WEB, API].contains(&outcome.verdict));
                    let target = (outcome.verdict, outcome.hash);
                    prop_assert_eq!(*targets.entry(flow).or_insert(target), target);
                }
                Some((_, false)) => prop_assert!([WEB, API].contains(&outcome.verdict)),
                None if netvm_wire::parse(frame).is_ok() => {
                    prop_assert_eq!(outcome.verdict, Verdict::Port(WAN));
                }
                None => prop_assert_eq!(outcome.verdict, Verdict::Drop),
            }
        }
        let counted: u64 = nf.args.counters().iter().filter(|name| !["flows", "moved", "evicted", "no-port"].contains(&name.as_str())).map(|name| counter(&nf, name)).sum();
        prop_assert_eq!(counted, frames.len() as u64, "every packet is counted once");
    }
}
