// SPDX-License-Identifier: Apache-2.0
//! Connection tracking: what is read, and what is refused.

use netvm_config::Kind;
use netvm_model::{ConnectionTimeouts, ConnectionsConfig};
use netvm_wire::ConnState;

use crate::{findings, found, host, is, planned};

/// Two ports, of which the second tracks, and a rule with `from` and `state`.
fn ports(from: &str, state: &str) -> String {
    format!(
        "[[port]]\nname = \"lan\"\nkind = \"source\"\nforward = {{ out = \"wan\" }}\n\
         [[port]]\nname = \"wan\"\nkind = \"source\"\nforward = {{ out = \"lan\" }}\ntrack = true\nzone = 7\n\
         [[rule]]\nname = \"open\"\n{from}\nmatch = {{ state = {state} }}\nallow = true\n"
    )
}

#[test]
fn rules_have_states_and_ports_zones() {
    let host = host(&ports("from = \"wan\"", "[\"established\", \"related\"]"));
    assert_eq!(host.rules[0].matches.state, [ConnState::Established, ConnState::Related]);
    let policies = host.ports.iter().map(|port| (host.tracks_port(port), port.policy.zone));
    assert_eq!(policies.collect::<Vec<_>>(), [(false, 0), (true, 7)]);
    assert!(host.tracks());
}

#[test]
fn limits_and_timeouts_are_read() {
    let text = "[engine.connections]\nlimit = 1000\npick_up = false\nper_source = 1\nper_port = 2\nper_zone = 3\n\
                half_open_per_source = 4\nhalf_open_per_port = 5\nmappings = 500\n\
                timeouts = { udp = 5, tcp_established = 432000 }\n";
    let expected = ConnectionsConfig {
        limit: 1000,
        pick_up: false,
        per_source: 1,
        per_port: 2,
        per_zone: 3,
        half_open_per_source: 4,
        half_open_per_port: 5,
        mappings: Some(500),
        log: None,
        timeouts: ConnectionTimeouts { udp: 5, tcp_established: 432_000, ..ConnectionTimeouts::default() },
    };
    let host = host(text);
    assert_eq!(host.engine.connections, expected);
    assert!(!host.tracks());
    for (wrong, remedy) in [
        ("limit = 63", "from 64 to 16777216"),
        ("timeouts = { icmp = 0 }", "from 1 to 604800"),
        ("timeouts = { udp_streams = 1 }", "did you mean `udp_stream`?"),
        ("track = true", "keys of connections are `limit`"),
    ] {
        let found = findings(&format!("[engine.connections]\n{wrong}\n"));
        let [finding] = &found[..] else { panic!("{wrong}: {found:#?}") };
        assert!(finding.remedy().is_some_and(|told| told.contains(remedy)), "{}", finding.render(false));
    }
}

#[test]
fn a_plan_shows_only_the_timeouts_that_change() {
    let new = "[engine.connections]\nlimit = 100\ntimeouts = { udp = 5 }\n";
    let plan = planned("", new);
    assert!(plan.contains("limit=65536") && plan.contains("timeouts=[udp=30] →"), "{plan}");
    assert!(plan.contains("limit=100") && plan.contains("timeouts=[udp=5]"), "{plan}");
    assert!(!plan.contains("icmp"), "{plan}");
}

#[test]
fn a_state_needs_a_port_that_tracks() {
    let told = |from: &str, state: &str| {
        let found = findings(&ports(from, state));
        found.iter().map(|finding| (finding.kind(), finding.message().to_owned())).collect::<Vec<_>>()
    };
    let lan = "from = \"lan\"";
    let message = "rule open matches on `state`, but no port of its packets tracks connections";
    assert_eq!(told(lan, "\"new\""), [(Kind::Conflict, message.to_owned())]);
    let finding = &findings(&ports(lan, "\"new\""))[0];
    assert!(is(finding, "conflict", "add `track = true` to port lan"), "{}", finding.render(false));
    assert_eq!(finding.position(), (14, 19));
    let message = "rule open matches on `state`, but port lan does not track connections";
    assert_eq!(told("from = [\"wan\", \"lan\"]", "\"new\""), [(Kind::Unused, message.to_owned())]);
    // Packets of other ports are untracked, and a rule for all ports is for those that track.
    assert_eq!(told(lan, "[\"new\", \"untracked\"]"), []);
    assert_eq!(told("", "\"invalid\""), []);
    assert_eq!(told("to = \"lan\"", "\"invalid\""), []);
}

#[test]
fn a_syn_proxy_needs_ports_that_track_and_allow() {
    let with = |from: &str, keys: &str| ports(from, "[\"new\", \"untracked\"]").replace("allow = true", keys);
    let both = "allow = true\nsyn_proxy = true";
    assert!(host(&with("from = \"wan\"", both)).rules[0].actions.syn_proxy);
    for (from, keys, message, remedy) in [
        (
            "from = \"wan\"",
            "drop = true\nsyn_proxy = true",
            "`syn_proxy` without `allow`",
            "add `allow = true`",
        ),
        ("to = \"wan\"", both, "`syn_proxy` in a [[rule]] with `to`", "leave `to` out"),
        (
            "from = [\"wan\", \"lan\"]",
            both,
            "`syn_proxy` of rule open, but port lan does not track connections",
            "add `track = true` to port lan, or to its [[router]], or remove it from `from`",
        ),
        (
            "",
            both,
            "`syn_proxy` of rule open, but port lan does not track connections",
            "name the ports in `from`",
        ),
    ] {
        let found = findings(&with(from, keys));
        let finding = found.iter().find(|finding| finding.message() == message);
        assert!(finding.is_some_and(|finding| is(finding, "conflict", remedy)), "{found:#?}");
    }
}

#[test]
fn a_zone_needs_a_port_that_tracks() {
    let text = ports("from = \"wan\"", "\"untracked\"").replace("track = true\n", "");
    assert_eq!(found(&text), [(Kind::Conflict, 9)]);
}

#[test]
fn a_router_tracks_all_of_its_interfaces_in_one_zone() {
    let port = |name: &str, keys: &str| {
        format!("[[port]]\nname = \"{name}\"\nkind = \"source\"\nforward = {{ router = \"r\" }}\n{keys}\n")
    };
    let router = "[[router]]\nname = \"r\"\ntrack = true\n\
                  interface = [{ name = \"i\", port = \"a\" }, { name = \"j\", port = \"b\" }]\n";
    let host = host(&(port("a", "zone = 2") + &port("b", "zone = 2") + router));
    let tracked = host.ports.iter().map(|port| (host.tracks_port(port), port.policy.zone));
    assert_eq!(tracked.collect::<Vec<_>>(), [(true, 2); 4], "punt ports, too");
    let text = port("a", "zone = 2") + &port("b", "") + router;
    assert_eq!(found(&text), [(Kind::Conflict, 14)]);
}
