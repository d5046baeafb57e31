//! `match` of `[[rule]]`.

use netvm_wire::{EtherType, IpProto};
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

/// What fits more packets than it seems to. What fits none is a warning, as it is in filter sets that people have.
fn check(table: &Reader<'_>, matches: &Match) {
    needs(table, &["tcp_flags"], matches.protocol == [IpProto::TCP], "protocol = \"tcp\"");
    let is_icmp = |protocol: &IpProto| matches!(*protocol, IpProto::ICMP | IpProto::ICMPV6);
    let only_icmp = !matches.protocol.is_empty() && matches.protocol.iter().all(is_icmp);
    needs(table, &["icmp_type", "icmp_code"], only_icmp, "protocol = \"icmp\"` or `protocol = \"icmpv6\"");
    needs(table, &["arp_operation"], matches.ether_type == [EtherType::ARP], "ether_type = \"arp\"");
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
            .at(table.key_span(key).unwrap_or_default(), "other packets do not have it")
            .help(format!("add `{what}`, and nothing else of its kind"))
            .keep();
    }
}
