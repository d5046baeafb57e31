// SPDX-License-Identifier: Apache-2.0
//! Random files of `iptables-save`, decided by a small interpreter of iptables: what an import promises holds.
//!
//! Conditions that netvm does not have, limits included, hold or do not hold by chance (a [`TruthAssignment`]).
//! Imported rules must decide like the file under every assignment; with notes of effect "stricter", they must pass
//! nothing that the file drops. Imports with notes of effect "wider" are refused, and say no more.

use netvm_policy::{Action, PortId};
use netvm_policy_import::iptables::parse;
use netvm_policy_import::{Effect, Imported};
use netvm_wire::{ConnState, EtherType, FlowKey, Fragment, IpProto};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::interfaces;

/// Chains of a file: FORWARD, and those that it may lead to.
const CHAINS: [&str; 4] = ["FORWARD", "ONE", "TWO", "THREE"];
/// Names in rules; the last is not of a port.
const NAMES: [&str; 4] = ["eth0", "eth1", "tap0", "wan"];

/// States that rules name together.
const STATES: [&[ConnState]; 4] = [
    &[ConnState::Related, ConnState::Established],
    &[ConnState::New],
    &[ConnState::Invalid, ConnState::Untracked],
    &[ConnState::Untracked],
];

/// What holds of the conditions that netvm does not have, by their number.
type TruthAssignment = u32;

#[derive(Clone, Copy, Debug)]
enum Fit {
    Source {
        last: u8,
        negated: bool,
    },
    Tcp,
    Dport {
        first: u16,
        last: u16,
        negated: bool,
    },
    Fragment {
        negated: bool,
    },
    In {
        name: usize,
        negated: bool,
    },
    Out {
        name: usize,
    },
    State {
        states: &'static [ConnState],
        negated: bool,
    },
    /// A condition of sets and so on.
    Unknown(u32),
    /// Within a limit.
    Limit(u32),
    /// Beyond a limit.
    Above(u32),
}

#[derive(Clone, Copy, Debug)]
enum Target {
    None,
    Accept,
    Drop,
    Reject,
    Return,
    Jump(usize),
    Goto(usize),
    Log,
    /// A program of the user, which drops or accepts.
    Queue(u32),
}

#[derive(Clone, Debug)]
struct Rule {
    fits: Vec<Fit>,
    target: Target,
}

#[derive(Clone, Debug)]
struct File {
    chains: Vec<Vec<Rule>>,
    accepts: bool,
    is_complete: bool,
}

struct Packet {
    key: FlowKey,
    from: PortId,
    to: PortId,
}

fn fit() -> impl Strategy<Value = Fit> {
    let negated = any::<bool>();
    prop_oneof![
        4 => (0..3u8, negated).prop_map(|(last, negated)| Fit::Source { last, negated }),
        2 => Just(Fit::Tcp),
        4 => (0..4u16, 0..3u16, negated).prop_map(|(first, more, negated)| Fit::Dport { first, last: first + more, negated }),
        1 => negated.prop_map(|negated| Fit::Fragment { negated }),
        2 => (0..24usize, negated).prop_map(|(name, negated)| Fit::In { name: (name / 7).min(3), negated }),
        1 => (0..20usize).prop_map(|name| Fit::Out { name: (name / 6).min(3) }),
        3 => (prop::sample::select(&STATES[..]), negated).prop_map(|(states, negated)| Fit::State { states, negated }),
        1 => Just(Fit::Unknown(0)),
        1 => Just(Fit::Limit(0)),
        1 => Just(Fit::Above(0)),
    ]
}

fn rule(chain: usize) -> impl Strategy<Value = Rule> {
    let target = (0..22usize, 1..CHAINS.len()).prop_map(move |(kind, ahead)| match kind {
        0 => Target::None,
        1..=5 => Target::Accept,
        6..=10 => Target::Drop,
        11 => Target::Reject,
        12..=15 => Target::Return,
        16..=18 if chain + ahead < CHAINS.len() => Target::Jump(chain + ahead),
        19 if chain + ahead < CHAINS.len() => Target::Goto(chain + ahead),
        20 => Target::Log,
        21 => Target::Queue(0),
        _ => Target::Return,
    });
    (prop::collection::vec(fit(), 0..3), target).prop_map(|(fits, target)| Rule { fits, target })
}

