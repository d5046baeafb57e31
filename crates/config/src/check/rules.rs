//! Rules that never match, ports that nothing is said of, and what leads nowhere.

use std::collections::{BTreeSet, HashMap};

use crate::finding::{Findings, Kind};
use crate::model::{AclDefault, Forward, Host, Match, PortConfig, PortId, PortKind, Rule, Verdict};
use crate::raw::{RawHost, RawRule};

type Written<'a> = (&'a Rule, &'a RawRule);

pub(super) fn check(findings: &Findings, raw: &RawHost, host: &Host) {
    let rules: Vec<Written<'_>> = host.rules.iter().zip(&raw.rules).collect();
    let told = contradictions(findings, &rules);
    shadowed(findings, &rules, &told);
    ingress(findings, raw, host, &rules);
    allowed(findings, host, &rules);
}

/// Two verdicts for the same packets: the later one is never asked. Returns the places of the later ones.
fn contradictions(findings: &Findings, rules: &[Written<'_>]) -> BTreeSet<usize> {
    let mut told = BTreeSet::new();
    let mut seen: HashMap<Match, Written<'_>> = HashMap::with_capacity(rules.len());
    for (n, (rule, written)) in
        rules.iter().enumerate().filter(|(_, (rule, _))| rule.actions.verdict.is_some())
    {
        let matches = in_order(&rule.matches);
        match seen.get(&matches) {
            Some((before, first)) if before.actions.verdict != rule.actions.verdict => {
                told.insert(n);
                let (from, to) = (findings.line(first.span.start), findings.line(written.span.start));
                findings
                    .note(
                        Kind::SameMatch,
                        format!("two ways for one match: the [[rule]] in line {from} leaves nothing to the one in line {to}"),
                    )
                    .at(written.match_span(), "the same again")
                    .at(first.match_span(), "first here")
                    .help("remove one of them, or give them different matches")
                    .keep();
            }
            Some(_) => {}
            None => {
                seen.insert(matches, (rule, written));
            }
        }
    }
    told
}

/// Rules whose packets an earlier one takes.
fn shadowed(findings: &Findings, rules: &[Written<'_>], told: &BTreeSet<usize>) {
    for (n, (rule, written)) in rules.iter().enumerate().filter(|(n, _)| !told.contains(n)) {
        let mut earlier = rules.iter().take(n).filter(|(before, _)| before.actions.verdict.is_some());
        if let Some((_, first)) = earlier.find(|(before, _)| covers(&before.matches, &rule.matches)) {
            findings
                .note(Kind::Shadowed, "this [[rule]] never matches")
                .at(written.match_span(), "all of these packets are taken before")
                .at(first.match_span(), "by this rule")
                .help("the first rule that matches decides: put the narrower rule first, or remove it")
                .keep();
        }
    }
}

/// Whether `wide` surely matches every packet that `narrow` does: element by element.
fn covers(wide: &Match, narrow: &Match) -> bool {
    fn set<T>(wide: &[T], narrow: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
        let covered = |narrow| wide.iter().any(|wide| covers(wide, narrow));
        wide.is_empty() || !narrow.is_empty() && narrow.iter().all(covered)
    }
    let same_way = wide.is_egress() == narrow.is_egress();
    let rest = |of: &Match| Match {
        from: Vec::new(),
        to: Vec::new(),
        source: Vec::new(),
        destination: Vec::new(),
        protocol: Vec::new(),
        source_ports: Vec::new(),
        destination_ports: Vec::new(),
        vlan: Vec::new(),
        ..of.clone()
    };
    let ports = |wide: &netvm_wire::PortRange, narrow: &netvm_wire::PortRange| {
        wide.first() <= narrow.first() && narrow.last() <= wide.last()
    };
    same_way
        && set(&wide.from, &narrow.from, |a, b| a == b)
        && set(&wide.to, &narrow.to, |a, b| a == b)
        && set(&wide.source, &narrow.source, |a, b| a.contains_net(*b))
        && set(&wide.destination, &narrow.destination, |a, b| a.contains_net(*b))
        && set(&wide.protocol, &narrow.protocol, |a, b| a == b)
        && set(&wide.source_ports, &narrow.source_ports, ports)
        && set(&wide.destination_ports, &narrow.destination_ports, ports)
        && set(&wide.vlan, &narrow.vlan, netvm_policy::Span::covers)
        && (rest(wide).is_any() || rest(wide) == rest(narrow))
}

/// The same match with its sets in one order, so that equal ones are equal.
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
    matches
}

/// Ports that receive what nobody wants, and rules for ports that receive nothing.
fn ingress(findings: &Findings, raw: &RawHost, host: &Host, rules: &[Written<'_>]) {
    for (port, written) in host.ports.iter().zip(&raw.ports) {
        let silent = port.policy.forward == Forward::None && port.policy.acl_in == AclDefault::Allow;
        if silent && receives(port) && host.rules_from(port.id).next().is_none() {
            findings
                .note(Kind::Unused, format!("nothing is said of what comes in by port {}", port.name))
                .at(written.span.clone(), "all that it receives is dropped")
                .help(format!(
                    "add a [[rule]] with `from = \"{}\"`, or `forward` to the port; `acl_in = \"deny\"` says that it is meant so",
                    port.name
                ))
                .keep();
        }
    }
    let never = |id: &PortId| host.port(*id).is_some_and(never_receives);
    for (rule, written) in rules {
        let Some(first) = written.from.first().filter(|_| rule.matches.from.iter().all(never)) else {
            continue;
        };
        findings
            .note(Kind::Unused, format!("nothing ever comes in by port {}", first.get_ref()))
            .at(first.span(), "never matches")
            .help("remove this [[rule]], or name another port")
            .keep();
    }
}

/// `allow` for a port that does not know where to send what is allowed. Said once for each port.
fn allowed(findings: &Findings, host: &Host, rules: &[Written<'_>]) {
    let lost = |port: &&PortConfig| port.policy.forward == Forward::None && receives(port);
    let is_allow =
        |(rule, _): &&Written<'_>| !rule.matches.is_egress() && rule.actions.verdict == Some(Verdict::Allow);
    let mut told: Vec<PortId> = Vec::new();
    for (rule, written) in rules.iter().filter(is_allow) {
        let from = &rule.matches.from;
        let port = if from.is_empty() {
            let mut receiving = host.ports.iter().filter(|port| receives(port));
            if receiving.clone().all(|port| lost(&port)) { receiving.next() } else { None }
        } else {
            from.iter().filter_map(|id| host.port(*id)).find(lost)
        };
        let Some(port) = port.filter(|port| !told.contains(&port.id)) else { continue };
        told.push(port.id);
        findings
            .note(Kind::NoForward, format!("what is allowed in by port {} goes nowhere", port.name))
            .at(written.span.clone(), "allowed, then dropped: the port has no `forward`")
            .help(format!(
                "add `forward` to port {}, such as `forward = {{ normal = true }}`, or say here where packets go",
                port.name
            ))
            .keep();
    }
}

/// Ports by which packets are expected to come in.
const fn receives(port: &PortConfig) -> bool {
    match &port.kind {
        PortKind::Pci { .. }
        | PortKind::AfXdp { .. }
        | PortKind::AfPacket { .. }
        | PortKind::Tap { .. }
        | PortKind::Source(_) => true,
        PortKind::Pcap { input, .. } => input.is_some(),
        PortKind::Null { .. } | PortKind::Sink => false,
    }
}

const fn never_receives(port: &PortConfig) -> bool {
    matches!(port.kind, PortKind::Sink | PortKind::Pcap { input: None, .. })
}
