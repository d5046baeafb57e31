// SPDX-License-Identifier: Apache-2.0
//! ClassBench filter sets: generated ones, every part of a line, wrong lines, and speed.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use netvm_policy::{Action, Actions, Masked, Match, Span};
use netvm_policy_import::classbench::{ClassBenchError, Flags, parse};
use netvm_policy_import::{Imported, NoteReason};
use netvm_wire::{EtherType, IpProto, PortRange};
use proptest::prelude::*;

const DROP: Actions = Actions {
    terminal: Some(Action::Drop),
    set_vlan: None,
    queue: None,
    mirror: None,
    police: None,
    syn_proxy: false,
};

fn read(text: &str, flags: Flags) -> Imported {
    parse(text, DROP, flags).unwrap()
}

fn one(text: &str) -> Match {
    let mut imported = read(text, Flags::Match);
    assert_eq!(imported.rules.len(), 1);
    imported.rules.remove(0).matches
}

fn error(text: &str) -> String {
    parse(text, DROP, Flags::Ignore).unwrap_err().to_string()
}

#[test]
fn whole_sets_are_parsed_completely() {
    for (_, text) in netvm_workload::data::filter_sets().unwrap() {
        for flags in [Flags::Ignore, Flags::Match] {
            let imported = read(&text, flags);
            assert_eq!(imported.rules.len(), text.lines().count());
            for (rule, line) in imported.rules.iter().zip(text.lines()) {
                let words: Vec<_> = line[1..].split_whitespace().collect();
                let net =
                    |nets: &[netvm_wire::IpNet]| nets.first().map_or("0.0.0.0/0".into(), ToString::to_string);
                assert_eq!(net(&rule.matches.source), words[0]);
                assert_eq!(net(&rule.matches.destination), words[1]);
                let ports = |ports: &[PortRange]| ports.first().copied().unwrap_or(PortRange::ANY);
                let words_of = |ports: PortRange| [ports.first().to_string(), ports.last().to_string()];
                assert_eq!(words_of(ports(&rule.matches.source_ports)), [words[2], words[4]]);
                assert_eq!(words_of(ports(&rule.matches.destination_ports)), [words[5], words[7]]);
                let protocol =
                    rule.matches.protocol.first().map(|protocol| format!("{:#04x}/0xFF", protocol.0));
                assert_eq!(protocol.as_deref().unwrap_or("0x00/0x00"), words[8]);
                assert_eq!(rule.actions, DROP);
            }
            // The sets only have flags of TCP and ICMP.
            assert!(
                imported
                    .notes
                    .iter()
                    .all(|note| flags == Flags::Ignore && note.why == NoteReason::FlagsIgnored)
            );
        }
    }
}

#[test]
fn a_line_is_parsed_field_by_field() {
    let matches = one("@10.1.0.0/16\t192.0.2.1/32\t0 : 65535\t80 : 90\t0x06/0xFF\t0x0200/0x1200\t");
    let expected = Match {
        ether_type: vec![EtherType::IPV4],
        source: vec!["10.1.0.0/16".parse().unwrap()],
        destination: vec!["192.0.2.1/32".parse().unwrap()],
        destination_ports: vec![PortRange::new(80, 90).unwrap()],
        protocol: vec![IpProto::TCP],
        tcp_flags: Some(Masked::<u8>::new(0x02, 0x12)),
        ..Match::default()
    };
    assert_eq!(matches, expected);
    let any = Match { ether_type: vec![EtherType::IPV4], ..Match::default() };
    assert_eq!(one("@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00"), any);
    let matches = one("@ 2001:db8::1/32 ::/0 1:2 0:65535 17/255 0x0/0x0");
    assert_eq!(matches.ether_type, [EtherType::IPV6]);
    assert_eq!(matches.source, ["2001:db8::/32".parse().unwrap()]);
    assert_eq!(matches.source_ports, [PortRange::new(1, 2).unwrap()]);
    let matches = one("@1.2.3.4/0 10.0.0.9/8 0 : 65535 0 : 65535 0x01/0xFF 0x0303/0xffff");
    assert_eq!((matches.source, matches.destination), (vec![], vec!["10.0.0.0/8".parse().unwrap()]));
    assert_eq!((matches.icmp_type, matches.icmp_code), (vec![Span::single(3)], vec![Span::single(3)]));
}

