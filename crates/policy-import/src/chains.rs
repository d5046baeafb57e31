// SPDX-License-Identifier: Apache-2.0
//! Expands chains of rules with jumps to one list in which the first match decides.
//!
//! A rule of a chain applies to packets that reach the chain and fit. Packets that return from a chain are excluded
//! from its later rules; accepted packets go to the next base chain, if any, else they are allowed. Every step becomes
//! rules or a note. A step whose packets are not known exactly is left out, with a note of what that means (`effects`).

mod differences;
mod effects;
mod error;
mod nat;
mod program;
mod tracking;

use differences::{Made, Origin};
pub use error::{ExpandError, MAX_DEPTH, MAX_RULES, MAX_VALUES};
pub(super) use nat::Side;
pub(super) use program::{Base, Chain, End, Program, Step};
pub(super) use tracking::{Before, Tracking};

use super::algebra::{covers, product, without};
use super::{Effect, Imported, ImportedRule, Note, NoteReason};
use netvm_policy::{Action, Actions, Match, PortId};

/// Most matches to describe the packets at one point of a chain.
const MAX_LIVE: usize = 1 << 14;

/// Expands the chains. `ports`: all ports.
pub(super) fn expand(program: &Program, ports: &[PortId]) -> Result<Imported, ExpandError> {
    let reached = program.chains.iter().map(|chain| vec![false; chain.steps.len()]).collect();
    let entered = vec![false; program.chains.len()];
    let mut writer = Writer {
        program,
        ports,
        verdicts: effects::verdicts(program),
        out: Imported::default(),
        made: vec![],
        expansions: vec![],
        expansion: 0,
        values: 0,
        steps: 0,
        stack: vec![],
        depth: 0,
        reached,
        entered,
        side: None,
        is_local: false,
    };
    writer.bases_from(0, &[Match::default()])?;
    writer.nat()?;
    Ok(writer.finish())
}

/// A step, on one of the ways that lead to it.
#[derive(Clone, Copy)]
struct StepPosition {
    base: usize,
    chain: usize,
    at: usize,
    /// The chain is the base chain.
    outermost: bool,
}

/// A step that decides, and its packets.
#[derive(Clone, Copy)]
struct Deciding<'a> {
    chain: usize,
    step: &'a Step,
    /// The step that the rules are of.
    origin: Origin,
    live: &'a [Match],
}

struct Writer<'a> {
    program: &'a Program,
    ports: &'a [PortId],
    /// What the rules of each chain may do.
    verdicts: Vec<effects::Verdicts>,
    out: Imported,
    /// By rule.
    made: Vec<Made>,
    /// The base chain of each expansion: those after the first are expanded for what each step before accepts.
    expansions: Vec<usize>,
    /// The current expansion.
    expansion: usize,
    values: usize,
    steps: usize,
    /// The chains entered from the current base chain.
    stack: Vec<usize>,
    /// Nesting depth, earlier base chains included.
    depth: usize,
    reached: Vec<Vec<bool>>,
    entered: Vec<bool>,
    /// What the current base chains translate.
    side: Option<Side>,
    /// The current packets are all addressed to the router itself.
    is_local: bool,
}

