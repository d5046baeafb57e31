// SPDX-License-Identifier: Apache-2.0
//! Configuration and rule files that operators write.

use std::fmt::{Debug, Display};
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use netvm_config::{Document, SharedFragment, parse as parse_config, parse_document};
use netvm_nf_common::{ConfigError, Lines};
use netvm_nf_firewall::{Rule, Rules, Subject};
use netvm_nf_l3_forward::Routes;
use netvm_wire::{EtherType, FiveTuple, Fragment, IpNet, IpProto, MacAddr, PortRange};

use crate::input::Input;

/// Parses a configuration. An accepted one must parse the same after it was written.
pub fn config_parse(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match parse_config("fuzz.toml", &text) {
        Err(error) => {
            assert!(!error.render(false).is_empty() && !error.render(true).is_empty());
        }
        Ok(loaded) => {
            for warning in &loaded.warnings {
                assert!(!warning.render(false).is_empty());
            }
            let written = netvm_config::to_toml(&loaded.host);
            let again = parse_config("written.toml", &written);
            let again = again.unwrap_or_else(|error| unreachable!("{}\n{written}", error.render(false)));
            assert_eq!(again.host, loaded.host);
            assert_eq!(netvm_config::to_toml(&again.host), written);
            assert!(netvm_config::plan(&loaded.host, &again.host).changes.is_empty());
        }
    }
}

/// Merges a host's file with fragments, which form feeds separate. What is wrong has a place in one of the texts; what
/// is right is also right as one file, and says the same.
pub fn config_fragments(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut texts = text.splitn(4, '\u{c}');
    let own = texts.next().unwrap_or_default();
    let names = ["a", "b", "c"];
    let fragments = names.iter().zip(texts).map(|(name, text)| SharedFragment {
        key: (*name).to_owned(),
        name: format!("/{name}"),
        text: Some(text.to_owned()),
    });
    let fragments: Vec<SharedFragment> = fragments.collect();
    let keys: Vec<&str> = fragments.iter().map(|fragment| fragment.key.as_str()).collect();
    let text = if keys.is_empty() { own.to_owned() } else { format!("fragments = {keys:?}\n{own}") };
    let document = Document { name: "own".to_owned(), text, fragments: Some(fragments) };
    match parse_document(&document, |_| Vec::new()) {
        Err(error) => {
            for finding in error.findings() {
                let named = |fragment: &&SharedFragment| fragment.name == finding.file();
                let fragment = document.fragments.iter().flatten().find(named);
                let own = Some(&document.text).filter(|_| finding.file() == "own");
                let text = own.or_else(|| fragment?.text.as_ref());
                let lines = text.map(|text| text.matches('\n').count() + 1);
                assert!(lines.is_some_and(|lines| finding.position().0 <= lines), "{finding:?}");
                assert!(!finding.render(false).is_empty());
            }
        }
        Ok(loaded) => {
            let single = document.single(&loaded.host);
            if document.fragments.as_ref().is_some_and(|fragments| !fragments.is_empty()) {
                let again = parse_config("single", &single);
                let again = again.unwrap_or_else(|error| unreachable!("{}\n{single}", error.render(false)));
                assert_eq!(again.host, loaded.host);
            }
        }
    }
}

/// Reads a file as firewall rules, as routes, and each of its words as a value of every type.
pub fn rule_files(data: &[u8]) {
    let mut input = Input::new(data);
    let tuple = FiveTuple::new(endpoint(&mut input), endpoint(&mut input), IpProto(input.u8()));
    let text = String::from_utf8_lossy(input.rest());
    let lines = Lines::from_text(Path::new("file"), text.as_ref());
    match Rules::from_lines(&lines) {
        Ok(rules) => {
            for rule in rules.list() {
                same_after_writing::<Rule>(&rule.to_string());
                for fragment in [Fragment::Whole, Fragment::First, Fragment::Later] {
                    let _ = rule.matches(&Subject::new(tuple, fragment, 1), true);
                }
            }
        }
        Err(error) => names_a_line(&error, &text),
    }
    match Routes::from_lines(&lines) {
        Ok(routes) => {
            assert_eq!(routes.len(), lines.entries().count());
            if let Some(number) = routes.to(tuple.destination) {
                assert!(routes.next_hops().get(number as usize).is_some());
            }
        }
        Err(error) => names_a_line(&error, &text),
    }
    for word in text.split_whitespace().take(64) {
        same_after_writing::<IpNet>(word);
        same_after_writing::<MacAddr>(word);
        same_after_writing::<PortRange>(word);
        same_after_writing::<IpProto>(word);
        same_after_writing::<EtherType>(word);
    }
}

fn endpoint(input: &mut Input<'_>) -> (IpAddr, u16) {
    let address = if input.u8() & 1 == 0 {
        IpAddr::from(input.u32().to_be_bytes())
    } else {
        IpAddr::from((u128::from(input.u64()) << 64 | u128::from(input.u64())).to_be_bytes())
    };
    (address, input.u16())
}

fn names_a_line(error: &ConfigError, text: &str) {
    assert!(
        matches!(error, ConfigError::Line(error) if (1..=text.lines().count()).contains(&error.line)),
        "{error}"
    );
}

/// A value that parses must survive the round trip through text.
fn same_after_writing<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().expect("the written value"), value, "read from `{text}`");
    }
}
