// SPDX-License-Identifier: Apache-2.0
//! The options of rules.

use netvm_policy::{Action, Masked, Match, Span};
use netvm_policy_import::iptables::parse;
use netvm_policy_import::{IpVersion, NoteReason};
use netvm_wire::{EtherType, Fragment, IpProto};

use super::{NOT_LATER, interfaces, nets, one, ports, read, rules, tcp, v4, why};

#[test]
fn addresses_and_protocols() {
    assert_eq!(one("-j DROP"), v4());
    assert_eq!(one("-s 10.0.0.0/8 -j DROP"), Match { source: nets(&["10.0.0.0/8"]), ..v4() });
    assert_eq!(one("-d 10.0.0.1 -j DROP"), Match { destination: nets(&["10.0.0.1"]), ..v4() });
    assert_eq!(one("-s 10.1.2.3/255.255.0.0 -j DROP").source, nets(&["10.1.0.0/16"]));
    assert_eq!(one("-s 0.0.0.0/0 -j DROP"), v4());
    assert_eq!(one("-s 10.0.0.0/9,10.128.0.0/9 -j DROP").source, nets(&["10.0.0.0/8"]));
    let others = nets(&["0.0.0.0/1", "192.0.0.0/2"]);
    assert_eq!(one("! -s 128.0.0.0/2 -j DROP").source, others);
    assert_eq!(one("-s ! 128.0.0.0/2 -j DROP").source, others);
    assert_eq!(
        one("-m iprange --src-range 10.0.0.1-10.0.0.6 -j DROP").source,
        nets(&["10.0.0.1", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6"])
    );
    assert_eq!(
        one("-m iprange ! --dst-range 0.0.0.0-127.255.255.255 -j DROP").destination,
        nets(&["128.0.0.0/1"])
    );
    assert_eq!(one("-p tcp -j DROP"), tcp());
    assert_eq!(one("-p 200 -j DROP").protocol, [IpProto(200)]);
    assert_eq!(one("-p all -j DROP"), v4());
    assert_eq!(one("! -p tcp -j DROP").protocol.len(), 255);
    assert_eq!(why("-s 10.0.0.1/255.0.0.255 -j DROP"), ("-s 10.0.0.1/255.0.0.255".into(), NoteReason::Mask));
    assert_eq!(why("! -s 0.0.0.0/0 -j DROP"), ("rule of chain FORWARD".into(), NoteReason::NeverFits));
    let six =
        read(IpVersion::V6, &["-A FORWARD -s 2001:db8::/ffff:ffff:: -p ipv6-icmp -j DROP"]).rules.remove(0);
    assert_eq!(
        six.matches,
        Match {
            ether_type: vec![EtherType::IPV6],
            source: nets(&["2001:db8::/32"]),
            protocol: vec![IpProto::ICMPV6],
            ..Match::default()
        }
    );
}

#[test]
fn ports_of_the_transport_header() {
    assert_eq!(
        one("-p tcp -m tcp --dport 80 -j DROP"),
        Match { destination_ports: ports(&[(80, 80)]), ..tcp() }
    );
    let low = Match { source_ports: ports(&[(0, 1023)]), fragment: NOT_LATER.into(), ..tcp() };
    assert_eq!(one("-p tcp -m tcp --sport 0:1023 -j DROP"), low);
    assert_eq!(one("-p tcp -m tcp --sport :1023 -j DROP"), low);
    assert_eq!(one("-p udp -m udp --dport 1024: -j DROP").destination_ports, ports(&[(1024, 65535)]));
    let not_web =
        Match { destination_ports: ports(&[(0, 79), (81, 65535)]), fragment: NOT_LATER.into(), ..tcp() };
    assert_eq!(one("-p tcp -m tcp ! --dport 80 -j DROP"), not_web);
    assert_eq!(one("-p tcp -m tcp -j DROP"), Match { fragment: NOT_LATER.into(), ..tcp() });
    let list = ports(&[(22, 22), (80, 90), (443, 443)]);
    assert_eq!(one("-p sctp -m multiport --dports 22,80:90,443 -j DROP").destination_ports, list);
    assert_eq!(one("-p tcp -m multiport --sports 22,80:90,443 -j DROP").source_ports, list);
    let either: Vec<_> =
        rules("-p tcp -m multiport --ports 1,2 -j DROP").into_iter().map(|rule| rule.matches).collect();
    let port = ports(&[(1, 2)]);
    assert_eq!(
        either,
        [Match { source_ports: port.clone(), ..tcp() }, Match { destination_ports: port, ..tcp() }]
    );
    let neither = one("-p tcp -m multiport ! --ports 0:65534 -j DROP");
    assert_eq!(
        (neither.source_ports, neither.destination_ports),
        (ports(&[(65535, 65535)]), ports(&[(65535, 65535)]))
    );
    assert_eq!(why("-p udplite -m multiport --dports 5 -j DROP"), ("ports".into(), NoteReason::NoPorts));
}

#[test]
fn flags_types_and_fragments() {
    let syn = Match { tcp_flags: Some(Masked::<u8>::new(2, 0x17)), ..tcp() };
    assert_eq!(one("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP"), syn);
    assert_eq!(one("-p tcp -m tcp --syn -j DROP"), syn);
    let other: Vec<_> = rules("-p tcp -m tcp ! --tcp-flags SYN,ACK SYN -j DROP")
        .into_iter()
        .map(|rule| (rule.matches.tcp_flags.unwrap(), rule.matches.fragment))
        .collect();
    assert_eq!(
        other,
        [(Masked::<u8>::new(0x10, 0x10), vec![]), (Masked::<u8>::new(0, 0x12), NOT_LATER.to_vec())]
    );
    assert_eq!(one("-p tcp -m tcp --tcp-flags ALL NONE -j DROP").tcp_flags, Some(Masked::<u8>::new(0, 0x3f)));
    assert_eq!(why("-p tcp -m tcp --tcp-flags SYN ACK -j DROP").1, NoteReason::NeverFits);
    let icmp = |options: &str| {
        let rules = rules(&format!("-p icmp -m icmp {options} -j DROP"));
        rules.into_iter().map(|rule| (rule.matches.icmp_type, rule.matches.icmp_code)).collect::<Vec<_>>()
    };
    let span = |first, last| Span { first, last };
    assert_eq!(icmp("--icmp-type 8"), [(vec![span(8, 8)], vec![])]);
    assert_eq!(icmp("--icmp-type echo-request"), icmp("--icmp-type 8"));
    assert_eq!(icmp("--icmp-type any"), [(vec![], vec![])]);
    assert_eq!(icmp("--icmp-type port-unreachable"), [(vec![span(3, 3)], vec![span(3, 3)])]);
    assert_eq!(
        icmp("! --icmp-type 3/4"),
        [(vec![span(0, 2), span(4, 255)], vec![]), (vec![span(3, 3)], vec![span(0, 3), span(5, 255)])]
    );
    let six = read(IpVersion::V6, &["-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type packet-too-big -j DROP"]);
    assert_eq!(six.rules[0].matches.icmp_type, [span(2, 2)]);
    assert_eq!(one("-f -j DROP").fragment, [Fragment::Later]);
    assert_eq!(one("! -f -j DROP").fragment, NOT_LATER);
}

#[test]
fn other_matches() {
    let mac = one("-m mac --mac-source 00:11:22:33:44:55 -j DROP");
    assert_eq!(mac.source_mac, [Masked::<u64>::new(0x0011_2233_4455, 0xffff_ffff_ffff)]);
    let other = one("-m mac ! --mac-source 00:11:22:33:44:55 -j DROP").source_mac;
    assert_eq!(other.len(), 48);
    assert!(other.iter().all(|mask| !mask.contains(0x0011_2233_4455)));
    assert_eq!(one("-m dscp --dscp 0x2e -j DROP").dscp, [Span::single(46)]);
    assert_eq!(
        one("-m dscp ! --dscp-class EF -j DROP").dscp,
        [Span { first: 0, last: 45 }, Span { first: 47, last: 63 }]
    );
    assert_eq!(one("-m tos --tos 0x20/0xe0 -j DROP").dscp, [Span { first: 8, last: 15 }]);
    assert_eq!(
        why("-m tos --tos 0x10/0x3f -j DROP"),
        ("-m tos --tos 0x10/0x3f".replace("-m tos ", ""), NoteReason::EcnBits)
    );
    let [named] = &rules(r#"-m comment --comment "a \"quoted\" \\ it\'s" -j DROP"#)[..] else { panic!() };
    assert_eq!((named.name.as_str(), named.line), (r#"a "quoted" \ it's"#, 4));
    let counted =
        parse("*filter\n:FORWARD ACCEPT [1:2]\n[5:6] -A FORWARD -p udp\nCOMMIT", None, &interfaces())
            .unwrap();
    assert_eq!(counted.rules[0].actions, netvm_policy::Actions::default());
    assert_eq!(counted.rules[1].actions.terminal, Some(Action::Allow));
}

#[test]
fn interfaces_are_ports() {
    let places = |options: &str| {
        let matches = one(options);
        (
            matches.from.iter().map(|port| port.0).collect::<Vec<_>>(),
            matches.to.iter().map(|port| port.0).collect::<Vec<_>>(),
        )
    };
    assert_eq!(places("-i eth0 -j DROP"), (vec![0], vec![]));
    assert_eq!(places("-i eth+ -j DROP"), (vec![0, 1], vec![]));
    assert_eq!(places("! -i eth0 -j DROP"), (vec![1, 2], vec![]));
    assert_eq!(places("-i + -j DROP"), (vec![], vec![]));
    assert_eq!(places("-i eth0 ! -o eth1 -j DROP"), (vec![0], vec![0, 2]));
    assert_eq!(places("-m physdev --physdev-in tap0 -j DROP"), (vec![2], vec![]));
    assert_eq!(why("-i wan -j DROP"), ("-i wan".into(), NoteReason::Interface));
    assert_eq!(why("! -i wan -j DROP"), ("! -i wan".into(), NoteReason::Interface));
    assert_eq!(why("! -o + -j DROP"), ("rule of chain FORWARD".into(), NoteReason::NeverFits));
    // One rule on the outgoing interface moves all rules, and the policy, to transmit.
    let imported = read(IpVersion::V4, &["-A FORWARD -p udp -j DROP", "-A FORWARD -o eth1 -j ACCEPT"]);
    let to: Vec<_> = imported.rules.iter().map(|rule| rule.matches.to.len()).collect();
    assert_eq!(to, [3, 1, 3]);
    assert_eq!(imported.notes[0].why, NoteReason::Egress);
}