impl<'a> Writer<'a> {
    /// Expands the base chains from `first` on for the packets that earlier ones accepted; true if all are decided.
    fn bases_from(&mut self, first: usize, live: &[Match]) -> Result<bool, ExpandError> {
        let program = self.program;
        let side = self.side;
        let of_side = |(_, base): &(usize, &Base)| base.translates == side;
        for (index, base) in program.bases.iter().enumerate().skip(first).filter(of_side) {
            let mut here = product(live, std::slice::from_ref(&base.scope));
            // Packets in the scope of an earlier chain have been handled already.
            let before = || program.bases[first..index].iter().filter(|base| base.translates == side);
            here.retain(|here| !before().any(|before| covers(&before.scope, here)));
            if here.is_empty() {
                continue;
            }
            self.expansions.push(index);
            let outer = std::mem::replace(&mut self.expansion, self.expansions.len() - 1);
            if !self.walk(index, base.chain, base.line, here.clone())? {
                self.policy(index, &here)?;
            }
            self.expansion = outer;
            if live.iter().all(|live| covers(&base.scope, live)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn policy(&mut self, base: usize, live: &[Match]) -> Result<(), ExpandError> {
        let program = self.program;
        let Base { chain, line, accepts, .. } = program.bases[base];
        let name = format!("policy of {}", program.chains[chain].name);
        let end = if accepts { End::Accept } else { End::Drop };
        let step = Step { name, end, ..Step::new(line, "", vec![]) };
        self.decide(base, Deciding { chain, step: &step, origin: None, live })
    }

    /// Expands a chain for the packets that enter it; true if all are decided.
    fn walk(
        &mut self,
        base: usize,
        index: usize,
        from: u32,
        mut live: Vec<Match>,
    ) -> Result<bool, ExpandError> {
        let program: &'a Program = self.program;
        let chain = &program.chains[index];
        let outermost = self.stack.is_empty();
        if self.stack.contains(&index) {
            return Err(ExpandError::Loop { line: from, chain: chain.name.clone() });
        }
        if self.depth >= MAX_DEPTH {
            return Err(ExpandError::TooDeep { line: from, chain: chain.name.clone() });
        }
        self.stack.push(index);
        self.depth += 1;
        self.entered[index] = true;
        // Whether all packets that did not return are decided, and whether some returned.
        let (mut decided, mut returned) = (false, false);
        let were_local = self.is_local;
        for (at, step) in chain.steps.iter().enumerate() {
            self.steps += 1;
            let here = product(&live, &step.fits);
            if here.len() > MAX_RULES || self.steps > MAX_RULES {
                return Err(self.too_large(step.line, index));
            }
            if here.is_empty() {
                continue;
            }
            self.reached[index][at] = true;
            let all = here == live && (were_local || step.local.is_none());
            let position = StepPosition { base, chain: index, at, outermost };
            self.is_local = were_local;
            if let Some((what, why, end)) = self.unsure(step, outermost) {
                let effect = match why {
                    // The user forgot a port.
                    NoteReason::Interface if end != End::Next => Effect::Wider,
                    _ => self.effect_of_skipping(position, end, &here),
                };
                self.note(Note::new(step.line, what, why).with(effect));
                continue;
            }
            self.is_local |= step.local.is_some();
            match step.end {
                End::Accept | End::Return
                    if outermost && step.police.is_some() && program.bases[base].accepts =>
                {
                    let accepting = Step { end: End::Accept, ..step.clone() };
                    let origin = Some((index, at));
                    self.decide(base, Deciding { chain: index, step: &accepting, origin, live: &here })?;
                    decided |= all;
                }
                End::Return if step.police.is_some() => {
                    if outermost || !self.rest_drops(position, &here) {
                        let effect = self.effect_of_skipping(position, step.end, &here);
                        self.note(Note::new(step.line, &step.what, NoteReason::LimitUse).with(effect));
                        continue;
                    }
                    // Packets beyond the limit are dropped; others return.
                    let policing = Step { end: End::Next, ..step.clone() };
                    let origin = Some((index, at));
                    self.decide(base, Deciding { chain: index, step: &policing, origin, live: &here })?;
                    live = self.leave(live, position, &here)?;
                    returned = true;
                }
                End::Next | End::Accept | End::Drop | End::Reject => {
                    let origin = Some((index, at));
                    self.decide(base, Deciding { chain: index, step, origin, live: &here })?;
                    decided |= all && step.end != End::Next;
                }
                End::Return if outermost => {
                    self.policy(base, &here)?;
                    decided |= all;
                }
                End::Return => {
                    live = self.leave(live, position, &here)?;
                    returned = true;
                }
                End::Jump(to) => decided |= self.walk(base, to, step.line, here)? && all,
                End::Goto(to) => {
                    let done = self.walk(base, to, step.line, here.clone())?;
                    if outermost {
                        if !done {
                            self.policy(base, &here)?;
                        }
                        decided |= all;
                    } else {
                        live = self.leave(live, position, &here)?;
                        decided |= all;
                        returned |= !done;
                    }
                }
                End::Unknown => {
                    let effect = self.effect_of_skipping(position, step.end, &here);
                    self.note(Note::new(step.line, &step.what, NoteReason::Action).with(effect));
                }
            }
        }
        self.is_local = were_local;
        self.stack.pop();
        self.depth -= 1;
        Ok(decided && !returned)
    }

    /// The packets that remain in a chain after a step's packets, `here`, have left.
    fn leave(
        &mut self,
        live: Vec<Match>,
        position: StepPosition,
        here: &[Match],
    ) -> Result<Vec<Match>, ExpandError> {
        let step = &self.program.chains[position.chain].steps[position.at];
        if live.iter().any(|live| live.ether_type.is_empty())
            && step.fits.iter().any(|fits| !fits.ether_type.is_empty())
        {
            let effect = self.effect_of_skipping(position, End::Return, here);
            self.note(Note::new(step.line, &step.what, NoteReason::Opposite).with(effect));
            return Ok(live);
        }
        without(&live, &step.fits, self.ports, MAX_LIVE)
            .ok_or_else(|| self.too_large(step.line, position.chain))
    }

    /// Writes the rules of a deciding step.
    fn decide(&mut self, base: usize, deciding: Deciding<'_>) -> Result<(), ExpandError> {
        let Deciding { step, live, .. } = deciding;
        if self.side.is_some() {
            return self.decide_translation(base, deciding);
        }
        let more = self.has_later(base);
        let terminal = match step.end {
            End::Drop => Some(Action::Drop),
            End::Reject => Some(Action::Reject),
            End::Accept if !more => Some(Action::Allow),
            _ => None,
        };
        let actions = Actions { terminal, police: step.police, ..Actions::default() };
        // A rule without actions counts packets.
        if actions != Actions::default() || step.end == End::Next {
            self.emit(deciding, actions)?;
        }
        if step.end == End::Accept && more {
            // Allowed if no later base chain has such packets in its scope.
            if !self.later_decide(base, live)? {
                let actions = Actions { terminal: Some(Action::Allow), ..Actions::default() };
                self.emit(deciding, actions)?;
            }
        }
        Ok(())
    }

    /// Whether later base chains of the same side follow.
    fn has_later(&self, base: usize) -> bool {
        self.program.bases.iter().skip(base + 1).any(|later| later.translates == self.side)
    }

    /// Lets later base chains decide on packets; true if they decide on all.
    fn later_decide(&mut self, base: usize, live: &[Match]) -> Result<bool, ExpandError> {
        let stack = std::mem::take(&mut self.stack);
        let decided = self.bases_from(base + 1, live)?;
        self.stack = stack;
        Ok(decided)
    }

    /// Counts the values of one more rule.
    fn grow(&mut self, deciding: &Deciding<'_>, matches: &Match) -> Result<(), ExpandError> {
        self.values += values(matches);
        let rules = self.out.rules.len() + self.out.nat.len();
        if rules >= MAX_RULES || self.values > MAX_VALUES {
            return Err(self.too_large(deciding.step.line, deciding.chain));
        }
        Ok(())
    }

    fn emit(&mut self, deciding: Deciding<'_>, actions: Actions) -> Result<(), ExpandError> {
        let Deciding { step, origin, live, .. } = deciding;
        for matches in live {
            self.grow(&deciding, matches)?;
            let name = step.name.clone();
            let matches = matches.clone();
            self.out.rules.push(ImportedRule { line: step.line, name, matches, actions, selection: None });
            self.made.push(Made { step: origin, expansion: self.expansion });
        }
        Ok(())
    }

    fn too_large(&self, line: u32, chain: usize) -> ExpandError {
        ExpandError::TooLarge { line, chain: self.program.chains[chain].name.clone() }
    }

    /// Adds a note, once for all places where its chain is expanded, with the widest effect.
    fn note(&mut self, note: Note) {
        let is_same =
            |known: &&mut Note| (known.line, &known.what, known.why) == (note.line, &note.what, note.why);
        match self.out.notes.iter_mut().find(is_same) {
            Some(known) => known.effect = known.effect.max(note.effect),
            None => self.out.notes.push(note),
        }
    }
}

fn values(matches: &Match) -> usize {
    1 + matches.from.len()
        + matches.to.len()
        + matches.source_mac.len()
        + matches.destination_mac.len()
        + matches.source.len()
        + matches.destination.len()
        + matches.protocol.len()
        + matches.source_ports.len()
        + matches.destination_ports.len()
        + matches.vlan.len()
        + matches.dscp.len()
        + matches.icmp_type.len()
}

#[cfg(test)]
mod tests;
