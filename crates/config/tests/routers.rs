//! Virtual routers: what is made of a file, what can be wrong in it, and what plans say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use netvm_config::model::{Action, Forward, Host, PortKind, RouterId};
use netvm_config::{Kind, assign_ids, parse, parse_rules, plan};

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

[[rule]]
from = "uplink"
match = { destination = "10.0.0.0/24" }
router = "blue"
"#;

fn host(text: &str) -> Host {
    parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host
}

fn edited(from: &str, to: &str) -> String {
    assert_eq!(GOOD.matches(from).count(), 1, "{from}");
    GOOD.replace(from, to)
}

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
    assert!(!host.to_toml().contains("blue.lan"));
    let text = edited("from = \"uplink\"", "from = [\"uplink\", \"blue.wan\"]");
    assert!(self::host(&text).rules[0].matches.from.contains(&wan.punt));
    let added = parse_rules("rule.toml", "from = \"blue.lan\"\nrouter = \"blue\"", &host).unwrap();
    assert_eq!(
        (added[0].matches.from[0], added[0].actions.terminal),
        (lan.punt, Some(Action::Router(blue.id)))
    );
}

#[test]
fn every_error_names_the_place_and_the_remedy() {
    let cases: &[(&str, &str, usize, Kind, &str)] = &[
        ("name = \"lan\"\n", "", 0, Kind::MissingKey, "`name = \"lan\"`"),
        ("port = \"inside\"\n", "", 0, Kind::MissingKey, "name the port"),
        ("name = \"lan\"", "name = \"lo\"", 0, Kind::BadName, "another name"),
        ("name = \"lan\"", "name = \"all\"", 0, Kind::BadName, "another name"),
        ("name = \"lan\"", "name = \"a-very-long-name\"", 0, Kind::BadName, "at most 15"),
        ("name = \"lan\"", "name = \"l n\"", 0, Kind::BadName, "A-Z a-z"),
        ("name = \"lan\"", "name = \"wan\"", 7, Kind::Duplicate, "a name of its own"),
        ("port = \"inside\"", "port = \"insid\"", 0, Kind::UnknownName, "did you mean `inside`?"),
        ("port = \"inside\"", "port = \"blue.wan\"", 0, Kind::BadValue, "name a [[port]]"),
        ("vlan = 10", "vlan = 4095", 0, Kind::BadValue, "from 1 to 4094"),
        ("punt_rate = 50", "punt_rate = 0", 0, Kind::BadValue, "from 1 to"),
        ("punt_rate = 50", "mtu = 9000", 0, Kind::UnknownKey, "keys of [[router.interface]] are"),
        (
            "mac = \"02:00:00:00:00:01\"",
            "mac = \"03:00:00:00:00:01\"",
            0,
            Kind::BadValue,
            "first byte must be even",
        ),
        (
            "mac = \"02:00:00:00:00:01\"",
            "mac = \"00:00:00:00:00:00\"",
            0,
            Kind::BadValue,
            "first byte must be even",
        ),
        ("\"2001:db8::1/64\"", "\"10.0.0.1/32\"", 0, Kind::Duplicate, "remove one"),
        ("\"2001:db8::1/64\"", "\"2001:db8::1\"", 0, Kind::BadValue, "the length of its prefix"),
        ("\"2001:db8::1/64\"", "\"224.0.0.1/4\"", 0, Kind::BadValue, "an address of one host"),
        ("from = \"uplink\"", "to = \"uplink\"", 2, Kind::Conflict, "leave `to` out"),
        (
            "forward = { router = \"blue\" }",
            "forward = { router = \"bleu\" }",
            0,
            Kind::UnknownName,
            "`blue`",
        ),
        (
            "forward = { router = \"blue\" }",
            "forward = { router = \"blue\", normal = true }",
            0,
            Kind::Conflict,
            "keep one",
        ),
        ("from = \"uplink\"", "from = \"uplink\"\ndrop = true", 1, Kind::Conflict, "`router = \"…\"`"),
        (
            "[[router]]\nname = \"blue\"\n",
            "[[router]]\nname = \"blue\"\n[[router.interface]]\nname = \"dmz\"\nport = \"uplink\"",
            12,
            Kind::Duplicate,
            "addresses of several networks",
        ),
        (
            "[[router]]\nname = \"blue\"\n",
            "[[router]]\nname = \"red\"\ninterface = [{ name = \"x\", port = \"uplink\", mac = \"02:00:00:00:00:01\" }]\n[[router]]\nname = \"blue\"\n",
            13,
            Kind::Duplicate,
            "another `mac`, `vlan` or `port`",
        ),
        (
            "[[router]]\nname = \"blue\"",
            "[[router]]\nname = \"red\"\n[[router]]\nname = \"blue\"",
            0,
            Kind::MissingKey,
            "add a [[router.interface]]",
        ),
        (
            "[[router]]\nname = \"blue\"",
            "[[router]]\nname = \"seventeen-letters\"",
            1,
            Kind::BadName,
            "at most 16",
        ),
    ];
    let mut failures = Vec::new();
    for (from, to, below, kind, remedy) in cases {
        let line = GOOD[..GOOD.find(from).unwrap()].matches('\n').count() + 1 + below;
        let text = edited(from, to);
        let found = match parse("host.toml", &text) {
            Ok(_) => Vec::new(),
            Err(error) => error.findings().to_vec(),
        };
        // What is missing is shown at the table's header, above it.
        let fits = |position: usize| position == line || (*kind == Kind::MissingKey && position < line + 1);
        let right = found.iter().any(|finding| {
            finding.kind() == *kind
                && fits(finding.position().0)
                && finding.remedy().unwrap_or_default().contains(remedy)
        });
        if !right {
            let drawn: Vec<String> = found.iter().map(|finding| finding.render(false)).collect();
            failures.push(format!("{to} in line {line}:\n{}", drawn.join("")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_port_cannot_be_called_as_one_that_a_router_makes() {
    let text = format!("{GOOD}\n[[port]]\nname = \"blue.wan\"\nkind = \"sink\"\n");
    let error = parse("host.toml", &text).unwrap_err();
    let finding = &error.findings()[0];
    assert_eq!((finding.kind(), finding.message()), (Kind::Duplicate, "two ports are called `blue.wan`"));
}

#[test]
fn an_interface_that_gets_nothing_is_told() {
    let text = edited("forward = { router = \"blue\" }", "forward = { out = \"uplink\" }");
    let warnings = parse("host.toml", &text).unwrap().warnings;
    let [warning] = &warnings[..] else { panic!("{warnings:#?}") };
    assert_eq!(warning.kind(), Kind::Unused);
    assert!(warning.remedy().unwrap().contains("`from = \"inside\"` and `router = \"blue\"`"));
}

#[test]
fn frames_to_the_kernel_must_fit_too() {
    // AF_XDP wants more headroom than the group has.
    let text = edited("buffer_size = 9344", "buffer_size = 9088\nheadroom = 64");
    let error = parse("host.toml", &text).unwrap_err();
    let [finding] = error.findings() else { panic!("{}", error.render(false)) };
    assert_eq!(finding.kind(), Kind::BufferSize);
    assert!(finding.remedy().unwrap().contains("of port inside"), "{}", finding.render(false));
}

#[test]
fn there_is_a_most_of_routers_and_of_ports() {
    let router = |n: usize, interfaces: usize| {
        let interface = |m: usize| format!("{{ name = \"i{m}\", port = \"p\", vlan = {} }}", n * 8 + m + 1);
        let interfaces: Vec<String> = (0..interfaces).map(interface).collect();
        format!("[[router]]\nname = \"r{n}\"\ninterface = [{}]\n", interfaces.join(", "))
    };
    let text = |routers: usize, interfaces: usize| {
        let routers: String = (0..routers).map(|n| router(n, interfaces)).collect();
        format!("[[port]]\nname = \"p\"\nkind = \"sink\"\n{routers}")
    };
    assert_eq!(host(&text(64, 1)).routers.len(), 64);
    for (text, remedy) in
        [(text(65, 1), "a host can have 64 routers"), (text(64, 4), "a host can have 256 ports")]
    {
        let error = parse("host.toml", &text).unwrap_err();
        let finding = error.findings().iter().find(|finding| finding.kind() == Kind::TooMany).unwrap();
        assert_eq!(finding.remedy(), Some(remedy));
    }
}

fn planned(from: &str, to: &str) -> String {
    let (old, mut new) = (host(GOOD), host(&edited(from, to)));
    assign_ids(&mut new, Some(&old));
    plan(&old, &new).to_string()
}

#[test]
fn plans_say_which_ports_to_the_kernel_are_disturbed() {
    assert_eq!(
        planned(
            "[[router]]\nname = \"blue\"",
            "[[router]]\nname = \"green\"\ninterface = [{ name = \"x\", port = \"uplink\", vlan = 7 }]\n[[router]]\nname = \"blue\""
        ),
        "+ router green: x on uplink VLAN 7\n    opens port green.x\n"
    );
    assert!(
        planned("name = \"wan\"", "name = \"dsl\"")
            .ends_with("    closes port blue.wan\n    opens port blue.dsl\n")
    );
    let live = planned("vlan = 10", "vlan = 11");
    assert!(
        live.starts_with("~ router blue: interface ") && live.ends_with("no traffic is disturbed\n"),
        "{live}"
    );
    assert_eq!(
        planned("mtu = 9000", "mtu = 8000"),
        "~ port inside: mtu 9000 → 8000\n    port inside is reopened (mtu 9000 → 8000)\n\
         ~ port blue.lan: mtu 9000 → 8000\n    port blue.lan is reopened (mtu 9000 → 8000)\n"
    );
}