/// Files of few rules; each condition that netvm does not have gets a number of its own.
fn files() -> impl Strategy<Value = File> {
    let chain = |chain| prop::collection::vec(rule(chain), 0..5);
    let chains = (chain(0), chain(1), chain(2), chain(3)).prop_map(|(a, b, c, d)| vec![a, b, c, d]);
    (chains, any::<bool>(), any::<bool>()).prop_map(|(mut chains, accepts, is_complete)| {
        let mut next = 0..32;
        let mut number = |of: &mut u32| *of = next.next().unwrap_or(31);
        for rule in chains.iter_mut().flatten() {
            let mut limits = 0;
            rule.fits.retain(|fit| {
                limits += usize::from(matches!(fit, Fit::Limit(_) | Fit::Above(_)));
                limits < 2 || !matches!(fit, Fit::Limit(_) | Fit::Above(_))
            });
            for fit in &mut rule.fits {
                match fit {
                    Fit::Unknown(of) | Fit::Limit(of) | Fit::Above(of) => number(of),
                    _ => {}
                }
            }
            if let Target::Queue(of) = &mut rule.target {
                number(of);
            }
        }
        File { chains, accepts, is_complete }
    })
}

impl File {
    fn text(&self) -> String {
        let policy = if self.accepts { "ACCEPT" } else { "DROP" };
        let mut text = format!("*filter\n:FORWARD {policy} [0:0]\n");
        CHAINS[1..].iter().for_each(|name| text += &format!(":{name} - [0:0]\n"));
        for (name, rules) in CHAINS.iter().zip(&self.chains) {
            rules.iter().for_each(|rule| text += &format!("-A {name}{}\n", rule.text()));
        }
        text + "COMMIT\n"
    }

    /// The condition of a line's limit.
    fn limit(&self, line: u32) -> Option<u32> {
        let first = 2 + CHAINS.len() as u32;
        let rule = self.chains.iter().flatten().nth(line.checked_sub(first)? as usize)?;
        rule.fits.iter().find_map(|fit| match fit {
            Fit::Limit(number) | Fit::Above(number) => Some(*number),
            _ => None,
        })
    }

    /// What iptables does with a packet.
    fn passes(&self, packet: &Packet, assignment: TruthAssignment) -> bool {
        self.verdict(0, packet, assignment).unwrap_or(self.accepts)
    }

    /// The verdict of a chain's rules; `None` if the packet returns.
    fn verdict(&self, chain: usize, packet: &Packet, assignment: TruthAssignment) -> Option<bool> {
        for rule in &self.chains[chain] {
            if !rule.fits.iter().all(|fit| fit.holds(packet, assignment)) {
                continue;
            }
            match rule.target {
                Target::None | Target::Log => {}
                Target::Accept => return Some(true),
                Target::Drop | Target::Reject => return Some(false),
                Target::Return => return None,
                Target::Queue(number) => return Some(holds(assignment, number)),
                Target::Goto(to) => return self.verdict(to, packet, assignment),
                Target::Jump(to) => {
                    if let Some(verdict) = self.verdict(to, packet, assignment) {
                        return Some(verdict);
                    }
                }
            }
        }
        None
    }
}

impl Rule {
    fn text(&self) -> String {
        let not = |negated: &bool| if *negated { " !" } else { "" };
        let has_ports = |fit: &Fit| matches!(fit, Fit::Dport { .. } | Fit::Tcp);
        let mut text = String::new();
        if self.fits.iter().any(has_ports) {
            text += " -p tcp";
        }
        for fit in &self.fits {
            text += &match fit {
                Fit::Source { last, negated } => format!("{} -s 10.0.0.{last}/32", not(negated)),
                Fit::Tcp => String::new(),
                Fit::Dport { first, last, negated } => {
                    format!(" -m tcp{} --dport {first}:{last}", not(negated))
                }
                Fit::Fragment { negated } => format!("{} -f", not(negated)),
                Fit::In { name, negated } => format!("{} -i {}", not(negated), NAMES[*name]),
                Fit::Out { name } => format!(" -o {}", NAMES[*name]),
                Fit::State { states, negated } => {
                    let names: Vec<String> = states.iter().map(|state| state.name().to_uppercase()).collect();
                    format!(" -m conntrack{} --ctstate {}", not(negated), names.join(","))
                }
                Fit::Unknown(_) => " -m conntrack --ctstatus ASSURED".to_owned(),
                Fit::Limit(_) => " -m limit --limit 10/sec".to_owned(),
                Fit::Above(_) => " -m hashlimit --hashlimit-above 10/sec --hashlimit-name x".to_owned(),
            };
        }
        text + &match self.target {
            Target::None => String::new(),
            Target::Accept => " -j ACCEPT".to_owned(),
            Target::Drop => " -j DROP".to_owned(),
            Target::Reject => " -j REJECT".to_owned(),
            Target::Return => " -j RETURN".to_owned(),
            Target::Jump(to) => format!(" -j {}", CHAINS[to]),
            Target::Goto(to) => format!(" -g {}", CHAINS[to]),
            Target::Log => " -j LOG".to_owned(),
            Target::Queue(_) => " -j NFQUEUE --queue-num 0".to_owned(),
        }
    }
}

