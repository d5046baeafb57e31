// SPDX-License-Identifier: Apache-2.0
//! What chains before the base chains change of how connections are tracked. In: `notrack`, zones and helpers of the
//! file, and rules that match states. Out: rules for which packets of `notrack` are untracked, the zones of ports, and
//! notes of what netvm cannot do.

use std::collections::BTreeSet;

use super::{End, MAX_LIVE, MAX_RULES, Program, Step, Writer};
use crate::algebra::{product, without};
use crate::{Effect, ImportedNat, ImportedRule, Note, NoteReason};
use netvm_model::NatAction;
use netvm_policy::Match;
use netvm_wire::ConnState;

/// Most matches of packets that are not tracked.
const MAX_UNTRACKED: usize = 64;

/// What a rule changes of how connections are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracking {
    /// They are not tracked.
    Off,
    /// They are in this zone; `None`: in one that depends on the packet.
    Zone(Option<u16>),
    /// A helper finds others that belong to them.
    Helper,
}

/// A chain that packets pass before the base chains.
pub(crate) struct Before {
    pub(crate) chain: usize,
    /// The packets that enter it.
    pub(crate) scope: Match,
    /// Packets pass it before their connections are looked up.
    pub(crate) raw: bool,
}

impl Program {
    /// Whether all that a chain before the base chains does is in the imported rules.
    pub(super) fn is_only_tracking(&self, chain: usize) -> bool {
        let steps = &self.chains[chain].steps;
        let done = |step: &Step| step.tracking.is_some() && step.end == End::Next;
        self.before.iter().any(|before| before.chain == chain) && !steps.is_empty() && steps.iter().all(done)
    }

    /// The chains that packets may enter by the jumps of a chain, itself included.
    fn reachable(&self, from: usize) -> Vec<usize> {
        let mut found = vec![from];
        let mut at = 0;
        while let Some(chain) = found.get(at).and_then(|chain| self.chains.get(*chain)) {
            for step in &chain.steps {
                if let End::Jump(to) | End::Goto(to) = step.end
                    && !found.contains(&to)
                {
                    found.push(to);
                }
            }
            at += 1;
        }
        found
    }
}

/// Packets of steps that changed how they are tracked; the first such step decides.
#[derive(Default)]
struct Changed {
    untracked: Vec<Match>,
    zoned: Vec<Match>,
}

