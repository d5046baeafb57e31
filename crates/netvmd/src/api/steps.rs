// SPDX-License-Identifier: Apache-2.0
//! Steps of traces, as text and by name. In: a step, and the configuration for its names. Out: one line, or one for
//! each rule.

use std::borrow::Cow;
use std::net::SocketAddr;

use netvm_api::{StepKind, TracedStep};
use netvm_engine::{Lost, NatEnd, NfVerdict, Step, Translated};
use netvm_model::{Chain, Host, PortId, RoleId, RuleId, SteerTo};
use netvm_policy::Names;
use netvm_wire::{Address, ConnState, FiveTuple, FlowKey};

use crate::names::{rule_name, rule_of};

/// The step of a packet of `length` bytes, without its time.
pub(super) fn described(host: &Host, step: &Step, length: usize) -> Vec<TracedStep> {
    let described = match step {
        Step::Rules { rules, decided } => return of_rules(host, rules, *decided),
        Step::In(port) => at_port(host, *port, StepKind::Received, |name| format!("received on port {name}")),
        Step::Mirrored(port) => {
            at_port(host, *port, StepKind::Mirrored, |name| format!("mirrored to port {name}"))
        }
        Step::Switched(Some(port)) => {
            at_port(host, *port, StepKind::Switched, |name| format!("L2 switch: destination on port {name}"))
        }
        Step::Switched(None) => plain(StepKind::Switched, "L2 switch: destination unknown"),
        Step::Flooded(port) => {
            at_port(host, *port, StepKind::Flooded, |name| format!("flooded to port {name}:"))
        }
        Step::ToGroup(group) => {
            let text = format!("L2 switch: to members of {} and to routers", group.to_ip());
            TracedStep::new(StepKind::ToGroup, text)
        }
        Step::NextHop { port, vlan, mac } => at_port(host, *port, StepKind::Routed, |name| {
            let vlan = vlan.map(|vlan| format!(" with VLAN {}", vlan.get())).unwrap_or_default();
            format!("routed to {mac} on port {name}{vlan}")
        }),
        Step::Out(port) => at_port(host, *port, StepKind::Sent, |name| format!("sent on port {name}")),
        Step::Key(key) => TracedStep::new(StepKind::Fields, format!("packet {}, {length} bytes", flow(key))),
        Step::Malformed(why) => {
            TracedStep::new(StepKind::Malformed, format!("cannot parse its headers: {why}"))
        }
        Step::Default { allowed: true } => {
            plain(StepKind::Default, "no rule decides: allowed by the port's default")
        }
        Step::Default { allowed: false } => {
            plain(StepKind::Default, "no rule decides: denied by the port's default")
        }
        Step::Policed(1) => plain(StepKind::Policed, "policed: dropped if it exceeds the rate"),
        Step::Policed(count) => {
            let text = format!("policed by {count} rates: dropped if it exceeds one");
            TracedStep::new(StepKind::Policed, text)
        }
        Step::Retagged => plain(StepKind::Retagged, "VLAN tag changed"),
        Step::TagPushed(tag) => TracedStep::new(StepKind::TagPushed, format!("VLAN tag {tag} pushed")),
        Step::TagPopped(tag) => TracedStep::new(StepKind::TagPopped, format!("VLAN tag {tag} popped")),
        Step::Encapsulated { vni, remote } => {
            let text = format!("encapsulated for VTEP {}, VNI {vni}", remote.to_ip());
            TracedStep::new(StepKind::Encapsulated, text)
        }
        Step::Decapsulated { vni, remote } => {
            let text = format!("decapsulated, from VTEP {}, VNI {vni}", remote.to_ip());
            TracedStep::new(StepKind::Decapsulated, text)
        }
        Step::Translated(translated) => of_nat(host, translated),
        Step::Queued(queue) => {
            let text = format!("assigned to queue {}, at ports that have it", Names::queue(host, *queue));
            TracedStep::new(StepKind::Queued, text)
        }
        Step::Router(router) => {
            let name = Names::router(host, *router).into_owned();
            let step = TracedStep::new(StepKind::Router, format!("enters router {name}"));
            TracedStep { router: Some(name), ..step }
        }
        Step::CameBack(port) => at_port(host, *port, StepKind::CameBack, |port| {
            format!("came back on port {port}: the next packet of its flow")
        }),
        Step::HandedOver(worker) => {
            TracedStep::new(StepKind::HandedOver, format!("handed over to worker {worker}"))
        }
        Step::Cut(packets) => {
            let text = format!("cut into {packets} packets, of which the first is followed");
            TracedStep::new(StepKind::Cut, text)
        }
        Step::Punted(reason) => {
            let text = format!("punted to the router's kernel: {}", reason.name());
            TracedStep { reason: Some(reason.name().to_owned()), ..TracedStep::new(StepKind::Punted, text) }
        }
        Step::Dropped(reason) => {
            let step = TracedStep::new(StepKind::Dropped, format!("dropped: {}", reason.name()));
            TracedStep { reason: Some(reason.name().to_owned()), ..step }
        }
        Step::Answered => plain(StepKind::Answered, "answered with a TCP reset or an ICMP error"),
        Step::ByKernel => plain(
            StepKind::ByKernel,
            "the kernel flow table has this flow: the kernel forwards it without netvm",
        ),
        Step::WasByKernel => plain(
            StepKind::ByKernel,
            "the kernel flow table had this flow until the trace began: the kernel forwarded it without netvm",
        ),
        Step::Lost(lost) => plain(StepKind::Lost, lost_text(*lost)),
        Step::Made { .. }
        | Step::Chain(_)
        | Step::Passed
        | Step::NfDecides
        | Step::Waiting(_)
        | Step::ToNf { .. }
        | Step::FromNf { .. }
        | Step::Rewritten(_)
        | Step::Left => of_chain(host, step),
    };
    vec![described]
}

