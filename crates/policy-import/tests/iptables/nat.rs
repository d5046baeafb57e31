// SPDX-License-Identifier: Apache-2.0
//! Table nat.

use netvm_model::{
    DestinationNat, NatAction, NatAddresses, NatTarget, PortAllocation, SourceNat, pool_ports,
};
use netvm_policy::PortId;
use netvm_policy_import::iptables::parse;
use netvm_policy_import::{Effect, Imported, ImportedNat, IpVersion, NoteReason};
use netvm_wire::{EtherType, PortRange};

use super::{interfaces, nets, ports};

fn table(version: IpVersion, lines: &[&str]) -> Imported {
    let text = format!(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
         :WEB - [0:0]\n{}\nCOMMIT\n",
        lines.join("\n")
    );
    parse(&text, Some(version), &interfaces()).unwrap_or_else(|error| panic!("{error}"))
}

fn rules(lines: &[&str]) -> Vec<ImportedNat> {
    let imported = table(IpVersion::V4, lines);
    assert_eq!(imported.effect(), Effect::Same, "{:?}", imported.notes);
    assert!(imported.rules.is_empty() && imported.tracks());
    imported.nat
}

fn one(line: &str) -> ImportedNat {
    let [rule] = &rules(&[line])[..] else { panic!("{:?}", rules(&[line])) };
    assert_eq!((rule.line, &rule.matches.ether_type[..]), (7, &[EtherType::IPV4][..]));
    assert!(rule.matches.state.is_empty());
    rule.clone()
}

/// The note of a rule that netvm does not have; without it, other packets are translated.
fn why(line: &str) -> NoteReason {
    let imported = table(IpVersion::V4, &[line]);
    assert_eq!((imported.effect(), imported.nat.len()), (Effect::Wider, 0), "{:?}", imported.notes);
    imported.notes.iter().find(|note| note.effect == Effect::Wider).unwrap().why
}

fn source(line: &str) -> (SourceNat, Vec<PortId>) {
    let rule = one(line);
    let NatAction::Source(source) = rule.action else { panic!("{rule:?}") };
    (source, rule.matches.to)
}

fn targets(line: &str) -> Vec<(String, Option<u16>)> {
    let rule = one(line);
    assert!(!rule.matches.is_egress());
    let NatAction::Destination(DestinationNat { targets, health: None }) = rule.action else {
        panic!("{rule:?}")
    };
    let target = |target: &NatTarget| {
        assert_eq!(target.weight, 1);
        (target.address.map_or(String::new(), |address| address.to_string()), target.port)
    };
    targets.iter().map(target).collect()
}

#[test]
fn sources_are_translated_where_packets_leave() {
    let (masquerade, to) = source("-A POSTROUTING -s 10.0.0.0/8 -o eth1 -j MASQUERADE");
    assert_eq!((masquerade, to), (SourceNat::default(), vec![PortId(1)]));
    let (pool, to) = source("-A POSTROUTING -j SNAT --to-source 203.0.113.8-203.0.113.15 --persistent");
    let NatAddresses::Ranges(ranges) = &pool.addresses else { panic!() };
    assert_eq!(ranges.iter().map(ToString::to_string).collect::<Vec<_>>(), ["203.0.113.8-203.0.113.15"]);
    assert_eq!((pool.ports, pool.allocation), (pool_ports(), PortAllocation::Any));
    assert_eq!(to, [PortId(0), PortId(1), PortId(2)]);
    let (some, to) = source("-A POSTROUTING ! -o eth0 -p tcp -j SNAT --to-source 203.0.113.8:2000-3000");
    assert_eq!((some.ports, to), (PortRange::new(2000, 3000).unwrap(), vec![PortId(1), PortId(2)]));
    let (some, _) = source("-A POSTROUTING -p udp -j MASQUERADE --to-ports 40000-50000");
    assert_eq!(some.ports, PortRange::new(40000, 50000).unwrap());
    let random = table(IpVersion::V4, &["-A POSTROUTING -j MASQUERADE --random-fully"]);
    assert_eq!(
        (random.notes[0].why, random.notes[0].effect, random.nat.len()),
        (NoteReason::Choice, Effect::Same, 1)
    );
}

#[test]
fn destinations_are_translated_where_packets_come_in() {
    let end = |address: &str, port| (address.to_owned(), port);
    let dnat = |to: &str| {
        targets(&format!("-A PREROUTING -i eth0 -p tcp --dport 8080 -j DNAT --to-destination {to}"))
    };
    assert_eq!(dnat("10.0.0.2:80"), [end("10.0.0.2", Some(80))]);
    assert_eq!(dnat("10.0.0.2"), [end("10.0.0.2", None)]);
    assert_eq!(dnat("10.0.0.2:8000-8100"), [end("10.0.0.2", None)]);
    assert_eq!(dnat("10.0.0.2-10.0.0.3:80"), [end("10.0.0.2", Some(80)), end("10.0.0.3", Some(80))]);
    assert_eq!(targets("-A PREROUTING -p udp --dport 53 -j REDIRECT --to-ports 5353"), [end("", Some(5353))]);
    assert_eq!(targets("-A PREROUTING -p tcp --dport 80 -j REDIRECT"), [end("", None)]);
    let six = "-A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination [2001:db8::2]:8080";
    let six = &table(IpVersion::V6, &[six]).nat[0];
    assert_eq!((six.action.is_v4(), &six.matches.ether_type[..]), (Some(false), &[EtherType::IPV6][..]));
}

