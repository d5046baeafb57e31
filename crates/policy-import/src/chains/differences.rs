//! What the rules that chains became do not show: rules that no packet gets to, limits that act otherwise, rules for
//! packets on their way out.

use std::collections::BTreeMap;

use super::{End, Origin, Writer};
use crate::algebra::{covers, intersect};
use crate::{Imported, Note, Why};
use netvm_policy::Action;

/// How many rules are looked at to see what becomes of packets over a limit.
const LOOK_AHEAD: usize = 128;

impl Writer<'_> {
    /// The rules, and what is to be said of them.
    pub(super) fn finish(mut self) -> Imported {
        self.unreached();
        self.limits();
        self.egress();
        self.out.notes.sort_by_key(|note| note.line);
        self.out
    }

    fn unreached(&mut self) {
        for (index, chain) in self.program.chains.iter().enumerate() {
            if !self.entered[index] {
                if let Some(why) = chain.unreached
                    && !(chain.steps.is_empty() && chain.notes.is_empty())
                {
                    self.note(chain.line, &format!("chain {}", chain.name), why);
                }
                continue;
            }
            for note in &chain.notes {
                let said = |other: &Note| {
                    note.why == Why::Answer && (other.why, &other.what) == (note.why, &note.what)
                };
                if !self.out.notes.iter().any(said) {
                    self.out.notes.push(note.clone());
                }
            }
            for (step, reached) in chain.steps.iter().zip(&self.reached[index]) {
                if !reached {
                    self.out.notes.push(Note::new(step.line, &step.what, Why::NeverFits));
                }
            }
        }
    }

    /// Says where limits do other than in the file.
    fn limits(&mut self) {
        // The first rule of each step with a limit, and how many there are.
        let mut steps: BTreeMap<Origin, (usize, usize)> = BTreeMap::new();
        for (at, (rule, origin)) in self.out.rules.iter().zip(&self.origins).enumerate() {
            if rule.actions.police.is_some() {
                steps.entry(*origin).or_insert((at, 0)).1 += 1;
            }
        }
        for (origin, (first, count)) in steps {
            // Policies have no limits.
            let Some((chain, step)) = origin else { continue };
            let step = &self.program.chains[chain].steps[step];
            if count > 1 {
                self.note(step.line, &step.what, Why::LimitSplit(count));
            }
            if step.end == End::Accept && !self.rest_is_dropped(first) {
                self.note(step.line, &step.what, Why::LimitDrops);
            }
        }
    }

    /// Whether all packets of a rule that allows would be dropped if it were not there.
    fn rest_is_dropped(&self, at: usize) -> bool {
        let rule = &self.out.rules[at];
        if rule.actions.terminal != Some(Action::Allow) {
            return false;
        }
        for later in self.out.rules[at + 1..].iter().take(LOOK_AHEAD) {
            match later.actions.terminal {
                Some(Action::Drop) if covers(&later.matches, &rule.matches) => return true,
                Some(Action::Drop) | None => {}
                Some(_) if intersect(&later.matches, &rule.matches).is_none() => {}
                Some(_) => return false,
            }
        }
        false
    }

    /// Packets are looked at once when they come and once when they go. If a rule can act only then, all must: what the
    /// rules before it let pass may not be decided on any earlier.
    fn egress(&mut self) {
        let Some(first) = self.out.rules.iter().find(|rule| rule.matches.is_egress()) else { return };
        let line = first.line;
        for rule in &mut self.out.rules {
            if rule.matches.to.is_empty() {
                rule.matches.to = self.ports.to_vec();
            }
        }
        self.note(line, "outgoing interface", Why::Egress);
    }
}
