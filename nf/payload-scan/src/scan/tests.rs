// SPDX-License-Identifier: Apache-2.0
use super::*;
use std::path::Path;
use std::sync::{Arc, Mutex};

use clap::Parser;
use netlib::sim::{Outcome, Simulator};
use netlib::{Idle, PortId, RoleId};
use netvm_nf_common::{Lines, Live, testing};
use proptest::prelude::*;

const IN: PortId = PortId(0);
const WAN: Verdict = Verdict::Port(PortId(1));
const AUDIT: Verdict = Verdict::Role(RoleId(1));

fn live(text: &str, ignore_case: bool) -> Arc<Live<Patterns>> {
    let text = text.to_owned();
    Live::new(move || Patterns::from_lines(&Lines::from_text(Path::new("p"), text.clone()), ignore_case))
        .unwrap()
}

fn with(text: &str, options: &[&str]) -> (Simulator, PayloadScan) {
    let simulator = Simulator::new(&["lan", "wan"], &["web", "audit"]).unwrap();
    let args = Args::try_parse_from([&["nf", "--patterns", "p"], options].concat()).unwrap();
    let patterns = live(text, args.ignore_case).view();
    let shown = patterns.get().list().len();
    let nf = PayloadScan::new(args, patterns, shown, &simulator.context());
    (simulator, nf)
}

fn counters_of(nf: &PayloadScan) -> [u64; MAX_COUNTERS] {
    let mut counters = [9; MAX_COUNTERS];
    nf.report(&mut counters);
    counters
}

fn counter(nf: &PayloadScan, name: &str) -> u64 {
    counters_of(nf)[crate::counters(nf.shown).iter().position(|counter| counter == name).unwrap()]
}

fn tcp(payload: &[u8]) -> Vec<u8> {
    testing::tcp("10.0.0.1:1000", "10.0.1.2:80", payload)
}

fn inject(simulator: &mut Simulator, nf: &mut PayloadScan, payloads: &[&str]) -> Vec<Outcome> {
    let frames: Vec<_> = payloads.iter().map(|payload| tcp(payload.as_bytes())).collect();
    let list: Vec<_> = frames.iter().map(|frame| (IN, frame.as_slice())).collect();
    let outcomes = simulator.inject_all(nf, &list);
    assert!(outcomes.iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == *frame));
    outcomes
}

fn verdicts(simulator: &mut Simulator, nf: &mut PayloadScan, payloads: &[&str]) -> Vec<Verdict> {
    inject(simulator, nf, payloads).iter().map(|outcome| outcome.verdict).collect()
}

#[test]
fn packets_go_where_the_first_pattern_says() {
    let text = "drop \"evil\"\nport:wan \"GET \"\nrole:audit \"POST \"\nnext \"P\"\ncount \"e\"\n\"x-\"\n";
    let (mut simulator, mut nf) = with(text, &["--default", "role:web"]);
    let payloads = ["an evil GET /", "GET /", "POST / evil", "POST /", "PUT", "", "eee", "get x-"];
    assert_eq!(
        verdicts(&mut simulator, &mut nf, &payloads),
        [
            Verdict::Drop,
            WAN,
            Verdict::Drop,
            AUDIT,
            Verdict::Next,
            Verdict::Role(RoleId(0)),
            Verdict::Role(RoleId(0)),
            Verdict::Drop,
        ]
    );
    let own = (1..=6).map(|n| counter(&nf, &format!("pattern-{n}"))).collect::<Vec<_>>();
    assert_eq!(own, [2, 1, 1, 1, 4, 1], "a pattern that counts does so once a packet");
    let fixed = ["matched", "unmatched", "no-target", "pattern-rest"].map(|name| counter(&nf, name));
    assert_eq!(fixed, [6, 2, 0, 0]);
}

