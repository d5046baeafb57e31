// SPDX-License-Identifier: Apache-2.0
//! The texts of a configuration: a file, or several that are read as one.

use std::sync::Arc;

use miette::NamedSource;

/// One of several texts that are read as one configuration, with its name for errors.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its name.
    pub name: &'a str,
    /// TOML, valid without the others.
    pub text: &'a str,
}

/// One of the texts that are read as one.
pub(crate) struct Source {
    /// Where it begins in them.
    pub(crate) start: usize,
    pub(crate) text: Arc<NamedSource<String>>,
    /// Where its lines end.
    newlines: Vec<usize>,
}

impl Source {
    pub(crate) fn new(name: &str, text: &str, start: usize) -> Self {
        // The author of the text may be unknown, and it gets to terminals.
        let shown = NamedSource::new(netvm_text::line(name), netvm_text::same_length(text).into_owned());
        let newlines = text.match_indices('\n').map(|(at, _)| start + at).collect();
        Self { start, text: Arc::new(shown), newlines }
    }

    /// The line of a place, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.newlines.partition_point(|newline| *newline < at) + 1
    }
}
