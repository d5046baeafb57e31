// SPDX-License-Identifier: Apache-2.0
//! What it means to leave out a step whose packets are not known exactly: whether the imported rules may pass packets
//! that the file drops, or only drop packets that the file passes. In: the step and its place. Out: an [`Effect`] that
//! is never too narrow.
//!
//! Some of the packets that fit a step match it; the imported rules treat all of them as if they did not. So the effect
//! depends on what the step would do, and on what the rest of its chain does in place of it.

use super::{End, Program, Step, StepPosition, Writer};
use crate::Effect;
use crate::algebra::{covers, product};
use netvm_policy::Match;

/// What rules may do to packets, jumps included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Verdicts {
    pub(super) accepts: bool,
    pub(super) drops: bool,
}

impl Verdicts {
    fn or(self, other: Self) -> Self {
        Self { accepts: self.accepts || other.accepts, drops: self.drops || other.drops }
    }

    fn of(step: &Step, chains: &[Self]) -> Self {
        let limits = Self { accepts: false, drops: step.police.is_some() };
        limits.or(match step.end {
            End::Next | End::Return => Self::default(),
            End::Accept => Self { accepts: true, drops: false },
            End::Drop | End::Reject => Self { accepts: false, drops: true },
            End::Unknown => Self { accepts: true, drops: true },
            End::Jump(to) | End::Goto(to) => chains.get(to).copied().unwrap_or_default(),
        })
    }
}

/// What the rules of each chain may do.
pub(super) fn verdicts(program: &Program) -> Vec<Verdicts> {
    let mut all = vec![Verdicts::default(); program.chains.len()];
    loop {
        let of = |steps: &[Step]| {
            steps.iter().fold(Verdicts::default(), |sum, step| sum.or(Verdicts::of(step, &all)))
        };
        let next: Vec<_> = program.chains.iter().map(|chain| of(&chain.steps)).collect();
        if next == all {
            return all;
        }
        all = next;
    }
}

impl Writer<'_> {
    /// The effect of treating the packets `here`, some of which match the step at `position` and meet `end`, as if none
    /// did.
    pub(super) fn effect_of_skipping(&self, position: StepPosition, end: End, here: &[Match]) -> Effect {
        let rest = self.rest(position, here);
        if self.side.is_some() {
            return self.effect_on_translation(end, rest);
        }
        let accepts_at_end = position.outermost && self.program.bases[position.base].accepts;
        match end {
            End::Next => Effect::Same,
            End::Accept if self.rest_is(position, here) == Some(true) => Effect::Same,
            End::Accept => Effect::Stricter,
            End::Drop | End::Reject if self.rest_drops(position, here) => Effect::Same,
            End::Drop | End::Reject | End::Unknown => Effect::Wider,
            // Returning from the base chain is what its policy says.
            End::Return if accepts_at_end => self.effect_of_skipping(position, End::Accept, here),
            End::Return if position.outermost => self.effect_of_skipping(position, End::Drop, here),
            // Packets that return miss the rest of the chain.
            End::Return => effect(rest.accepts, rest.drops),
            End::Jump(to) => effect(self.verdicts[to].drops, self.verdicts[to].accepts),
            // Those that return from there miss the rest, too.
            End::Goto(to) if position.outermost => effect(self.verdicts[to].drops || !accepts_at_end, true),
            End::Goto(to) => {
                let target = self.verdicts[to];
                effect(target.drops || rest.accepts, target.accepts || rest.drops)
            }
        }
    }

    /// The same in chains that translate: untranslated packets would leave, or be accepted by other rules.
    fn effect_on_translation(&self, end: End, rest: Verdicts) -> Effect {
        let decides = |verdicts: Verdicts| verdicts.accepts || verdicts.drops;
        let changes = match end {
            End::Next => false,
            End::Return => decides(rest),
            End::Jump(to) => decides(self.verdicts[to]),
            End::Goto(to) => decides(self.verdicts[to]) || decides(rest),
            End::Accept | End::Drop | End::Reject | End::Unknown => true,
        };
        effect(changes, false)
    }

    /// What the rules after a step may do to its packets.
    fn rest(&self, position: StepPosition, here: &[Match]) -> Verdicts {
        let later = self.program.chains[position.chain].steps.iter().skip(position.at + 1);
        let meets = later.filter(|step| !product(here, &step.fits).is_empty());
        meets.fold(Verdicts::default(), |sum, step| sum.or(Verdicts::of(step, &self.verdicts)))
    }

    /// Whether the rest of the chain drops all packets that reach it.
    pub(super) fn rest_drops(&self, position: StepPosition, here: &[Match]) -> bool {
        self.rest_is(position, here) == Some(false)
    }

    /// Whether the rest of the chain accepts (`true`) or drops all packets that reach it; `None` if neither, or if
    /// unknown.
    fn rest_is(&self, position: StepPosition, here: &[Match]) -> Option<bool> {
        let later = self.program.chains[position.chain].steps.iter().skip(position.at + 1);
        let mut only = None;
        for step in later.filter(|step| !product(here, &step.fits).is_empty()) {
            let accepts = match (step.end, step.police) {
                (End::Next, None) => continue,
                (End::Accept, None) => true,
                (End::Drop | End::Reject, None) => false,
                _ => return None,
            };
            if only.is_some_and(|only| only != accepts) {
                return None;
            }
            only = Some(accepts);
            let covered = |here: &Match| step.fits.iter().any(|fits| covers(fits, here));
            if step.unsure.is_none() && step.local.is_none() && here.iter().all(covered) {
                return only;
            }
        }
        let policy = position.outermost.then(|| self.program.bases[position.base].accepts)?;
        only.is_none_or(|only| only == policy).then_some(policy)
    }
}

const fn effect(wider: bool, stricter: bool) -> Effect {
    if wider {
        Effect::Wider
    } else if stricter {
        Effect::Stricter
    } else {
        Effect::Same
    }
}
