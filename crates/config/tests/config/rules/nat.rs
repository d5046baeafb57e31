// SPDX-License-Identifier: Apache-2.0
//! NAT rules: how they are read, which errors there are, what plans say.

use netvm_model::{
    DestinationNat, Filtering, HealthCheck, NatAction, NatAddresses, NatTarget, PortAllocation, RouterId,
    SourceNat,
};

use crate::{cases, edited, findings, host, is, line_of, planned};

const GOOD: &str = r#"
[[port]]
name = "inside"
kind = "tap"
interface = "nv-inside"
forward = { router = "blue" }

[[port]]
name = "uplink"
kind = "af_xdp"
interface = "eth2"
forward = { router = "blue" }

[[port]]
name = "other"
kind = "tap"
interface = "nv-other"
forward = { normal = true }

[[router]]
name = "blue"
nat64 = { addresses = "198.51.100.64" }

[[router.interface]]
name = "lan"
port = "inside"

[[router.interface]]
name = "wan"
port = "uplink"
vlan = 7
snat = { addresses = ["203.0.113.0/29", "203.0.113.9"], filtering = "endpoint-independent" }

[[nat]]
name = "own"
to = "uplink"
match = { source = "10.0.0.0/8", destination = "192.0.2.0/24" }
keep = true

[[nat]]
name = "many"
to = "uplink"
match = { source = "100.64.0.0/16" }
snat = ["198.51.100.0-198.51.100.7", "198.51.100.16/28"]
ports = "2048-65535"
blocks = { size = 1024, most = 2 }

[[nat]]
name = "computed"
to = "uplink"
match = { source = "100.64.0.0/22" }
snat = "198.51.100.32/31"
inside = "100.64.0.0/22"

[[nat]]
name = "web"
from = "uplink"
match = { protocol = "tcp", destination = "198.51.100.1", destination_ports = 80 }
dnat = ["10.0.0.2:80", { to = "10.0.0.3:8080", weight = 2 }]
health = { interval = 10 }

[[nat]]
name = "proxy"
from = "inside"
local_to = "blue"
match = { protocol = "udp", destination_ports = 53 }
redirect = 5353

[[nat]]
to = "uplink"
match = { source = "10.2.0.0/24" }
network = "192.0.2.0/24"
"#;

#[test]
fn rules_are_read_in_their_order_and_implied_ones_follow() {
    let host = host(GOOD);
    assert!(findings(GOOD).is_empty(), "{:#?}", findings(GOOD));
    let names: Vec<&str> = host.nat.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["own", "many", "computed", "web", "proxy", "", "router blue, interface wan"]);
    assert_eq!(host.nat[0].action, NatAction::Keep);
    let NatAction::Source(many) = &host.nat[1].action else { panic!("{:?}", host.nat[1]) };
    assert_eq!(many.allocation, PortAllocation::Blocks { size: 1024, most: 2 });
    let NatAction::Source(computed) = &host.nat[2].action else { panic!("{:?}", host.nat[2]) };
    assert_eq!(
        computed,
        &SourceNat {
            addresses: NatAddresses::Ranges(vec!["198.51.100.32-198.51.100.33".parse().unwrap()]),
            ports: "1024-65535".parse().unwrap(),
            allocation: PortAllocation::Deterministic { inside: "100.64.0.0/22".parse().unwrap() },
            filtering: Filtering::AddressAndPort,
        }
    );
    let target = |address: &str, port, weight| NatTarget {
        address: Some(address.parse::<std::net::IpAddr>().unwrap().into()),
        port: Some(port),
        weight,
    };
    assert_eq!(
        host.nat[3].action,
        NatAction::Destination(DestinationNat {
            targets: vec![target("10.0.0.2", 80, 1), target("10.0.0.3", 8080, 2)],
            health: Some(HealthCheck { interval: 10, failures: 3 }),
        })
    );
    let own = NatTarget { address: None, port: Some(5353), weight: 1 };
    assert_eq!(
        host.nat[4].action,
        NatAction::Destination(DestinationNat { targets: vec![own], health: None })
    );
    assert_eq!(host.nat[4].local_to, Some(RouterId(0)));
    assert_eq!(host.nat[5].action, NatAction::Network("192.0.2.0/24".parse().unwrap()));
    // The interface's rule: packets that leave by it, with its tag, of the pool's family.
    let implied = &host.nat[6];
    assert!(implied.is_implied() && !host.nat[5].is_implied());
    let shown = format!("{:?} {:?}", implied.matches.vlan, implied.matches.ether_type);
    assert_eq!(implied.matches.to, [host.port_named("uplink").unwrap().id], "{shown}");
    assert_eq!(shown, "[Span { first: 7, last: 7 }] [ipv4]");
    assert_eq!(
        host.routers[0].interfaces[1].snat.as_ref().unwrap().filtering,
        Filtering::EndpointIndependent
    );
    // A router that translates tracks by itself, at all of its ports and those to its kernel.
    let tracked: Vec<bool> = host.ports.iter().map(|port| host.tracks_port(port)).collect();
    assert_eq!(tracked, [true, true, false, true, true]);
    assert_eq!((host.translates(), host.mappings()), (true, 65_536));
    assert!(!netvm_config::to_toml(&host).contains("interface wan"));
}

