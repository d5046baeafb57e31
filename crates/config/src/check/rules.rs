// SPDX-License-Identifier: Apache-2.0
//! Rules that contradict each other or never match, ports whose packets no rule handles, rules that allow packets
//! without a way out, rules that name a queue of other ports, rules with states for ports that do not track;
//! NAT rules.

use std::collections::{BTreeSet, HashMap};

use netvm_model::{AclDefault, Action, Forward, Host, Match, PortConfig, PortId, Receives, Rule, When};
use netvm_policy::Names;
use netvm_policy::analyse::{Kind as RuleProblem, analyse};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

mod connections;
mod nat;

type Written<'a> = (&'a Rule, FileTable<'a>);

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let rules: Vec<Written<'_>> = host.rules.iter().zip(file.items("rule")).collect();
    let reported = contradictions(findings, &rules);
    warn_of_problems(findings, host, &rules, &reported);
    ingress(findings, file, host, &rules);
    allowed(findings, host, &rules);
    queues(findings, host, &rules);
    connections::check(findings, file, host);
    nat::check(findings, file, host);
}

/// Two terminal actions for the same packets: the later rule never matches. Returns the positions of the later rules.
fn contradictions(findings: &Findings, rules: &[Written<'_>]) -> BTreeSet<usize> {
    let mut reported = BTreeSet::new();
    let mut seen: HashMap<(Match, &When), &Written<'_>> = HashMap::with_capacity(rules.len());
    for (n, written) in rules.iter().enumerate().filter(|(_, (rule, _))| rule.actions.terminal.is_some()) {
        let (rule, place) = written;
        let matches = (in_order(&rule.matches), rule.when());
        match seen.get(&matches) {
            Some((before, first)) if before.actions.terminal != rule.actions.terminal => {
                reported.insert(n);
                let (from, to) = (findings.line(first.header.start), findings.line(place.header.start));
                findings
                    .note(
                        Kind::SameMatch,
                        format!("two actions for one match: the [[rule]] in line {from} leaves nothing to the one in line {to}"),
                    )
                    .at(place.of("match"), "the same match again")
                    .at(first.of("match"), "first here")
                    .help("remove one of them, or give them different matches")
                    .keep();
            }
            Some(_) => {}
            None => {
                seen.insert(matches, written);
            }
        }
    }
    reported
}

/// Rules without the effect that they seem to have, except rules that contradict another rule.
fn warn_of_problems(findings: &Findings, host: &Host, rules: &[Written<'_>], reported: &BTreeSet<usize>) {
    let analysis = analyse(&host.rules);
    let mut overlapped = BTreeSet::new();
    for warning in analysis.warnings.iter().filter(|warning| !reported.contains(&warning.rule)) {
        // A wide rule overlaps with many: it gets one warning.
        if warning.kind == RuleProblem::Overlap && !overlapped.insert(warning.other) {
            findings.more(Kind::Overlap, 1);
            continue;
        }
        let Some((_, place)) = rules.get(warning.rule) else { continue };
        let other = warning.other.and_then(|other| rules.get(other)).map(|(_, other)| other);
        warn(findings, warning.kind, place, other);
    }
    if analysis.more_overlaps > 0 {
        findings.more(Kind::Overlap, analysis.more_overlaps);
    }
    if let Some((_, place)) = analysis.unfinished.and_then(|rule| rules.get(rule)) {
        findings
            .note(Kind::NotCompared, "the rules from here on were not compared with those before")
            .at(place.header.clone(), "from here on")
            .help("they overlap too much to be compared within a second: some of them may never match")
            .keep();
    }
}

fn warn(findings: &Findings, kind: RuleProblem, place: &FileTable<'_>, other: Option<&FileTable<'_>>) {
    let line = other.map_or(0, |other| findings.line(other.header.start));
    let first = "the first rule that matches decides";
    let (kind, message, here, there, help) = match kind {
        RuleProblem::Shadowed => (
            Kind::Shadowed,
            format!("this [[rule]] never matches: the one in line {line} takes all of its packets"),
            "another rule takes all of these packets".to_owned(),
            "this rule",
            format!("{first}: put the narrower rule first, or remove it"),
        ),
        RuleProblem::ShadowedTogether => (
            Kind::Shadowed,
            format!("this [[rule]] never matches: the one in line {line} and others take all of its packets"),
            "other rules take all of these packets".to_owned(),
            "this rule and others",
            format!("{first}: put the narrower rule first, or remove it"),
        ),
        RuleProblem::Duplicate => (
            Kind::Shadowed,
            format!("this [[rule]] never matches: the one in line {line} says the same"),
            "the same match again".to_owned(),
            "first here",
            "remove one of them".to_owned(),
        ),
        RuleProblem::Contradiction => (
            Kind::Shadowed,
            format!("this [[rule]] never matches: the one in line {line} is for the same packets"),
            "the same packets again".to_owned(),
            "decided here",
            "remove one of them, or give them different matches".to_owned(),
        ),
        RuleProblem::Overlap => (
            Kind::Overlap,
            format!("this [[rule]] and the one in line {line} decide differently on packets that fit both"),
            "another rule takes some of these packets".to_owned(),
            "this rule",
            format!("{first}: check that their order is what you want"),
        ),
        RuleProblem::Impossible(why) => (
            Kind::Impossible,
            "no packet can match this [[rule]]".to_owned(),
            why.to_string(),
            "",
            "remove the rule, or the condition that no packet meets".to_owned(),
        ),
    };
    let note = findings.note(kind, message).at(place.of("match"), here);
    let note = match other {
        Some(other) => note.at(other.of("match"), there),
        None => note,
    };
    note.help(help).keep();
}

/// The match with its sets sorted, so that matches with the same sets compare equal.
fn in_order(matches: &Match) -> Match {
    let mut matches = matches.clone();
    fn sort<T, K: Ord>(list: &mut Vec<T>, key: impl Fn(&T) -> K)
    where
        T: PartialEq,
    {
        list.sort_by_key(key);
        list.dedup();
    }
    let Match {
        from,
        to,
        source_mac,
        destination_mac,
        ether_type,
        vlan,
        inner_vlan,
        source,
        destination,
        protocol,
        source_ports,
        destination_ports,
        tcp_flags: _,
        dscp,
        icmp_type,
        icmp_code,
        fragment,
        state,
        arp_operation,
    } = &mut matches;
    for ports in [from, to] {
        sort(ports, |port| *port);
    }
    for macs in [source_mac, destination_mac] {
        sort(macs, |mac| (mac.value, mac.mask));
    }
    for spans in [vlan, inner_vlan, arp_operation] {
        sort(spans, |span| (span.first, span.last));
    }
    for spans in [dscp, icmp_type, icmp_code] {
        sort(spans, |span| (span.first, span.last));
    }
    for nets in [source, destination] {
        sort(nets, |net| *net);
    }
    for ports in [source_ports, destination_ports] {
        sort(ports, |ports| *ports);
    }
    sort(ether_type, |kind| *kind);
    sort(protocol, |protocol| *protocol);
    sort(fragment, |fragment| *fragment);
    sort(state, |state| *state);
    matches
}

/// Ports whose packets no rule handles, and rules for ports that receive nothing.
fn ingress(findings: &Findings, file: &FileTable<'_>, host: &Host, rules: &[Written<'_>]) {
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let silent = port.policy.forward == Forward::None && port.policy.acl_in == AclDefault::Allow;
        let is_member = || host.bond_of(port.id).is_some();
        if silent && receives(port) && !is_member() && host.rules_from(port.id).next().is_none() {
            findings
                .note(Kind::Unused, format!("no rule and no `forward` handles what comes in by port {}", port.name))
                .at(place.item(), "drops every packet that it receives")
                .help(format!(
                    "add a [[rule]] with `from = \"{}\"`, or `forward` to the port; if it shall drop everything, set `acl_in = \"deny\"`",
                    port.name
                ))
                .keep();
        }
    }
    let never = |id: &PortId| host.port(*id).is_some_and(never_receives);
    for (rule, place) in rules.iter().filter(|(rule, _)| rule.matches.from.iter().all(never)) {
        let Some(first) = rule.matches.from.first().and_then(|id| host.port(*id)) else { continue };
        findings
            .note(Kind::Unused, format!("port {} never receives a packet", first.name))
            .at(place.element("from", 0), "never matches")
            .help("remove this [[rule]], or name another port")
            .keep();
    }
}

