// SPDX-License-Identifier: Apache-2.0
//! Virtual routers: how they are read, which errors there are, what plans say.

mod local;
mod publish;
mod tunnels;

use netvm_config::{Kind, parse, parse_rules};
use netvm_model::{Action, Forward, PortKind, RouterId};

use crate::{cases, edited, findings, host, is, line_of, planned};

const GOOD: &str = r#"
[[group]]
name = "jumbo"
buffer_size = 9344

[[port]]
name = "inside"
kind = "tap"
interface = "nv-inside"
group = "jumbo"
mtu = 9000
forward = { router = "blue" }

[[port]]
name = "uplink"
kind = "af_xdp"
interface = "eth2"

[[router]]
name = "blue"

[[router.interface]]
name = "lan"
port = "inside"
vlan = 10
addresses = ["10.0.0.1/24", "2001:db8::1/64"]
punt_rate = 50

[[router.interface]]
name = "wan"
port = "uplink"
mac = "02:00:00:00:00:01"

[[router.routes]]
to = "192.0.2.0/24"
via = "10.0.0.9"

[[router.routes]]
to = "2001:db8:9::/48"
via = ["2001:db8::8", "2001:db8::9"]
interface = "lan"
metric = 20

[[router.routes]]
to = "203.0.113.0/24"
blackhole = true

[[rule]]
from = "uplink"
match = { destination = "10.0.0.0/24" }
router = "blue"
"#;

#[test]
fn every_interface_has_a_port_to_its_kernel() {
    let loaded = parse("host.toml", GOOD).unwrap();
    assert!(loaded.warnings.is_empty(), "{:#?}", loaded.warnings);
    let host = loaded.host;
    let blue = host.router_named("blue").unwrap();
    let [lan, wan] = &blue.interfaces[..] else { panic!("{blue:?}") };
    assert_eq!(blue.namespace(), "netvm-blue");
    assert_eq!(host.ports[0].policy.forward, Forward::Router(RouterId(0)));
    assert_eq!(host.rules[0].actions.terminal, Some(Action::Router(RouterId(0))));
    assert_eq!((lan.vlan.unwrap().get(), lan.punt_limit().per_second, lan.punt_limit().burst), (10, 50, 64));
    assert_eq!((wan.vlan, wan.punt_limit().per_second, wan.punt_limit().burst), (None, 10_000, 1000));
    assert_eq!(wan.mac.to_string(), "02:00:00:00:00:01");
    let addresses: Vec<String> = lan.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1/24", "2001:db8::1/64"]);
    let punt = host.port_named("blue.lan").unwrap();
    assert_eq!((punt.id, punt.mtu, punt.group), (lan.punt, 9000, host.ports[0].group));
    assert_eq!(punt.kind, PortKind::AfXdp { interface: lan.host_end.clone(), generic: false });
    assert_eq!(punt.policy.forward, Forward::Router(RouterId(0)));
    let (router, interface) = host.punted_by(host.port_named("blue.wan").unwrap().id).unwrap();
    assert_eq!((router.name.as_str(), interface.name.as_str()), ("blue", "wan"));
    // It is in no file, and rules can name it.
    assert!(!netvm_config::to_toml(&host).contains("blue.lan"));
    let text = edited(GOOD, "from = \"uplink\"", "from = [\"uplink\", \"blue.wan\"]");
    assert!(crate::host(&text).rules[0].matches.from.contains(&wan.punt));
    let added = parse_rules("rule.toml", "from = \"blue.lan\"\nrouter = \"blue\"", &host).unwrap();
    assert_eq!(
        (added[0].matches.from[0], added[0].actions.terminal),
        (lan.punt, Some(Action::Router(blue.id)))
    );
}