#[test]
fn mappings_are_as_many_as_connections_if_something_is_translated() {
    let limited = |text: &str| host(&format!("[engine.connections]\nlimit = 1000\n{text}")).mappings();
    assert_eq!(limited(""), 0);
    assert_eq!(limited(GOOD), 1000);
    assert_eq!(limited(&format!("mappings = 64\n{GOOD}")), 64);
}

/// Edit, its replacement, lines from the edit to the error, code of the error, part of the remedy.
const CASES: &str = r#"
# Actions
keep = true | keep = false | 0 | bad_value | leave it out
keep = true⏎ |  | -4 | missing_key | add `snat = "masquerade"`
keep = true | keep = true⏎snat = "masquerade" | 0 | conflict | keep one of them
redirect = 5353 | redirect = 0 | 0 | bad_value | from 1 to 65535
redirect = 5353 | redirect = "yes" | 0 | wrong_type | a port, or `true`
network = "192.0.2.0/24" | network = "192.0.2.0/25" | 0 | conflict | add one network with 25 bits
network = "192.0.2.0/24" | network = "192.0.2.1/24" | 0 | bad_value | write 192.0.2.0/24
network = "192.0.2.0/24" | network = "2001:d00::/24" | -1 | conflict | a rule for each family
# Sides
to = "uplink"⏎match = { source = "100.64.0.0/16" } | from = "uplink" | 1 | conflict | `to = "uplink"`
from = "uplink"⏎ | to = "uplink"⏎ | 2 | conflict | use `from`
from = "inside"⏎local_to | to = "inside"⏎local_to | 3 | conflict | use `from`
local_to = "blue" | local_to = "blu" | 0 | unknown_name | did you mean `blue`?
from = "uplink"⏎ | from = "uplnk"⏎ | 0 | unknown_name | did you mean `uplink`?
from = "uplink"⏎ | from = ["uplink", "other"]⏎ | 0 | conflict | add `track = true` to port other
# Matches
destination_ports = 53 } | destination_ports = 53, state = "new" } | 0 | conflict | leave it out
protocol = "udp" | protocol = ["udp", "icmp"] | 1 | conflict | add `protocol = "tcp"`
destination = "198.51.100.1" | destination = "2001:db8::1" | 0 | conflict | a rule for each family
# Pools
snat = "198.51.100.32/31" | snat = "198.51.100.33/31" | 0 | bad_value | write 198.51.100.32/31
snat = "198.51.100.32/31" | snat = "masquerad" | 0 | bad_value | an address, a range
snat = "198.51.100.32/31" | snat = [] | 0 | bad_value | at least one address
snat = "198.51.100.32/31" | snat = ["198.51.100.32", "2001:db8::1"] | 0 | conflict | a rule for each family
snat = "198.51.100.32/31" | snat = ["198.51.100.32/31", "198.51.100.33"] | 0 | duplicate | remove one
snat = "198.51.100.32/31" | snat = "198.51.100.9-198.51.100.2" | 0 | bad_value | write 198.51.100.2-198.51.100.9
snat = "198.51.100.32/31" | snat = "198.51.100.20-198.51.100.39" | 0 | duplicate | its own addresses
snat = "198.51.100.32/31" | snat = "203.0.113.8-203.0.113.9" | 0 | duplicate | rules with equal pools share
snat = "198.51.100.32/31" | snat = "198.51.100.64-198.51.100.65" | 0 | duplicate | its own addresses
ports = "2048-65535" | ports = "0-65535" | 0 | bad_value | from 1 to 65535
ports = "2048-65535" | ports = "1024-1023" | 0 | bad_value | write 1023-1024
ports = "2048-65535"⏎blocks = { size = 1024, | ports = "512-65023"⏎blocks = { size = 512, | 0 | well_known_ports | begin at 1024
size = 1024 | size = 1000 | 0 | bad_value | choose 512 or 1024
size = 1024 | size = 4096 | 0 | bad_value | set `ports = "4096-65535"`
size = 1024 | size = 0 | 0 | bad_value | from 1 to 32768
ports = "2048-65535" | ports = "2048-2100" | 1 | bad_value | choose a smaller `size`
blocks = { size = 1024, most = 2 } | blocks = { size = 1024 }⏎inside = "100.64.0.0/22" | 1 | conflict | keep one
inside = "100.64.0.0/22" | inside = "100.64.0.0/16" | 0 | bad_value | enough for 1008 of them
inside = "100.64.0.0/22" | inside = "2001:db8::/120" | 0 | conflict | of the same family
snat = "198.51.100.32/31" | snat = "masquerade" | 1 | conflict | list the addresses
redirect = 5353 | redirect = 5353⏎ports = "1024-2047" | 1 | conflict | remove it
# Targets
weight = 2 | weight = 0 | 0 | bad_value | from 1 to 1000
"10.0.0.2:80" | "10.0.0.2:0" | 0 | bad_value | a unicast address
"10.0.0.2:80" | "host:80" | 0 | bad_value | a unicast address
"10.0.0.2:80" | "[2001:db8::2]:80" | 0 | conflict | a rule for each family
"10.0.0.2:80" | "10.0.0.3:8080" | 0 | duplicate | larger `weight`
"10.0.0.2:80" | "10.0.0.2" | 1 | conflict | give each target a port
dnat = ["10.0.0.2:80", { to = "10.0.0.3:8080", weight = 2 }] | dnat = [] | 0 | bad_value | at least one
interval = 10 | interval = 0 | 0 | bad_value | from 1 to 3600
redirect = 5353 | redirect = 5353⏎health = {} | 1 | conflict | remove it
# Names
name = "proxy" | name = "web" | 0 | duplicate | a name of its own
name = "proxy" | name = "the proxy" | 0 | bad_name | A-Z a-z
# NAT64
nat64 = { addresses = "198.51.100.64" } | nat64 = {} | 0 | missing_key | name the IPv4 addresses
"198.51.100.64" } | "2001:db8::1" } | 0 | bad_value | must be IPv4
"198.51.100.64" } | "198.51.100.64", prefix = "64:ff9b::/95" } | 0 | bad_value | 32, 40, 48
"198.51.100.64" } | "198.51.100.64", prefix = "10.0.0.0/32" } | 0 | bad_value | an IPv6 prefix
# Interfaces
"203.0.113.9"], filtering | "203.0.113.7"], filtering | 0 | duplicate | remove one
filtering = "endpoint-independent" | filtering = "endpoint" | 0 | bad_value | did you mean
addresses = ["203.0.113.0/29", "203.0.113.9"], |  | 0 | missing_key | name the addresses
"#;

