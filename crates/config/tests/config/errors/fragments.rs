// SPDX-License-Identifier: Apache-2.0
//! Files with fragments: how they are merged, and where errors are.

use netvm_config::{
    ConfigError, Document, Finding, Kind, Missing, MissingKind, SharedFragment, fragment_names, parse,
    parse_document, to_toml,
};

const OWN: &str = r#"fragments = ["base", "rules"]
[engine]
idle = "poll"
[[port]]
name = "in"
kind = "source"
[[rule]]
name = "own"
from = "in"
out = "shared"
"#;
const BASE: &str =
    "# All hosts.\n[engine]\nhuge_pages = false\n\n[[port]]\nname = \"shared\"\nkind = \"sink\"\n";
const RULES: &str =
    "[[rule]]\nname = \"first\"\nfrom = \"in\"\ndrop = true\nmatch = { protocol = \"udp\" }\n";

fn document(own: &str, parts: &[(&str, Option<&str>)]) -> Document {
    let fragment = |(key, text): &(&str, Option<&str>)| SharedFragment {
        key: (*key).to_owned(),
        name: format!("/fragments/{key}"),
        text: text.map(str::to_owned),
    };
    Document {
        name: "host.toml".to_owned(),
        text: own.to_owned(),
        fragments: Some(parts.iter().map(fragment).collect()),
    }
}

/// Its findings: kind, file, line, and the whole.
fn found(document: &Document) -> Vec<(Kind, String, usize, Finding)> {
    let findings = match parse_document(document, |_| Vec::new()) {
        Ok(loaded) => loaded.warnings,
        Err(error) => error.findings().to_vec(),
    };
    let place = |one: &Finding| (one.kind(), one.file().to_owned(), one.position().0, one.clone());
    findings.iter().map(place).collect()
}

/// The only finding.
#[track_caller]
fn only(document: &Document, kind: Kind, file: &str, line: usize) -> Finding {
    let mut found = found(document);
    assert_eq!(found.len(), 1, "{found:#?}");
    let (of_kind, of_file, of_line, finding) = found.remove(0);
    assert_eq!((of_kind, of_file.as_str(), of_line), (kind, file, line), "{finding:?}");
    finding
}

#[test]
fn fragments_come_first_and_the_whole_is_a_file_of_its_own() {
    assert_eq!(fragment_names("host.toml", OWN).unwrap(), ["base", "rules"]);
    assert!(fragment_names("host.toml", BASE).unwrap().is_empty());
    let document = document(OWN, &[("base", Some(BASE)), ("rules", Some(RULES))]);
    let host = parse_document(&document, |_| Vec::new()).unwrap().host;
    let names: Vec<&str> = host.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["first", "own"]);
    assert_eq!((host.ports[0].name.as_str(), host.ports[1].name.as_str()), ("shared", "in"));
    assert!(!host.engine.huge_pages);
    // As a single file it says the same.
    let single = document.single(&host);
    assert!(single.starts_with("# host.toml with /fragments/base, /fragments/rules\n"), "{single}");
    assert_eq!(to_toml(&parse("single", &single).unwrap().host), to_toml(&host));
    // Without fragments it stays as it was written.
    let alone = self::document(BASE, &[]);
    assert_eq!(alone.single(&parse_document(&alone, |_| Vec::new()).unwrap().host), BASE);
}

#[test]
fn errors_are_in_the_file_that_has_them() {
    let with = |base: &str| document(OWN, &[("base", Some(base)), ("rules", Some(RULES))]);
    // Each text is right, and they contradict each other.
    let other = BASE.replace("huge_pages = false", "idle = \"adaptive\"");
    let finding = only(&with(&other), Kind::Conflict, "host.toml", 3);
    assert_eq!(finding.message(), "two values for `idle` of [engine] (given already: /fragments/base:3)");
    assert_eq!(finding.remedy(), Some("keep one of them"));
    // The same value is none.
    assert!(found(&with(&BASE.replace("huge_pages = false", "idle = \"poll\""))).is_empty());
    // A name twice, a key that is unknown, a syntax error.
    let finding = only(
        &with(&format!("{BASE}[[port]]\nname = \"in\"\nkind = \"sink\"\n")),
        Kind::Duplicate,
        "host.toml",
        5,
    );
    assert!(finding.message().contains("/fragments/base:9"), "{finding:?}");
    only(&with(&BASE.replace("huge_pages", "hug_pages")), Kind::UnknownKey, "/fragments/base", 3);
    only(&with("[engine\n"), Kind::Syntax, "/fragments/base", 1);
    // What a machine lacks, too.
    let lacks = |table, item, key| {
        let missing = Missing { table, item, key, message: "away".to_owned(), kind: MissingKind::Missing };
        let error = parse_document(&with(BASE), |_| vec![missing]).unwrap_err();
        let finding = &error.findings()[0];
        (finding.file().to_owned(), finding.position().0)
    };
    assert_eq!(lacks("port", 0, "name"), ("/fragments/base".to_owned(), 6));
    assert_eq!(lacks("port", 1, "name"), ("host.toml".to_owned(), 5));
    // The text around it is that of its file.
    let finding = only(&with(&BASE.replace("\"sink\"", "\"sin\"")), Kind::BadValue, "/fragments/base", 7);
    assert!(finding.render(false).contains("[/fragments/base:7:"), "{}", finding.render(false));
}

#[test]
fn fragments_that_cannot_be() {
    let missing = document(OWN, &[("base", None), ("rules", Some(RULES))]);
    let finding = only(&missing, Kind::UnknownName, "host.toml", 1);
    assert!(finding.remedy().unwrap().contains("/fragments/base"), "{finding:?}");
    let nested = document(OWN, &[("base", Some("fragments = [\"more\"]\n")), ("rules", Some(BASE))]);
    only(&nested, Kind::UnknownKey, "/fragments/base", 1);
    for (text, kind) in [
        ("fragments = \"base\"\n", Kind::WrongType),
        ("fragments = []\n", Kind::BadValue),
        ("\nfragments = [\"base\", \"base\"]\n", Kind::Duplicate),
        ("fragments = [\"../base\"]\n", Kind::BadName),
        ("fragments = [1]\n", Kind::BadName),
        ("fragments = [\n", Kind::Syntax),
    ] {
        let Err(ConfigError::Invalid { findings, .. }) = fragment_names("host.toml", text) else {
            panic!("{text}")
        };
        assert_eq!(findings.iter().map(Finding::kind).collect::<Vec<_>>(), [kind], "{text}");
    }
    // A file that is not of a fleet names none.
    let single = crate::found("fragments = [\"base\"]\n");
    assert_eq!(single, [(Kind::UnknownKey, 1)]);
}