/// Edit, its replacement, lines from the edit to the error, code of the error, part of the remedy.
const CASES: &str = r#"
name = "lan"⏎ |  | 0 | missing_key | `name = "lan"`
port = "inside"⏎ |  | 0 | missing_key | name the port
name = "lan" | name = "lo" | 0 | bad_name | another name
name = "lan" | name = "all" | 0 | bad_name | another name
name = "lan" | name = "a-very-long-name" | 0 | bad_name | at most 15
name = "lan" | name = "l n" | 0 | bad_name | A-Z a-z
name = "lan" | name = "wan" | 7 | duplicate | a name of its own
port = "inside" | port = "insid" | 0 | unknown_name | did you mean `inside`?
port = "inside" | port = "blue.wan" | 0 | bad_value | name a [[port]]
vlan = 10 | vlan = 4095 | 0 | bad_value | from 1 to 4094
punt_rate = 50 | punt_rate = 0 | 0 | bad_value | from 1 to
punt_rate = 50 | mtu = 9000 | 0 | unknown_key | keys of [[router.interface]] are
mac = "02:00:00:00:00:01" | mac = "03:00:00:00:00:01" | 0 | bad_value | must be a unicast, non-zero MAC address
mac = "02:00:00:00:00:01" | mac = "00:00:00:00:00:00" | 0 | bad_value | must be a unicast, non-zero MAC address
"2001:db8::1/64" | "10.0.0.1/32" | 0 | duplicate | remove one
"2001:db8::1/64" | "2001:db8::1" | 0 | bad_value | the length of its prefix
"2001:db8::1/64" | "224.0.0.1/4" | 0 | bad_value | must be a unicast address
to = "192.0.2.0/24" | to = "192.0.2.1/24" | 0 | bad_value | host bits
to = "192.0.2.0/24"⏎via | via | 0 | missing_key | give its destination
via = "10.0.0.9" | via = "2001:db8::9" | 0 | bad_value | same family
via = "10.0.0.9" | via = [] | 0 | bad_value | at least one value
via = "10.0.0.9" | metric = 3 | 0 | missing_key | `blackhole = true`
via = "10.0.0.9" | blackhole = true⏎via = "10.0.0.9" | 0 | conflict | keep one
interface = "lan"⏎metric | interface = "dmz"⏎metric | 0 | unknown_name | name one of its
name = "blue"⏎ | name = "blue"⏎weight = 0 | 1 | bad_value | from 1 to 1000
name = "blue"⏎ | name = "blue"⏎reserve = 91 | 1 | bad_value | from 0 to 90
[[router.routes]]⏎to = "203.0.113.0/24" | [[router.routes]]⏎to = "192.0.2.0/24" | 0 | duplicate | another `metric`
from = "uplink" | to = "uplink" | 2 | conflict | leave `to` out
forward = { router = "blue" } | forward = { router = "bleu" } | 0 | unknown_name | `blue`
forward = { router = "blue" } | forward = { router = "blue", normal = true } | 0 | conflict | keep one
from = "uplink" | from = "uplink"⏎drop = true | 1 | conflict | `router = "…"`
[[router]]⏎name = "blue"⏎ | [[router]]⏎name = "blue"⏎[[router.interface]]⏎name = "dmz"⏎port = "uplink" | 13 | duplicate | addresses of several networks
[[router]]⏎name = "blue"⏎ | [[router]]⏎name = "red"⏎interface = [{ name = "x", port = "uplink", mac = "02:00:00:00:00:01" }]⏎[[router]]⏎name = "blue"⏎ | 14 | duplicate | another `mac`, `vlan` or `port`
[[router]]⏎name = "blue" | [[router]]⏎name = "red"⏎[[router]]⏎name = "blue" | 0 | missing_key | add a [[router.interface]]
[[router]]⏎name = "blue" | [[router]]⏎name = "seventeen-letters" | 1 | bad_name | at most 16
"#;