#[test]
fn errors_name_place_and_remedy() {
    for [from, to, below, code, remedy] in cases(CASES) {
        let text = edited(GOOD, &from, &to);
        let line = line_of(GOOD, &from).checked_add_signed(below.parse().unwrap()).unwrap();
        let found = findings(&text);
        let [finding] = &found[..] else { panic!("{to}: {found:#?}") };
        let drawn = finding.render(false);
        assert!(is(finding, &code, &remedy), "{to}:\n{drawn}");
        assert_eq!(finding.position().0, line, "{to}:\n{drawn}");
    }
}

#[test]
fn equal_pools_are_shared_and_zones_keep_pools_apart() {
    let shared = GOOD.replace("[\"198.51.100.0-198.51.100.7\", \"198.51.100.16/28\"]", "\"192.0.2.1\"");
    let shared = shared.replace("ports = \"2048-65535\"\nblocks = { size = 1024, most = 2 }\n", "");
    let again = "[[nat]]\nto = \"uplink\"\nsnat = \"192.0.2.1\"\n";
    assert!(findings(&(shared.clone() + again)).is_empty());
    let found = findings(&(shared + &again.replace("2.1", "2.0-192.0.2.9")));
    let [finding] = &found[..] else { panic!("{found:#?}") };
    assert!(is(finding, "duplicate", "its own addresses"), "{}", finding.render(false));
    // In two zones, one address may stand for sources of two tenants.
    let tenant = |n: u8, last: u8| {
        format!(
            "[[port]]\nname = \"p{n}\"\nkind = \"source\"\nforward = {{ normal = true }}\ntrack = true\nzone = {n}\n\
             [[nat]]\nto = \"p{n}\"\nsnat = \"192.0.2.1-192.0.2.{last}\"\n"
        )
    };
    assert!(findings(&(tenant(1, 5) + &tenant(2, 6))).is_empty());
}

