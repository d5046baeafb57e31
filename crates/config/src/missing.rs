// SPDX-License-Identifier: Apache-2.0
//! Things that a file names and that this machine does not have or that another program uses. Only the
//! program that will use them can look them up; this crate knows their positions in the file.

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

/// Something that a key of the file names and that this machine does not have, or that another program uses,
/// too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The table, such as `port` or `engine`.
    pub table: &'static str,
    /// Number of the item if there are several of the table, from 0 in the order of the file.
    pub item: usize,
    /// The key; the file need not have it.
    pub key: &'static str,
    /// The message, with the remedy.
    pub message: String,
    /// What that means.
    pub kind: MissingKind,
}

/// What it means that something is not as a file wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingKind {
    /// The configuration cannot be used: an error.
    Missing,
    /// Only the item does not work, until it is there: a warning.
    Absent,
    /// It is there, but others use it, too: a warning.
    Shared,
}

impl Missing {
    pub(crate) fn note(self, findings: &Findings, file: &FileTable<'_>) {
        let place = file.items(self.table).into_iter().nth(self.item).or_else(|| file.table(self.table));
        let span = place.map_or_else(
            || file.header.clone(),
            |place| match self.key {
                // The program, not its arguments.
                "command" => place.element(self.key, 0),
                key => place.of(key),
            },
        );
        let (kind, label) = match self.kind {
            MissingKind::Missing => (Kind::Missing, "not on this machine"),
            MissingKind::Absent => (Kind::Absent, "not now on this machine"),
            MissingKind::Shared => (Kind::SharedInterface, "used by others, too"),
        };
        findings.note(kind, self.message).at(span, label).keep();
    }
}
