// SPDX-License-Identifier: Apache-2.0
use netvm_model::NatAction;
use netvm_wire::EtherType;
use proptest::prelude::*;

use super::super::algebra::tests::{PORTS, Packet, fits, imported, packets};
use super::*;
use netvm_policy::{Police, Rate};

fn step(line: u32, fits: &[Match], end: End) -> Step {
    Step { end, ..Step::new(line, format!("rule {line}"), fits.to_vec()) }
}

fn chain(name: &str, steps: Vec<Step>) -> Chain {
    Chain { steps, ..Chain::new(name, 1, Some(NoteReason::Unreached)) }
}

fn ip() -> Match {
    Match { ether_type: vec![EtherType::IPV4, EtherType::IPV6], ..Match::default() }
}

fn base(chain: usize, accepts: bool) -> Base {
    Base { chain, line: 1, scope: ip(), accepts, translates: None }
}

/// A model of the kernel: follows the packet.
struct Kernel<'a>(&'a Program);

impl Kernel<'_> {
    fn decide(&self, packet: &Packet) -> Option<Action> {
        let mut met = false;
        for base in self.0.bases.iter().filter(|base| fits(&base.scope, packet)) {
            met = true;
            let terminal = self.chain(base.chain, packet);
            let policy = if base.accepts { Action::Allow } else { Action::Drop };
            match terminal.unwrap_or(policy) {
                Action::Allow => {}
                other => return Some(other),
            }
        }
        met.then_some(Action::Allow)
    }

    fn chain(&self, chain: usize, packet: &Packet) -> Option<Action> {
        for step in self.0.chains[chain].steps.iter() {
            if !step.fits.iter().any(|one| fits(one, packet)) {
                continue;
            }
            match step.end {
                End::Next | End::Unknown => {}
                End::Accept => return Some(Action::Allow),
                End::Drop => return Some(Action::Drop),
                End::Reject => return Some(Action::Reject),
                End::Return => return None,
                End::Goto(to) => return self.chain(to, packet),
                End::Jump(to) => {
                    if let Some(terminal) = self.chain(to, packet) {
                        return Some(terminal);
                    }
                }
            }
        }
        None
    }
}

/// The decision of the expanded rules for a packet.
fn first(rules: &[ImportedRule], packet: &Packet) -> Option<Action> {
    rules.iter().filter(|rule| fits(&rule.matches, packet)).find_map(|rule| rule.actions.terminal)
}

/// Programs of six chains with forward jumps only; the first few are base chains.
fn programs() -> impl Strategy<Value = Program> {
    const CHAINS: usize = 6;
    let end = (0..9usize, 1..CHAINS);
    let one = (prop::collection::vec(imported(), 1..3), end, any::<bool>());
    let chains = prop::collection::vec(prop::collection::vec(one, 0..4), CHAINS);
    (chains, 1..3usize, prop::collection::vec((any::<bool>(), imported()), 3)).prop_map(
        |(chains, bases, policies)| {
            let mut program = Program::default();
            for (index, steps) in chains.into_iter().enumerate() {
                let steps = steps.into_iter().map(|(fits, (kind, ahead), any)| {
                    let to = index + ahead;
                    let end = match kind {
                        0 => End::Next,
                        1 => End::Accept,
                        2 => End::Drop,
                        3 => End::Reject,
                        4 => End::Return,
                        5 | 6 if to < CHAINS => End::Jump(to),
                        7 if to < CHAINS => End::Goto(to),
                        _ => End::Return,
                    };
                    let fits = if any { vec![Match::default()] } else { fits };
                    step(index as u32 + 1, &fits, end)
                });
                program.chains.push(chain(&format!("c{index}"), steps.collect()));
            }
            for (chain, (accepts, scope)) in policies.into_iter().enumerate().take(bases) {
                let scope = Match { ether_type: scope.ether_type, from: scope.from, ..Match::default() };
                program.bases.push(Base { chain, line: 1, scope, accepts, translates: None });
            }
            program
        },
    )
}

