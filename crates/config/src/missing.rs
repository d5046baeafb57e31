//! Things that a file names and that this machine does not have or that another program uses. Only the
//! program that will use them can look them up; this crate knows their positions in the file.

use crate::syntax::finding::{Findings, Kind};
use crate::syntax::place::Place;

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
    /// It exists, but another program uses it, too: a warning.
    pub is_shared: bool,
}

impl Missing {
    pub(crate) fn note(self, findings: &Findings, file: &Place<'_>) {
        let place = file.items(self.table).into_iter().nth(self.item).or_else(|| file.table(self.table));
        let span = place.map_or_else(
            || file.header.clone(),
            |place| match self.key {
                // The program, not its arguments.
                "command" => place.element(self.key, 0),
                key => place.of(key),
            },
        );
        let (kind, label) = match self.is_shared {
            true => (Kind::SharedInterface, "another program's, too"),
            false => (Kind::Missing, "not on this machine"),
        };
        findings.note(kind, self.message).at(span, label).keep();
    }
}
