//! Every error and warning: its kind, its line, the offending piece, the remedy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use netvm_config::{ConfigError, Finding, Kind, Loaded, load, parse};

/// A host without fault; the tests spoil a line each.
const GOOD: &str = r#"
[engine]
cores = [0]
idle = "adaptive"
huge_pages = true
ring_size = 512
nodes = [[0], [1]]

[[group]]
name = "edge"
buffers = 16384
buffer_size = 2048
headroom = 256

[[group]]
name = "other"

[[port]]
name = "client"
kind = "af_xdp"
interface = "nv-client"
group = "edge"
queues = 1

[[port]]
name = "server"
kind = "pcap"
output = "out.pcap"

[[port]]
name = "load"
kind = "source"
size = 1514
rate = 1_000_000

[[port]]
name = "nic"
kind = "pci"
address = "3b:00.0"

[[port]]
name = "guest"
kind = "vhost-user"
path = "guest.sock"
mode = "client"
forward = { normal = true }

[[nf]]
role = "firewall"
group = "edge"
command = ["netvm-firewall", "--rules", "fw.rules"]
replicas = 2
standby = 1
threads = 4
balance = "flow-hash"
user = "nobody"
cores = [1]
environment = { RUST_LOG = "info" }

[[nf]]
role = "monitor"
group = "edge"
attach_users = ["nobody"]

[[chain]]
name = "web"
hops = ["firewall", "monitor"]
on_failure = "standby"
output = "server"

[[rule]]
from = "client"
match = { protocol = "tcp", destination = "10.0.0.0/8", destination_ports = "80-443", vlan = 5 }
chain = "web"

[[rule]]
from = "client"
out = "server"

[[rule]]
from = "load"
chain = "web"

[[rule]]
from = "nic"
drop = true
"#;

fn good(text: &str) -> Loaded {
    parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false)))
}

fn findings(text: &str) -> Vec<Finding> {
    match parse("host.toml", text) {
        Ok(loaded) => loaded.warnings,
        Err(error) => error.findings().to_vec(),
    }
}

/// The one finding after `from` became `to`; it must be `below` lines below where that stands.
fn spoil(from: &str, to: &str, below: usize) -> Result<Finding, String> {
    assert_eq!(GOOD.matches(from).count(), 1, "{from}");
    let line = line_of(GOOD, from) + below;
    let found = findings(&GOOD.replace(from, to));
    let [finding] = &found[..] else {
        return Err(format!("{to}: {} findings: {found:#?}", found.len()));
    };
    let drawn = finding.render(false);
    if finding.position().0 != line || !drawn.contains(&format!("host.toml:{line}:")) {
        return Err(format!("{to}: not in line {line}:\n{drawn}"));
    }
    Ok(finding.clone())
}

#[test]
fn a_host_without_fault_has_no_findings() {
    assert!(good(GOOD).warnings.is_empty(), "{:#?}", good(GOOD).warnings);
    // An empty file is a host that does nothing, with the default group.
    assert_eq!(good("").host.groups.len(), 1);
}