fn plain(step: StepKind, text: &str) -> TracedStep {
    TracedStep::new(step, text.to_owned())
}

fn at_port(host: &Host, port: PortId, step: StepKind, text: impl FnOnce(&str) -> String) -> TracedStep {
    let name = Names::port(host, port).into_owned();
    let step = TracedStep::new(step, text(&name));
    TracedStep { port: Some(name), ..step }
}

/// What NAT makes of a packet.
fn of_nat(host: &Host, translated: &Translated) -> TracedStep {
    let Translated { before, after, is_nat64, rule } = *translated;
    let rule = rule.map(|number| match host.nat.get(usize::from(number)) {
        Some(rule) if !rule.name.is_empty() => rule.name.clone(),
        _ => number.to_string(),
    });
    let what = if is_nat64 { "NAT64" } else { "NAT" };
    let by = rule.as_ref().map_or_else(String::new, |rule| format!(" by {rule}"));
    let changed = ["source", "destination"].into_iter().zip(before.into_iter().zip(after));
    let changed = changed.filter(|(_, (before, after))| before != after);
    let changed =
        changed.map(|(end, (before, after))| format!("{end} {} becomes {}", shown(before), shown(after)));
    let text = format!("{what}{by}: {}", changed.collect::<Vec<_>>().join(", "));
    TracedStep { rule, ..TracedStep::new(StepKind::Translated, text) }
}

fn shown(NatEnd { address, port }: NatEnd) -> SocketAddr {
    SocketAddr::new(address.to_ip(), port)
}

/// A step of a chain and its NFs.
fn of_chain(host: &Host, step: &Step) -> TracedStep {
    match step {
        Step::Chain(id) => {
            let chain = host.chain(*id);
            let roles = |chain: &Chain| {
                let roles = chain.hops.iter().filter_map(|role| host.nf(*role)).map(|nf| nf.role.as_str());
                format!(": {}", roles.collect::<Vec<_>>().join(" → "))
            };
            let name = chain.map_or_else(|| id.to_string(), |chain| chain.name.clone());
            let text = format!("enters chain {name}{}", chain.map(roles).unwrap_or_default());
            TracedStep { chain: Some(name), ..TracedStep::new(StepKind::Chain, text) }
        }
        Step::Passed => plain(StepKind::ThroughChain, "leaves the chain, if every NF passes it on unchanged"),
        Step::Waiting(role) => {
            let name = role_name(host, *role);
            let step = TracedStep::new(StepKind::Waiting, format!("waits for NF {name}, which is starting"));
            TracedStep { nf: Some(name), ..step }
        }
        Step::ToNf { role, hop } => at_nf(host, *role, *hop, StepKind::ToNf),
        Step::Made { role, hop } => at_nf(host, *role, *hop, StepKind::Made),
        Step::FromNf { role, hop, verdict } => {
            let step = at_nf(host, *role, *hop, StepKind::FromNf);
            let verdict = verdict_text(host, *verdict);
            let text = format!("{}: verdict {verdict}", step.text);
            TracedStep { verdict: Some(verdict), text, ..step }
        }
        Step::Rewritten(key) => {
            let text = format!("rewritten: {}, {} > {}", flow(key), key.source_mac, key.destination_mac);
            TracedStep::new(StepKind::Rewritten, text)
        }
        Step::Left => plain(StepKind::LeftChain, "leaves the chain"),
        // The chain has no output.
        _ => {
            let text = "an NF of the chain chooses the port, as the chain has no output";
            plain(StepKind::ThroughChain, text)
        }
    }
}

/// An NF gets, returns or makes a packet.
fn at_nf(host: &Host, role: RoleId, hop: u8, step: StepKind) -> TracedStep {
    let (name, hop) = (role_name(host, role), hop.saturating_add(1));
    let what = match step {
        StepKind::ToNf => "to",
        StepKind::Made => "made by",
        _ => "returned by",
    };
    let text = format!("{what} NF {name}, hop {hop}");
    TracedStep { nf: Some(name), hop: Some(hop), ..TracedStep::new(step, text) }
}

