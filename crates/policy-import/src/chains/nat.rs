// SPDX-License-Identifier: Apache-2.0
//! Chains that translate addresses, as NAT rules. In: their expanded steps. Out: rules that are asked once a
//! connection, for each side, without those at the end that change nothing.

use netvm_model::NatAction;
use netvm_policy::Match;
use netvm_wire::{ConnState, IpNet};

use super::{Deciding, End, ExpandError, Step, Writer};
use crate::{Effect, ImportedNat, IpVersion, Note, NoteReason};

/// What chains translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Destinations of packets that come in.
    Destination,
    /// Sources of packets that leave.
    Source,
}

impl Side {
    /// The packets that its chains see: the first ones of connections.
    pub(crate) fn scope(scope: Match) -> Match {
        Match { state: vec![ConnState::New], ..scope }
    }

    const fn takes(self, action: &NatAction) -> bool {
        match action {
            NatAction::Source(_) => matches!(self, Self::Source),
            NatAction::Destination(_) => matches!(self, Self::Destination),
            NatAction::Network(_) | NatAction::Keep => true,
        }
    }
}

impl Writer<'_> {
    /// Expands the base chains that translate.
    pub(super) fn nat(&mut self) -> Result<(), ExpandError> {
        for side in [Side::Destination, Side::Source] {
            self.side = Some(side);
            let before = self.out.nat.len();
            self.bases_from(0, &[Match::default()])?;
            let is_last = |nat: &ImportedNat| nat.action == NatAction::Keep;
            while self.out.nat.len() > before && self.out.nat.last().is_some_and(is_last) {
                self.out.nat.pop();
            }
        }
        self.side = None;
        Ok(())
    }

    /// Why a step has no equivalent in the current base chain, the words, and what it does.
    pub(super) fn unsure<'s>(&self, step: &'s Step, outermost: bool) -> Option<(&'s str, NoteReason, End)> {
        if let Some((what, why)) = &step.unsure {
            return Some((what, *why, step.end));
        }
        if let Some(nat) = &step.nat
            && !self.side.is_some_and(|side| side.takes(nat))
        {
            return Some((&step.what, NoteReason::Action, End::Unknown));
        }
        // Whether an address is the router's own, only rules for destinations ask. Packets for others are no match.
        let leaves = matches!(step.end, End::Return | End::Goto(_)) && !outermost && !self.is_local;
        let words = step.local.as_deref().filter(|_| leaves || self.side != Some(Side::Destination))?;
        Some((words, NoteReason::Match, step.end))
    }

    /// Writes the rules of a step that decides in a chain that translates.
    pub(super) fn decide_translation(
        &mut self,
        base: usize,
        deciding: Deciding<'_>,
    ) -> Result<(), ExpandError> {
        let step = deciding.step;
        match (step.end, step.police) {
            (End::Next, None) => Ok(()),
            (End::Accept, None) => {
                let action = step.nat.clone().unwrap_or_default();
                // The first chain that translates decides.
                if action == NatAction::Keep
                    && self.has_later(base)
                    && self.later_decide(base, deciding.live)?
                {
                    return Ok(());
                }
                self.emit_translation(deciding, &action)
            }
            (_, police) => {
                let why = if police.is_some() { NoteReason::LimitUse } else { NoteReason::TranslationDrops };
                self.note(Note::new(step.line, &step.what, why).with(Effect::Wider));
                Ok(())
            }
        }
    }

    fn emit_translation(&mut self, deciding: Deciding<'_>, action: &NatAction) -> Result<(), ExpandError> {
        let Deciding { step, live, .. } = deciding;
        let is_source = self.side == Some(Side::Source);
        for matches in live {
            let mut matches = Match { state: vec![], ..matches.clone() };
            if is_source && matches.to.is_empty() {
                matches.to = self.ports.to_vec();
            }
            let parts = match action {
                // Where packets come in, it is not known where they leave.
                _ if !is_source && matches.is_egress() => None,
                NatAction::Network(network) => networks(&matches, *network, is_source),
                action => Some(vec![(matches, action.clone())]),
            };
            let Some(parts) = parts else {
                let is_network = matches!(action, NatAction::Network(_));
                let why = if is_network { NoteReason::Network } else { NoteReason::Translation };
                self.note(Note::new(step.line, &step.what, why).with(Effect::Wider));
                continue;
            };
            for (matches, action) in parts {
                self.grow(&deciding, &matches)?;
                let Step { line, name, .. } = step;
                let (line, name, is_local) = (*line, name.clone(), self.is_local);
                self.out.nat.push(ImportedNat { line, name, matches, is_local, action });
            }
        }
        Ok(())
    }
}

/// A rule for each network of a match, whose addresses stand at the same place of another one; `None` if it has others.
fn networks(matches: &Match, network: IpNet, is_source: bool) -> Option<Vec<(Match, NatAction)>> {
    let nets = if is_source { &matches.source } else { &matches.destination };
    let (version, base) = IpVersion::split(network.network());
    let free = version.highest().checked_shr(network.length().into()).unwrap_or(0);
    let rule = |net: &IpNet| {
        let (_, value) = IpVersion::split(net.network());
        let is_inside = net.is_v4() == network.is_v4() && net.length() >= network.length();
        let to = IpNet::new(version.address(base | value & free), net.length()).ok().filter(|_| is_inside)?;
        let mut matches = matches.clone();
        *(if is_source { &mut matches.source } else { &mut matches.destination }) = vec![*net];
        Some((matches, NatAction::Network(to)))
    };
    if nets.is_empty() { None } else { nets.iter().map(rule).collect() }
}