#[test]
fn every_wrong_line_is_named_with_a_remedy() {
    let long = format!("name = \"{}\"", "x".repeat(33));
    let cases: &[(&str, &str, usize, Kind, &str)] = &[
        // Keys.
        ("ring_size = 512", "ringsize = 512", 0, Kind::UnknownKey, "did you mean `ring_size`?"),
        ("huge_pages = true", "colour = 1", 0, Kind::UnknownKey, "keys of [engine] are `cores`, `idle`"),
        ("buffer_size = 2048", "buffer-size = 2048", 0, Kind::UnknownKey, "did you mean `buffer_size`?"),
        (
            "on_failure = \"standby\"",
            "onfailure = \"drop\"",
            0,
            Kind::UnknownKey,
            "did you mean `on_failure`?",
        ),
        ("vlan = 5", "vlam = 5", 0, Kind::UnknownKey, "did you mean `vlan`?"),
        ("[engine]", "[engin]", 0, Kind::UnknownKey, "did you mean `engine`?"),
        (
            "hops = [\"firewall\", \"monitor\"]",
            "hop = [\"firewall\"]",
            0,
            Kind::UnknownKey,
            "did you mean `hops`?",
        ),
        (
            "[[port]]\nname = \"server\"\nkind = \"pcap\"\noutput = \"out.pcap\"",
            "[[port]]\nname = \"server\"\nkind = \"pcap\"\npaced = true",
            0,
            Kind::MissingKey,
            "`input`",
        ),
        ("attach_users = [\"nobody\"]", "attach_users = []\nstandby = 1", 1, Kind::Conflict, "remove it"),
        ("drop = true", "drop = true\nout = \"server\"", 0, Kind::Conflict, "keep one of"),
        ("drop = true", "drop = false", 0, Kind::BadValue, "`drop = true`"),
        // Keys of earlier versions.
        ("buffers = 16384", "cells = 16384", 0, Kind::UnknownKey, "it is called `buffers` now"),
        ("buffer_size = 2048", "cell_size = 2048", 0, Kind::UnknownKey, "it is called `buffer_size` now"),
        // Types and values.
        ("huge_pages = true", "huge_pages = \"yes\"", 0, Kind::WrongType, "`true` or `false`"),
        ("buffers = 16384", "buffers = 1.5", 0, Kind::WrongType, "a whole number"),
        ("cores = [0]", "cores = 0", 0, Kind::WrongType, "a list of whole numbers"),
        ("nodes = [[0], [1]]", "nodes = [0, 1]", 0, Kind::WrongType, "such as [[0], [1]]"),
        ("role = \"monitor\"", "role = 7", 0, Kind::WrongType, "a text in quotes"),
        (
            "environment = { RUST_LOG = \"info\" }",
            "environment = { RUST_LOG = 1 }",
            0,
            Kind::WrongType,
            "text in quotes",
        ),
        ("environment = { RUST_LOG = \"info\" }", "environment = []", 0, Kind::WrongType, "a table of texts"),
        ("[engine]", "[[engine]]", 0, Kind::WrongType, "a table: [engine]"),
        (
            "idle = \"adaptive\"",
            "idle = \"lazy\"",
            0,
            Kind::BadValue,
            "possible values are `adaptive`, `poll`",
        ),
        (
            "balance = \"flow-hash\"",
            "balance = \"flow_hash\"",
            0,
            Kind::BadValue,
            "did you mean `flow-hash`?",
        ),
        ("kind = \"af_xdp\"", "kind = \"xdp\"", 0, Kind::BadValue, "did you mean `af_xdp`?"),
        ("mode = \"client\"", "mode = \"host\"", 0, Kind::BadValue, "possible values are `server`, `client`"),
        ("path = \"guest.sock\"", "path = \"\"", 0, Kind::BadValue, "from 1 to 107 bytes"),
        ("mode = \"client\"", "dma = \"a b\"", 0, Kind::BadValue, "`off`, `auto`, or a DMA device"),
        ("ring_size = 512", "ring_size = 500", 0, Kind::BadValue, "256 and 512 are"),
        ("ring_size = 512", "ring_size = 8", 0, Kind::BadValue, "from 16 to 65536"),
        ("buffer_size = 2048", "buffer_size = 2000", 0, Kind::BadValue, "1984 and 2048 are"),
        ("buffer_size = 2048", "buffer_size = 65536", 0, Kind::BadValue, "from 256 to 65472"),
        ("buffers = 16384", "buffers = 0", 0, Kind::BadValue, "from 1 to 16777216"),
        ("buffers = 16384", "buffers = -1", 0, Kind::BadValue, "from 1 to 16777216"),
        ("queues = 1", "queues = 33", 0, Kind::BadValue, "from 1 to 32"),
        (
            "output = \"out.pcap\"",
            "output = \"out.pcap\"\nqueues = 2",
            1,
            Kind::BadValue,
            "leave `queues` out",
        ),
        ("size = 1514", "size = 59", 0, Kind::BadValue, "from 60 to"),
        ("rate = 1_000_000", "burst = 64", 0, Kind::BadValue, "give the source a `rate`"),
        ("rate = 1_000_000", "rate = 1\nburst = 0", 1, Kind::BadValue, "from 1 to 65535"),
        ("rate = 1_000_000", "rate = 0", 0, Kind::BadValue, "from 1 to"),
        ("rate = 1_000_000", "mtu = 1499", 0, Kind::BadValue, "an MTU of 1500"),
        ("address = \"3b:00.0\"", "address = \"eth0\"", 0, Kind::BadValue, "0000:3b:00.0"),
        ("user = \"nobody\"", "user = \"no body\"", 0, Kind::BadValue, "a user of this machine"),
        ("attach_users = [\"nobody\"]", "attach_users = [\"\"]", 0, Kind::BadValue, "a user of this machine"),
        ("replicas = 2", "replicas = 0", 0, Kind::BadValue, "from 1 to 8"),
        ("hops = [\"firewall\", \"monitor\"]", "hops = []", 0, Kind::BadValue, "list the roles"),
        (
            "command = [\"netvm-firewall\", \"--rules\", \"fw.rules\"]",
            "command = []",
            0,
            Kind::BadValue,
            "the program",
        ),
        ("RUST_LOG = \"info\"", "NETVM_ROLE = \"x\"", 0, Kind::BadValue, "set by netvmd"),
        ("RUST_LOG = \"info\"", "\"A=B\" = \"x\"", 0, Kind::BadValue, "no `=`"),
        ("RUST_LOG = \"info\"", "A = \"\\u0000\"", 0, Kind::BadValue, "remove it"),
        ("cores = [0]", "cores = [2]", 0, Kind::BadValue, "leave `nodes` out"),
        ("vlan = 5", "vlan = 4095", 0, Kind::BadValue, "from 1 to 4094"),
        ("protocol = \"tcp\"", "protocol = \"tpc\"", 0, Kind::BadValue, "tcp"),
        ("\"10.0.0.0/8\"", "\"10.0.0.1/8\"", 0, Kind::BadValue, "10.0.0.0/8"),
        ("\"80-443\"", "\"443-80\"", 0, Kind::BadValue, "80-443"),
        // Names.
        ("name = \"other\"", "name = \"\"", 0, Kind::BadName, "1 to 32"),
        ("name = \"other\"", &long, 0, Kind::BadName, "1 to 32"),
        ("name = \"other\"", "name = \"ö\"", 0, Kind::BadName, "A-Z a-z 0-9 _ - ."),
        ("name = \"nic\"", "name = \"ingress\"", 0, Kind::BadName, "another name"),
        ("interface = \"nv-client\"", "interface = \"a-very-long-name\"", 0, Kind::BadName, "15 characters"),
        ("interface = \"nv-client\"", "interface = \"a b\"", 0, Kind::BadName, "15 characters"),
        ("output = \"server\"", "output = { router = \"blue\" }", 0, Kind::UnknownName, "add a [[router]]"),
        ("output = \"server\"", "output = {}", 0, Kind::MissingKey, "write `\"PORT\"`, `{ normal = true }`"),
        (
            "output = \"server\"",
            "output = { router = \"blue\", normal = true }",
            0,
            Kind::Conflict,
            "keep one of them",
        ),
        (
            "output = \"server\"",
            "output = { normal = true, chain = 1 }",
            0,
            Kind::UnknownKey,
            "keys of output are",
        ),
        ("output = \"server\"", "output = 1", 0, Kind::WrongType, "a text in quotes"),
        ("output = \"server\"", "output = \"sever\"", 0, Kind::UnknownName, "did you mean `server`?"),
        (
            "hops = [\"firewall\", \"monitor\"]",
            "hops = [\"firewal\"]",
            0,
            Kind::UnknownName,
            "did you mean `firewall`?",
        ),
        ("drop = true", "chain = \"mail\"", 0, Kind::UnknownName, "the chains are `web`"),
        (
            "group = \"edge\"\nqueues",
            "group = \"egde\"\nqueues",
            0,
            Kind::UnknownName,
            "did you mean `edge`?",
        ),
        (
            "name = \"other\"",
            "name = \"other\"\nmay_send_to = [\"sevrer\"]",
            1,
            Kind::UnknownName,
            "did you mean `server`?",
        ),
        ("name = \"other\"", "name = \"edge\"", 0, Kind::Duplicate, "a name of its own"),
        ("nodes = [[0], [1]]", "nodes = [[0], [0]]", 0, Kind::Duplicate, "a core is on one node"),
        ("cores = [1]", "cores = [1, 1]", 0, Kind::Duplicate, "every core once"),
        (
            "kind = \"pci\"\naddress = \"3b:00.0\"",
            "kind = \"tap\"\ninterface = \"nv-client\"",
            1,
            Kind::Duplicate,
            "only one port",
        ),
        // The whole.
        ("nodes = [[0], [1]]", "nodes = [[0], [1], [2], [3], [4]]", 0, Kind::TooMany, "4 nodes"),
        ("threads = 4", "threads = 5", 0, Kind::TooMany, "at most 8 threads"),
        (
            "queues = 1",
            "mtu = 1779",
            0,
            Kind::BufferSize,
            "`buffer_size = 2112` of group edge or `mtu = 1778` of port client",
        ),
        (
            "address = \"3b:00.0\"",
            "address = \"3b:00.0\"\nmtu = 1779",
            1,
            Kind::BufferSize,
            "set `group` of port nic to one with `buffer_size = 2112` or more, or `mtu = 1778`",
        ),
        ("name = \"other\"", "name = \"other\"\nheadroom = 1025", 1, Kind::BufferSize, "at most 1024"),
        ("standby = 1", "standby = 0", 15, Kind::NoStandby, "add `standby = 1` to firewall"),
    ];
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|(from, to, below, kind, remedy)| {
            let finding = match spoil(from, to, *below) {
                Ok(finding) => finding,
                Err(failure) => return Some(failure),
            };
            let right = finding.kind() == *kind && finding.remedy().unwrap_or_default().contains(remedy);
            (!right || finding.is_warning()).then(|| finding.render(false))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The kinds and lines of what is found in a text.
fn found(text: &str) -> Vec<(Kind, usize)> {
    findings(text).iter().map(|finding| (finding.kind(), finding.position().0)).collect()
}

fn line_of(text: &str, piece: &str) -> usize {
    text[..text.find(piece).unwrap()].matches('\n').count() + 1
}

#[test]
fn what_is_missing_is_shown_at_the_table() {
    for (key, line) in [
        ("name", "name = \"nic\"\n"),
        ("kind", "kind = \"pci\"\n"),
        ("address", "address = \"3b:00.0\"\n"),
        ("interface", "interface = \"nv-client\"\n"),
        ("path", "path = \"guest.sock\"\n"),
        ("role", "role = \"monitor\"\n"),
        ("hops", "hops = [\"firewall\", \"monitor\"]\n"),
    ] {
        let text = GOOD.replacen(line, "", 1);
        let found = findings(&text);
        let missing = found.iter().find(|finding| finding.kind() == Kind::MissingKey).unwrap();
        let header = text[..GOOD.find(line).unwrap()].rfind("[[").unwrap();
        assert_eq!(missing.position().0, text[..header].matches('\n').count() + 1);
        assert!(missing.message().ends_with(&format!("has no `{key}`")), "{}", missing.message());
        // Who refers to a thing whose name is missing is not blamed.
        assert_eq!(found.len(), 1, "{found:#?}");
    }
    let text = GOOD.replace("role = \"monitor\"\ngroup = \"edge\"", "role = \"monitor\"");
    let found = findings(&text);
    assert_eq!(found[0].message(), "[[nf]] monitor has no `group`");
    let text = GOOD.replace("drop = true", "");
    assert_eq!(
        found_help(&text),
        "add `chain = \"…\"`, `out = \"…\"` (a port), `router = \"…\"`, `drop = true`, `reject = true`, `allow = true` or `normal = true`; \
         `count = true` for a rule that only counts"
    );
}

fn found_help(text: &str) -> String {
    findings(text)[0].remedy().unwrap().to_owned()
}

#[test]
fn a_key_of_another_kind_is_told_so() {
    let text = GOOD.replace("kind = \"source\"", "kind = \"sink\"");
    let expected =
        [(Kind::Conflict, line_of(&text, "size = 1514")), (Kind::Conflict, line_of(&text, "rate ="))];
    assert_eq!(found(&text), expected);
}

#[test]
fn several_errors_are_shown_at_once() {
    let text =
        GOOD.replace("idle = \"adaptive\"", "idle = 1").replace("role = \"monitor\"", "roll = \"monitor\"");
    let text = text.replace("out = \"server\"", "out = \"server2\"");
    let expected = [
        (Kind::WrongType, line_of(&text, "idle")),
        (Kind::UnknownKey, line_of(&text, "roll")),
        (Kind::UnknownName, line_of(&text, "server2")),
    ];
    assert_eq!(found(&text), expected);
    let error = parse("host.toml", &text).unwrap_err();
    assert_eq!(error.to_string(), "host.toml has 3 errors");
}

#[test]
fn what_is_not_toml_is_shown_where_it_breaks() {
    for (from, to) in [
        ("idle = \"adaptive\"", "idle = adaptive"),
        ("cores = [0]", "cores = [0"),
        ("role = \"monitor\"", "role = \"monitor"),
        ("[[group]]\nname = \"other\"", "[[group]\nname = \"other\""),
        ("buffers = 16384", "buffers = 16384\nbuffers = 16384"),
    ] {
        let text = GOOD.replace(from, to);
        let found = findings(&text);
        assert!(
            !found.is_empty() && found.iter().all(|finding| finding.kind() == Kind::Syntax),
            "{found:#?}"
        );
        let line = line_of(&text, to);
        let (first, _) = found[0].position();
        assert!((line..=line + 2).contains(&first), "{}", found[0].render(false));
    }
}

#[test]
fn two_ways_for_one_match_name_both_lines() {
    let text = GOOD.replace("from = \"load\"\n", "from = \"client\"\n");
    let (first, second) = (
        text.find("[[rule]]\nfrom = \"client\"\nout").unwrap(),
        text.find("[[rule]]\nfrom = \"client\"\nchain").unwrap(),
    );
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let same = findings(&text).into_iter().find(|finding| finding.kind() == Kind::SameMatch).unwrap();
    assert!(
        same.message().contains(&format!(
            "in line {} leaves nothing to the one in line {}",
            line(first),
            line(second)
        )),
        "{}",
        same.message()
    );
    // The port that lost its rule is a warning beside.
    assert!(findings(&text).iter().any(|finding| finding.kind() == Kind::Unused));
    // What says the same again is only never asked.
    let text = GOOD.replace("from = \"load\"\nchain = \"web\"", "from = \"nic\"\ndrop = true");
    let kinds: Vec<Kind> = good(&text).warnings.iter().map(Finding::kind).collect();
    assert_eq!(kinds, [Kind::Unused, Kind::Shadowed]);
    // The order in a set does not matter.
    let rule = |protocols: &str, rest: &str| {
        format!("[[rule]]\nmatch = {{ protocol = {protocols} }}\n{rest} = true\n")
    };
    let both = |second: &str| rule("[\"tcp\", \"udp\"]", "drop") + &rule(second, "normal");
    assert_eq!(found(&both("[\"udp\", \"tcp\"]")), [(Kind::SameMatch, 5)]);
    assert_eq!(found(&both("[\"udp\", \"tcp\", \"icmp\"]")), []);
}

#[test]
fn too_many_of_anything_is_an_error() {
    let many = |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<String>();
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nkind = \"sink\"\n");
    let group = |n: usize| format!("[[group]]\nname = \"g{n}\"\n");
    let nf = |n: usize| format!("[[nf]]\nrole = \"r{n}\"\ngroup = \"g{}\"\n", n % 3);
    let chain = |n: usize| format!("[[chain]]\nname = \"c{n}\"\nhops = [\"r0\"]\n");
    let groups = many(3, &group);
    for (what, limit, text) in [
        ("port", 256, &(|n| many(n, &port)) as &dyn Fn(usize) -> String),
        ("group", 64, &|n| many(n, &group)),
        ("role", 128, &|n| groups.clone() + &many(n, &nf)),
        ("chain", 256, &|n| groups.clone() + &many(1, &nf) + &many(n, &chain)),
    ] {
        good(&text(limit));
        let error = parse("host.toml", &text(limit + 1)).unwrap_err();
        let finding = &error.findings()[0];
        assert_eq!(finding.kind(), Kind::TooMany);
        assert_eq!(finding.remedy().unwrap(), format!("a host can have {limit} {what}s"));
    }
    let hops = |n| {
        format!(
            "{}[[chain]]\nname = \"c\"\nhops = {:?}\n",
            nf(0).replace("group = \"g0\"", ""),
            vec!["r0"; n]
        )
    };
    good(&hops(16));
    assert_eq!(found(&hops(17))[0].0, Kind::TooMany);
    let cores = |n: usize| format!("[engine]\ncores = {:?}\n", Vec::from_iter(0..n));
    good(&cores(32));
    assert_eq!(found(&cores(33)), [(Kind::TooMany, 2)]);
    let threads = |n: usize| {
        many(n, &|n| format!("[[nf]]\nrole = \"r{n}\"\ncommand = [\"x\"]\nstandby = 6\n"))
            + "[[nf]]\nrole = \"last\"\n"
    };
    good(&threads(8));
    assert_eq!(found(&threads(9))[0].0, Kind::TooMany);
}

#[test]
fn doubtful_things_are_warnings() {
    let cases = [
        (
            "idle = \"adaptive\"",
            "idle = \"poll\"",
            "cores = [1]",
            "cores = [0]",
            Kind::SharedCore,
            "cores = [0]\nenv",
        ),
        (
            "role = \"monitor\"\ngroup = \"edge\"",
            "role = \"monitor\"\ngroup = \"other\"",
            "",
            "",
            Kind::CrossGroup,
            "hops",
        ),
        (
            "match = { protocol = \"tcp\", destination = \"10.0.0.0/8\", destination_ports = \"80-443\", vlan = 5 }\nchain",
            "chain",
            "from = \"client\"\nout",
            "from = \"client\"\nmatch = { vlan = 1 }\nout",
            Kind::Shadowed,
            "match = { vlan = 1 }",
        ),
        ("[[rule]]\nfrom = \"nic\"\ndrop = true\n", "", "", "", Kind::Unused, "[[port]]\nname = \"nic\""),
        (
            "[[nf]]\nrole = \"monitor\"",
            "[[chain]]\nname = \"idle\"\nhops = [\"monitor\"]\n\n[[nf]]\nrole = \"monitor\"",
            "",
            "",
            Kind::Unused,
            "[[chain]]\nname = \"idle\"",
        ),
        (
            "from = \"nic\"",
            "from = \"server\"",
            "kind = \"pci\"\naddress = \"3b:00.0\"",
            "kind = \"null\"",
            Kind::Unused,
            "from = \"server\"",
        ),
    ];
    for (from, to, also_from, also_to, kind, at) in cases {
        assert!(GOOD.contains(from) && GOOD.contains(also_from), "{from}");
        let text = GOOD.replace(from, to).replace(also_from, if also_from.is_empty() { "" } else { also_to });
        let warnings = good(&text).warnings;
        let expected = line_of(&text, at);
        let kinds: Vec<_> = warnings.iter().map(|warning| (warning.kind(), warning.position().0)).collect();
        assert_eq!(kinds, [(kind, expected)], "{warnings:#?}");
        assert!(warnings[0].is_warning() && warnings[0].render(false).contains('⚠'));
    }
}

#[test]
fn a_narrower_rule_first_is_no_shadow() {
    let rule = |body: &str| format!("[[rule]]\nfrom = \"p\"\nmatch = {{ {body} }}\ndrop = true\n");
    let text = |first: &str, second: &str| {
        format!("[[port]]\nname = \"p\"\nkind = \"source\"\n{}{}", rule(first), rule(second))
    };
    let (wide, narrow) = (
        "source = \"10.0.0.0/8\", source_ports = \"10-20\"",
        "source = \"10.1.0.0/16\", source_ports = 15, protocol = 17",
    );
    assert!(found(&text(narrow, wide)).is_empty());
    assert_eq!(found(&text(wide, narrow)), [(Kind::Shadowed, 10)]);
    // Overlapping is not covering.
    assert!(found(&text("source_ports = \"10-20\"", "source_ports = \"15-25\"")).is_empty());
    assert!(found(&text("source = \"0.0.0.0/0\"", "source = \"::/0\"")).is_empty());
    assert!(found(&text("vlan = 1", "vlan = 2")).is_empty());
}

#[test]
fn colours_are_only_for_those_who_want_them() {
    let finding = &findings("[engine]\ncores = 0")[0];
    assert!(!finding.render(false).contains('\x1b'));
    assert!(finding.render(true).contains('\x1b'));
    assert_eq!(finding.position(), (2, 9));
    assert_eq!(finding.file(), "host.toml");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let path = std::env::temp_dir().join(format!("netvm-config-{}-none.toml", std::process::id()));
    let error = load(&path).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }));
    assert!(error.render(false).contains(path.to_str().unwrap()), "{}", error.render(false));
    std::fs::write(&path, "[engine]\nidel = \"poll\"").unwrap();
    let error = load(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(error.render(false).contains(&format!("{}:2:1", path.display())), "{}", error.render(false));
}