fn of_rules(host: &Host, rules: &[RuleId], decided: bool) -> Vec<TracedStep> {
    let last = rules.len().saturating_sub(1);
    let line = |(n, id): (usize, &RuleId)| {
        let named = rule_of(host, *id).map_or_else(String::new, |rule| rule.named(host).to_string());
        let (step, role) = match decided && n == last {
            true => (StepKind::RuleDecides, "decides"),
            false => (StepKind::RuleMatches, "matches"),
        };
        let step = TracedStep::new(step, format!("rule {id} {role}: {named}"));
        TracedStep { rule: Some(rule_name(host, *id)), ..step }
    };
    rules.iter().enumerate().map(line).collect()
}

const fn lost_text(lost: Lost) -> &'static str {
    match lost {
        Lost::Held => "not followed any longer: it has not ended within 5 s",
        Lost::InProgram => "not followed any longer: no packet of its flow has come back within 1 s",
        Lost::Freed => "not followed any longer: its buffer was freed, as by an NF that ended",
        Lost::TooLong => "not shown any longer: it takes too many steps",
        Lost::Elsewhere => "not followed there: the trace follows as many packets as it can",
        Lost::Forgotten => "not shown any longer: the configuration has changed too often",
    }
}

fn verdict_text(host: &Host, verdict: NfVerdict) -> String {
    match verdict {
        NfVerdict::Next => "next".to_owned(),
        NfVerdict::Port(port) => format!("port {}", Names::port(host, port)),
        NfVerdict::Role(role) => format!("role {}", role_name(host, role)),
        NfVerdict::Drop => "drop".to_owned(),
        NfVerdict::DropFlow => "drop-flow".to_owned(),
        NfVerdict::SkipFlow => "skip-flow".to_owned(),
        NfVerdict::Hold => "hold".to_owned(),
        NfVerdict::Steer(to) => format!("steer-flow to {}", steer_text(host, to)),
        NfVerdict::SteerBack => "steer-flow back".to_owned(),
        NfVerdict::Invalid(number) => format!("{number}, which is none"),
    }
}

/// Where an NF steers a flow, such as `chain scrub`.
pub(super) fn steer_text(host: &Host, to: SteerTo) -> String {
    match to {
        SteerTo::Chain(chain) => format!("chain {}", Names::chain(host, chain)),
        SteerTo::Role(role) => format!("role {}", role_name(host, role)),
        SteerTo::Port(port) => format!("port {}", Names::port(host, port)),
    }
}

pub(super) fn role_name(host: &Host, role: RoleId) -> String {
    host.nf(role).map_or_else(|| role.to_string(), |nf| nf.role.clone())
}

/// A flow as text: addresses, ports and protocol. For a packet without IP, and for a flow that is only switched
/// (lookups ignore its other fields): MAC addresses and EtherType.
pub(super) fn flow(key: &FlowKey) -> String {
    let vlan = key.vlan.map_or_else(String::new, |vlan| format!(" vlan {vlan}"));
    let is_ignored = |tuple: &FiveTuple| {
        [tuple.source, tuple.destination].iter().all(|address| *address == Address::default())
            && (tuple.source_port, tuple.destination_port) == (0, 0)
    };
    let what: Cow<'_, str> = match key.five_tuple().filter(|tuple| !is_ignored(tuple)) {
        Some(tuple) => tuple.to_string().into(),
        None => format!("{} > {} {}", key.source_mac, key.destination_mac, key.ether_type).into(),
    };
    let flags: String =
        key.tcp_flags.iter_names().map(|(name, _)| format!(" {}", name.to_lowercase())).collect();
    let state = match key.state {
        ConnState::Untracked => String::new(),
        state => format!(" state {}", state.name()),
    };
    format!("{what}{flags}{vlan}{state}")
}

#[cfg(test)]
mod tests {
    use netvm_wire::{EtherType, IpProto, MacAddr};

    use super::*;

    #[test]
    fn a_flow_that_is_only_switched_is_described_by_its_addresses() {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let switched = FlowKey {
            source_mac: mac(1),
            destination_mac: mac(2),
            ether_type: EtherType::IPV4,
            ..FlowKey::default()
        };
        assert_eq!(flow(&switched), "02:00:00:00:00:01 > 02:00:00:00:00:02 ipv4");
        let routed = FlowKey {
            source: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
            protocol: IpProto::UDP,
            ..switched
        };
        assert!(flow(&routed).starts_with("10.0.0.1:0 > "), "{}", flow(&routed));
    }

    #[test]
    fn steps_of_nfs_have_their_names_and_verdicts() {
        let host = Host::default();
        let step = Step::FromNf { role: RoleId(7), hop: 1, verdict: NfVerdict::Drop };
        let [described] = &described(&host, &step, 60)[..] else { panic!("one line") };
        let expected = TracedStep {
            nf: Some("7".to_owned()),
            hop: Some(2),
            verdict: Some("drop".to_owned()),
            ..TracedStep::new(StepKind::FromNf, "returned by NF 7, hop 2: verdict drop".to_owned())
        };
        assert_eq!(*described, expected);
    }
}