proptest! {
    #[test]
    fn expanded_chains_agree_with_the_kernel(
        (program, packets) in programs().prop_flat_map(|program| {
            let near: Vec<_> = program.chains.iter().flat_map(|chain| &chain.steps).flat_map(|step| step.fits.clone()).collect();
            (Just(program), packets(&near))
        })
    ) {
        let Ok(imported) = expand(&program, &PORTS) else { return Ok(()) };
        for packet in &packets {
            prop_assert_eq!(first(&imported.rules, packet), Kernel(&program).decide(packet), "{:?}", packet);
        }
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for chain in &self.chains {
            writeln!(f, "{}: {:#?}", chain.name, chain.steps)?;
        }
        Ok(())
    }
}

impl Clone for Program {
    fn clone(&self) -> Self {
        let chains = self.chains.iter().map(|each| chain(&each.name, each.steps.clone())).collect();
        let bases = self.bases.clone();
        let before =
            self.before.iter().map(|before| Before { scope: before.scope.clone(), ..*before }).collect();
        Self { chains, bases, before }
    }
}

fn tcp(ports: std::ops::RangeInclusive<u16>) -> Match {
    Match {
        ether_type: ip().ether_type,
        protocol: vec![netvm_wire::IpProto::TCP],
        destination_ports: netvm_wire::PortRange::new(*ports.start(), *ports.end()).into_iter().collect(),
        ..Match::default()
    }
}

proptest! {
    /// A chain before the base chains: packets of its first steps are not tracked.
    #[test]
    fn packets_that_are_not_tracked_have_no_state(
        (program, packets) in (programs(), prop::collection::vec(imported(), 1..4)).prop_flat_map(|(mut program, gone)| {
            let near: Vec<_> = program.chains.iter().flat_map(|chain| &chain.steps).flat_map(|step| step.fits.clone()).collect();
            let near = [near, gone.clone()].concat();
            let off = |fits: Match| Step { tracking: Some(Tracking::Off), ..step(9, &[fits], End::Next) };
            let steps = gone.into_iter().map(|fits| off(Match { to: vec![], ..fits })).collect();
            program.before.push(Before { chain: program.chains.len(), scope: ip(), raw: true });
            program.chains.push(chain("raw", steps));
            (Just(program), packets(&near))
        })
    ) {
        let Ok(imported) = expand(&program, &PORTS) else { return Ok(()) };
        if imported.effect() == Effect::Wider {
            return Ok(());
        }
        let raw = &program.chains[program.before[0].chain].steps;
        for packet in &packets {
            let (from, to, mut key) = *packet;
            if fits(&ip(), packet) && raw.iter().any(|step| step.fits.iter().any(|one| fits(one, packet))) {
                key.state = netvm_wire::ConnState::Untracked;
            }
            let expected = Kernel(&program).decide(&(from, to, key));
            prop_assert_eq!(first(&imported.rules, packet), expected, "{:?}", packet);
        }
    }
}

#[test]
fn loops_and_depth_are_refused() {
    let any = [Match::default()];
    let looped = |to| Program {
        chains: vec![chain("a", vec![step(3, &any, End::Jump(1))]), chain("b", vec![step(4, &any, to)])],
        bases: vec![base(0, true)],
        ..Program::default()
    };
    let error = expand(&looped(End::Jump(0)), &[]).unwrap_err();
    assert_eq!(error.to_string(), "line 4: chain a leads back to itself: remove the jump");
    assert!(expand(&looped(End::Goto(1)), &[]).is_err());
    // A loop that no packet reaches is harmless.
    let never = Program {
        chains: vec![chain("a", vec![step(3, &[], End::Jump(0))])],
        bases: vec![base(0, true)],
        ..Program::default()
    };
    assert!(expand(&never, &[]).is_ok());
    let deep = |depth: usize| Program {
        chains: (1..=depth)
            .map(|n| chain("c", vec![step(1, &any, if n < depth { End::Jump(n) } else { End::Drop })]))
            .collect(),
        bases: vec![base(0, true)],
        ..Program::default()
    };
    assert!(expand(&deep(MAX_DEPTH), &[]).is_ok());
    assert!(matches!(expand(&deep(MAX_DEPTH + 1), &[]), Err(ExpandError::TooDeep { .. })));
}