#[test]
fn a_rule_for_all_ports_needs_one_that_tracks() {
    let text = "[[port]]\nname = \"a\"\nkind = \"source\"\nforward = { normal = true }\n\
                [[nat]]\nname = \"all\"\ndnat = \"10.0.0.1\"\n";
    let found = findings(text);
    let [finding] = &found[..] else { panic!("{found:#?}") };
    assert!(is(finding, "conflict", "add `track = true` to port a"), "{}", finding.render(false));
    assert_eq!(finding.position().0, 6);
    assert!(findings(&text.replace("{ normal = true }\n", "{ normal = true }\ntrack = true\n")).is_empty());
}

#[test]
fn plans_show_rules_and_their_order() {
    let gone = edited(GOOD, "snat = \"198.51.100.32/31\"\ninside = \"100.64.0.0/22\"\n", "keep = true\n");
    let plan = planned(GOOD, &gone);
    assert!(plan.contains("~ nat computed: ") && plan.contains("no traffic is disturbed"), "{plan}");
    assert!(plan.contains("snat 198.51.100.32-198.51.100.33 → unset"), "{plan}");
    let web =
        &GOOD[GOOD.find("[[nat]]\nname = \"web\"").unwrap()..GOOD.find("[[nat]]\nname = \"proxy\"").unwrap()];
    let plan = planned(GOOD, &GOOD.replace(web, ""));
    let rule = "- nat web: from uplink protocol=tcp destination=198.51.100.1/32 destination_ports=80 → dnat ";
    assert!(plan.contains(rule) && plan.contains("[to=10.0.0.3:8080 weight=2]"), "{plan}");
    let plan = planned(GOOD, &(GOOD.replace(web, "") + web));
    assert_eq!(plan, "~ nat: the order of the rules\nno traffic is disturbed\n");
    // What an interface implies belongs to the router.
    let plan = planned(GOOD, &GOOD.replace("203.0.113.9\"]", "203.0.113.10\"]"));
    assert!(plan.starts_with("~ router blue: interface ") && plan.lines().count() == 2, "{plan}");
}

#[test]
fn the_log_has_a_place() {
    let log = |keys: &str| findings(&format!("[engine.connections]\nlog = {{ {keys} }}\n"));
    assert!(log("file = \"/var/log/connections\", what = \"connections\"").is_empty());
    assert!(log("collector = \"10.0.0.9:4739\", what = [\"translations\", \"connections\"]").is_empty());
    for (keys, code, remedy) in [
        ("what = \"connections\"", "missing_key", "a `collector`"),
        ("file = \"connections\"", "bad_value", "the absolute path"),
        ("collector = \"10.0.0.9\"", "bad_value", "the address and the port"),
        ("file = \"/a\", what = \"blocks\"", "bad_value", "possible values are"),
        ("file = \"/a\", what = []", "bad_value", "at least one value"),
    ] {
        let found = log(keys);
        let [finding] = &found[..] else { panic!("{keys}: {found:#?}") };
        assert!(is(finding, code, remedy), "{}", finding.render(false));
    }
}
