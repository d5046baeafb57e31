// SPDX-License-Identifier: Apache-2.0
//! What a configuration file means, what is found wrong in it, and what plans say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod documentation;
mod errors;
mod many_rules;
mod nfs;
mod plan;
mod random;
mod routers;
mod rules;
mod vms;
mod warnings;

use netvm_config::{Finding, Kind, parse};
use netvm_model::{Host, assign_ids};

/// The host of a file without errors.
fn host(text: &str) -> Host {
    parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host
}

/// The findings in a file, errors or warnings.
fn findings(text: &str) -> Vec<Finding> {
    match parse("host.toml", text) {
        Ok(loaded) => loaded.warnings,
        Err(error) => error.findings().to_vec(),
    }
}

/// The kinds and lines of the findings.
fn found(text: &str) -> Vec<(Kind, usize)> {
    findings(text).iter().map(|finding| (finding.kind(), finding.position().0)).collect()
}

/// The line of a piece of text, from 1.
fn line_of(text: &str, piece: &str) -> usize {
    text[..text.find(piece).unwrap()].matches('\n').count() + 1
}

/// A text after an edit of its only `from`.
fn edited(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    text.replace(from, to)
}

/// The plan from one file to another, as it is printed.
fn planned(old: &str, new: &str) -> String {
    let (old, mut new) = (host(old), host(new));
    let before = netvm_config::plan(&old, &new);
    assign_ids(&mut new, Some(&old));
    assert_eq!(netvm_config::plan(&old, &new), before, "numbers do not matter");
    before.to_string()
}

/// The rows of a table of cases, in columns between ` | `; `⏎` stands for the end of a line, `#` begins a heading.
fn cases<const COLUMNS: usize>(table: &str) -> Vec<[String; COLUMNS]> {
    let rows = table.lines().filter(|row| !row.is_empty() && !row.starts_with('#'));
    let columns = |row: &str| row.split(" | ").map(|column| column.replace('⏎', "\n")).collect::<Vec<_>>();
    rows.map(|row| columns(row).try_into().unwrap_or_else(|_| panic!("{row}"))).collect()
}

/// Whether a finding has this code and this in its remedy.
fn is(finding: &Finding, code: &str, remedy: &str) -> bool {
    finding.kind().code() == format!("config::{code}")
        && finding.remedy().unwrap_or_default().contains(remedy)
}
