// SPDX-License-Identifier: Apache-2.0
//! Where findings are shown, how many, and which are only warnings.

use netvm_config::{ConfigError, Finding, Kind, MissingKind, load, parse};

use crate::errors::{GOOD, good};
use crate::{findings, found, line_of};

#[test]
fn missing_keys_are_shown_at_the_table() {
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
        // References to an item whose name is missing cause no finding.
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
fn keys_of_another_kind_are_conflicts() {
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
fn syntax_errors_are_shown_where_they_are() {
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
fn two_actions_for_one_match_name_both_lines() {
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
    assert!(same.is_warning(), "in an ordered list, the first match decides");
    assert!(parse("host.toml", &text).is_ok());
    // The port that lost its rule gets a warning, too.
    assert!(findings(&text).iter().any(|finding| finding.kind() == Kind::Unused));
    // A rule that repeats another is only shadowed.
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
fn a_port_that_shows_packets_to_another_group_has_a_warning() {
    let text = "[[group]]\nname = \"g1\"\n[[group]]\nname = \"g2\"\n[[group]]\nname = \"none\"\n\
                [[port]]\nname = \"uplink\"\nkind = \"source\"\ngroup = \"g1\"\nforward = { chain = \"two\" }\n\
                [[nf]]\nrole = \"one\"\ngroup = \"g1\"\n[[nf]]\nrole = \"two\"\ngroup = \"g2\"\n\
                [[chain]]\nname = \"two\"\nhops = [\"two\"]\n";
    let shown = |text: &str| {
        let found = findings(text).into_iter().find(|finding| finding.kind() == Kind::CrossGroup);
        found.map(|finding| (finding.position().0, finding.message().to_owned()))
    };
    let message = "the NFs of group g1 can read the packets that port uplink sends to group g2";
    assert_eq!(shown(text), Some((10, message.to_owned())));
    assert_eq!(shown(&text.replace("group = \"g1\"\nforward", "group = \"none\"\nforward")), None);
    assert_eq!(shown(&text.replace("group = \"g1\"\nforward", "forward")), None);
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
        ("port", 1024, &(|n| many(n, &port)) as &dyn Fn(usize) -> String),
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
fn warnings_do_not_stop_the_file() {
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
        ("[[rule]]\nfrom = \"nic\"\ndrop = true\n", "", "", "", Kind::Unused, "name = \"nic\""),
        (
            "[[nf]]\nrole = \"monitor\"",
            "[[chain]]\nname = \"idle\"\nhops = [\"monitor\"]\n\n[[nf]]\nrole = \"monitor\"",
            "",
            "",
            Kind::Unused,
            "name = \"idle\"",
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
        // A finding about an item marks its name.
        let mark = at.strip_prefix("name = ").map(|name| "─".repeat(name.len() / 2));
        assert!(mark.is_none_or(|mark| warnings[0].render(false).contains(&mark)), "{warnings:#?}");
    }
}

#[test]
fn a_narrower_rule_first_is_not_shadowed() {
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
fn gro_without_large_buffers_is_a_warning_at_its_key() {
    let text = |large: u32, gro: bool| {
        format!(
            "[[group]]\nname = \"edge\"\nlarge_buffers = {large}\n\n[[port]]\nname = \"a\"\nkind = \"af_packet\"\n\
             interface = \"eth1\"\ngroup = \"edge\"\ngro = {gro}\nforward = {{ normal = true }}\n"
        )
    };
    let warned = |text: &str| {
        let warnings = parse("host.toml", text).unwrap().warnings;
        warnings
            .iter()
            .filter(|finding| finding.kind() == Kind::NoLargeBuffers)
            .map(Finding::position)
            .collect::<Vec<_>>()
    };
    assert_eq!(warned(&text(0, true)), [(10, 7)]);
    assert!(warned(&text(1, true)).is_empty() && warned(&text(0, false)).is_empty());
}

#[test]
fn colours_are_optional() {
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

#[test]
fn an_interface_that_another_program_manages_is_a_warning_at_its_line() {
    let text =
        "[[port]]\nname = \"a\"\nkind = \"af_packet\"\ninterface = \"eth1\"\nforward = { normal = true }\n";
    let looked_up = |kind| {
        netvm_config::parse_on("host.toml", text, |_| {
            let message = "eth1 is managed by somebody".to_owned();
            vec![netvm_config::Missing { table: "port", item: 0, key: "interface", message, kind }]
        })
    };
    let warnings = looked_up(MissingKind::Shared).unwrap().warnings;
    let found = warnings.iter().find(|finding| finding.kind() == Kind::SharedInterface).unwrap();
    assert!(found.is_warning() && found.position().0 == 4, "{}", found.render(false));
    assert!(found.render(false).contains("used by others, too"), "{}", found.render(false));
    let warnings = looked_up(MissingKind::Absent).unwrap().warnings;
    assert!(warnings.iter().any(|finding| finding.kind() == Kind::Absent && finding.position().0 == 4));
    assert!(looked_up(MissingKind::Missing).is_err());
}

#[test]
fn ports_on_the_switch_with_one_address_are_a_warning_at_the_second() {
    let port = |name: &str, keys: &str| {
        format!("[[port]]\nname = \"{name}\"\nforward = {{ normal = true }}\n{keys}\n")
    };
    let host = "kind = \"host\"\ninterface = \"lan0\"\naddresses = [\"10.0.0.1/24\"]";
    let container = |keys: &str| format!("kind = \"container\"\nnamespace = \"web\"\n{keys}");
    let shared = |keys: &str| {
        let text = port("a", host) + &port("b", &container(keys));
        let all = findings(&text).into_iter().filter(|finding| finding.kind() == Kind::SharedAddress);
        all.map(|finding| (finding.position().0, finding.to_string())).collect::<Vec<_>>()
    };
    let same = "addresses = [\"fd00::1/64\", \"10.0.0.1/16\"]";
    assert_eq!(shared(same), [(12, "ports a and b have the same address 10.0.0.1".to_owned())]);
    assert_eq!(shared("addresses = [\"10.0.0.2/24\"]"), []);
    assert_eq!(shared(&format!("{same}\nvlan = {{ access = 5 }}")), [], "another network");
    let text = port("a", &container("mac = \"02:00:00:00:00:07\""))
        + &port("b", "kind = \"e1000\"\npath = \"/run/b\"\nmac = \"02:00:00:00:00:07\"");
    assert_eq!(found(&text), [(Kind::SharedAddress, 12)]);
}

#[test]
fn keys_of_queues_at_a_port_without_a_device_have_no_effect() {
    let ends = |keys: &str| {
        format!(
            "engine = {{ cores = [0, 1] }}\n\
             [[port]]\nname = \"a\"\nkind = \"patch\"\npeer = \"b\"\nforward = {{ out = \"b\" }}\n{keys}\n\
             [[port]]\nname = \"b\"\nkind = \"patch\"\npeer = \"a\"\nforward = {{ out = \"a\" }}\n"
        )
    };
    let messages = |keys: &str| {
        let found = findings(&ends(keys));
        assert!(found.iter().all(Finding::is_warning), "{found:?}");
        found.iter().map(|finding| finding.message().to_owned()).collect::<Vec<_>>()
    };
    let without = |key: &str| format!("port a has no queue: `{key}` has no effect");
    assert_eq!(messages("mtu = 9000"), [""; 0]);
    assert_eq!(messages("worker = 1\nweight = 2"), [without("worker"), without("weight")]);
    // A shaper has a queue, and so a worker.
    let qos = "qos = { bits = 1_000_000, queues = [{ name = \"all\" }] }";
    assert_eq!(messages(&format!("worker = 1\nweight = 2\n{qos}")), [without("weight")]);
}
