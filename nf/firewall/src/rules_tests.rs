// SPDX-License-Identifier: Apache-2.0
use super::*;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

fn tuple(source: &str, destination: &str, protocol: IpProto) -> FiveTuple {
    let part = |text: &str| {
        let endpoint: std::net::SocketAddr = text.parse().unwrap();
        (endpoint.ip(), endpoint.port())
    };
    FiveTuple::new(part(source), part(destination), protocol)
}

fn subject(source: &str, destination: &str, protocol: IpProto) -> Subject {
    Subject::new(tuple(source, destination, protocol), Fragment::Whole, 0)
}

#[test]
fn a_rule_matches_its_fields() {
    let web = rule("allow tcp from 10.0.0.0/8 to 192.0.2.1 port 80-443");
    assert!(web.matches(&subject("10.1.1.1:999", "192.0.2.1:80", IpProto::TCP), false));
    assert!(web.matches(&subject("10.1.1.1:999", "192.0.2.1:443", IpProto::TCP), false));
    assert!(!web.matches(&subject("10.1.1.1:999", "192.0.2.1:444", IpProto::TCP), false));
    assert!(!web.matches(&subject("10.1.1.1:999", "192.0.2.1:80", IpProto::UDP), false));
    assert!(!web.matches(&subject("11.1.1.1:999", "192.0.2.1:80", IpProto::TCP), false));
    assert!(!web.matches(&subject("10.1.1.1:999", "192.0.2.2:80", IpProto::TCP), false));
    let ping = rule("deny icmp from any to any in wan");
    for (from, to, protocol) in
        [("10.0.0.1:0", "10.0.0.2:0", IpProto::ICMP), ("[::1]:0", "[::2]:0", IpProto::ICMPV6)]
    {
        assert!(ping.matches(&subject(from, to, protocol), true));
        assert!(!ping.matches(&subject(from, to, protocol), false), "arrived on another port");
    }
    let source = rule("allow udp from any port 53 to fd00::/8");
    assert!(source.matches(&subject("[fd01::1]:53", "[fd02::1]:9", IpProto::UDP), false));
    assert!(!source.matches(&subject("[fd01::1]:54", "[fd02::1]:53", IpProto::UDP), false));
    assert!(!source.matches(&subject("10.0.0.1:53", "10.0.0.2:9", IpProto::UDP), false));
}

#[test]
fn later_fragments_are_allowed_by_address_and_not_denied_by_port() {
    let fragment = Subject::new(tuple("10.0.0.1:0", "10.0.0.2:0", IpProto::UDP), Fragment::Later, 0);
    assert!(rule("allow udp from any to 10.0.0.2 port 53").matches(&fragment, false));
    assert!(!rule("allow udp from any to 10.0.0.3 port 53").matches(&fragment, false));
    assert!(!rule("deny udp from any to 10.0.0.2 port 53").matches(&fragment, false));
    assert!(!rule("deny udp from any to 10.0.0.2 port 0").matches(&fragment, false));
    assert!(rule("deny udp from any to 10.0.0.2").matches(&fragment, false));
}

#[test]
fn errors_name_the_expected_word() {
    for (text, expected) in [
        ("permit tcp from any to any", "found `permit`, `allow`, `deny` or `reject` expected"),
        ("allow", "the line ends, a protocol (tcp, udp, icmp, any, ...) expected"),
        ("allow tpc from any to any", "found `tpc`, a protocol expected"),
        ("allow tcp any to any", "found `any`, `from` expected"),
        ("allow tcp from 10.0.0/8 to any", "`10.0.0/8` is not a prefix"),
        ("allow tcp from 10.0.0.1/8 to any", "10.0.0.1/8 has host bits set"),
        ("allow tcp from any", "the line ends, `to` expected"),
        ("allow tcp from any too any", "found `too`, `port` or `to` expected"),
        ("allow tcp from any port to any", "`to` is not a port"),
        ("allow tcp from any port 9-8 to any", "the range 9-8 is empty"),
        ("allow tcp from any to any port", "the line ends, a port or a range of ports expected"),
        (
            "allow icmp from any to any port 7",
            "found `port`, which only rules for tcp, udp and sctp can have",
        ),
        ("allow any from any port 7 to any", "found `port`, which only rules for tcp, udp and sctp can have"),
        ("allow tcp from any to any out wan", "found `out`, `port`, `in` or the end of the line expected"),
        ("allow tcp from any to any in", "the line ends, the name of a port of netvm expected"),
        ("allow tcp from any to any in wan now", "found `now`, the end of the line expected"),
        ("allow tcp from 10.0.0.0/8 to fd00::/8", "10.0.0.0/8 and fd00::/8 are of different families"),
    ] {
        let error = text.parse::<Rule>().unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    let lines =
        Lines::from_text(Path::new("fw.rules"), "# web\nallow tcp from any to any port 80\n\ndeny x\n");
    let error = Rules::from_lines(&lines).unwrap_err().to_string();
    assert!(error.starts_with("fw.rules:4: found `x`"), "{error}");
}

fn net(v4: bool) -> impl Strategy<Value = IpNet> {
    (any::<u128>(), 0u8..=128).prop_map(move |(bits, length)| {
        let shift = |bits: u32| u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let (address, length): (IpAddr, u8) = if v4 {
            let length = length % 33;
            (Ipv4Addr::from_bits(((bits & shift(u32::from(length))) >> 96) as u32).into(), length)
        } else {
            (Ipv6Addr::from_bits(bits & shift(u32::from(length))).into(), length)
        };
        IpNet::new(address, length).unwrap()
    })
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let protocol = prop_oneof![
        Just(Protocol::Any),
        Just(Protocol::Icmp),
        any::<u8>().prop_map(|n| Protocol::One(IpProto(n)))
    ];
    let ports = || {
        prop::option::of(
            (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap()),
        )
    };
    let ends = any::<bool>().prop_flat_map(|v4| (prop::option::of(net(v4)), prop::option::of(net(v4))));
    let ingress = prop::option::of("[a-z][a-z0-9.-]{0,14}");
    (any::<bool>(), protocol, ends, ports(), ports(), ingress).prop_map(
        |(allow, protocol, (from, to), a, b, ingress)| {
            let ported = matches!(protocol, Protocol::One(one) if one.has_ports());
            Rule {
                action: if allow { Action::Allow } else { Action::Deny },
                protocol,
                from: Endpoint { net: from, ports: a.filter(|_| ported) },
                to: Endpoint { net: to, ports: b.filter(|_| ported) },
                ingress: ingress.map(Into::into),
            }
        },
    )
}

proptest! {
    #[test]
    fn rules_are_read_as_they_are_written(rule in any_rule()) {
        prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
    }
}
