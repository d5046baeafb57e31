// SPDX-License-Identifier: Apache-2.0
//! Rules that name ports by label, and texts that are read as one configuration.

use netvm_config::{ConfigError, Kind, Part, fragment, parse_parts, parse_rules, to_toml, to_toml_of};
use netvm_model::{Host, PortId, Rule, assign_ids};

use crate::{found, host};

const LABELLED: &str = r#"
[[port]]
name = "a"
kind = "sink"
labels = { app = "web", tier = "front" }

[[port]]
name = "b"
kind = "sink"

[[rule]]
name = "r"
from = ["b", { label = "app=web" }]
drop = true

[[rule]]
to = { label = "app=db" }
drop = true
"#;

fn from(rule: &Rule) -> &[PortId] {
    &rule.matches.from
}

#[test]
fn labels_are_read_and_written_and_select_ports() {
    let host = host(LABELLED);
    assert_eq!(from(&host.rules[0]), [PortId(1), PortId(0)]);
    assert!(host.rules[1].selects_none() && !host.rules[1].is_active() && host.rules[1].matches.is_egress());
    let again = crate::host(&to_toml(&host));
    assert_eq!(again, host);
    // Among the rules of a running host, too.
    let added = parse_rules("rule", "from = { label = \"tier\" }\ndrop = true", &host).unwrap();
    assert_eq!(from(&added[0]), [PortId(0)]);
    for (text, kind) in [
        ("from = { label = \"a b\" }\ndrop = true", Kind::BadValue),
        ("from = { app = \"web\" }\ndrop = true", Kind::MissingKey),
        ("from = {}\ndrop = true", Kind::MissingKey),
        ("from = 1\ndrop = true", Kind::WrongType),
    ] {
        let error = parse_rules("rule", text, &host).unwrap_err();
        assert_eq!(error.findings()[0].kind(), kind, "{text}");
    }
    let nat = format!("{LABELLED}[[nat]]\nto = {{ label = \"app=web\" }}\nsnat = \"masquerade\"\n");
    assert_eq!(found(&nat)[0].0, Kind::WrongType);
}

#[test]
fn an_unnamed_rule_keeps_its_number_when_its_ports_change() {
    let old = host(LABELLED);
    let with = "[[port]]\nname = \"first\"\nkind = \"sink\"\nlabels = { app = \"db\" }\n\
                [[rule]]\nfrom = \"first\"\nmatch = { protocol = \"tcp\" }\ndrop = true\n";
    let mut new = host(&format!("{with}{LABELLED}"));
    assign_ids(&mut new, Some(&old));
    assert_eq!(new.rules[2].id, old.rules[1].id);
    assert_eq!(new.rules[2].matches.to, [PortId(2)]);
    assert_eq!(from(&new.rules[1]), [PortId(1), PortId(0)]);
}

fn of_parts(parts: &[(&str, &str)]) -> Result<Host, ConfigError> {
    let parts: Vec<Part<'_>> = parts.iter().map(|(name, text)| Part { name, text }).collect();
    parse_parts(&parts, |_| Vec::new()).map(|loaded| loaded.host)
}

#[test]
fn texts_are_one_configuration_and_errors_name_their_own() {
    let more = "[[port]]\nname = \"c\"\nkind = \"sink\"\nlabels = { app = \"db\" }";
    let host = of_parts(&[("file", LABELLED), ("more", more)]).unwrap();
    assert_eq!((host.ports.len(), host.rules[1].matches.to.as_slice()), (3, &[PortId(2)][..]));
    // Without one of its ports.
    let mut part = host.clone();
    part.ports.remove(2);
    assert_eq!(crate::host(&to_toml_of(&host, part)), crate::host(LABELLED));
    let error = of_parts(&[("file", LABELLED), ("more", more), ("again", more)]).unwrap_err();
    let finding = &error.findings()[0];
    assert_eq!((finding.file(), finding.position()), ("again", (2, 8)));
    assert_eq!(finding.message(), "two ports are called `c` (first here: more:2)");
    assert!(error.render(false).contains("again has an error"), "{}", error.render(false));
    let wrong = format!("{LABELLED}\n[[rule]]\nfrom = \"d\"\ndrop = true\n");
    let error = of_parts(&[("file", &wrong), ("more", &more.replace("sink", "sinc"))]).unwrap_err();
    let places: Vec<_> = error.findings().iter().map(|one| (one.file(), one.position().0)).collect();
    assert_eq!(places, [("file", wrong.lines().count() - 1), ("more", 3)]);
}

#[test]
fn a_fragment_is_one_port_with_its_rules() {
    let rules = "[[port]]\nname = \"c\"\n[port.forward]\nnormal = true\n[[rule]]\nfrom = \"c\"\n[[rule]]\nname = \"n\"\n";
    let read = fragment("f", rules, "live.7").unwrap();
    assert_eq!(
        (read.port.as_str(), read.rules.as_slice()),
        ("c", &["live.7.1".to_owned(), "n".to_owned()][..])
    );
    let expected = "[[port]]\nname = \"c\"\nforward = { normal = true }\n\n[[rule]]\nfrom = \"c\"\nname = \"live.7.1\"\n\n\
                    [[rule]]\nname = \"n\"\n";
    assert_eq!(read.toml, expected);
    assert_eq!(fragment("f", &read.toml, "x").unwrap(), read);
    for text in ["", "rule = 1", "port = [1]", "[[port]]\nname = \"c\"\n[[vm]]\n", "[[rule]]\n", "name = \"c"]
    {
        let error = fragment("f", text, "x").unwrap_err();
        assert!(error.findings().iter().all(|one| one.file() == "f" && one.remedy().is_some()), "{text}");
    }
}
