// SPDX-License-Identifier: Apache-2.0
//! Published ports of containers: the rules that they imply, and what is refused.

use netvm_model::{Host, NatAction, NatAddresses, NatRule};

use crate::{cases, edited, findings, host, is, line_of, planned};

const GOOD: &str = r#"
[[port]]
name = "web"
kind = "container"
namespace = "web"
addresses = ["10.0.0.2/24", "fd00::2/64"]
publish = ["8080:80/tcp", "203.0.113.2:53:53/udp", "8000-8001:9000-9001/tcp"]
forward = { normal = true }

[[port]]
name = "mail"
kind = "container"
namespace = "mail"
addresses = ["10.0.0.3/24"]
publish = "25:25"
forward = { normal = true }

[[port]]
name = "irb"
kind = "bridge"
forward = { router = "edge" }

[[port]]
name = "uplink"
kind = "af_xdp"
interface = "eth2"
forward = { router = "edge" }

[[router]]
name = "edge"

[[router.interface]]
name = "lan"
port = "irb"
addresses = ["10.0.0.1/24", "fd00::1/64"]

[[router.interface]]
name = "wan"
port = "uplink"
addresses = ["192.0.2.5/24"]
snat = "masquerade"
"#;

fn named<'a>(host: &'a Host, name: &str) -> Vec<&'a NatRule> {
    host.nat.iter().filter(|rule| rule.name == name).collect()
}

/// Where a rule leads, or what it masquerades.
fn action(rule: &NatRule) -> String {
    match &rule.action {
        NatAction::Destination(destination) => {
            let [target] = &destination.targets[..] else { panic!("{rule:?}") };
            format!("{}, port {:?}", target.address.unwrap(), target.port)
        }
        NatAction::Source(source) if source.addresses == NatAddresses::Interface => "masquerade".to_owned(),
        _ => panic!("{rule:?}"),
    }
}

#[test]
fn a_published_port_is_one_of_the_addresses_outside() {
    let text = GOOD.to_owned();
    assert!(findings(&text).is_empty(), "{:#?}", findings(&text));
    let host = host(&text);
    let [rule] = named(&host, "port web publishes 8080:80/tcp")[..] else { panic!("{:#?}", host.nat) };
    // From outside, from the containers, and from the host.
    let id = |name: &str| host.port_named(name).unwrap().id;
    assert_eq!(rule.matches.from, [id("irb"), id("uplink")]);
    assert_eq!(format!("{:?}", rule.matches.destination), "[192.0.2.5/32]");
    assert_eq!(format!("{:?} {:?}", rule.matches.protocol, rule.local_to), "[tcp] None");
    assert_eq!(action(rule), "10.0.0.2, port Some(80)");
    let [rule] = named(&host, "port web publishes 203.0.113.2:53:53/udp")[..] else { panic!() };
    assert_eq!(
        format!("{:?} {}", rule.matches.destination, action(rule)),
        "[203.0.113.2/32] 10.0.0.2, port None"
    );
    let ranges = named(&host, "port web publishes 8000-8001:9000-9001/tcp");
    let actions: Vec<String> = ranges.iter().map(|rule| action(rule)).collect();
    assert_eq!(actions, ["10.0.0.2, port Some(9000)", "10.0.0.2, port Some(9001)"]);
    // Other containers in its network get the answers from the router.
    let hairpin = named(&host, "port mail publishes 25:25/tcp to its own network");
    let [rule] = &hairpin[..] else { panic!("{:#?}", host.nat) };
    assert_eq!((rule.matches.to.as_slice(), action(rule).as_str()), (&[id("irb")][..], "masquerade"));
    let ends = format!("{:?} {:?}", rule.matches.source, rule.matches.destination);
    assert_eq!(ends, "[10.0.0.0/24] [10.0.0.3/32]");
    assert_eq!(host.nat.last().unwrap().name, "router edge, interface wan");
    assert!(host.nat.iter().all(NatRule::is_implied));
    assert!(host.tracks_port(host.port_named("irb").unwrap()));
}

#[test]
fn without_an_address_in_the_file_all_of_the_routers_own_are_published() {
    let text = edited(GOOD, "addresses = [\"192.0.2.5/24\"]\n", "");
    let host = host(&text);
    let [rule] = named(&host, "port mail publishes 25:25/tcp")[..] else { panic!("{:#?}", host.nat) };
    assert_eq!((rule.local_to, rule.matches.destination.len()), (Some(host.routers[0].id), 0));
    // A pool is in the file.
    let host = crate::host(&edited(&text, "\"masquerade\"", "\"203.0.113.8-203.0.113.10\""));
    let [rule] = named(&host, "port mail publishes 25:25/tcp")[..] else { panic!("{:#?}", host.nat) };
    assert_eq!(format!("{:?}", rule.matches.destination), "[203.0.113.8/31, 203.0.113.10/32]");
    assert_eq!(rule.local_to, None);
}

/// Edit, its replacement, lines from the edit to the error, code of the error, part of the remedy.
const CASES: &str = r#"
"8080:80/tcp" | "80" | 0 | bad_value | the router's port, then the container's
"8080:80/tcp" | "8080:80/icmp" | 0 | bad_value | /tcp, /udp or /sctp
"8080:80/tcp" | "8080-8090:80" | 0 | bad_value | differ in length
"8080:80/tcp" | "0:80" | 0 | bad_value | from 1 to 65535
"25:25" | "8080:25" | 0 | duplicate | another port of the router
"25:25" | "192.0.2.5:8001:25" | 0 | duplicate | another port of the router
"25:25" | "[2001:db8::1]:25:25" | 0 | conflict | of the same family
addresses = ["10.0.0.3/24"] | addresses = [] | 1 | conflict | add its address
addresses = ["10.0.0.3/24"] | addresses = ["10.0.9.3/24"] | 1 | conflict | add a [[router]]
kind = "container"⏎namespace = "mail" | kind = "host"⏎interface = "mail" | 3 | conflict | remove it
"#;

#[test]
fn errors_name_place_and_remedy() {
    let text = GOOD.to_owned();
    for [from, to, below, code, remedy] in cases(CASES) {
        let found = findings(&edited(&text, &from, &to));
        let line = line_of(&text, &from) + below.parse::<usize>().unwrap();
        let [finding] = &found[..] else { panic!("{to}: {found:#?}") };
        let drawn = finding.render(false);
        assert!(is(finding, &code, &remedy), "{to}:\n{drawn}");
        assert_eq!(finding.position().0, line, "{to}:\n{drawn}");
    }
    let found = findings(&edited(&text, "snat = \"masquerade\"\n", ""));
    assert_eq!(found.len(), 4, "{found:#?}");
    assert!(found.iter().all(|finding| is(
        finding,
        "conflict",
        "to the interface of router edge to the outside"
    )));
    // IPv6 needs an address, and the router's `snat` of IPv4 does not forbid it.
    let text = edited(&text, "\"8080:80/tcp\"", "\"[2001:db8::1]:8080:80\"");
    let host = host(&text);
    let [rule] = named(&host, "port web publishes [2001:db8::1]:8080:80/tcp")[..] else { panic!() };
    assert_eq!(action(rule), "fd00::2, port Some(80)");
}

#[test]
fn publishing_disturbs_nothing() {
    let text = GOOD.to_owned();
    let plan = planned(&text, &edited(&text, "\"25:25\"", "[\"25:25\", \"587:587\"]"));
    assert_eq!(plan, "~ port mail: publish 25:25/tcp → 25:25/tcp,587:587/tcp\nno traffic is disturbed\n");
}