#[test]
fn networks_stand_for_networks_of_their_size() {
    let to = one("-A PREROUTING -d 203.0.113.16/28 -j NETMAP --to 10.0.0.16/28");
    assert_eq!(
        (&to.action, &to.matches.destination),
        (&NatAction::Network(nets(&["10.0.0.16/28"])[0]), &nets(&["203.0.113.16/28"]))
    );
    // A part of the network stands for the same part of the other one.
    let part = one("-A POSTROUTING -s 10.0.0.64/26 -j NETMAP --to 203.0.113.0/24");
    assert_eq!(part.action, NatAction::Network(nets(&["203.0.113.64/26"])[0]));
    assert_eq!(why("-A PREROUTING -d 10.0.0.0/8 -j NETMAP --to 203.0.113.0/24"), NoteReason::Network);
    assert_eq!(why("-A PREROUTING -j NETMAP --to 203.0.113.0/24"), NoteReason::Network);
}

#[test]
fn chains_are_expanded() {
    let found = rules(&[
        "-A PREROUTING -m addrtype --dst-type LOCAL -j WEB",
        "-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j WEB",
        "-A PREROUTING -p tcp -m tcp --dport 25 -j DNAT --to-destination 10.0.0.5",
        "-A POSTROUTING -s 10.9.0.0/16 -j ACCEPT",
        "-A POSTROUTING -s 10.0.0.0/8 -m conntrack --ctstate NEW -j MASQUERADE",
        "-A WEB -i eth1 -j RETURN",
        "-A WEB -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.0.0.2:80",
    ]);
    let short: Vec<_> =
        found.iter().map(|nat| (nat.line, nat.is_local, nat.action == NatAction::Keep)).collect();
    assert_eq!(short, [(13, true, false), (9, false, false), (10, false, true), (11, false, false)]);
    assert_eq!(found[0].matches.from, [PortId(0), PortId(2)]);
    assert_eq!(found[0].matches.destination_ports, ports(&[(8080, 8080)]));
}

#[test]
fn what_netvm_does_not_have_is_refused() {
    assert_eq!(why("-A PREROUTING -p tcp -j DNAT --to-destination :80"), NoteReason::Translation);
    assert_eq!(
        why("-A PREROUTING -p sctp --dport 9 -j DNAT --to-destination 10.0.0.2:80"),
        NoteReason::TranslatedPorts
    );
    let shifted = "-A PREROUTING -p tcp --dport 80:90 -j DNAT --to-destination 10.0.0.2:8080-8090/80";
    assert_eq!(why(shifted), NoteReason::TranslatedPorts);
    let elsewhere = "-A PREROUTING -p tcp --dport 80 -j DNAT --to-destination 10.0.0.2:8080-8090";
    assert_eq!(why(elsewhere), NoteReason::TranslatedPorts);
    assert_eq!(why("-A PREROUTING -j DNAT --to-destination 10.0.0.0-10.0.1.0"), NoteReason::Targets);
    assert_eq!(why("-A POSTROUTING -m owner --uid-owner 7 -j MASQUERADE"), NoteReason::Match);
    assert_eq!(why("-A POSTROUTING -m addrtype --dst-type LOCAL -j MASQUERADE"), NoteReason::Match);
    assert_eq!(why("-A POSTROUTING -o wan -j MASQUERADE"), NoteReason::Interface);
    assert_eq!(
        why("-A PREROUTING -m addrtype ! --dst-type LOCAL -j DNAT --to-destination 10.0.0.2"),
        NoteReason::Match
    );
    assert_eq!(why("-A PREROUTING -j SNAT --to-source 10.0.0.2"), NoteReason::Action);
    assert_eq!(why("-A POSTROUTING -j DROP"), NoteReason::TranslationDrops);
    let wrong =
        format!("*nat\n:PREROUTING ACCEPT [0:0]\n{}\nCOMMIT\n", "-A PREROUTING -j DNAT --to-destination ::1");
    let error = parse(&wrong, Some(IpVersion::V4), &interfaces()).unwrap_err().to_string();
    assert!(error.starts_with("line 3, column 40: expected an address"), "{error}");
}

#[test]
fn packets_that_are_not_tracked_are_not_translated() {
    let text = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -s 10.1.0.0/16 -j CT --notrack\nCOMMIT\n\
                *nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o eth1 -j MASQUERADE\nCOMMIT\n";
    let imported = parse(text, None, &interfaces()).unwrap();
    assert_eq!(imported.effect(), Effect::Same, "{:?}", imported.notes);
    let [kept, _] = &imported.nat[..] else { panic!("{:?}", imported.nat) };
    assert_eq!((&kept.action, &kept.matches.source), (&NatAction::Keep, &nets(&["10.1.0.0/16"])));
}