#[test]
fn masks_of_protocols_are_sets() {
    let protocols = |column: &str| {
        let matches = one(&format!("@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 {column}"));
        matches.protocol.iter().map(|protocol| protocol.0).collect::<Vec<_>>()
    };
    assert_eq!(protocols("0x06/0xFE"), [6, 7]);
    assert_eq!(protocols("0x07/0xFE"), [6, 7]);
    assert_eq!(protocols("0x81/0x81"), (128..=255).filter(|number| number % 2 == 1).collect::<Vec<_>>());
    assert!(protocols("0xff/0x00").is_empty());
}

#[test]
fn ignored_columns_are_noted_once() {
    let line = |rest: &str| format!("@1.0.0.0/8 2.0.0.0/8 0 : 65535 0 : 65535 {rest}\n");
    let tcp = line("0x06/0xFF 0x1000/0x1000");
    let notes = |text: &str, flags| -> Vec<String> {
        read(text, flags).notes.iter().map(ToString::to_string).collect()
    };
    let text = [line("0x06/0xFF 0x0000/0x0000"), tcp.clone(), tcp].concat();
    assert_eq!(
        notes(&text, Flags::Ignore),
        ["line 2: flags (2 rules): flags are ignored; rules match addresses, ports and protocol"]
    );
    assert!(notes(&text, Flags::Match).is_empty());
    let text = [line("0x11/0xFF 0x1000/0x1000"), line("0x06/0xFF 0x1000/0x10ff 7 8")].concat();
    assert_eq!(
        notes(&text, Flags::Match),
        [
            "line 1: flags of another protocol than TCP and ICMP (2 rules): netvm cannot match these flags of this \
             protocol; they are ignored",
            "line 2: extra fields (1 rules): columns after the flags are ignored",
        ]
    );
    assert_eq!(read(&text, Flags::Match).rules.len(), 2);
}

#[test]
fn line_ends_blanks_and_comments_are_ignored() {
    let rule = "@1.0.0.0/8\t2.0.0.0/8 \t 0 : 65535\t0 : 65535\t0x00/0x00\t0x0000/0x0000\t";
    let text = format!("\r\n# rules\r\n{rule}\r\n\n  {rule}\t\t \n");
    let lines: Vec<_> = read(&text, Flags::Ignore).rules.iter().map(|rule| rule.line).collect();
    assert_eq!(lines, [3, 5]);
    assert_eq!(read("", Flags::Ignore), Imported::default());
}

#[test]
fn wrong_lines_are_named() {
    let good = "@1.0.0.0/8 2.0.0.0/8 0 : 65535 0 : 65535 0x06/0xFF\n";
    let after = |text: &str| error(&format!("{good}{text}"));
    assert_eq!(after("1.0.0.0/8"), "line 2, column 1: expected `@` and the source, found `1.0.0.0/8`");
    assert_eq!(
        after("@1.0.0/8 "),
        "line 2, column 2: expected the source as ADDRESS/LENGTH, found `1.0.0/8`"
    );
    assert_eq!(
        after("@1.0.0.0/8"),
        "line 2, column 11: expected the destination as ADDRESS/LENGTH, found the end of the line"
    );
    assert_eq!(
        after("@1.0.0.0/8 2.0.0.0/33"),
        "line 2, column 12: /33 is too long: an IPv4 prefix has at most 32 bits"
    );
    assert_eq!(after("@1.0.0.0/8 ::/0 "), "line 2: source and destination must both be IPv4 or both IPv6");
    let start = "@1.0.0.0/8 2.0.0.0/8";
    assert_eq!(
        after(&format!("{start} 5 - 6")),
        "line 2, column 24: expected `:` and the highest port, found `-`"
    );
    assert_eq!(
        after(&format!("{start} 0 : 65536")),
        "line 2, column 26: expected the highest port, found `65536`"
    );
    assert_eq!(
        after(&format!("{start} 0 : 1 9 : 8")),
        "line 2, column 28: the range 9 : 8 is empty: write 8 : 9"
    );
    let start = format!("{start} 0 : 1 8 : 9");
    assert_eq!(
        after(&format!("{start} tcp")),
        "line 2, column 34: expected the protocol as 0xVV/0xMM, found `tcp`"
    );
    assert_eq!(after(&format!("{start} 0x100/0xFF")).len(), after(&format!("{start} 0x200/0xFF")).len());
    assert_eq!(
        after(&format!("{start} 0x06")),
        "line 2, column 38: expected `/` and a mask, found the end of the line"
    );
    assert_eq!(
        after(&format!("{start} 6/255 0x1/0x1 x")),
        "line 2, column 48: expected an extra number, found `x`"
    );
    assert!(matches!(
        parse("@€", DROP, Flags::Ignore),
        Err(ClassBenchError::Syntax { line: 1, column: 2, .. })
    ));
}

