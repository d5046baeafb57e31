//! `iptables-save`: every option, what has no equivalent, wrong lines, and rules as they are written.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use netvm_policy::import::iptables::{IptablesError, parse};
use netvm_policy::import::{Imported, ImportedRule, Interfaces, IpVersion, Why};
use netvm_policy::{Masked, Match, Police, PortId, Rate, Span, Verdict};
use netvm_wire::{EtherType, Fragment, IpProto, PortRange};
use proptest::prelude::*;

fn interfaces() -> Interfaces {
    Interfaces::new([("eth0", PortId(0)), ("eth1", PortId(1)), ("tap0", PortId(2))])
}

/// A file with these lines in table filter, FORWARD with policy DROP and line 4 the first.
fn file(lines: &[&str]) -> String {
    format!("*filter\n:FORWARD DROP [0:0]\n:WEB - [0:0]\n{}\nCOMMIT\n", lines.join("\n"))
}

fn read(version: IpVersion, lines: &[&str]) -> Imported {
    parse(&file(lines), Some(version), &interfaces()).unwrap_or_else(|error| panic!("{error}"))
}

/// The rules that one rule of FORWARD becomes, without the policy.
fn rules(options: &str) -> Vec<ImportedRule> {
    let mut imported = read(IpVersion::V4, &[&format!("-A FORWARD {options}")]);
    imported.rules.retain(|rule| rule.line == 4);
    let unsaid = |why| matches!(why, Why::Egress);
    assert!(imported.notes.iter().all(|note| unsaid(note.why)), "{:?}", imported.notes);
    imported.rules
}

fn one(options: &str) -> Match {
    let [rule] = &rules(options)[..] else { panic!("{options}") };
    rule.matches.clone()
}

