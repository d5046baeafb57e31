//! `match` of `[[rule]]`.

use netvm_wire::{EtherType, IpNet, IpProto, PortRange};
use toml::Spanned;

use crate::field::{ArpOperations, Bytes, Dscp, Flags, Fragments, Macs, Vlans, icmp_type};
use crate::finding::Kind;
use crate::model::Match;
use crate::read::Reader;

/// Everything but the ports, which are beside `match`.
pub(super) fn read(table: &Reader<'_>) -> Match {
    let protocol: Vec<IpProto> = plain(table.set("protocol", str::parse));
    let matches = Match {
        source: plain(table.set("source", str::parse)),
        source_ports: plain(table.set("source_ports", str::parse)),
        destination: plain(table.set("destination", str::parse)),
        destination_ports: plain(table.set("destination_ports", str::parse)),
        tcp_flags: table.parsed("tcp_flags", str::parse::<Flags>).map(|flags| flags.into_inner().0),
        icmp_type: plain(table.set("icmp_type", |text| icmp_type(text, &protocol))),
        icmp_code: each(table.set("icmp_code", str::parse::<Bytes>), |code| code.0),
        dscp: each(table.set("dscp", str::parse::<Dscp>), |dscp| dscp.0),
        fragment: each(table.set("fragment", str::parse::<Fragments>), |fragment| fragment.0),
        vlan: each(table.set("vlan", str::parse::<Vlans>), |vlan| vlan.0),
        inner_vlan: each(table.set("inner_vlan", str::parse::<Vlans>), |vlan| vlan.0),
        source_mac: each(table.set("source_mac", str::parse::<Macs>), |mac| mac.0),
        destination_mac: each(table.set("destination_mac", str::parse::<Macs>), |mac| mac.0),
        ether_type: plain(table.set("ether_type", str::parse)),
        arp_operation: each(table.set("arp_operation", str::parse::<ArpOperations>), |span| span.0),
        protocol,
        from: Vec::new(),
        to: Vec::new(),
    };
    table.finish(&[]);
    check(table, &matches);
    matches
}

fn plain<T>(list: Vec<Spanned<T>>) -> Vec<T> {
    each(list, |value| value)
}

fn each<T, U>(list: Vec<Spanned<T>>, value: impl Fn(T) -> U) -> Vec<U> {
    list.into_iter().map(|item| value(item.into_inner())).collect()
}

/// What no packet can fulfil, and what fits more than it seems to.
fn check(table: &Reader<'_>, matches: &Match) {
    ports(table, matches);
    families(table, &matches.source, &matches.destination);
    needs(table, &["tcp_flags"], matches.protocol == [IpProto::TCP], "protocol = \"tcp\"");
    let is_icmp = |protocol: &IpProto| matches!(*protocol, IpProto::ICMP | IpProto::ICMPV6);
    let only_icmp = !matches.protocol.is_empty() && matches.protocol.iter().all(is_icmp);
    needs(table, &["icmp_type", "icmp_code"], only_icmp, "protocol = \"icmp\"` or `protocol = \"icmpv6\"");
    needs(table, &["arp_operation"], matches.ether_type == [EtherType::ARP], "ether_type = \"arp\"");
    layers(table, &matches.ether_type);
}

fn place(table: &Reader<'_>, key: &str) -> crate::finding::Span {
    table.key_span(key).unwrap_or_default()
}

/// Ports of protocols that have none.
fn ports(table: &Reader<'_>, matches: &Match) {
    let Some(protocol) = matches.protocol.first() else { return };
    if matches.protocol.iter().any(|protocol| protocol.has_ports()) {
        return;
    }
    let never = |ranges: &[PortRange]| !ranges.is_empty() && !ranges.iter().any(|range| range.contains(0));
    let fields = [("source_ports", &matches.source_ports), ("destination_ports", &matches.destination_ports)];
    for (key, _) in fields.into_iter().filter(|(_, ranges)| never(ranges)) {
        table
            .findings
            .note(Kind::Conflict, format!("`{key}` with protocol {protocol} can never match"))
            .at(place(table, key), format!("{protocol} has no ports"))
            .at(place(table, "protocol"), "")
            .help(format!("remove `{key}`, or take tcp, udp or sctp as protocol"))
            .keep();
    }
}

fn families(table: &Reader<'_>, source: &[IpNet], destination: &[IpNet]) {
    let only = |nets: &[IpNet], v4: bool| !nets.is_empty() && nets.iter().all(|net| net.is_v4() == v4);
    let word = |v4: bool| if v4 { "IPv4" } else { "IPv6" };
    for v4 in [true, false] {
        if only(source, v4) && only(destination, !v4) {
            table
                .findings
                .note(Kind::Conflict, "an IPv4 and an IPv6 address in one match can never match")
                .at(place(table, "destination"), word(!v4))
                .at(place(table, "source"), word(v4))
                .help("write one rule for each")
                .keep();
        }
    }
}

/// Fields that are 0 in packets which do not have them need a word that only those which have them are meant.
fn needs(table: &Reader<'_>, keys: &[&'static str], is_given: bool, what: &str) {
    if is_given {
        return;
    }
    for key in keys.iter().filter(|key| table.key_span(key).is_some()) {
        table
            .findings
            .note(Kind::Conflict, format!("`{key}` without `{what}`"))
            .at(place(table, key), "other packets do not have it")
            .help(format!("add `{what}`, and nothing else of its kind"))
            .keep();
    }
}

/// Fields of IP in packets that are something else.
fn layers(table: &Reader<'_>, types: &[EtherType]) {
    let is_ip = |kind: &EtherType| matches!(*kind, EtherType::IPV4 | EtherType::IPV6);
    if types.is_empty() || types.iter().any(is_ip) {
        return;
    }
    let is_arp = types.contains(&EtherType::ARP);
    let fields = ["protocol", "source_ports", "destination_ports", "dscp", "fragment"];
    let addresses = ["source", "destination"].into_iter().filter(|_| !is_arp);
    for key in fields.into_iter().chain(addresses).filter(|key| table.key_span(key).is_some()) {
        table
            .findings
            .note(Kind::Conflict, format!("`{key}` in packets that are not IP"))
            .at(place(table, key), "they have none")
            .at(place(table, "ether_type"), "not IP")
            .help(format!("remove `{key}`, or add \"ipv4\" or \"ipv6\" to `ether_type`"))
            .keep();
    }
}
