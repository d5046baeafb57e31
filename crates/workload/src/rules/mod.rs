// SPDX-License-Identifier: Apache-2.0
//! Rule sets in ClassBench's format, most specific rules first.
//!
//! In: a flavour, a number of rules and a seed. Out: a rule a line: `@source/length`, `destination/length`, `port :
//! port` twice, `protocol/mask` and `flags/mask`, separated by tabs. No two lines are equal, but rules can differ in
//! their flags only, overlap, and hide each other, as in real sets.

mod addresses;
mod flavours;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use self::addresses::Tree;
use self::flavours::Class;
pub use self::flavours::{ACL1, ACL2, FW1, FW2, Flavour, IPC1};
use crate::random::{Random, mix};

/// The seed of the [`standard_sets`].
pub const SEED: u64 = 1;
/// A rule is drawn at most as often as this for each rule wanted: a flavour's addresses may not suffice for more.
const DRAWS: usize = 200;
/// How far a rule may be from its place in the order of specificity, in bits: some rules hide later ones.
const DISORDER: u64 = 14;

/// The sets that tests use: name and text.
#[must_use]
pub fn standard_sets() -> Vec<(String, String)> {
    let sets = [(ACL1, 1000), (ACL1, 8000), (ACL2, 1000), (FW1, 1000), (FW2, 1000), (IPC1, 1000)];
    sets.map(|(flavour, count)| {
        (format!("{}_{}k", flavour.name, count / 1000), filter_set(&flavour, count, SEED))
    })
    .to_vec()
}

/// A rule set of a flavour; fewer rules than `count` (at least 64) if its addresses do not suffice for more.
#[must_use]
pub fn filter_set(flavour: &Flavour, count: usize, seed: u64) -> String {
    let mut random = Random::new(seed);
    // Each time that a set has twice as many rules, the sources have two more levels with both branches: it names more
    // networks. Destinations stay: they are the site's servers.
    let wide = 2 * (count / 1000).max(1).ilog2();
    let [sources, destinations] = flavour.branching;
    let trees = [(sources, wide), (destinations, 0)];
    let trees = trees.map(|(branching, wide)| Tree::new(random.bits(), branching, wide));
    let mut known = HashSet::new();
    let mut rules: Vec<(u64, String)> = Vec::with_capacity(count);
    for _ in 0..count * DRAWS {
        if rules.len() == count {
            break;
        }
        let rule = Rule::draw(flavour, &trees, &mut random);
        let line = rule.line();
        if known.insert(line.clone()) {
            rules.push((rule.specificity() + random.below(DISORDER), line));
        }
    }
    // A stable sort: rules that are as specific stay in the order in which they were drawn.
    rules.sort_by_key(|(specificity, _)| u64::MAX - specificity);
    rules.into_iter().map(|(_, line)| line).collect()
}

struct Rule {
    nets: [(u32, u8); 2],
    ports: [(u16, u16); 2],
    protocol: Option<u8>,
    flags: (u16, u16),
}

impl Rule {
    fn draw(flavour: &Flavour, trees: &[Tree; 2], random: &mut Random) -> Self {
        let protocol = *random.weighted(flavour.protocols);
        let has_ports = matches!(protocol, Some(6 | 17)) || flavour.has_ports_anywhere && protocol.is_some();
        let classes = *random.weighted(flavour.ports);
        let (first, second) = if has_ports { classes } else { (Class::Any, Class::Any) };
        let ports = [(first, 0), (second, 1)].map(|(class, side)| match class {
            Class::Any => (0, u16::MAX),
            Class::High => (1024, u16::MAX),
            Class::Exact => {
                let port = *random.weighted(flavour.exact[side]);
                (port, port)
            }
            Class::Range => *random.weighted(flavour.ranges),
        });
        let [a, b, c, d] = *random.weighted(flavour.lengths);
        let source = trees[0].address(random);
        let mut destination = trees[1].address(random);
        if random.per_mille(flavour.local) {
            destination = source & 0xffff_0000 | destination & 0xffff;
        }
        // A network has one length wherever it is named with one of this range.
        let length = |address: u32, first: u8, last: u8| {
            first + (mix(address.into()) % u64::from(last - first + 1)) as u8
        };
        let lengths = [length(source, a, b), length(destination, c, d)];
        let net =
            |address: u32, length: u8| (address & u32::MAX.unbounded_shl(32 - u32::from(length)), length);
        let flags = match protocol {
            Some(6) => *random.weighted(flavour.tcp_flags),
            Some(1) => *random.weighted(flavour.icmp),
            _ => (0, 0),
        };
        Self { nets: [net(source, lengths[0]), net(destination, lengths[1])], ports, protocol, flags }
    }