/// What is said of a rule that has no equivalent.
fn why(options: &str) -> (String, Why) {
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

/// What rules have whose values include those of fragments without ports.
const NOT_LATER: [Fragment; 2] = [Fragment::Whole, Fragment::First];

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
    assert_eq!(why("-s 10.0.0.1/255.0.0.255 -j DROP"), ("-s 10.0.0.1/255.0.0.255".into(), Why::Mask));
    assert_eq!(why("! -s 0.0.0.0/0 -j DROP"), ("rule of chain FORWARD".into(), Why::NeverFits));
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
    assert_eq!(why("-p udplite -m multiport --dports 5 -j DROP"), ("ports".into(), Why::NoPorts));
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
    assert_eq!(why("-p tcp -m tcp --tcp-flags SYN ACK -j DROP").1, Why::NeverFits);
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
        ("-m tos --tos 0x10/0x3f".replace("-m tos ", ""), Why::EcnBits)
    );
    let [named] = &rules(r#"-m comment --comment "a \"quoted\" \\ it\'s" -j DROP"#)[..] else { panic!() };
    assert_eq!((named.name.as_str(), named.line), (r#"a "quoted" \ it's"#, 4));
    let counted =
        parse("*filter\n:FORWARD ACCEPT [1:2]\n[5:6] -A FORWARD -p udp\nCOMMIT", None, &interfaces())
            .unwrap();
    assert_eq!(counted.rules[0].actions, netvm_policy::Actions::default());
    assert_eq!(counted.rules[1].actions.verdict, Some(Verdict::Allow));
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
    assert_eq!(why("-i wan -j DROP"), ("-i wan".into(), Why::Interface));
    assert_eq!(why("! -o + -j DROP"), ("! -o +".into(), Why::Interface));
    // One that looks at what goes out makes all so, the policy too.
    let imported = read(IpVersion::V4, &["-A FORWARD -p udp -j DROP", "-A FORWARD -o eth1 -j ACCEPT"]);
    let to: Vec<_> = imported.rules.iter().map(|rule| rule.matches.to.len()).collect();
    assert_eq!(to, [3, 1, 3]);
    assert_eq!(imported.notes[0].why, Why::Egress);
}

#[test]
fn targets() {
    let verdict = |options: &str| rules(options)[0].actions.verdict;
    assert_eq!(verdict("-j ACCEPT"), Some(Verdict::Allow));
    assert_eq!(verdict("-j DROP"), Some(Verdict::Drop));
    assert_eq!(verdict("-p tcp -j REJECT --reject-with tcp-reset"), Some(Verdict::Reject));
    assert_eq!(verdict("-p udp -j REJECT --reject-with icmp-admin-prohibited"), Some(Verdict::Reject));
    let imported = read(IpVersion::V4, &["-A FORWARD -p udp -j REJECT", "-A FORWARD -p tcp -j REJECT"]);
    assert_eq!(imported.rules[1].actions.verdict, Some(Verdict::Reject));
    let notes: Vec<_> = imported.notes.iter().map(|note| (note.line, note.what.as_str(), note.why)).collect();
    assert_eq!(notes, [(4, "-j REJECT", Why::Answer)]);
    assert_eq!(
        why(r#"-j LOG --log-prefix "x y" --log-level 4"#),
        ("-j LOG --log-prefix x y --log-level 4".into(), Why::Log)
    );
    assert_eq!(why("-j MARK --set-xmark 0x1/0xffffffff").1, Why::Action);
    let state = "-m conntrack --ctstate RELATED,ESTABLISHED";
    assert_eq!(why(&format!("{state} -j ACCEPT")), (state.into(), Why::ConnectionState));
    assert_eq!(why("-m state --state NEW -j ACCEPT").1, Why::ConnectionState);
    assert_eq!(why("-p tcp -m owner --uid-owner 0 -j ACCEPT"), ("-m owner --uid-owner 0".into(), Why::Match));
    assert_eq!(why("-p tcp -m tcp --tcp-option 3 -j ACCEPT"), ("--tcp-option 3".into(), Why::Match));
    assert_eq!(
        why("-m addrtype ! --dst-type LOCAL -m tcp -j X"),
        ("-m addrtype ! --dst-type LOCAL".into(), Why::Match)
    );
}

#[test]
fn limits() {
    let limited = |options: &str| {
        let imported = read(IpVersion::V4, &[&format!("-A FORWARD {options}")]);
        let notes: Vec<_> = imported.notes.iter().map(|note| note.why).collect();
        (imported.rules[0].actions, notes)
    };
    let police = |per_second, burst| Some(Police { packets: Some(Rate { per_second, burst }), bits: None });
    let (actions, notes) = limited("-p icmp -m limit --limit 100/sec -j ACCEPT");
    assert_eq!((actions.verdict, actions.police, notes), (Some(Verdict::Allow), police(100, 5), vec![]));
    let (actions, notes) =
        limited("-m limit --limit 150/min --limit-burst 9 -m mac --mac-source 00:11:22:33:44:55 -j ACCEPT");
    assert_eq!((actions.police, notes), (police(2, 9), vec![Why::RoundedRate(2), Why::LimitOrder]));
    let (actions, notes) =
        limited("-m hashlimit --hashlimit-above 50/sec --hashlimit-burst 7 --hashlimit-name x -j DROP");
    assert_eq!((actions.verdict, actions.police, notes), (None, police(50, 7), vec![]));
    let (actions, _) = limited("-m hashlimit --hashlimit-upto 50/sec --hashlimit-name x -j ACCEPT");
    assert_eq!(actions.verdict, Some(Verdict::Allow));
    let open = parse(
        &file(&["-A FORWARD -m limit --limit 1/s -j ACCEPT"]).replace("DROP", "ACCEPT"),
        None,
        &interfaces(),
    );
    assert_eq!(open.unwrap().notes[0].why, Why::LimitDrops);
    assert_eq!(why("-m limit --limit 5/min -j ACCEPT").1, Why::SlowRate);
    assert_eq!(why("-m limit --limit 5/sec -j DROP").1, Why::LimitUse);
    assert_eq!(why("-m limit --limit 5/sec -j LOG").1, Why::Log);
    assert_eq!(
        why("-m hashlimit --hashlimit-upto 5/sec --hashlimit-mode srcip --hashlimit-name x -j ACCEPT").1,
        Why::LimitPerKey
    );
    assert_eq!(why("-m hashlimit --hashlimit-upto 512kb/s --hashlimit-name x -j ACCEPT").1, Why::Match);
}

#[test]
fn chains_are_written_out() {
    let imported = read(
        IpVersion::V4,
        &[
            "-A FORWARD -s 10.0.0.0/8 -p tcp -j WEB",
            "-A FORWARD -p tcp -j ACCEPT",
            "-A WEB -p tcp -m tcp --dport 443 -j RETURN",
            "-A WEB -p udp -j DROP",
            "-A WEB -p tcp -m tcp --dport 80:90 -j DROP",
            "-A WEB -p tcp -m tcp --dport 440:450 -j REJECT --reject-with tcp-reset",
        ],
    );
    let short: Vec<_> = imported
        .rules
        .iter()
        .map(|rule| {
            (
                rule.line,
                rule.matches.destination_ports.clone(),
                rule.matches.source.len(),
                rule.actions.verdict.unwrap(),
            )
        })
        .collect();
    assert_eq!(
        short,
        [
            (8, ports(&[(80, 90)]), 1, Verdict::Drop),
            (9, ports(&[(440, 442), (444, 450)]), 1, Verdict::Reject),
            (5, vec![], 0, Verdict::Allow),
            (2, vec![], 0, Verdict::Drop),
        ]
    );
    let [udp] = &imported.notes[..] else { panic!("{:?}", imported.notes) };
    assert_eq!((udp.line, udp.why), (7, Why::NeverFits));
    // After -g, packets do not come back to the chain.
    let imported = read(
        IpVersion::V4,
        &[
            "-A FORWARD -p tcp -g WEB",
            "-A FORWARD -p tcp -j ACCEPT",
            "-A WEB -p tcp -m tcp --dport 1 -j ACCEPT",
        ],
    );
    let verdicts: Vec<_> =
        imported.rules.iter().map(|rule| (rule.line, rule.actions.verdict.unwrap())).collect();
    assert_eq!(verdicts, [(6, Verdict::Allow), (2, Verdict::Drop), (5, Verdict::Allow), (2, Verdict::Drop)]);
    let looped = parse(&file(&["-A FORWARD -j WEB", "-A WEB -j WEB"]), None, &interfaces());
    assert!(matches!(looped, Err(IptablesError::Expand(_))));
}

#[test]
fn other_tables_and_chains_are_noted() {
    let text = "# Generated by ip6tables-save v1.8.9\n*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j DNAT --to ::1\nCOMMIT\n\
                *raw\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n\
                *filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:lost - [0:0]\n\
                -A INPUT -j REJECT\n-A lost -s ::1/128 -m owner --uid-owner 0 -j DROP\nCOMMIT\n";
    let imported = parse(text, None, &interfaces()).unwrap();
    let notes: Vec<_> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "line 2: table nat (1 rules): netvm has no equivalent of this table; it is left out",
            "line 10: chain INPUT: only rules for forwarded packets have an equivalent; the chain is left out",
            "line 13: chain lost: no rule for forwarded packets jumps to this chain; it is left out",
        ]
    );
    let [policy] = &imported.rules[..] else { panic!() };
    assert_eq!((policy.line, &policy.matches.ether_type[..]), (11, &[EtherType::IPV6][..]));
    assert_eq!(parse(&text.replace('\n', "\r\n"), None, &interfaces()).unwrap(), imported);
}

#[test]
fn wrong_lines_are_named() {
    let error = |lines: &[&str]| parse(&file(lines), None, &interfaces()).unwrap_err().to_string();
    let rule = |options: &str| error(&[&format!("-A FORWARD {options}")]);
    assert_eq!(rule("-s"), "line 4, column 14: expected an address, found the end of the line");
    assert_eq!(rule("-s ::1 -j DROP"), "line 4, column 15: expected IPv4 addresses, found `::1`");
    assert_eq!(
        rule("-s 10.0.0.0/33"),
        "line 4, column 15: expected a length or mask behind the /, found `10.0.0.0/33`"
    );
    assert_eq!(rule("-p tcpp"), "line 4, column 15: expected a protocol by name or number, found `tcpp`");
    assert_eq!(
        rule("-p tcp --dport 90:80"),
        "line 4, column 27: expected ports as numbers, as in 80,1024:65535, found `90:80`"
    );
    assert_eq!(
        rule("-p tcp --dport ,80:"),
        "line 4, column 27: expected ports as numbers, as in 80,1024:65535, found `,80:`"
    );
    assert_eq!(
        rule("--dport 80 -j DROP"),
        "line 4, column 30: expected -p tcp, udp or sctp with ports, found the end of the line"
    );
    assert_eq!(rule("DROP"), "line 4, column 12: expected an option that starts with `-`, found `DROP`");
    assert_eq!(rule("!"), "line 4, column 13: expected an option, found the end of the line");
    assert_eq!(rule("-g NOWHERE"), "line 4, column 15: expected a chain of this table, found `NOWHERE`");
    assert_eq!(
        rule("-m limit --limit fast"),
        "line 4, column 29: expected a rate, as in 5/min, found `fast`"
    );
    assert_eq!(
        rule("--limit 5/s"),
        "line 4, column 20: expected -m limit before the limit, and no `!`, found `5/s`"
    );
    assert_eq!(
        rule("-p icmp --icmp-type 256"),
        "line 4, column 32: expected an ICMP type as number, number/number or name, found `256`"
    );
    assert_eq!(
        rule("-m iprange --src-range 10.0.0.9-10.0.0.1"),
        "line 4, column 35: expected the lower address first, found `10.0.0.9-10.0.0.1`"
    );
    assert_eq!(rule("-m comment --comment \"a"), "line 4, column 33: the quotation mark is not closed");
    assert_eq!(
        error(&["-A NONE -j DROP"]),
        "line 4: table filter has no chain NONE: write `:NONE - [0:0]` before its rules"
    );
    assert_eq!(
        error(&["-I FORWARD -j DROP"]),
        "line 4, column 1: expected a chain (:NAME), a rule (-A) or COMMIT, found `-I`"
    );
    assert_eq!(
        error(&["[0:0] FORWARD"]),
        "line 4, column 7: expected a chain (:NAME), a rule (-A) or COMMIT, found `FORWARD`"
    );
    assert_eq!(
        error(&[":FORWARD DROP [0:0]"]),
        "line 4: chain FORWARD is there twice: import one file at a time"
    );
    assert_eq!(
        error(&[":X MAYBE [0:0]"]),
        "line 4, column 4: expected the policy: ACCEPT, DROP or -, found `MAYBE`"
    );
    let whole = |text: &str| parse(text, None, &interfaces()).unwrap_err().to_string();
    assert_eq!(whole(""), "no table: give what iptables-save or ip6tables-save prints");
    assert_eq!(
        whole("*filter\n:FORWARD DROP [0:0]"),
        "table filter, line 1, has no COMMIT: the text is not complete"
    );
    assert_eq!(whole("-P FORWARD DROP"), "line 1, column 1: expected a table, as in *filter, found `-P`");
    assert_eq!(
        whole("*filter\nCOMMIT\n*filter\nCOMMIT"),
        "line 3: table filter is there twice: import one file at a time"
    );
}

/// A rule of options that have one form in which `iptables-save` writes them.
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
                // The sibling of each bit of the prefix, in the order of their addresses.
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
    fn rules_are_read_as_they_are_written((options, expected) in written()) {
        prop_assert_eq!(one(&format!("{options} -j ACCEPT")), expected, "{}", options);
    }

    #[test]
    fn any_text_is_read_or_refused(text: String, options: String) {
        let _ = parse(&text, None, &interfaces());
        let _ = parse(&file(&[&format!("-A FORWARD {options}")]), None, &interfaces());
    }

    #[test]
    fn what_is_nearly_a_rule_is_read_or_refused(
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