/// `allow` for a port without `forward`, once for each port.
fn allowed(findings: &Findings, host: &Host, rules: &[Written<'_>]) {
    let lost = |port: &&PortConfig| {
        port.policy.forward == Forward::None && receives(port) && host.bond_of(port.id).is_none()
    };
    let is_allow =
        |(rule, _): &&Written<'_>| !rule.matches.is_egress() && rule.actions.terminal == Some(Action::Allow);
    let mut reported: Vec<PortId> = Vec::new();
    for (rule, place) in rules.iter().filter(is_allow) {
        let from = &rule.matches.from;
        let port = if from.is_empty() {
            let mut receiving = host.ports.iter().filter(|port| receives(port));
            if receiving.clone().all(|port| lost(&port)) { receiving.next() } else { None }
        } else {
            from.iter().filter_map(|id| host.port(*id)).find(lost)
        };
        let Some(port) = port.filter(|port| !reported.contains(&port.id)) else { continue };
        reported.push(port.id);
        findings
            .note(Kind::NoForward, format!("port {} allows packets that have no destination", port.name))
            .at(place.item(), "allowed, then dropped: the port has no `forward`")
            .help(format!(
                "add `forward` to port {}, such as `forward = {{ normal = true }}`, or say here where packets go",
                port.name
            ))
            .keep();
    }
}

/// Rules for packets to send whose queue none of these ports has.
fn queues(findings: &Findings, host: &Host, rules: &[Written<'_>]) {
    for (rule, place) in rules {
        let ports: Vec<&PortConfig> = rule.matches.to.iter().filter_map(|id| host.port(*id)).collect();
        let (Some(queue), [first, ..]) = (rule.actions.queue, &ports[..]) else { continue };
        let has_it = |port: &&PortConfig| port.policy.queues().iter().any(|known| known.id == queue);
        if ports.iter().any(has_it) {
            continue;
        }
        let name = Names::queue(host, queue);
        findings
            .note(Kind::Unused, format!("no port of `to` has a queue `{name}`"))
            .at(place.of("queue"), "has no effect: the DSCP chooses the queue")
            .help(format!("add the queue to the `qos` of port {}, or name a queue that it has", first.name))
            .keep();
    }
}

/// Whether a port is expected to receive packets.
fn receives(port: &PortConfig) -> bool {
    port.kind.info().receives == Receives::Packets
}

fn never_receives(port: &PortConfig) -> bool {
    port.kind.info().receives == Receives::Nothing
}