#[test]
fn exponential_growth_is_refused() {
    // 2^40 paths.
    let half = |n: u16| [tcp(n..=n), tcp(1000 + n..=1000 + n)];
    let chains = (0..40usize).map(|n| {
        let end = if n < 39 { End::Jump(n + 1) } else { End::Next };
        chain("c", (0..2).map(|_| step(1, &[Match::default()], end)).collect())
    });
    let program = Program { chains: chains.collect(), bases: vec![base(0, true)], ..Program::default() };
    assert!(matches!(expand(&program, &[]), Err(ExpandError::TooLarge { .. })));
    let many: Vec<Match> = (0..600).flat_map(half).collect();
    let steps = (0..1000).map(|line| step(line, &many, End::Drop)).collect();
    let program =
        Program { chains: vec![chain("c", steps)], bases: vec![base(0, true)], ..Program::default() };
    assert!(matches!(expand(&program, &[]), Err(ExpandError::TooLarge { .. })));
}

#[test]
fn unreachable_rules_are_noted() {
    let any = [Match::default()];
    let program = Program {
        chains: vec![
            chain("a", vec![step(2, &any, End::Jump(1)), step(3, &[], End::Drop)]),
            chain("b", vec![step(5, &any, End::Return), step(6, &any, End::Drop)]),
            chain("c", vec![step(8, &any, End::Drop)]),
            chain("empty", vec![]),
        ],
        bases: vec![base(0, false)],
        ..Program::default()
    };
    let imported = expand(&program, &[]).unwrap();
    let notes: Vec<_> = imported.notes.iter().map(|note| (note.line, note.what.as_str(), note.why)).collect();
    assert_eq!(
        notes,
        [
            (1, "chain c", NoteReason::Unreached),
            (3, "rule 3", NoteReason::NeverFits),
            (6, "rule 6", NoteReason::NeverFits)
        ]
    );
    let [policy] = &imported.rules[..] else { panic!("{:?}", imported.rules) };
    assert_eq!((policy.name.as_str(), policy.actions.terminal), ("policy of a", Some(Action::Drop)));
}

#[test]
fn one_rule_on_transmitted_packets_makes_all_so() {
    let out = Match { to: vec![PortId(2)], ..Match::default() };
    let program = |first: &[Match]| Program {
        chains: vec![chain("a", vec![step(2, &[tcp(80..=80)], End::Accept), step(3, first, End::Drop)])],
        bases: vec![base(0, true)],
        ..Program::default()
    };
    let imported = expand(&program(&[tcp(81..=81)]), &PORTS).unwrap();
    assert!(imported.rules.iter().all(|rule| rule.matches.to.is_empty()) && imported.notes.is_empty());
    let imported = expand(&program(&[out]), &PORTS).unwrap();
    let to: Vec<_> = imported.rules.iter().map(|rule| rule.matches.to.clone()).collect();
    assert_eq!(to, [PORTS.to_vec(), vec![PortId(2)], PORTS.to_vec()]);
    assert_eq!(imported.notes, [Note::new(3, "outgoing interface", NoteReason::Egress)]);
}

#[test]
fn different_limits_are_noted() {
    let police = Some(Police { packets: Some(Rate { per_second: 1, burst: 1 }), bits: None });
    let limited = |fits: &[Match], end| Step { police, ..step(2, fits, end) };
    let notes = |steps: Vec<Step>, accepts| {
        let program =
            Program { chains: vec![chain("a", steps)], bases: vec![base(0, accepts)], ..Program::default() };
        let imported = expand(&program, &[]).unwrap();
        imported.notes.iter().map(|note| note.why).collect::<Vec<_>>()
    };
    let web = [tcp(80..=80)];
    // The file also drops packets beyond the limit.
    assert_eq!(notes(vec![limited(&web, End::Accept)], false), []);
    assert_eq!(notes(vec![limited(&web, End::Accept), step(3, &[tcp(22..=22)], End::Accept)], false), []);
    // The file accepts them.
    assert_eq!(notes(vec![limited(&web, End::Accept)], true), [NoteReason::LimitDrops]);
    assert_eq!(
        notes(vec![limited(&web, End::Accept), step(3, &[tcp(1..=90)], End::Accept)], false),
        [NoteReason::LimitDrops]
    );
    // So does its last base chain, whose packets the first one accepted, although that one drops others.
    let program = Program {
        chains: vec![
            chain("a", vec![step(2, &web, End::Accept)]),
            chain("b", vec![limited(&[Match::default()], End::Accept)]),
        ],
        bases: vec![base(0, false), base(1, true)],
        ..Program::default()
    };
    let imported = expand(&program, &[]).unwrap();
    assert_eq!(imported.notes.iter().map(|note| note.why).collect::<Vec<_>>(), [NoteReason::LimitDrops]);
    // Packets beyond the limit are dropped and the others continue, as in the file.
    assert_eq!(notes(vec![limited(&web, End::Next)], true), []);
    assert_eq!(
        notes(vec![limited(&[tcp(80..=80), tcp(90..=90)], End::Next)], true),
        [NoteReason::LimitSplit(2)]
    );
}