#[test]
fn a_hundred_thousand_rules_parse_quickly() {
    let mut text = String::new();
    for number in 0..100_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        writeln!(
            text,
            "@10.{a}.{b}.{c}/32\t192.168.{c}.0/24\t0 : 65535\t{} : 65535\t0x06/0xFF\t0x0000/0x0200\t",
            number & 0xffff
        )
        .unwrap();
    }
    let start = Instant::now();
    let imported = read(&text, Flags::Ignore);
    let taken = start.elapsed();
    assert_eq!(imported.rules.len(), 100_000);
    println!("100,000 rules in {taken:?}");
    // 20 times the time on a busy machine.
    assert!(taken < Duration::from_secs(5), "{taken:?}");
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text: String) {
        let _ = parse(&text, DROP, Flags::Match);
    }

    #[test]
    fn almost_rules_are_parsed_or_refused(
        text in "(@?[0-9.:/]{0,12}[ \t]{0,2}([0-9]{0,6}[ :/xF\t€]{0,3}){0,8}\r?\n?){0,3}"
    ) {
        let _ = parse(&text, DROP, Flags::Match);
    }

    #[test]
    fn rules_round_trip(
        source: u32, destination: u32, lengths in (0u8..=32, 0u8..=32),
        ports: [u16; 4], protocol: (u8, u8), flags: (u8, u8),
    ) {
        let [a, b] = [ports[0].min(ports[1]), ports[0].max(ports[1])];
        let [c, d] = [ports[2].min(ports[3]), ports[2].max(ports[3])];
        let (source, destination) = (std::net::Ipv4Addr::from(source), std::net::Ipv4Addr::from(destination));
        let text = format!(
            "@{source}/{}\t{destination}/{}\t{a} : {b}\t{c} : {d}\t0x{:02x}/0x{:02X}\t0x{:02x}00/0x{:02x}00\t\n",
            lengths.0, lengths.1, protocol.0, protocol.1, flags.0, flags.1,
        );
        let matches = one(&text);
        for bits in 0..=255u8 {
            let fits = matches.protocol.is_empty() || matches.protocol.contains(&IpProto(bits));
            prop_assert_eq!(fits, bits & protocol.1 == protocol.0 & protocol.1);
        }
        let net = |address, length| match length {
            0 => vec![],
            length => vec![netvm_wire::Ipv4Net::containing(address, length).unwrap().into()],
        };
        prop_assert_eq!(matches.source, net(source, lengths.0));
        prop_assert_eq!(matches.destination, net(destination, lengths.1));
        let any = |ports: &[PortRange]| ports.first().copied().unwrap_or(PortRange::ANY);
        prop_assert_eq!(any(&matches.source_ports), PortRange::new(a, b).unwrap());
        prop_assert_eq!(any(&matches.destination_ports), PortRange::new(c, d).unwrap());
    }
}
