// SPDX-License-Identifier: Apache-2.0
//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use netlib::sim::Process;
use netlib::{PortId, Verdict};
use netvm_nf_common::testing;
use netvm_workload::rules;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netvm-firewall");

fn spawn(rules: &Path, args: &[&str]) -> Process {
    let mut command = Command::new(PROGRAM);
    command.arg("--rules").arg(rules).args(args);
    Process::spawn(command, &["lan", "wan"], &[]).unwrap()
}

fn verdicts(nf: &mut Process, ingress: u16, frames: &[Vec<u8>]) -> Vec<Verdict> {
    let list: Vec<_> = frames.iter().map(|frame| (PortId(ingress), frame.as_slice())).collect();
    nf.inject_all(&list).unwrap().iter().map(|outcome| outcome.verdict).collect()
}

#[test]
fn the_program_is_stateful_across_threads_and_reloads_its_rules() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("fw.rules");
    std::fs::write(&rules, "allow udp from 10.0.0.0/8 to any port 53 in lan\n").unwrap();
    let mut nf = spawn(&rules, &["--stateful", "--threads", "3"]);
    let pair = |n: u8| (format!("10.0.0.{n}:1000"), format!("192.0.2.{n}:53"));
    let there: Vec<_> = (0..90).map(|n| testing::udp(&pair(n).0, &pair(n).1, b"?")).collect();
    // In another order, so that answers reach other threads than requests.
    let back: Vec<_> = (0..90).rev().map(|n| testing::udp(&pair(n).1, &pair(n).0, b"!")).collect();
    assert_eq!(verdicts(&mut nf, 1, &back), [Verdict::Drop; 90]);
    assert_eq!(verdicts(&mut nf, 0, &there), [Verdict::Next; 90]);
    assert_eq!(verdicts(&mut nf, 1, &back), [Verdict::Next; 90]);

    std::fs::write(&rules, "deny any from any to any\n").unwrap();
    assert!(Command::new("sh").args(["-c", &format!("kill -HUP {}", nf.id())]).status().unwrap().success());
    testing::until("the new rules are used", || verdicts(&mut nf, 0, &there) == [Verdict::Drop; 90]);
    assert!(nf.stop().unwrap().success());
    assert_eq!(nf.counter("rules"), Some(1));
    assert!(nf.counter("allowed").unwrap() >= 90 && nf.counter("established").unwrap() >= 90);
}

#[test]
fn a_wrong_rule_ends_it_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("fw.rules");
    std::fs::write(&rules, "# web\nallow tcp from any to any prot 80\n").unwrap();
    let output = Command::new(PROGRAM).arg("--rules").arg(&rules).output().unwrap();
    let expected = format!(
        "netvm-firewall: {}:2: found `prot`, `port`, `in` or the end of the line expected\n",
        rules.display()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

/// A rule of a ClassBench filter set, parsed without the firewall's code.
struct Filter {
    source: (u32, u32),
    destination: (u32, u32),
    source_ports: (u16, u16),
    destination_ports: (u16, u16),
    protocol: u8,
}

fn filters(text: &str) -> Vec<Filter> {
    let number = |text: &str| text.trim().parse::<u16>().unwrap();
    let net = |text: &str| {
        let (address, length) = text.trim_start_matches('@').split_once('/').unwrap();
        let bits = address.parse::<std::net::Ipv4Addr>().unwrap().to_bits();
        let mask = u32::MAX.checked_shl(32 - u32::from(number(length))).unwrap_or(0);
        (bits & mask, mask)
    };
    let range = |text: &str| {
        let (first, last) = text.split_once(':').unwrap();
        (number(first), number(last))
    };
    let filter = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        let protocol = u8::from_str_radix(&fields[4][2..4], 16).unwrap();
        Filter {
            source: net(fields[0]),
            destination: net(fields[1]),
            source_ports: range(fields[2]),
            destination_ports: range(fields[3]),
            protocol,
        }
    };
    // Only TCP and UDP: other rules have port ranges for protocols without ports.
    text.lines().map(filter).filter(|filter| matches!(filter.protocol, 6 | 17)).collect()
}

#[test]
fn thousands_of_rules_agree_with_a_linear_scan() {
    let filters = filters(&rules::filter_set(&rules::ACL1, 8000, rules::SEED));
    let address = |bits: u32| std::net::Ipv4Addr::from_bits(bits);
    let mut rules = String::new();
    for (n, filter) in filters.iter().enumerate() {
        let (action, protocol) =
            (["allow", "deny"][n % 2], ["tcp", "udp"][usize::from(filter.protocol == 17)]);
        let (from, to) = (address(filter.source.0), address(filter.destination.0));
        let (a, b) = (filter.source.1.count_ones(), filter.destination.1.count_ones());
        let ((c, d), (e, f)) = (filter.source_ports, filter.destination_ports);
        writeln!(rules, "{action} {protocol} from {from}/{a} port {c}-{d} to {to}/{b} port {e}-{f}").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("acl.rules");
    std::fs::write(&file, rules).unwrap();
    let mut nf = spawn(&file, &[]);
    let (mut frames, mut expected) = (Vec::new(), Vec::new());
    for (n, filter) in filters.iter().enumerate().step_by(4) {
        // The filter's corners in turn; earlier rules may match, too.
        let corner = |(first, last): (u16, u16), bit: usize| if n >> bit & 1 == 0 { first } else { last };
        let inside =
            |(bits, mask): (u32, u32), bit: usize| if n >> bit & 1 == 0 { bits } else { bits | !mask };
        let (source, destination) = (inside(filter.source, 4), inside(filter.destination, 5));
        let ports = (corner(filter.source_ports, 2), corner(filter.destination_ports, 3));
        let within = |(first, last): (u16, u16), port: u16| (first..=last).contains(&port);
        let first = filters.iter().position(|other| {
            other.protocol == filter.protocol
                && source & other.source.1 == other.source.0
                && destination & other.destination.1 == other.destination.0
                && within(other.source_ports, ports.0)
                && within(other.destination_ports, ports.1)
        });
        let (from, to) =
            (format!("{}:{}", address(source), ports.0), format!("{}:{}", address(destination), ports.1));
        frames.push(if filter.protocol == 6 {
            testing::tcp(&from, &to, b"")
        } else {
            testing::udp(&from, &to, b"")
        });
        expected.push(if first.unwrap() % 2 == 0 { Verdict::Next } else { Verdict::Drop });
    }
    assert!(filters.len() > 5000 && frames.len() > 1000, "{} rules", filters.len());
    assert_eq!(verdicts(&mut nf, 0, &frames), expected);
    assert!(nf.stop().unwrap().success());
    assert_eq!(nf.counter("rules"), Some(filters.len() as u64));
}