    /// Bits that the rule fixes.
    fn specificity(&self) -> u64 {
        let ports =
            self.ports.map(|(first, last)| u64::from((u32::from(last - first) + 1).leading_zeros()) - 15);
        let nets = self.nets.map(|(_, length)| u64::from(length));
        ports.iter().sum::<u64>() + nets.iter().sum::<u64>() + if self.protocol.is_some() { 8 } else { 0 }
    }

    fn line(&self) -> String {
        let mut line = String::from("@");
        for (bits, length) in self.nets {
            // Writing to a String does not fail.
            let _ = write!(line, "{}/{length}\t", Ipv4Addr::from_bits(bits));
        }
        for (first, last) in self.ports {
            let _ = write!(line, "{first} : {last}\t");
        }
        let (protocol, mask) = self.protocol.map_or((0, 0), |protocol| (protocol, 0xff));
        let _ =
            writeln!(line, "0x{protocol:02x}/0x{mask:02X}\t0x{:04x}/0x{:04x}\t", self.flags.0, self.flags.1);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares in 1,000 of the lines whose field `column` satisfies `is`.
    fn share(text: &str, column: usize, is: impl Fn(&str) -> bool) -> usize {
        let lines: Vec<&str> = text.lines().collect();
        let count = lines.iter().filter(|line| line.split('\t').nth(column).is_some_and(&is)).count();
        count * 1000 / lines.len()
    }

    fn distinct(text: &str, columns: std::ops::Range<usize>) -> usize {
        let keys = text
            .lines()
            .map(|line| line.split('\t').skip(columns.start).take(columns.len()).collect::<Vec<_>>());
        keys.collect::<HashSet<_>>().len()
    }

    #[test]
    fn sets_are_complete_and_repeatable() {
        for (name, text) in standard_sets() {
            let wanted = if name.ends_with("8k") { 8000 } else { 1000 };
            assert_eq!(text.lines().count(), wanted, "{name}");
            assert!(text.lines().all(|line| line.split('\t').count() == 7), "{name}");
        }
        assert_eq!(filter_set(&IPC1, 500, 7), filter_set(&IPC1, 500, 7));
        assert_ne!(filter_set(&IPC1, 500, 7), filter_set(&IPC1, 500, 8));
    }

    /// Against the published sets (VPP-ACL's `Ruleset/`): what decides the cost of a classifier.
    #[test]
    fn shapes_are_those_of_the_published_sets() {
        let sets = standard_sets();
        let of = |name: &str| &sets.iter().find(|(other, _)| other == name).unwrap().1;
        // (name, distinct sources, distinct destinations, share of TCP, share of any protocol)
        let published = [
            ("acl1_1k", 61, 380, 873, 82),
            ("acl1_8k", 2524, 700, 871, 84),
            ("acl2_1k", 271, 449, 455, 446),
            ("fw1_1k", 120, 130, 526, 12),
            ("fw2_1k", 832, 375, 0, 232),
            ("ipc1_1k", 335, 460, 267, 358),
        ];
        for (name, sources, destinations, tcp, any) in published {
            let text = of(name);
            let near = |ours: usize, theirs: usize| ours * 3 >= theirs && ours <= theirs * 3;
            let (s, d) = (distinct(text, 0..1), distinct(text, 1..2));
            println!("{name}: {s} sources ({sources}), {d} destinations ({destinations})");
            assert!(near(s, sources) && near(d, destinations), "{name}: {s} {d}");
            assert!(share(text, 4, |it| it.starts_with("0x06")).abs_diff(tcp) < 50, "{name}");
            assert!(share(text, 4, |it| it == "0x00/0x00").abs_diff(any) < 50, "{name}");
        }
        // Some rules differ in their flags only, as published ones do.
        assert!(distinct(of("acl1_1k"), 0..5) < 1000);
    }
}
