// SPDX-License-Identifier: Apache-2.0
//! States of connections, and what table raw changes of them.

use netvm_policy::{Match, PortId};
use netvm_policy_import::iptables::parse;
use netvm_policy_import::{Effect, Imported};
use netvm_wire::ConnState::{self, Established, Invalid, New, Related, Untracked};

use super::{interfaces, nets, one, why};

#[test]
fn states_are_matched() {
    let states = |options: &str| one(&format!("{options} -j DROP")).state;
    assert_eq!(states("-m conntrack --ctstate RELATED,ESTABLISHED"), [Established, Related]);
    assert_eq!(states("-m state --state INVALID"), [Invalid]);
    assert_eq!(states("-m conntrack ! --ctstate NEW,UNTRACKED"), [Established, Related, Invalid]);
    assert_eq!(states("-m state ! --state INVALID"), [Untracked, New, Established, Related]);
    assert_eq!(why("-m conntrack --ctstate NEW,DNAT -j DROP").0, "--ctstate NEW,DNAT");
    assert_eq!(why("-m conntrack --ctproto 6 -j DROP").0, "--ctproto 6");
}

/// A file with these rules of table raw, and one of table filter that allows return traffic.
fn imported(raw: &[&str], state: &str) -> Imported {
    let raw = raw.join("\n");
    let text = format!(
        "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:other - [0:0]\n{raw}\nCOMMIT\n\
         *filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate {state} -j ACCEPT\nCOMMIT\n"
    );
    parse(&text, None, &interfaces()).unwrap()
}

/// The matches of the rules from the rule of table filter.
fn allowed(imported: &Imported) -> Vec<(Vec<ConnState>, Vec<netvm_wire::IpNet>)> {
    let rules = imported.rules.iter().filter(|rule| rule.name.is_empty());
    rules
        .map(|rule| {
            let Match { state, source, .. } = &rule.matches;
            (state.clone(), source.clone())
        })
        .collect()
}

#[test]
fn packets_that_are_not_tracked_are_untracked() {
    let notrack = ["-A PREROUTING -s 10.0.0.0/8 -j CT --notrack", "-A OUTPUT -j NOTRACK"];
    let others = nets(&[
        "0.0.0.0/5",
        "8.0.0.0/7",
        "11.0.0.0/8",
        "12.0.0.0/6",
        "16.0.0.0/4",
        "32.0.0.0/3",
        "64.0.0.0/2",
        "128.0.0.0/1",
    ]);
    let established = imported(&notrack, "ESTABLISHED");
    assert_eq!(
        (established.effect(), allowed(&established)),
        (Effect::Same, vec![(vec![Established], others.clone())])
    );
    let untracked = imported(&notrack, "UNTRACKED");
    let expected = vec![(vec![Untracked], others), (vec![], nets(&["10.0.0.0/8"]))];
    assert_eq!((untracked.effect(), allowed(&untracked)), (Effect::Same, expected));
    // Rules that match no states do not ask.
    let text = "*raw\n-A PREROUTING -m set --match-set a src -j NOTRACK\nCOMMIT\n*filter\n:FORWARD DROP [0:0]\nCOMMIT\n";
    assert!(parse(text, None, &interfaces()).unwrap().notes.is_empty());
}

#[test]
fn what_table_raw_does_to_unknown_packets_is_refused() {
    let refused = |raw: &[&str]| {
        let imported = imported(raw, "NEW");
        assert_eq!(imported.effect(), Effect::Wider, "{:?}", imported.notes);
        imported.notes[0].to_string()
    };
    let note = refused(&["-A PREROUTING -m set --match-set a src -j NOTRACK"]);
    assert!(note.starts_with("line 5: table raw: -A PREROUTING -m set"), "{note}");
    refused(&["-A PREROUTING -i eth0 -j ACCEPT", "-A PREROUTING -j NOTRACK"]);
    refused(&["-A PREROUTING -i eth0 -j other", "-A other -j NOTRACK"]);
    refused(&["-A PREROUTING -p udp -j CT --zone 5"]);
    refused(&["-A PREROUTING -i eth0 -j CT --zone-orig 5"]);
    let note = refused(&["-A PREROUTING -p tcp -m tcp --dport 21 -j CT --helper ftp"]);
    assert!(note.contains("netvm has no helpers"), "{note}");
}

#[test]
fn zones_of_ports_are_kept() {
    let zoned = imported(&["-A PREROUTING -i eth0 -j CT --zone 5", "-A PREROUTING -j CT --zone 6"], "NEW");
    assert_eq!(zoned.effect(), Effect::Same, "{:?}", zoned.notes);
    assert_eq!(zoned.zones, [(PortId(0), 5), (PortId(1), 6), (PortId(2), 6)]);
    assert!(zoned.tracks());
    // Packets that are not tracked have no zone; but a zone keeps them tracked.
    let (notrack, zone) = ("-A PREROUTING -p udp -j CT --notrack", "-A PREROUTING -i eth0 -j CT --zone 5");
    let both = imported(&[notrack, zone], "NEW");
    assert_eq!((both.effect(), &both.zones[..]), (Effect::Same, &[(PortId(0), 5)][..]));
    assert_eq!(imported(&[zone, notrack], "NEW").effect(), Effect::Wider);
}
