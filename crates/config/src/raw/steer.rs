//! `[[chain]]` and `[[steer]]`.

use netvm_wire::VlanId;
use toml::Spanned;

use super::{RawAction, RawChain, RawOutput, RawSteer, name};
use crate::document::{INGRESS, ON_FAILURE};
use crate::finding::Kind;
use crate::model::{MAX_HOPS, Match, OnFailure};
use crate::read::{Reader, at};

pub(super) fn read_chain(table: &Reader<'_>) -> RawChain {
    let name = name(table, "name", "web");
    let hops = table.texts("hops");
    let example = "list the roles that packets pass, such as `hops = [\"firewall\", \"monitor\"]`";
    if table.key_span("hops").is_none() {
        table.missing("hops", example);
    }
    if let Some(hops) = hops.as_ref().filter(|hops| hops.get_ref().is_empty()) {
        table
            .bad_value("hops", hops.span(), "is empty")
            .help(format!("{example}; to send packets straight out of a port, use `out` in [[steer]]"))
            .keep();
    }
    if let Some(extra) = hops.as_ref().and_then(|hops| hops.get_ref().get(MAX_HOPS)) {
        table
            .findings
            .note(Kind::TooMany, "a chain with too many hops")
            .at(extra.span(), format!("this is hop {}", MAX_HOPS + 1))
            .help(format!("a chain has at most {MAX_HOPS} hops"))
            .keep();
    }
    let output = match table.text("output") {
        None => RawOutput::None,
        Some(text) if text.get_ref() == INGRESS => RawOutput::Ingress,
        Some(text) => RawOutput::Port(text),
    };
    let chain = RawChain {
        span: table.span.clone(),
        name,
        hops: hops.map(Spanned::into_inner).unwrap_or_default(),
        on_failure: table
            .word("on_failure", ON_FAILURE)
            .unwrap_or_else(|| at(table.span.clone(), OnFailure::default())),
        output,
    };
    table.finish(&[]);
    chain
}

pub(super) fn read(table: &Reader<'_>) -> RawSteer {
    if table.key_span("port").is_none() {
        table.missing("port", "name the port by which the packets come in, such as `port = \"client\"`");
    }
    let port = table.text("port");
    let condition = table.table("match", "match");
    let matches = condition.as_ref().map(read_match).unwrap_or_default();
    let action = action(table);
    table.finish(&[]);
    RawSteer { span: table.span.clone(), port, matches, matched: condition.map(|table| table.span), action }
}

fn action(table: &Reader<'_>) -> Option<RawAction> {
    let chain = table.text("chain");
    let out = table.text("out");
    let drop = table.flag("drop");
    let what = "`chain = \"…\"`, `out = \"…\"` (a port) or `drop = true`";
    let given: Vec<&str> =
        ["chain", "out", "drop"].into_iter().filter(|key| table.key_span(key).is_some()).collect();
    match given[..] {
        [] => {
            table
                .findings
                .note(Kind::MissingKey, "[[steer]] does not say what is done with the packets")
                .at(table.span.clone(), "no `chain`, `out` or `drop`")
                .help(format!("add {what}"))
                .keep();
            return None;
        }
        [_] => {}
        [first, second, ..] => {
            table
                .findings
                .note(Kind::Conflict, format!("`{second}` and `{first}` in one [[steer]]"))
                .at(table.key_span(second).unwrap_or_default(), "this as well?")
                .at(table.key_span(first).unwrap_or_default(), "this is said already")
                .help(format!("keep one of {what}"))
                .keep();
            return None;
        }
    }
    if drop == Some(false) {
        table
            .bad_value("drop", table.key_span("drop").unwrap_or_default(), "is `false`, which says nothing")
            .help(format!("write {what}"))
            .keep();
        return None;
    }
    let chain = chain.map(RawAction::Chain);
    chain.or(out.map(RawAction::Port)).or(drop.map(|_| RawAction::Drop))
}

fn read_match(table: &Reader<'_>) -> Match {
    let protocol = table.parsed("protocol");
    let vlan: Option<Spanned<u16>> = table.number("vlan", 1..=u64::from(VlanId::MAX));
    let source = table.parsed("source");
    let destination = table.parsed("destination");
    let source_ports = table.parsed("source_ports");
    let destination_ports = table.parsed("destination_ports");
    table.finish(&[]);
    let matches = Match {
        vlan: vlan.as_ref().and_then(|vlan| VlanId::new(*vlan.get_ref()).ok()),
        source: source.as_ref().map(|net| *net.get_ref()),
        destination: destination.as_ref().map(|net| *net.get_ref()),
        protocol: protocol.as_ref().map(|protocol| *protocol.get_ref()),
        source_ports: source_ports.as_ref().map(|ports| *ports.get_ref()),
        destination_ports: destination_ports.as_ref().map(|ports| *ports.get_ref()),
    };
    check_match(table, &matches);
    matches
}

/// What no packet can fulfil.
fn check_match(table: &Reader<'_>, matches: &Match) {
    let place = |key: &str| table.key_span(key).unwrap_or_default();
    if let Some(protocol) = matches.protocol.filter(|protocol| !protocol.has_ports()) {
        for key in
            ["source_ports", "destination_ports"].into_iter().filter(|key| table.key_span(key).is_some())
        {
            table
                .findings
                .note(Kind::Conflict, format!("`{key}` with protocol {protocol} can never match"))
                .at(place(key), format!("{protocol} has no ports"))
                .at(place("protocol"), "")
                .help(format!("remove `{key}`, or take tcp, udp or sctp as protocol"))
                .keep();
        }
    }
    if let (Some(source), Some(destination)) = (matches.source, matches.destination)
        && source.is_v4() != destination.is_v4()
    {
        table
            .findings
            .note(Kind::Conflict, "an IPv4 and an IPv6 address in one match can never match")
            .at(place("destination"), if destination.is_v4() { "IPv4" } else { "IPv6" })
            .at(place("source"), if source.is_v4() { "IPv4" } else { "IPv6" })
            .help("write one rule for each")
            .keep();
    }
}
