// SPDX-License-Identifier: Apache-2.0
//! Targets, limits, chains, tables, and wrong lines.

use netvm_policy::{Action, Police, Rate};
use netvm_policy_import::iptables::{IptablesError, parse};
use netvm_policy_import::{IpVersion, NoteReason};
use netvm_wire::EtherType;

use super::{file, interfaces, ports, read, rules, why};

#[test]
fn targets() {
    let terminal = |options: &str| rules(options)[0].actions.terminal;
    assert_eq!(terminal("-j ACCEPT"), Some(Action::Allow));
    assert_eq!(terminal("-j DROP"), Some(Action::Drop));
    assert_eq!(terminal("-p tcp -j REJECT --reject-with tcp-reset"), Some(Action::Reject));
    assert_eq!(terminal("-p udp -j REJECT --reject-with icmp-admin-prohibited"), Some(Action::Reject));
    let imported = read(IpVersion::V4, &["-A FORWARD -p udp -j REJECT", "-A FORWARD -p tcp -j REJECT"]);
    assert_eq!(imported.rules[1].actions.terminal, Some(Action::Reject));
    let notes: Vec<_> = imported.notes.iter().map(|note| (note.line, note.what.as_str(), note.why)).collect();
    assert_eq!(notes, [(4, "-j REJECT", NoteReason::Answer)]);
    assert_eq!(
        why(r#"-j LOG --log-prefix "x y" --log-level 4"#),
        ("-j LOG --log-prefix x y --log-level 4".into(), NoteReason::Log)
    );
    assert_eq!(why("-j MARK --set-xmark 0x1/0xffffffff").1, NoteReason::Action);
    let status = "--ctstatus ASSURED";
    let stopped = (status.to_owned(), NoteReason::ConnectionState);
    assert_eq!(why(&format!("-m conntrack {status} -j ACCEPT")), stopped);
    assert_eq!(
        why("-p tcp -m owner --uid-owner 0 -j ACCEPT"),
        ("-m owner --uid-owner 0".into(), NoteReason::Match)
    );
    assert_eq!(why("-p tcp -m tcp --tcp-option 3 -j ACCEPT"), ("--tcp-option 3".into(), NoteReason::Match));
    assert_eq!(
        why("-m addrtype ! --dst-type LOCAL -m tcp -j X"),
        ("-m addrtype ! --dst-type LOCAL".into(), NoteReason::Match)
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
    assert_eq!((actions.terminal, actions.police, notes), (Some(Action::Allow), police(100, 5), vec![]));
    let (actions, notes) =
        limited("-m limit --limit 150/min --limit-burst 9 -m mac --mac-source 00:11:22:33:44:55 -j ACCEPT");
    assert_eq!(
        (actions.police, notes),
        (police(2, 9), vec![NoteReason::RoundedRate(2), NoteReason::LimitOrder])
    );
    let (actions, notes) =
        limited("-m hashlimit --hashlimit-above 50/sec --hashlimit-burst 7 --hashlimit-name x -j DROP");
    assert_eq!((actions.terminal, actions.police, notes), (None, police(50, 7), vec![]));
    let (actions, _) = limited("-m hashlimit --hashlimit-upto 50/sec --hashlimit-name x -j ACCEPT");
    assert_eq!(actions.terminal, Some(Action::Allow));
    let open = parse(
        &file(&["-A FORWARD -m limit --limit 1/s -j ACCEPT"]).replace("DROP", "ACCEPT"),
        None,
        &interfaces(),
    );
    assert_eq!(open.unwrap().notes[0].why, NoteReason::LimitDrops);
    assert_eq!(why("-m limit --limit 5/min -j ACCEPT").1, NoteReason::SlowRate);
    assert_eq!(why("-m limit --limit 5/sec -j DROP").1, NoteReason::LimitUse);
    assert_eq!(why("-m limit --limit 5/sec -j LOG").1, NoteReason::Log);
    assert_eq!(
        why("-m hashlimit --hashlimit-upto 5/sec --hashlimit-mode srcip --hashlimit-name x -j ACCEPT").1,
        NoteReason::LimitPerKey
    );
    assert_eq!(
        why("-m hashlimit --hashlimit-upto 512kb/s --hashlimit-name x -j ACCEPT").1,
        NoteReason::Match
    );
}

#[test]
fn chains_are_expanded() {
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
                rule.actions.terminal.unwrap(),
            )
        })
        .collect();
    assert_eq!(
        short,
        [
            (8, ports(&[(80, 90)]), 1, Action::Drop),
            (9, ports(&[(440, 442), (444, 450)]), 1, Action::Reject),
            (5, vec![], 0, Action::Allow),
            (2, vec![], 0, Action::Drop),
        ]
    );
    let [udp] = &imported.notes[..] else { panic!("{:?}", imported.notes) };
    assert_eq!((udp.line, udp.why), (7, NoteReason::NeverFits));
    // After -g, packets do not return to the chain.
    let imported = read(
        IpVersion::V4,
        &[
            "-A FORWARD -p tcp -g WEB",
            "-A FORWARD -p tcp -j ACCEPT",
            "-A WEB -p tcp -m tcp --dport 1 -j ACCEPT",
        ],
    );
    let verdicts: Vec<_> =
        imported.rules.iter().map(|rule| (rule.line, rule.actions.terminal.unwrap())).collect();
    assert_eq!(verdicts, [(6, Action::Allow), (2, Action::Drop), (5, Action::Allow), (2, Action::Drop)]);
    let looped = parse(&file(&["-A FORWARD -j WEB", "-A WEB -j WEB"]), None, &interfaces());
    assert!(matches!(looped, Err(IptablesError::Expand(_))));
}

#[test]
fn other_tables_and_chains_are_noted() {
    let text = "# Generated by ip6tables-save v1.8.9\n*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j LOG\nCOMMIT\n\
                *raw\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n\
                *filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:lost - [0:0]\n\
                -A INPUT -j REJECT\n-A lost -s ::1/128 -m owner --uid-owner 0 -j DROP\nCOMMIT\n";
    let imported = parse(text, None, &interfaces()).unwrap();
    let notes: Vec<_> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "line 4: -j LOG: netvm does not log packets: use the counters of rules, or a mirror",
            "line 10: chain INPUT: only rules for forwarded packets have an equivalent; the chain is skipped",
            "line 13: chain lost: no rule for forwarded packets jumps to this chain; it is skipped",
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
        "line 4, column 15: expected a length or mask after the /, found `10.0.0.0/33`"
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
        "line 4: chain FORWARD occurs twice: import one file at a time"
    );
    assert_eq!(
        error(&[":X MAYBE [0:0]"]),
        "line 4, column 4: expected the policy: ACCEPT, DROP or -, found `MAYBE`"
    );
    let whole = |text: &str| parse(text, None, &interfaces()).unwrap_err().to_string();
    assert_eq!(whole(""), "no table: provide output of iptables-save or ip6tables-save");
    assert_eq!(
        whole("*filter\n:FORWARD DROP [0:0]"),
        "table filter, line 1, has no COMMIT: the text is incomplete"
    );
    assert_eq!(whole("-P FORWARD DROP"), "line 1, column 1: expected a table, as in *filter, found `-P`");
    assert_eq!(
        whole("*filter\nCOMMIT\n*filter\nCOMMIT"),
        "line 3: table filter occurs twice: import one file at a time"
    );
}
