// SPDX-License-Identifier: Apache-2.0
//! `iptables-save`: every option, rules without equivalent, wrong lines, and round trips.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod files;
mod idioms;
mod meaning;
mod nat;
mod options;
mod tracking;
mod written;

use netvm_policy::{Match, PortId};
use netvm_policy_import::iptables::parse;
use netvm_policy_import::{Imported, ImportedRule, Interfaces, IpVersion, NoteReason};
use netvm_wire::{EtherType, Fragment, IpProto, PortRange};

fn interfaces() -> Interfaces {
    Interfaces::new([("eth0", PortId(0)), ("eth1", PortId(1)), ("tap0", PortId(2))])
}

/// A file with these lines in table filter, the first as line 4; FORWARD has policy DROP.
fn file(lines: &[&str]) -> String {
    format!("*filter\n:FORWARD DROP [0:0]\n:WEB - [0:0]\n{}\nCOMMIT\n", lines.join("\n"))
}

fn read(version: IpVersion, lines: &[&str]) -> Imported {
    parse(&file(lines), Some(version), &interfaces()).unwrap_or_else(|error| panic!("{error}"))
}

/// The rules from one rule of FORWARD, without the policy.
fn rules(options: &str) -> Vec<ImportedRule> {
    let mut imported = read(IpVersion::V4, &[&format!("-A FORWARD {options}")]);
    imported.rules.retain(|rule| rule.line == 4);
    let unsaid = |why| matches!(why, NoteReason::Egress);
    assert!(imported.notes.iter().all(|note| unsaid(note.why)), "{:?}", imported.notes);
    imported.rules
}

fn one(options: &str) -> Match {
    let [rule] = &rules(options)[..] else { panic!("{options}") };
    rule.matches.clone()
}

/// The note of a rule without equivalent.
fn why(options: &str) -> (String, NoteReason) {
    let imported = read(IpVersion::V4, &[&format!("-A FORWARD {options}")]);
    assert_eq!(imported.rules.len(), 1, "{:?}", imported.rules);
    let [note] = &imported.notes[..] else { panic!("{:?}", imported.notes) };
    assert_eq!(note.line, 4);
    (note.what.clone(), note.why)
}

fn v4() -> Match {
    Match { ether_type: vec![EtherType::IPV4], ..Match::default() }
}

fn tcp() -> Match {
    Match { protocol: vec![IpProto::TCP], ..v4() }
}

fn nets(list: &[&str]) -> Vec<netvm_wire::IpNet> {
    list.iter().map(|net| net.parse().unwrap()).collect()
}

fn ports(list: &[(u16, u16)]) -> Vec<PortRange> {
    list.iter().map(|(first, last)| PortRange::new(*first, *last).unwrap()).collect()
}

/// The fragments of rules whose values include 0, the port of later fragments.
const NOT_LATER: [Fragment; 2] = [Fragment::Whole, Fragment::First];
