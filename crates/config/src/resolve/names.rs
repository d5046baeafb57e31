//! What items are called: names that are twice or nowhere become findings.

use std::collections::BTreeMap;

use toml::Spanned;

use crate::finding::{Findings, Kind, Span};
use crate::raw::Name;
use crate::suggest::did_you_mean;

/// The names of one kind of item, with their numbers.
pub(super) struct Names<'a> {
    findings: &'a Findings,
    /// What an item is called, such as `port`.
    what: &'static str,
    /// The place of a name is that of the item in the file, if it is in one.
    numbers: BTreeMap<&'a str, (u16, Option<Span>)>,
    /// An item's name could not be read: an unknown name may be meant for it.
    is_incomplete: bool,
}

impl<'a> Names<'a> {
    pub(super) fn new(
        findings: &'a Findings,
        what: &'static str,
        limit: usize,
        names: impl Iterator<Item = &'a Name>,
    ) -> Self {
        let mut this = Self { findings, what, numbers: BTreeMap::new(), is_incomplete: false };
        for (number, name) in names.enumerate() {
            let Some(name) = name else {
                this.is_incomplete = true;
                continue;
            };
            this.add(u16::try_from(number).unwrap_or(u16::MAX), name);
            if number == limit {
                findings
                    .note(Kind::TooMany, format!("more than {limit} {what}s"))
                    .at(name.span(), "one too many")
                    .help(format!("a host can have {limit} {what}s"))
                    .keep();
            }
        }
        this
    }

    /// Those of items that are in no file.
    pub(super) fn of(
        findings: &'a Findings,
        what: &'static str,
        names: impl IntoIterator<Item = (&'a str, u16)>,
    ) -> Self {
        let numbers = names.into_iter().map(|(name, number)| (name, (number, None))).collect();
        Self { findings, what, numbers, is_incomplete: false }
    }

    fn add(&mut self, number: u16, name: &'a Spanned<String>) {
        let what = self.what;
        if let Some((_, first)) = self.numbers.get(name.get_ref().as_str()) {
            let first = first.clone().unwrap_or_default();
            self.findings
                .note(Kind::Duplicate, format!("two {what}s are called `{}`", name.get_ref()))
                .at(name.span(), "again")
                .at(first, "first here")
                .help(format!("give every {what} a name of its own"))
                .keep();
            return;
        }
        self.numbers.insert(name.get_ref(), (number, Some(name.span())));
    }

    pub(super) fn find(&self, name: &Spanned<String>) -> Option<u16> {
        let what = self.what;
        let number = self.numbers.get(name.get_ref().as_str()).map(|(number, _)| *number);
        if number.is_none() && !self.is_incomplete {
            let known = self.numbers.keys().copied();
            let help = did_you_mean(name.get_ref(), known, &format!("the {what}s"));
            self.findings
                .note(Kind::UnknownName, format!("there is no {what} `{}`", name.get_ref()))
                .at(name.span(), format!("no such {what}"))
                .help(help.unwrap_or_else(|| format!("there are no {what}s: add a [[{}]]", table_of(what))))
                .keep();
        }
        number
    }
}

/// The table that declares such items.
fn table_of(what: &str) -> &str {
    if what == "role" { "nf" } else { what }
}
