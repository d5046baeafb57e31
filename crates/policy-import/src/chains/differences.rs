// SPDX-License-Identifier: Apache-2.0
//! Notes about differences of the expanded rules: unreachable rules, limits that behave differently, rules on
//! transmitted packets.

use std::collections::BTreeMap;

use super::{End, Writer};
use crate::algebra::{covers, intersect};
use crate::{Effect, Imported, Note, NoteReason};
use netvm_policy::Action;

/// Number of later rules examined for packets beyond a limit.
const LOOK_AHEAD: usize = 128;

/// The step that made a rule: chain and index; `None` for policies.
pub(super) type Origin = Option<(usize, usize)>;

/// What made a rule.
#[derive(Clone, Copy)]
pub(super) struct Made {
    pub(super) step: Origin,
    /// The expansion of a base chain that the step is in.
    pub(super) expansion: usize,
}

impl Writer<'_> {
    /// Returns the rules and the notes.
    pub(super) fn finish(mut self) -> Imported {
        self.unreached();
        self.tracking();
        self.limits();
        self.egress();
        self.out.notes.sort_by_key(|note| note.line);
        self.out
    }

    fn unreached(&mut self) {
        for (index, chain) in self.program.chains.iter().enumerate() {
            if !self.entered[index] {
                if self.program.is_only_tracking(index) {
                    continue;
                }
                let may_drop = |accepts: bool| !accepts || self.verdicts[index].drops;
                let effect = if chain.bypassed.is_some_and(may_drop) { Effect::Wider } else { Effect::Same };
                if let Some(why) = chain.unreached
                    && !(chain.steps.is_empty() && chain.notes.is_empty() && effect == Effect::Same)
                {
                    self.note(Note::new(chain.line, format!("chain {}", chain.name), why).with(effect));
                }
                continue;
            }
            for note in &chain.notes {
                let said = |other: &Note| {
                    note.why == NoteReason::Answer && (other.why, &other.what) == (note.why, &note.what)
                };
                if !self.out.notes.iter().any(said) {
                    self.out.notes.push(note.clone());
                }
            }
            for (step, reached) in chain.steps.iter().zip(&self.reached[index]) {
                if !reached {
                    self.out.notes.push(Note::new(step.line, &step.what, NoteReason::NeverFits));
                }
            }
        }
    }

    /// Notes limits that behave differently from the file.
    fn limits(&mut self) {
        // The first rule of each step with a limit, and the number of its rules.
        let mut steps: BTreeMap<Origin, (usize, usize)> = BTreeMap::new();
        for (at, (rule, made)) in self.out.rules.iter().zip(&self.made).enumerate() {
            if rule.actions.police.is_some() {
                steps.entry(made.step).or_insert((at, 0)).1 += 1;
            }
        }
        for (origin, (first, count)) in steps {
            // Policies have no limits.
            let Some((chain, step)) = origin else { continue };
            let step = &self.program.chains[chain].steps[step];
            if count > 1 {
                self.note(
                    Note::new(step.line, &step.what, NoteReason::LimitSplit(count)).with(Effect::Wider),
                );
            }
            // Returning from a base chain accepts: else the step has no rule.
            let is_base = self.program.bases.iter().any(|base| base.chain == chain);
            let accepts = step.end == End::Accept || (step.end == End::Return && is_base);
            if accepts && !self.rest_is_dropped(first) {
                self.note(Note::new(step.line, &step.what, NoteReason::LimitDrops).with(Effect::Stricter));
            }
        }
    }

    /// Whether all packets of an allowing rule would be dropped without it.
    fn rest_is_dropped(&self, at: usize) -> bool {
        let rule = &self.out.rules[at];
        if rule.actions.terminal != Some(Action::Allow) {
            return false;
        }
        let own = self.made[at].expansion;
        let later = self.out.rules[at + 1..].iter().zip(&self.made[at + 1..]);
        for (n, (later, _)) in later.take_while(|(_, made)| made.expansion == own).enumerate() {
            if n == LOOK_AHEAD {
                return false;
            }
            match later.actions.terminal {
                Some(Action::Drop | Action::Reject) if covers(&later.matches, &rule.matches) => return true,
                Some(Action::Drop | Action::Reject) | None => {}
                Some(_) if intersect(&later.matches, &rule.matches).is_none() => {}
                Some(_) => return false,
            }
        }
        // The policy, which has no rule if the step decides all packets that are left.
        !self.program.bases[self.expansions[own]].accepts
    }

    /// netvm classifies packets on receive and on transmit. If one rule can act only on transmit, all rules must,
    /// because packets that earlier rules accept must not be decided sooner.
    fn egress(&mut self) {
        let Some(first) = self.out.rules.iter().find(|rule| rule.matches.is_egress()) else { return };
        let line = first.line;
        for rule in &mut self.out.rules {
            if rule.matches.to.is_empty() {
                rule.matches.to = self.ports.to_vec();
            }
        }
        self.note(Note::new(line, "outgoing interface", NoteReason::Egress));
    }
}
