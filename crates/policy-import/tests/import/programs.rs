// SPDX-License-Identifier: Apache-2.0
//! Real output of nft and iptables for the same rules, in a network namespace: both imports agree. Skipped without the
//! programs or privileges.

use std::io::Write as _;
use std::process::{Command, Stdio};

use netvm_policy::{Action, Actions, Match, PortId};
use netvm_policy_import::{Imported, Interfaces, IpVersion, NoteReason, iptables, nft};

/// Rules of chain FORWARD in both languages.
const IPV4: [(&str, &str); 25] = [
    ("-s 10.0.0.0/8 -p tcp -m tcp --dport 80:90 -j ACCEPT", "ip saddr 10.0.0.0/8 tcp dport 80-90 accept"),
    ("! -d 192.168.0.0/16 -j DROP", "ip daddr != 192.168.0.0/16 drop"),
    ("-m iprange --src-range 10.0.0.1-10.0.0.9 -j DROP", "ip saddr 10.0.0.1-10.0.0.9 drop"),
    ("-p udp -m udp ! --sport 53 -j DROP", "udp sport != 53 drop"),
    ("-p udp -m udp --dport 0:1023 -j DROP", "udp dport < 1024 drop"),
    ("-p tcp -m multiport --dports 22,80:90,443 -j ACCEPT", "tcp dport { 22, 80-90, 443 } accept"),
    ("-p sctp -m sctp --dport 9 -j DROP", "sctp dport 9 drop"),
    ("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", "tcp flags & (fin|syn|rst|ack) == syn drop"),
    ("-p tcp -m tcp ! --tcp-flags SYN,ACK SYN -j DROP", "tcp flags & (syn|ack) != syn drop"),
    ("-p icmp -m icmp --icmp-type 8 -j ACCEPT", "icmp type echo-request accept"),
    ("-p icmp -m icmp --icmp-type 0 -j ACCEPT", "icmp type echo-reply accept"),
    ("! -p tcp -j DROP", "ip protocol != tcp drop"),
    ("-p esp -j DROP", "ip protocol esp drop"),
    ("-f -j DROP", "ip frag-off & 0x1fff != 0 drop"),
    ("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "ct state related,established accept"),
    ("-m conntrack ! --ctstate NEW,UNTRACKED -j DROP", "ct state != { new, untracked } drop"),
    ("-m conntrack --ctstate INVALID -j DROP", "ct state invalid drop"),
    ("-m dscp --dscp 0x2e -j ACCEPT", "ip dscp ef accept"),
    ("-m mac --mac-source 00:11:22:33:44:55 -j DROP", "ether saddr 00:11:22:33:44:55 drop"),
    ("-i eth0 -o eth1 -j ACCEPT", "iifname \"eth0\" oifname \"eth1\" accept"),
    ("! -i eth+ -j DROP", "iifname != \"eth*\" drop"),
    (
        "-p udp -m limit --limit 10/sec -j ACCEPT",
        "ip protocol udp limit rate 10/second burst 5 packets accept",
    ),
    (
        "-p tcp -m comment --comment \"no \\\"telnet\\\"\" -j REJECT --reject-with tcp-reset",
        "ip protocol tcp reject with tcp reset",
    ),
    ("-s 10.0.0.0/8 -p tcp -j WEB", "ip saddr 10.0.0.0/8 ip protocol tcp jump WEB"),
    ("-p tcp -g WEB", "ip protocol tcp goto WEB"),
];

const WEB: [(&str, &str); 3] = [
    ("-p tcp -m tcp --dport 443 -j RETURN", "tcp dport 443 return"),
    ("-p tcp -m tcp --sport 1024:65535 -j ACCEPT", "tcp sport >= 1024 accept"),
    ("-s 10.1.0.0/16 -j DROP", "ip saddr 10.1.0.0/16 drop"),
];

const IPV6: [(&str, &str); 4] = [
    ("-s 2001:db8::/32 -p tcp -m tcp --dport 80 -j DROP", "ip6 saddr 2001:db8::/32 tcp dport 80 drop"),
    ("-p ipv6-icmp -m icmp6 --icmpv6-type 135 -j ACCEPT", "icmpv6 type nd-neighbor-solicit accept"),
    ("! -s fe80::/10 -j DROP", "ip6 saddr != fe80::/10 drop"),
    ("-p udp -m udp --sport 53 -j ACCEPT", "udp sport 53 accept"),
];

fn interfaces() -> Interfaces {
    Interfaces::new([("eth0", PortId(0)), ("eth1", PortId(1)), ("tap0", PortId(2))])
}

/// Runs a script in a new network namespace with `input` on standard input; `None` if that is impossible here.
fn in_namespace(programs: &[&str], script: &str, input: &str) -> Option<String> {
    for program in programs {
        let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().ok()?;
        if !there.status.success() {
            println!("SKIP: {program} is not installed");
            return None;
        }
    }
    let can = Command::new("unshare").args(["-n", "true"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("SKIP: no privilege to create a network namespace");
        return None;
    }
    let mut child = Command::new("unshare")
        .args(["-n", "sh", "-ec", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success()
        && (error.contains("not supported")
            || error.contains("not permitted")
            || error.contains("Could not fetch rule set generation"))
    {
        println!("SKIP: not supported by the kernel: {error}");
        return None;
    }
    assert!(output.status.success(), "{error}\n{input}");
    Some(String::from_utf8(output.stdout).unwrap())
}

fn rules(list: &[(&str, &str)], chain: &str) -> String {
    list.iter().map(|(options, _)| format!("-A {chain} {options}\n")).collect()
}

fn saved(forward: &[(&str, &str)], web: &[(&str, &str)]) -> String {
    let rules = rules(forward, "FORWARD") + &rules(web, "WEB");
    format!(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:WEB - [0:0]\n{rules}COMMIT\n"
    )
}

fn listed(family: &str, forward: &[(&str, &str)], web: &[(&str, &str)]) -> String {
    let rules = |list: &[(&str, &str)]| list.iter().map(|(_, rule)| format!("{rule}\n")).collect::<String>();
    format!(
        "table {family} t {{\nchain WEB {{\n{}}}\nchain FORWARD {{\ntype filter hook forward priority 0; policy drop;\n{}}}\n}}\n",
        rules(web),
        rules(forward)
    )
}

/// The rules without their lines.
fn meaning(imported: &Imported) -> Vec<(Match, Actions)> {
    imported.rules.iter().map(|rule| (rule.matches.clone(), rule.actions)).collect()
}

fn read_back(programs: [&str; 2], version: IpVersion, forward: &[(&str, &str)], web: &[(&str, &str)]) {
    let [restore, save] = programs;
    let text = saved(forward, web);
    let written = iptables::parse(&text, Some(version), &interfaces()).unwrap();
    for counters in ["", " -c"] {
        let script = format!("{restore}; {save}{counters}");
        let Some(printed) = in_namespace(&programs, &script, &text) else { return };
        let read = iptables::parse(&printed, None, &interfaces())
            .unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(meaning(&read), meaning(&written), "{printed}");
        let names =
            |imported: &Imported| imported.rules.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&read), names(&written));
    }
}

#[test]
fn output_of_iptables_is_parsed() {
    read_back(["iptables-restore", "iptables-save"], IpVersion::V4, &IPV4, &WEB);
}

#[test]
fn output_of_ip6tables_is_parsed() {
    read_back(["ip6tables-restore", "ip6tables-save"], IpVersion::V6, &IPV6, &[]);
}

#[test]
fn nft_and_iptables_agree() {
    for (family, version, forward, web) in
        [("ip", IpVersion::V4, &IPV4[..], &WEB[..]), ("ip6", IpVersion::V6, &IPV6[..], &[])]
    {
        let script = "nft -f /dev/stdin; nft -j list ruleset";
        let Some(json) = in_namespace(&["nft"], script, &listed(family, forward, web)) else { return };
        let from_nft = nft::parse(&json, &interfaces()).unwrap_or_else(|error| panic!("{error}\n{json}"));
        let from_iptables = iptables::parse(&saved(forward, web), Some(version), &interfaces()).unwrap();
        let (left, right) = (meaning(&from_nft), meaning(&from_iptables));
        for (left, right) in left.iter().zip(&right) {
            assert_eq!(left, right);
        }
        assert_eq!(left.len(), right.len());
        let whys = |imported: &Imported| imported.notes.iter().map(|note| note.why).collect::<Vec<_>>();
        assert_eq!(whys(&from_nft), whys(&from_iptables));
    }
}

/// Sets, maps, concatenations and families that iptables lacks.
#[test]
fn output_of_nft_is_parsed() {
    let text = "table inet f {
        set nets { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 172.16.0.1-172.16.0.9 } }
        set pairs { type ipv4_addr . inet_service; elements = { 192.0.2.1 . 80 } }
        map verdicts { type inet_service : verdict; elements = { 22 : accept, 23 : drop } }
        limit slow { rate 10/second burst 5 packets }
        chain forward {
            type filter hook forward priority 0; policy accept;
            ct state established,related accept
            ct status assured accept
            ip saddr @nets udp dport 53 drop comment \"no names\"
            ip saddr . tcp dport @pairs accept
            tcp dport vmap @verdicts
            tcp dport vmap { 80 : accept, 90-99 : drop }
            meta nfproto ipv6 udp dport != { 53, 123 } drop
            tcp flags syn limit name \"slow\" accept
            limit rate over 10 mbytes/second burst 100 kbytes drop
            log prefix \"x\" drop
        }
    }
    table bridge b {
        chain forward {
            type filter hook forward priority 0; policy accept;
            ether type arp arp operation request accept
            vlan id { 5, 7-9 } ip saddr 10.0.0.1 drop
            ether daddr & 01:00:00:00:00:00 == 01:00:00:00:00:00 drop
            meta pkttype multicast drop
        }
    }";
    let Some(json) = in_namespace(&["nft"], "nft -f /dev/stdin; nft -j list ruleset", text) else { return };
    let imported = nft::parse(&json, &interfaces()).unwrap_or_else(|error| panic!("{error}\n{json}"));
    let mut whys: Vec<_> = imported.notes.iter().map(|note| note.why).collect();
    whys.sort_by_key(|why| format!("{why:?}"));
    assert_eq!(
        whys,
        [
            NoteReason::BridgeAndIp,
            NoteReason::ConnectionState,
            NoteReason::LimitBytes,
            NoteReason::Log,
            NoteReason::Match
        ]
    );
    let drops: Vec<_> =
        imported.rules.iter().filter(|rule| rule.actions.terminal == Some(Action::Drop)).collect();
    let named = drops.iter().find(|rule| rule.name == "no names").unwrap();
    let nets: Vec<String> = named.matches.source.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["10.0.0.0/8", "172.16.0.1/32", "172.16.0.2/31", "172.16.0.4/30", "172.16.0.8/31"]);
    // ARP requests and what the bridge chain accepts go through the other chain if they are IP.
    assert_eq!(imported.rules[0].matches.arp_operation.len(), 1);
    assert_eq!(imported.rules[0].actions.terminal, Some(Action::Allow));
}