/// The chains of a program translate: what dropped leads to the target `rule`, what rejected to another.
fn translating(mut program: Program) -> Program {
    for (at, step) in program.chains.iter_mut().flat_map(|chain| &mut chain.steps).enumerate() {
        if matches!(step.end, End::Drop | End::Reject) {
            let target = netvm_model::NatTarget { port: Some(at as u16), ..Default::default() };
            let to = netvm_model::DestinationNat { targets: vec![target], health: None };
            (step.end, step.nat) = (End::Accept, Some(NatAction::Destination(to)));
        }
        // Packets that come in do not leave yet.
        step.fits.iter_mut().for_each(|fits| fits.to.clear());
        // Every other step is for packets to the router alone.
        step.local = at.is_multiple_of(2).then(|| "local".to_owned());
    }
    for base in &mut program.bases {
        let scope = Side::scope(base.scope.clone());
        *base = Base { accepts: true, translates: Some(Side::Destination), scope, ..*base };
    }
    program
}

impl Kernel<'_> {
    fn translate(&self, packet: &Packet, is_local: bool) -> Option<NatAction> {
        let entered = self.0.bases.iter().filter(|base| fits(&base.scope, packet));
        entered
            .filter_map(|base| self.translate_in(base.chain, packet, is_local))
            .find(|nat| *nat != NatAction::Keep)
    }

    fn translate_in(&self, chain: usize, packet: &Packet, is_local: bool) -> Option<NatAction> {
        for step in &self.0.chains[chain].steps {
            if !step.fits.iter().any(|one| fits(one, packet)) || (step.local.is_some() && !is_local) {
                continue;
            }
            match step.end {
                End::Accept => return Some(step.nat.clone().unwrap_or_default()),
                End::Return => return None,
                End::Goto(to) => return self.translate_in(to, packet, is_local),
                End::Jump(to) => {
                    if let Some(nat) = self.translate_in(to, packet, is_local) {
                        return Some(nat);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

proptest! {
    #[test]
    fn expanded_chains_translate_as_the_kernel(
        (program, packets) in programs().prop_map(translating).prop_flat_map(|program| {
            let near: Vec<_> = program.chains.iter().flat_map(|chain| &chain.steps).flat_map(|step| step.fits.clone()).collect();
            (Just(program), packets(&near))
        })
    ) {
        let Ok(imported) = expand(&program, &PORTS) else { return Ok(()) };
        if imported.effect() == Effect::Wider {
            return Ok(());
        }
        for (n, (from, to, key)) in packets.iter().enumerate() {
            let packet = &(*from, *to, netvm_wire::FlowKey { state: netvm_wire::ConnState::New, ..*key });
            let is_local = n.is_multiple_of(2);
            let takes = |nat: &&crate::ImportedNat| fits(&nat.matches, packet) && (is_local || !nat.is_local);
            let found = imported.nat.iter().find(takes).map(|nat| nat.action.clone());
            let found = found.filter(|nat| *nat != NatAction::Keep);
            prop_assert_eq!(found, Kernel(&program).translate(packet, is_local), "{:?}", packet);
        }
    }
}