#[test]
fn every_error_names_the_place_and_the_remedy() {
    let mut failures = Vec::new();
    for [from, to, below, code, remedy] in &cases(CASES) {
        let line = line_of(GOOD, from) + below.parse::<usize>().unwrap();
        let found = findings(&edited(GOOD, from, to));
        // What is missing is shown at the table's header, above it.
        let fits = |position: usize| position == line || (code == "missing_key" && position < line + 1);
        let right = found.iter().any(|finding| is(finding, code, remedy) && fits(finding.position().0));
        if !right {
            let drawn: Vec<String> = found.iter().map(|finding| finding.render(false)).collect();
            failures.push(format!("{to} in line {line}:\n{}", drawn.join("")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn ports_and_punt_ports_have_different_names() {
    let text = format!("{GOOD}\n[[port]]\nname = \"blue.wan\"\nkind = \"sink\"\n");
    let error = parse("host.toml", &text).unwrap_err();
    let finding = &error.findings()[0];
    assert_eq!((finding.kind(), finding.message()), (Kind::Duplicate, "two ports are called `blue.wan`"));
}

#[test]
fn an_interface_without_packets_is_a_warning() {
    let text = edited(GOOD, "forward = { router = \"blue\" }", "forward = { out = \"uplink\" }");
    let warnings = parse("host.toml", &text).unwrap().warnings;
    let [warning] = &warnings[..] else { panic!("{warnings:#?}") };
    assert_eq!(warning.kind(), Kind::Unused);
    assert!(warning.remedy().unwrap().contains("`from = \"inside\"` and `router = \"blue\"`"));
}

#[test]
fn punted_frames_must_fit() {
    // AF_XDP wants more headroom than the group has.
    let text = edited(GOOD, "buffer_size = 9344", "buffer_size = 9088\nheadroom = 64");
    let error = parse("host.toml", &text).unwrap_err();
    let [finding] = error.findings() else { panic!("{}", error.render(false)) };
    assert_eq!(finding.kind(), Kind::BufferSize);
    assert!(finding.remedy().unwrap().contains("of port inside"), "{}", finding.render(false));
}

#[test]
fn routers_and_punt_ports_have_limits() {
    let router = |n: usize, interfaces: usize| {
        let interface = |m: usize| format!("{{ name = \"i{m}\", port = \"p\", vlan = {} }}", n * 16 + m + 1);
        let interfaces: Vec<String> = (0..interfaces).map(interface).collect();
        format!("[[router]]\nname = \"r{n}\"\ninterface = [{}]\n", interfaces.join(", "))
    };
    let text = |routers: usize, interfaces: usize| {
        let routers: String = (0..routers).map(|n| router(n, interfaces)).collect();
        format!("[[port]]\nname = \"p\"\nkind = \"sink\"\n{routers}")
    };
    assert_eq!(host(&text(64, 1)).routers.len(), 64);
    let full = host(&text(1, 1023));
    assert_eq!((full.routers[0].interfaces.len(), full.ports.len()), (1023, 1024));
    let too_many_ports = "a host can have 1024 ports, and each interface of a router takes one more";
    for (text, remedy) in [
        (text(65, 1), "a host can have 64 routers"),
        (text(64, 16), too_many_ports),
        (text(1, 1024), too_many_ports),
    ] {
        let error = parse("host.toml", &text).unwrap_err();
        let finding = error.findings().iter().find(|finding| finding.kind() == Kind::TooMany).unwrap();
        assert_eq!(finding.remedy(), Some(remedy));
    }
}

/// `GOOD` with these keys in port `inside` and router `blue`.
fn shares(port: &str, router: &str) -> String {
    let text = edited(GOOD, "interface = \"nv-inside\"", &format!("interface = \"nv-inside\"\n{port}"));
    edited(&text, "name = \"blue\"\n", &format!("name = \"blue\"\n{router}\n"))
}

#[test]
fn a_router_has_a_share_of_which_its_ports_have_parts() {
    let host = host(&shares("weight = 3\nreserve = 10", "weight = 4\nreserve = 30"));
    let blue = host.router_named("blue").unwrap();
    assert_eq!((blue.weight, blue.reserve, blue.has_share()), (4, 30, true));
    let sharing: Vec<bool> = host.ports.iter().map(|port| host.sharing_router(port.id).is_some()).collect();
    assert_eq!(sharing, [true; 4], "both ports and both punt ports");
    assert_eq!(host.port_named("blue.lan").unwrap().policy.weight, 3);
    let host = crate::host(GOOD);
    assert!(!host.routers[0].has_share() && host.sharing_router(host.ports[0].id).is_none());
    assert_eq!(
        planned(GOOD, &shares("", "weight = 2")),
        "~ router blue: weight 1 → 2\nno traffic is disturbed\n",
        "it changes live"
    );
}

#[test]
fn shares_that_cannot_be_are_errors() {
    let found = |text: &str| -> Vec<(Kind, String)> {
        findings(text).iter().map(|one| (one.kind(), one.remedy().unwrap_or_default().to_owned())).collect()
    };
    // More than the router has.
    let found_one = found(&shares("reserve = 31", "reserve = 30"));
    assert!(
        matches!(&found_one[..], [(Kind::Conflict, remedy)] if remedy.contains("raise the router's")),
        "{found_one:?}"
    );
    assert!(found(&shares("reserve = 30", "reserve = 30")).is_empty());
    // More than a worker has; what ports reserve within a router counts once.
    let other = "\n[[port]]\nname = \"x\"\nkind = \"sink\"\nreserve = 50\n";
    let text = |reserve: u8| format!("{}{other}", shares("reserve = 20", &format!("reserve = {reserve}")));
    assert!(found(&text(40)).is_empty());
    let found_one = found(&text(41));
    assert!(
        matches!(&found_one[..], [(Kind::Conflict, remedy)] if remedy.contains("90 percent")),
        "{found_one:?}"
    );
    // A worker serves ports, not routers.
    let red = "\n[[router]]\nname = \"red\"\ninterface = [{ name = \"x\", port = \"uplink\", vlan = 9 }]\n\
               [[rule]]\nfrom = \"uplink\"\nrouter = \"red\"\n";
    let found_one = found(&format!("{}{red}", shares("", "weight = 2")));
    assert!(
        matches!(&found_one[..], [(Kind::Conflict, remedy)] if remedy.contains("its own port")),
        "{found_one:?}"
    );
}

fn changed(from: &str, to: &str) -> String {
    planned(GOOD, &edited(GOOD, from, to))
}

#[test]
fn plans_list_the_punt_ports_that_change() {
    assert_eq!(
        changed(
            "[[router]]\nname = \"blue\"",
            "[[router]]\nname = \"green\"\ninterface = [{ name = \"x\", port = \"uplink\", vlan = 7 }]\n[[router]]\nname = \"blue\""
        ),
        "+ router green: x on uplink VLAN 7\n    opens port green.x\n"
    );
    assert!(
        changed("name = \"wan\"", "name = \"dsl\"")
            .ends_with("    closes port blue.wan\n    opens port blue.dsl\n")
    );
    let live = changed("vlan = 10", "vlan = 11");
    assert!(
        live.starts_with("~ router blue: interface ") && live.ends_with("no traffic is disturbed\n"),
        "{live}"
    );
    assert_eq!(
        changed("mtu = 9000", "mtu = 8000"),
        "~ port inside: mtu 9000 → 8000\n    port inside is reopened (mtu 9000 → 8000)\n\
         ~ port blue.lan: mtu 9000 → 8000\n    port blue.lan is reopened (mtu 9000 → 8000)\n"
    );
}

#[test]
fn routers_may_share_a_port_by_their_mac_addresses_without_rules() {
    let port = "[[port]]\nname = \"wire\"\nkind = \"af_xdp\"\ninterface = \"eth1\"\nforward = { router = \"blue\" }\n";
    let router = |name: &str, vlan: &str| {
        format!(
            "[[router]]\nname = \"{name}\"\n[[router.interface]]\nname = \"lan\"\nport = \"wire\"\n{vlan}"
        )
    };
    let loaded = parse("host.toml", &(port.to_owned() + &router("blue", "") + &router("red", ""))).unwrap();
    assert!(loaded.warnings.is_empty(), "{:#?}", loaded.warnings);
    let elsewhere = port.to_owned() + &router("blue", "") + &router("red", "vlan = 7\n");
    let warnings = parse("host.toml", &elsewhere).unwrap().warnings;
    assert!(format!("{warnings:?}").contains("goes to router red"), "{warnings:#?}");
}

#[test]
fn the_switchs_own_interface_belongs_to_a_router_and_sends_nothing_back() {
    let port = |does: &str| {
        format!("\n[[port]]\nname = \"svi\"\nkind = \"bridge\"\nvlan = {{ access = 10 }}\nforward = {does}\n")
    };
    let interface = "[[router.interface]]\nname = \"wan\"\nport = \"uplink\"\n";
    let svi = "[[router.interface]]\nname = \"svi\"\nport = \"svi\"\n\n";
    let good = edited(GOOD, interface, &format!("{svi}{interface}")) + &port("{ router = \"blue\" }");
    let loaded = parse("host.toml", &good).unwrap();
    assert!(loaded.warnings.is_empty(), "{:#?}", loaded.warnings);
    let own = loaded.host.port_named("svi").unwrap();
    assert_eq!((&own.kind, own.has_queues()), (&PortKind::Bridge, false));
    let back = |text: &str| {
        let found = findings(text);
        let conflict = found.iter().find(|finding| finding.kind() == Kind::Conflict);
        conflict.map(|finding| (finding.to_string(), finding.position().0))
    };
    let text = GOOD.to_owned() + &port("{ normal = true }");
    let message = "port svi sends packets back to L2 switching".to_owned();
    assert_eq!(back(&text), Some((message.clone(), line_of(&text, "forward = { normal"))));
    let text = good.clone() + "\n[[rule]]\nfrom = \"svi\"\nmatch = { protocol = \"udp\" }\nnormal = true\n";
    assert_eq!(back(&text), Some((message, line_of(&text, "normal = true"))));
    assert_eq!(back(&good), None);
}