#[test]
fn only_the_payload_is_searched_unless_the_whole_frame_is() {
    // The ports' bytes, and a payload of another packet.
    let text = "drop hex:03e80050\ndrop \"padding\"\n";
    let mut frame = testing::udp("10.0.0.1:1000", "10.0.1.2:80", b"x");
    frame.extend(b"padding");
    for (options, expected) in [(&[][..], Verdict::Next), (&["--whole-frame"], Verdict::Drop)] {
        let (mut simulator, mut nf) = with(text, options);
        assert_eq!(simulator.inject(&mut nf, IN, &frame).verdict, expected);
    }
    for (options, expected) in [
        (&[][..], Verdict::Drop),
        (&["--malformed", "pass"], Verdict::Next),
        (&["--whole-frame", "--default", "port:wan"], WAN),
    ] {
        let (mut simulator, mut nf) = with(text, options);
        assert_eq!(simulator.inject(&mut nf, IN, &[1; 13]).verdict, expected);
        assert_eq!(counter(&nf, "malformed"), u64::from(expected != WAN));
    }
}

#[test]
fn content_is_found_in_every_kind_of_packet() {
    let (mut simulator, mut nf) = with("port:wan hex:01010101\n", &[]);
    let mut found = 0;
    for frame in testing::every_kind() {
        found += usize::from(simulator.inject(&mut nf, IN, &frame).verdict == WAN);
    }
    assert_eq!(found, 2, "the datagrams of 8,000 bytes, of IPv4 and IPv6");
    for builder in [
        testing::base("10.0.0.1:0", "10.0.0.2:0").udp(5, 6),
        testing::base("[fd00::1]:0", "[fd00::2]:0").udp(5, 6),
    ] {
        let payload = [&[0; 64][..], &[1; 64]].concat();
        let tagged = builder.service_vlan(testing::vlan(9)).vlan(testing::vlan(7)).payload(&payload);
        assert_eq!(simulator.inject(&mut nf, IN, &testing::built(&tagged)).verdict, WAN);
        let later = builder.payload(&payload).fragment(9, 64, false);
        assert_eq!(simulator.inject(&mut nf, IN, &testing::built(&later)).verdict, WAN, "a later fragment");
    }
}

#[test]
fn packets_to_missing_destinations_are_dropped_and_counted() {
    let (mut simulator, mut nf) = with("role:late \"a\"\nport:gone \"b\"\n", &["--default", "port:gone"]);
    assert_eq!(verdicts(&mut simulator, &mut nf, &["a", "b", "c"]), [Verdict::Drop; 3]);
    assert_eq!((counter(&nf, "no-target"), counter(&nf, "matched")), (3, 2));
    let mut later = Simulator::new(&["gone"], &["late"]).unwrap();
    nf.changed(&later.context());
    let (late, gone) = (Verdict::Role(RoleId(0)), Verdict::Port(PortId(0)));
    assert_eq!(verdicts(&mut later, &mut nf, &["a", "b", "c"]), [late, gone, gone]);
    assert_eq!((counter(&nf, "no-target"), counter(&nf, "pattern-1")), (3, 2));
}