impl Fit {
    fn holds(&self, packet: &Packet, assignment: TruthAssignment) -> bool {
        let FlowKey { source, protocol, destination_port, fragment, .. } = packet.key;
        let is_tcp = protocol == IpProto::TCP;
        match *self {
            Self::Source { last, negated } => {
                (source.v4_bits() == Some(0x0a00_0000 | u32::from(last))) != negated
            }
            Self::Tcp => is_tcp,
            // Later fragments have no ports, so no rule on ports fits.
            Self::Dport { first, last, negated } => {
                let fits = (first..=last).contains(&destination_port);
                is_tcp && fragment != Fragment::Later && fits != negated
            }
            Self::Fragment { negated } => (fragment == Fragment::Later) != negated,
            Self::In { name, negated } => (usize::from(packet.from.0) == name) != negated,
            Self::Out { name } => usize::from(packet.to.0) == name,
            Self::State { states, negated } => states.contains(&packet.key.state) != negated,
            Self::Unknown(number) | Self::Limit(number) => holds(assignment, number),
            Self::Above(number) => !holds(assignment, number),
        }
    }
}

fn holds(assignment: TruthAssignment, number: u32) -> bool {
    assignment >> number & 1 == 1
}

/// What the imported rules do with a packet: a limit admits it or not.
fn imported_passes(file: &File, imported: &Imported, packet: &Packet, assignment: TruthAssignment) -> bool {
    for rule in &imported.rules {
        let matches = &rule.matches;
        let is_at = |ports: &[PortId], port| ports.is_empty() || ports.contains(&port);
        if !(is_at(&matches.from, packet.from)
            && is_at(&matches.to, packet.to)
            && matches.fits_key(&packet.key))
        {
            continue;
        }
        if rule.actions.police.is_some() {
            let number = file.limit(rule.line).unwrap_or_else(|| panic!("line {} has no limit", rule.line));
            if !holds(assignment, number) {
                return false;
            }
        }
        match rule.actions.terminal {
            Some(Action::Allow) => return true,
            Some(_) => return false,
            None => {}
        }
    }
    true
}

fn packets() -> impl Strategy<Value = Vec<(Packet, TruthAssignment)>> {
    let states = prop::sample::select(ConnState::ALL.to_vec());
    let fields = (0..4u32, any::<bool>(), 0..8u16, 0..3u16, 0..3u16, 0..5u8, states);
    let packet = (fields, any::<TruthAssignment>()).prop_map(
        |((last, tcp, port, from, to, fragment, state), assignment)| {
            let fragment = if fragment == 0 { Fragment::Later } else { Fragment::Whole };
            let is_later = fragment == Fragment::Later;
            let key = FlowKey {
                source: netvm_wire::Address::from_v4_bits(0x0a00_0000 | last),
                ether_type: EtherType::IPV4,
                protocol: if tcp { IpProto::TCP } else { IpProto::UDP },
                destination_port: if is_later { 0 } else { port },
                fragment,
                state,
                ..FlowKey::EMPTY
            };
            (Packet { key, from: PortId(from), to: PortId(to) }, assignment)
        },
    );
    prop::collection::vec(packet, 48)
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} from {} to {}", self.key, self.from.0, self.to.0)
    }
}

#[test]
fn imported_rules_pass_what_the_file_passes() {
    let mut found = [0; 3];
    let counts = std::cell::RefCell::new(&mut found);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
    let checked = TestRunner::new(config).run(&(files(), packets()), |(file, packets)| {
        let text = file.text();
        let ports = if file.is_complete { interfaces().complete() } else { interfaces() };
        let imported = parse(&text, None, &ports).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let effect = imported.effect();
        counts.borrow_mut()[effect as usize] += 1;
        if effect == Effect::Wider {
            return Ok(());
        }
        for (packet, assignment) in &packets {
            let (real, ours) =
                (file.passes(packet, *assignment), imported_passes(&file, &imported, packet, *assignment));
            let right = real == ours || (effect == Effect::Stricter && !ours);
            let (rules, notes) = (&imported.rules, &imported.notes);
            prop_assert!(right, "{packet:?} in world {assignment:032b}\n{text}\n{rules:#?}\n{notes:#?}");
        }
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    // Same, stricter, refused.
    assert!(found.iter().all(|count| *count > 20), "{found:?}");
}