impl Writer<'_> {
    /// Changes the rules by what chains before the base chains do, if some rule matches states.
    pub(super) fn tracking(&mut self) {
        if !self.out.tracks() {
            return;
        }
        self.helpers();
        let mut changed = Changed::default();
        let program = self.program;
        for before in program.before.iter().filter(|before| before.raw) {
            for chain in program.reachable(before.chain) {
                // Which packets come to the steps of other chains is not known.
                let mut is_known = chain == before.chain;
                for step in &program.chains[chain].steps {
                    let here = product(&step.fits, std::slice::from_ref(&before.scope));
                    let is_exact = is_known && step.unsure.is_none();
                    if let Err(why) = self.change(step, is_exact.then_some(here), &mut changed) {
                        self.note(Note::new(step.line, &step.what, why).with(Effect::Wider));
                    }
                    is_known &= step.end == End::Next;
                }
            }
        }
        self.split(&changed.untracked);
        self.keep(&changed.untracked);
    }

    /// Translates no packets of `gone`: they have no connection.
    fn keep(&mut self, gone: &[Match]) {
        if gone.is_empty() {
            return;
        }
        let before = self.program.before.first().and_then(|before| self.program.chains.get(before.chain));
        let Some(chain) = before else { return };
        let is_source = |nat: &ImportedNat| nat.matches.is_egress();
        let (sources, destinations): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.out.nat).into_iter().partition(is_source);
        for (rules, to) in [(destinations, vec![]), (sources, self.ports.to_vec())] {
            let kept = |matches: &Match| ImportedNat {
                line: chain.line,
                name: chain.name.clone(),
                matches: Match { to: to.clone(), ..matches.clone() },
                is_local: false,
                action: NatAction::Keep,
            };
            let kept = gone.iter().filter(|_| !rules.is_empty()).map(kept);
            self.out.nat.extend(kept.chain(rules.iter().cloned()));
        }
    }

    /// Notes helpers whose connections packets of rules may belong to.
    fn helpers(&mut self) {
        let program = self.program;
        let entered = (0..program.chains.len()).filter(|chain| self.entered[*chain]);
        let before = program.before.iter().flat_map(|before| program.reachable(before.chain));
        let chains: BTreeSet<usize> = entered.chain(before).collect();
        for step in chains.iter().flat_map(|chain| &program.chains[*chain].steps) {
            if step.tracking == Some(Tracking::Helper) {
                self.note(Note::new(step.line, &step.what, NoteReason::Helper).with(Effect::Wider));
            }
        }
    }

    /// Does what a step says to its packets, `here`.
    ///
    /// # Errors
    /// What to note, if netvm cannot do it, or does not know the packets.
    fn change(
        &mut self,
        step: &Step,
        here: Option<Vec<Match>>,
        changed: &mut Changed,
    ) -> Result<(), NoteReason> {
        match step.tracking {
            Some(Tracking::Off) => {
                // In the kernel, `notrack` does nothing to packets that have a zone.
                let here = here.filter(|here| product(&changed.zoned, here).is_empty());
                let here = here.ok_or(NoteReason::Untracked)?;
                // Disjoint, so that no packet matches two rules that are made of one.
                let new = without(&here, &changed.untracked, self.ports, MAX_UNTRACKED);
                changed.untracked.extend(new.ok_or(NoteReason::Untracked)?);
                if changed.untracked.len() > MAX_UNTRACKED { Err(NoteReason::Untracked) } else { Ok(()) }
            }
            Some(Tracking::Zone(zone)) => {
                // Packets that are not tracked before are in no zone, whatever their port says.
                let (zone, here) = zone.zip(here).ok_or(NoteReason::Zone)?;
                changed.zoned.extend(here);
                self.set_zone(&step.fits, zone)
            }
            Some(Tracking::Helper) | None => Ok(()),
        }
    }

    /// Sets the zone of ports that have none, if the matches are on ports alone.
    fn set_zone(&mut self, fits: &[Match], zone: u16) -> Result<(), NoteReason> {
        for fits in fits {
            if *fits != (Match { from: fits.from.clone(), ..Match::default() }) {
                return Err(NoteReason::Zone);
            }
            for port in if fits.from.is_empty() { self.ports } else { &fits.from[..] } {
                if !self.out.zones.iter().any(|(known, _)| known == port) {
                    self.out.zones.push((*port, zone));
                }
            }
        }
        Ok(())
    }

    /// Splits rules on states: packets of `gone` are untracked, whatever their key says.
    fn split(&mut self, gone: &[Match]) {
        if gone.is_empty() {
            return;
        }
        let rules = std::mem::take(&mut self.out.rules);
        let made = std::mem::take(&mut self.made);
        for (rule, made) in rules.into_iter().zip(made) {
            let has_room = |parts: &Vec<Match>| self.out.rules.len() + parts.len() <= MAX_RULES;
            let parts = self.parts(&rule.matches, gone).filter(has_room).unwrap_or_else(|| {
                let note = Note::new(rule.line, &rule.name, NoteReason::Untracked);
                self.out.notes.push(note.with(Effect::Wider));
                vec![rule.matches.clone()]
            });
            self.made.extend(parts.iter().map(|_| made));
            let parts = parts.into_iter().map(|matches| ImportedRule { matches, ..rule.clone() });
            self.out.rules.extend(parts);
        }
    }

    /// The packets of a match if those of `gone` are untracked; `None` if there is no such rule.
    fn parts(&self, of: &Match, gone: &[Match]) -> Option<Vec<Match>> {
        if of.state.is_empty() {
            return Some(vec![of.clone()]);
        }
        let mut parts = without(std::slice::from_ref(of), gone, self.ports, MAX_LIVE)?;
        if of.state.contains(&ConnState::Untracked) {
            parts.extend(product(&[Match { state: vec![], ..of.clone() }], gone));
        }
        Some(parts)
    }
}
