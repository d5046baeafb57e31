// SPDX-License-Identifier: Apache-2.0
//! What the readers of a rule's parts share: the rule's location, the part that is read, and why one stops.

use serde_json::Value;

use super::objects::Objects;
use super::{Location, NftError};
use crate::algebra::product;
use crate::chains::{End, Tracking};
use crate::limit::Limit;
use crate::{Interfaces, NoteReason};
use netvm_model::NatAction;
use netvm_policy::Match;

/// The parser of a rule stops.
pub(super) enum Stop {
    /// The rule has no equivalent: the part and the reason.
    Note(String, NoteReason),
    /// The rule is malformed.
    Error(NftError),
}

impl From<NftError> for Stop {
    fn from(error: NftError) -> Self {
        Self::Error(error)
    }
}

/// A rule's location and the names in scope.
pub(super) struct RuleReader<'a> {
    pub(super) line: u32,
    pub(super) what: &'a str,
    pub(super) family: &'a str,
    pub(super) table: &'a str,
    pub(super) objects: &'a Objects<'a>,
    pub(super) interfaces: &'a Interfaces,
}

impl RuleReader<'_> {
    pub(super) fn schema(&self, expected: &'static str, found: &Value) -> NftError {
        Location { line: self.line, name: self.what }.error(expected, found)
    }
}

/// The parsed part of a rule.
pub(super) struct Draft {
    /// One of these must fit.
    pub(super) fits: Vec<Match>,
    /// Whether it matches the transport header.
    pub(super) transport: bool,
    pub(super) notes: Vec<(String, NoteReason)>,
    pub(super) limit: Option<Limit>,
    pub(super) tracking: Option<Tracking>,
    /// Whether matches follow the limit.
    pub(super) late: bool,
    /// The words that say that its packets are addressed to the router.
    pub(super) local: Option<String>,
    /// Further matches and their ends; empty before the verdict.
    pub(super) ends: Vec<Ending>,
}

/// What a rule does to the packets of one of its last matches.
pub(super) struct Ending {
    /// One of these must fit, too.
    pub(super) fits: Vec<Match>,
    pub(super) end: End,
    /// What it translates to, if it accepts.
    pub(super) nat: Option<NatAction>,
}

impl Ending {
    /// An end without translation.
    pub(super) fn new(fits: Vec<Match>, end: End) -> Self {
        Self { fits, end, nat: None }
    }

    /// The end of all packets of the rule.
    pub(super) fn of_all(end: End) -> Self {
        Self::new(vec![Match::default()], end)
    }
}

impl Draft {
    pub(super) fn new() -> Self {
        Self {
            fits: vec![Match::default()],
            transport: false,
            notes: vec![],
            limit: None,
            tracking: None,
            late: false,
            local: None,
            ends: vec![],
        }
    }

    /// Narrows to packets that also fit one of these.
    pub(super) fn narrow(&mut self, to: &[Match]) {
        self.fits = product(&self.fits, to);
        self.late |= self.limit.is_some();
    }
}