#[test]
fn replicas_are_selected_by_flow() {
    let (mut simulator, mut nf) = with("role:audit \"a\"\n", &[]);
    let hash = |simulator: &mut Simulator, nf: &mut PayloadScan, source: &str, destination: &str| {
        simulator.inject(nf, IN, &testing::tcp(source, destination, b"a")).hash
    };
    let mut hashes: Vec<u8> = Vec::new();
    for n in 0..50 {
        let (a, b) = (format!("10.0.0.1:{}", 1000 + n), "10.0.1.2:80");
        let there = hash(&mut simulator, &mut nf, &a, b);
        assert_eq!(hash(&mut simulator, &mut nf, b, &a), there, "the same for both directions");
        hashes.push(there);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert!(hashes.len() > 20, "{hashes:?}");
    let (mut simulator, mut nf) = with("port:wan \"a\"\n", &[]);
    assert_eq!(hash(&mut simulator, &mut nf, "10.0.0.1:1", "10.0.0.2:2"), 0, "no role, no hash");
}

#[test]
fn patterns_without_a_counter_are_summed() {
    let text: String = (0..40).map(|n| format!("count \"<{n}>\"\n")).collect();
    let (mut simulator, mut nf) = with(&text, &[]);
    let payloads: Vec<_> = (0..40).map(|n| format!("<{n}>")).collect();
    inject(&mut simulator, &mut nf, &payloads.iter().map(String::as_str).collect::<Vec<_>>());
    let counters = counters_of(&nf);
    assert_eq!(crate::counters(40).len(), MAX_COUNTERS);
    assert_eq!(counters[COUNTERS.len()..], [1; crate::MAX_SHOWN]);
    assert_eq!((counter(&nf, "pattern-25"), counter(&nf, "pattern-rest")), (1, 15));
    let (_, few) = with("count \"a\"", &[]);
    assert_eq!(counters_of(&few), [0; MAX_COUNTERS]);
}

#[test]
fn new_patterns_apply_under_traffic() {
    let text = Arc::new(Mutex::new("drop \"a\"\n".to_owned()));
    let source = Arc::clone(&text);
    let live = Live::new(move || {
        Patterns::from_lines(&Lines::from_text(Path::new("p"), source.lock().unwrap().clone()), false)
    })
    .unwrap();
    let mut simulator = Simulator::new(&["lan", "wan"], &[]).unwrap();
    let args = Args::try_parse_from(["nf", "--patterns", "p"]).unwrap();
    let mut nf = PayloadScan::new(args, live.view(), 1, &simulator.context());
    assert_eq!(verdicts(&mut simulator, &mut nf, &["a", "b"]), [Verdict::Drop, Verdict::Next]);
    *text.lock().unwrap() = "port:wan \"b\"\ncount \"a\"\ncount \"b\"\n".to_owned();
    live.request().store(true, std::sync::atomic::Ordering::Relaxed);
    nf.tick();
    testing::until("the new patterns are used", || verdicts(&mut simulator, &mut nf, &["b"]) == [WAN]);
    assert!(simulator.withdrawn() > 0, "the flow verdicts of the old patterns are withdrawn");
    assert_eq!(verdicts(&mut simulator, &mut nf, &["a", "ab"]), [Verdict::Next, WAN]);
    assert_eq!((counter(&nf, "pattern-1"), counter(&nf, "pattern-rest")), (2, 4), "the counters restart");
}

#[test]
fn the_engine_gets_verdicts_for_the_rest_of_a_flow() {
    let text = "drop \"evil\"\nport:wan \"GET\"\n";
    let (mut simulator, mut nf) = with(text, &["--drop-flow", "--skip-after", "3", "--flow-idle", "9"]);
    let (skip, drop) = (Verdict::SkipFlow(Idle(9)), Verdict::DropFlow(Idle(9)));
    // A packet with a deciding pattern resets its flow's count.
    let payloads = ["a", "b", "GET", "a", "b", "c", "d", "evil", "a"];
    assert_eq!(
        verdicts(&mut simulator, &mut nf, &payloads),
        [Verdict::Next, Verdict::Next, WAN, Verdict::Next, Verdict::Next, skip, skip, drop, Verdict::Next]
    );
    assert_eq!((counter(&nf, "flow-skips"), counter(&nf, "flow-drops")), (2, 1));
    // Flows are distinguished by the engine's flow key, without fields that differ within a flow.
    let mut of = |from: &str, to: &str| simulator.inject(&mut nf, IN, &testing::tcp(from, to, b"x")).verdict;
    assert_eq!([of("10.0.0.9:1", "10.0.0.8:2"), of("10.0.0.9:1", "10.0.0.8:2")], [Verdict::Next; 2]);
    assert_eq!([of("10.0.0.9:2", "10.0.0.8:2"), of("10.0.0.8:2", "10.0.0.9:1")], [Verdict::Next; 2]);
    assert_eq!(of("10.0.0.9:1", "10.0.0.8:2"), skip);
    // Only if the default is the next hop.
    let (mut simulator, mut nf) = with(text, &["--skip-after", "1", "--default", "port:wan"]);
    assert_eq!(verdicts(&mut simulator, &mut nf, &["a", "evil"]), [WAN, Verdict::Drop]);
    let (mut simulator, mut nf) = with(text, &["--skip-after", "1", "--whole-frame"]);
    assert_eq!(verdicts(&mut simulator, &mut nf, &["a"]), [Verdict::SkipFlow(Idle::MAX)]);
}

#[test]
fn wrong_options_are_refused() {
    for options in [&["--default", "count"][..], &["--default", "up"], &["--malformed", "x"]] {
        assert!(Args::try_parse_from([&["nf", "--patterns", "p"], options].concat()).is_err(), "{options:?}");
    }
    assert!(Args::try_parse_from(["nf"]).is_err(), "patterns are needed");
}

/// Actions as in the file, with their verdicts in the reference search.
const ACTIONS: [(&str, Option<Verdict>); 5] = [
    ("drop", Some(Verdict::Drop)),
    ("next", Some(Verdict::Next)),
    ("port:wan", Some(WAN)),
    ("role:audit", Some(AUDIT)),
    ("count", None),
];

fn plain(list: &[(String, usize, bool)], payload: &[u8]) -> Verdict {
    let is_in = |text: &str, ignore_case: bool| {
        payload.windows(text.len()).any(|place| {
            if ignore_case { place.eq_ignore_ascii_case(text.as_bytes()) } else { place == text.as_bytes() }
        })
    };
    let mut deciding = list
        .iter()
        .filter_map(|(text, destination, ignore)| is_in(text, *ignore).then_some(ACTIONS[*destination].1?));
    deciding.next().unwrap_or(WAN)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn verdicts_agree_with_a_naive_search(
        list in prop::collection::btree_map("[abAB\"\\\\ #]{1,4}", (0..ACTIONS.len(), any::<bool>()), 0..10),
        payloads in prop::collection::vec("[abABx\"\\\\ #]{0,30}", 1..30),
    ) {
        let mut list: Vec<_> = list.into_iter().map(|(text, (destination, ignore))| (text, destination, ignore)).collect();
        let mut seen = std::collections::HashSet::new();
        list.retain(|(text, _, ignore)| seen.insert((if *ignore { text.to_lowercase() } else { text.clone() }, *ignore)));
        let line = |(text, destination, ignore): &(String, usize, bool)| {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace(' ', "\\x20");
            format!("{} \"{text}\"{}\n", ACTIONS[*destination].0, if *ignore { "i" } else { "" })
        };
        let text: String = list.iter().map(line).collect();
        let (mut simulator, mut nf) = with(&text, &["--default", "port:wan"]);
        let payloads: Vec<_> = payloads.iter().map(String::as_str).collect();
        let verdicts = verdicts(&mut simulator, &mut nf, &payloads);
        for (verdict, payload) in verdicts.into_iter().zip(payloads) {
            prop_assert_eq!(verdict, plain(&list, payload.as_bytes()), "{:?} in {}", payload, text);
        }
    }

    #[test]
    fn no_bytes_harm_it(frames in testing::hostile(), whole in any::<bool>()) {
        let options = if whole { &["--whole-frame"][..] } else { &[] };
        let text = "role:audit \"GET\"i\ndrop hex:00 00\ncount hex:01\nport:wan \"a\"\n";
        let (mut simulator, mut nf) = with(text, options);
        let outcomes = testing::survives(&mut simulator, &mut nf, &frames);
        prop_assert!(outcomes.iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == *frame));
        let counted: u64 = ["matched", "unmatched", "malformed"].iter().map(|name| counter(&nf, name)).sum();
        prop_assert_eq!(counted, frames.len() as u64, "every packet is counted once");
    }
}
