// SPDX-License-Identifier: Apache-2.0
//! Round trips of rules, and arbitrary text.

use netvm_policy::{Masked, Match, PortId, Span};
use netvm_policy_import::iptables::parse;
use netvm_wire::{IpProto, PortRange};
use proptest::prelude::*;

use super::{NOT_LATER, file, interfaces, one, v4};

/// A rule of options with a unique form in `iptables-save`.
fn written() -> impl Strategy<Value = (String, Match)> {
    let net = (any::<u32>(), 1u8..=32).prop_map(|(bits, length)| {
        netvm_wire::Ipv4Net::containing(std::net::Ipv4Addr::from(bits), length).unwrap()
    });
    let range = (1u16.., any::<u16>()).prop_map(|(a, b)| PortRange::new(a.min(b.max(1)), a.max(b)).unwrap());
    let negated = || any::<bool>();
    let layer3 = (
        prop::option::of((net.clone(), negated())),
        prop::option::of((net, negated())),
        prop::option::of(0u16..3),
        prop::option::of((0u8..64, negated())),
        prop::option::of((any::<[u8; 6]>(), Just(()))),
    );
    let layer4 =
        (0..6usize, prop::option::of(range.clone()), prop::option::of(range), any::<(u8, u8)>(), any::<u8>());
    (layer3, layer4).prop_map(
        |((source, destination, from, dscp, mac), (kind, sport, dport, flags, icmp))| {
            let mut text = String::new();
            let mut expected = v4();
            let mut address = |option: &str, net: Option<(netvm_wire::Ipv4Net, bool)>| {
                let Some((net, negated)) = net else { return vec![] };
                text += &format!(" {}{option} {net}", if negated { "! " } else { "" });
                if !negated {
                    return vec![net.into()];
                }
                // The siblings of the prefix's bits, by address.
                let sibling = |length: u8| {
                    let bits = net.network().to_bits() ^ 1 << (32 - length);
                    netvm_wire::IpNet::from(netvm_wire::Ipv4Net::containing(bits.into(), length).unwrap())
                };
                let mut others: Vec<_> = (1..=net.length()).map(sibling).collect();
                others.sort();
                others
            };
            expected.source = address("-s", source);
            expected.destination = address("-d", destination);
            if let Some(port) = from {
                text += &format!(" -i {}", ["eth0", "eth1", "tap0"][usize::from(port)]);
                expected.from = vec![PortId(port)];
            }
            let mut transport = |proto: IpProto, name: &str| {
                text += &format!(" -p {name} -m {name}");
                expected.protocol = vec![proto];
                for (option, range) in [("--sport", sport), ("--dport", dport)] {
                    if let Some(range) = range {
                        text += &format!(" {option} {}:{}", range.first(), range.last());
                    }
                }
                expected.source_ports = sport.into_iter().collect();
                expected.destination_ports = dport.into_iter().collect();
            };
            match kind {
                0 => transport(IpProto::TCP, "tcp"),
                1 => transport(IpProto::UDP, "udp"),
                2 => transport(IpProto::SCTP, "sctp"),
                3 => {
                    text += &format!(" -p icmp -m icmp --icmp-type {icmp}");
                    expected.protocol = vec![IpProto::ICMP];
                    expected.icmp_type = if icmp == 255 { vec![] } else { vec![Span::single(icmp)] };
                    expected.fragment = if matches!(icmp, 0 | 255) { NOT_LATER.into() } else { vec![] };
                }
                4 => {
                    text += &format!(" -p {}", icmp.max(1));
                    expected.protocol = vec![IpProto(icmp.max(1))];
                }
                _ => {}
            }
            let ports = sport.is_some() || dport.is_some();
            if kind < 3 {
                expected.fragment = if ports { vec![] } else { NOT_LATER.into() };
            }
            if kind == 0 {
                let (mask, value) = (flags.0 & 0x3f, flags.0 & flags.1 & 0x3f);
                let list = |bits: u8| {
                    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"].into_iter().enumerate();
                    let names: Vec<_> =
                        names.filter(|(bit, _)| bits & 1 << bit != 0).map(|(_, name)| name).collect();
                    if names.is_empty() { "NONE".to_owned() } else { names.join(",") }
                };
                text += &format!(" --tcp-flags {} {}", list(mask), list(value));
                expected.tcp_flags = Some(Masked::<u8>::new(value, mask));
                if value != 0 {
                    expected.fragment = vec![];
                }
            }
            if let Some((mac, ())) = mac {
                let mac = netvm_wire::MacAddr(mac);
                text += &format!(" -m mac --mac-source {mac}");
                let bits = mac.octets().into_iter().fold(0, |bits, octet| bits << 8 | u64::from(octet));
                expected.source_mac = vec![Masked::<u64>::new(bits, 0xffff_ffff_ffff)];
            }
            if let Some((point, negated)) = dscp {
                text += &format!(" -m dscp {}--dscp {point:#04x}", if negated { "! " } else { "" });
                let others = [(0, point.wrapping_sub(1)), (point + 1, 63)];
                expected.dscp = match negated {
                    false => vec![Span::single(point)],
                    true => others
                        .into_iter()
                        .filter(|(a, b)| a <= b && *b < 64)
                        .map(|(first, last)| Span { first, last })
                        .collect(),
                };
            }
            (text, expected)
        },
    )
}

proptest! {
    #[test]
    fn rules_round_trip((options, expected) in written()) {
        prop_assert_eq!(one(&format!("{options} -j ACCEPT")), expected, "{}", options);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text: String, options: String) {
        let _ = parse(&text, None, &interfaces());
        let _ = parse(&file(&[&format!("-A FORWARD {options}")]), None, &interfaces());
    }

    #[test]
    fn almost_rules_are_parsed_or_refused(
        words in prop::collection::vec(prop::sample::select(&[
            "-s", "-d", "-p", "-i", "-o", "-f", "-m", "-j", "-g", "!", "tcp", "udp", "icmp", "10.0.0.0/8", "10.0.0.1-10.0.0.9",
            "--dport", "--sports", "--ports", "80:90", "1,2", "--tcp-flags", "SYN,ACK", "NONE", "--syn", "--icmp-type", "3/4", "any",
            "iprange", "--src-range", "mac", "--mac-source", "00:11:22:33:44:55", "dscp", "--dscp", "63", "tos", "--tos", "0x20/0xe0",
            "limit", "--limit", "5/s", "--limit-burst", "hashlimit", "--hashlimit-above", "--hashlimit-mode", "srcip", "ACCEPT", "DROP",
            "REJECT", "--reject-with", "tcp-reset", "RETURN", "WEB", "LOG", "conntrack", "--ctstate", "NEW", "comment", "--comment", "\"",
            "eth+", "wan", "255.0.0.255", "/", "-1", "é",
        ][..]), 0..12)
    ) {
        let _ = parse(&file(&[&format!("-A FORWARD {}", words.join(" ")), "-A WEB -j DROP"]), None, &interfaces());
    }
}
