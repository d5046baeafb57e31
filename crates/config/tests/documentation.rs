//! `docs/configuration.md` says what is so: its examples are right, its errors print as shown, its keys are all keys.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

use netvm_config::{Kind, parse};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");

/// Fenced blocks: what stands behind the fence, and the text.
fn blocks(document: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let text: String =
                lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            blocks.push((info.to_owned(), text));
        }
    }
    blocks
}

#[test]
fn examples_are_right_and_errors_print_as_shown() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let blocks = blocks(&document);
    let mut shown = 0;
    for (n, (info, text)) in blocks.iter().enumerate() {
        let printed = match (info.as_str(), parse("host.toml", text)) {
            ("toml", Ok(loaded)) => {
                assert!(loaded.warnings.is_empty(), "{:#?}", loaded.warnings);
                continue;
            }
            ("toml", Err(error)) => panic!("{}", error.render(false)),
            ("toml bad", result) => result.unwrap_err().render(false),
            ("toml doubtful", result) => {
                result.unwrap().warnings.iter().map(|warning| warning.render(false)).collect()
            }
            _ => continue,
        };
        assert_eq!(blocks[n + 1].0, "text");
        let lines =
            |text: &str| text.trim().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(
            lines(&blocks[n + 1].1),
            lines(&printed),
            "should be
{printed}"
        );
        shown += 1;
    }
    assert_eq!(shown, 5);
}

/// The first column of every table of keys: `key` or field.
fn documented(document: &str) -> BTreeSet<&str> {
    let mut keys = BTreeSet::new();
    let mut in_keys = false;
    for line in document.lines() {
        match line.strip_prefix("| ") {
            None if !line.starts_with('|') => in_keys = false,
            Some(row) if row.starts_with("key |") || row.starts_with("field |") => in_keys = true,
            Some(row) if in_keys => keys.extend(row.split('`').nth(1)),
            _ => {}
        }
    }
    keys
}

#[test]
fn every_key_is_documented_and_every_documented_key_is_one() {
    // A host that uses every key there is.
    let text = r#"
        engine = { nodes = [[0]] }
        group = [{ name = "g", may_send_to = [] }]
        port = [
            { name = "a", kind = "pci", address = "3b:00.0", group = "g" },
            { name = "b", kind = "af_xdp", interface = "b" },
            { name = "c", kind = "pcap", input = "in", output = "out" },
            { name = "d", kind = "source", rate = 1, count = 1 },
        ]
        nf = [{ role = "x", command = ["x"] }, { role = "y" }]
        chain = [{ name = "c", hops = ["x"], output = "a" }]
        steer = [
            { port = "a", chain = "c", match = { protocol = "tcp", vlan = 1, source = "::1", source_ports = 1, destination = "::2", destination_ports = 2 } },
            { port = "b", out = "a" },
            { port = "c", drop = true },
        ]
    "#;
    let host = parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host;
    let json = serde_json::to_value(&host).unwrap();
    let mut keys = BTreeSet::new();
    for section in json.as_object().unwrap().values() {
        let items = section.as_array().cloned().unwrap_or_else(|| vec![section.clone()]);
        for item in items {
            keys.extend(item.as_object().unwrap().keys().cloned());
            keys.extend(
                item.get("match").into_iter().flat_map(|fields| fields.as_object().unwrap().keys().cloned()),
            );
        }
    }
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    assert_eq!(documented(&document), keys.iter().map(String::as_str).collect());
}

#[test]
fn every_code_is_documented() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    for kind in Kind::ALL {
        assert!(document.contains(&format!("| `{}`", kind.code())), "{}", kind.code());
    }
}
