// SPDX-License-Identifier: Apache-2.0
//! Errors and warnings about a configuration file. Each finding has a place, a message and a remedy; [`miette`] draws
//! it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity, SourceCode,
};

use crate::syntax::source::{Part, Source};

/// Bytes of the file, from and to.
pub(crate) type Span = Range<usize>;

macro_rules! kinds {
    (errors: { $($(#[$doc:meta])* $error:ident = $code:literal,)* }
     warnings: { $($(#[$about:meta])* $warning:ident = $name:literal,)* }) => {
        /// The kinds of finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[$doc])* $error,)*
            $($(#[$about])* $warning,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$error,)* $(Self::$warning,)*];

            /// The code of the finding, to search for.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$error => $code,)*
                    $(Self::$warning => $name,)*
                }
            }

            const fn is_warning(self) -> bool {
                matches!(self, $(Self::$warning)|*)
            }
        }
    };
}
kinds! {
    errors: {
        /// Not TOML.
        Syntax = "config::syntax",
        /// An unknown key or table.
        UnknownKey = "config::unknown_key",
        /// A required key is missing.
        MissingKey = "config::missing_key",
        /// Two keys that exclude each other.
        Conflict = "config::conflict",
        /// A value of the wrong type.
        WrongType = "config::wrong_type",
        /// An impossible value.
        BadValue = "config::bad_value",
        /// A text that cannot be a name.
        BadName = "config::bad_name",
        /// The name of a group, port, role, router or chain that does not exist.
        UnknownName = "config::unknown_name",
        /// A name, or a device of this machine, that is used twice.
        Duplicate = "config::duplicate",
        /// More items than possible.
        TooMany = "config::too_many",
        /// A port's longest frame does not fit a buffer.
        BufferSize = "config::buffer_size",
        /// `on_failure = "standby"` without a standby replica.
        NoStandby = "config::no_standby",
        /// Something that the file names and this machine does not have.
        Missing = "config::missing",
    }
    warnings: {
        /// Two rules with one match and different terminal actions: the later one never matches.
        SameMatch = "config::same_match",
        /// A rule that never matches, since earlier ones take all of its packets.
        Shadowed = "config::shadowed",
        /// Two rules that decide differently on some packets: their order matters.
        Overlap = "config::overlap",
        /// A rule that no packet can match.
        Impossible = "config::impossible",
        /// Rules that were not compared with others, which would take too long.
        NotCompared = "config::not_compared",
        /// A rule that allows packets which have no destination.
        NoForward = "config::no_forward",
        /// A chain that copies its packets.
        CrossGroup = "config::cross_group",
        /// An item that gets no packets, or a key without effect.
        Unused = "config::unused",
        /// A port with `gro` whose group has no large buffers.
        NoLargeBuffers = "config::no_large_buffers",
        /// A group with few buffers for the queues of its ports.
        FewBuffers = "config::few_buffers",
        /// An NF or VM on the core of a busy-polling worker.
        SharedCore = "config::shared_core",
        /// A pool with ports below 1024, which services of the same address may have.
        WellKnownPorts = "config::well_known_ports",
        /// Something that the file names and this machine does not have now. netvmd starts without it, and uses it when
        /// it is there.
        Absent = "config::absent",
        /// Two ports on the switch that have the same IP or MAC address.
        SharedAddress = "config::shared_address",
        /// An interface that another program, or the kernel, uses, too.
        SharedInterface = "config::shared_interface",
    }
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Finding {
    kind: Kind,
    message: String,
    help: Option<String>,
    /// The first is the place of the finding.
    labels: Vec<(Span, String)>,
    /// Number of its text, in the order in which they were read.
    part: usize,
    source: Arc<NamedSource<String>>,
}

impl Finding {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the configuration can be used nevertheless.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        self.kind.is_warning()
    }

    /// The message, in one sentence.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What would help.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &str {
        self.source.name()
    }

    /// Line and column in the file, both from 1; the column counts characters.
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        let at = self.labels.first().map_or(0, |(span, _)| span.start);
        let before = self.source.inner().get(..at).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (line(self.source.inner(), at), before.get(start..).unwrap_or_default().chars().count() + 1)
    }

    /// The finding for a terminal: message, the lines with the wrong part underlined, remedy.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_links(false)
            .with_width(100)
            .with_break_words(false);
        let mut text = String::new();
        match handler.render_report(&mut text, self) {
            Ok(()) => text,
            Err(fmt::Error) => self.to_string(),
        }
    }
}

/// The message alone.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Finding {}

impl Diagnostic for Finding {
    fn code(&self) -> Option<Box<dyn fmt::Display + '_>> {
        Some(Box::new(self.kind.code()))
    }

    fn severity(&self) -> Option<Severity> {
        Some(if self.is_warning() { Severity::Warning } else { Severity::Error })
    }

    fn help(&self) -> Option<Box<dyn fmt::Display + '_>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&*self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let label = |(n, (span, text)): (usize, &(Span, String))| {
            let text = (!text.is_empty()).then(|| text.clone());
            let (at, length) = (span.start, span.len());
            if n == 0 {
                LabeledSpan::new_primary_with_span(text, (at, length))
            } else {
                LabeledSpan::new(text, at, length)
            }
        };
        Some(Box::new(self.labels.iter().enumerate().map(label)))
    }
}

fn line(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or_default().matches('\n').count() + 1
}

/// Findings of one kind to show; further ones are only counted.
const MAX_OF_A_KIND: usize = 50;

/// Collects the findings of readers and checks.
pub(crate) struct Findings {
    /// Not empty.
    sources: Vec<Source>,
    list: RefCell<Vec<Finding>>,
    /// The number of each kind, shown or not.
    counts: RefCell<BTreeMap<Kind, usize>>,
}

impl Findings {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        Self::of_parts(&[Part { name, text }])
    }

    /// Those of texts that are read one after another, with a line break between two.
    pub(crate) fn of_parts(parts: &[Part<'_>]) -> Self {
        let mut start = 0;
        let source = |part: &Part<'_>| {
            let source = Source::new(part.name, part.text, start);
            start += part.text.len() + 1;
            source
        };
        let mut sources: Vec<Source> = parts.iter().map(source).collect();
        if sources.is_empty() {
            sources.push(Source::new("", "", 0));
        }
        Self { sources, list: RefCell::default(), counts: RefCell::default() }
    }

    /// The place of the first byte of a text, by its number.
    pub(crate) fn start(&self, number: usize) -> usize {
        self.sources.get(number).map_or(0, |source| source.start)
    }

    /// The number of the text that has a place.
    fn part_of(&self, at: usize) -> usize {
        self.sources.partition_point(|source| source.start <= at).saturating_sub(1)
    }

    /// Begins a finding, which still needs its place and remedy.
    pub(crate) fn note(&self, kind: Kind, message: impl Into<String>) -> Note<'_> {
        let finding = Finding {
            kind,
            message: shown(message),
            help: None,
            labels: Vec::new(),
            part: 0,
            source: Arc::clone(&self.sources[0].text),
        };
        Note { findings: self, finding }
    }

    /// Counts findings that are not shown.
    pub(crate) fn more(&self, kind: Kind, count: usize) {
        *self.counts.borrow_mut().entry(kind).or_default() += count;
    }

    /// The line of a place in its text, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.sources.get(self.part_of(at)).map_or(1, |source| source.line(at))
    }

    /// The finding with places of its own text; those in other texts become words.
    fn placed(&self, mut finding: Finding) -> Finding {
        let own = finding.labels.first().map_or(0, |(span, _)| self.part_of(span.start));
        let Some(source) = self.sources.get(own) else { return finding };
        (finding.part, finding.source) = (own, Arc::clone(&source.text));
        let mut elsewhere = Vec::new();
        finding.labels.retain_mut(|(span, label)| {
            let part = self.part_of(span.start);
            if let Some(other) = self.sources.get(part).filter(|_| part != own) {
                elsewhere.push(format!("{label}: {}:{}", other.text.name(), other.line(span.start)));
                return false;
            }
            *span = span.start - source.start..span.end.max(span.start) - source.start;
            true
        });
        if !elsewhere.is_empty() {
            finding.message = format!("{} ({})", finding.message, elsewhere.join("; "));
        }
        finding
    }

    pub(crate) fn errors(&self) -> usize {
        self.counts.borrow().iter().filter(|(kind, _)| !kind.is_warning()).map(|(_, count)| count).sum()
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors() > 0
    }

    fn keep(&self, finding: Finding) {
        self.more(finding.kind, 1);
        if self.counts.borrow().get(&finding.kind).is_some_and(|count| *count <= MAX_OF_A_KIND) {
            let finding = self.placed(finding);
            self.list.borrow_mut().push(finding);
        }
    }

    /// All findings that are shown, in the order of the file.
    pub(crate) fn into_sorted(self) -> Vec<Finding> {
        let mut list = self.list.into_inner();
        list.sort_by_key(|finding| (finding.part, finding.labels.first().map_or(0, |(span, _)| span.start)));
        for (kind, count) in self.counts.into_inner() {
            let shown = list.iter().filter(|finding| finding.kind == kind).count();
            let last = list.iter_mut().rev().find(|finding| finding.kind == kind);
            if let Some(last) = last.filter(|_| count > shown) {
                let more = format!("and {} more like this", count - shown);
                last.help =
                    Some(last.help.take().map_or_else(|| more.clone(), |help| format!("{help}; {more}")));
            }
        }
        list
    }
}

/// A text that may quote the file.
fn shown(text: impl Into<String>) -> String {
    netvm_text::lines(&text.into()).into_owned()
}

/// A finding that is not complete yet.
#[must_use = "a finding counts only when it is kept"]
pub(crate) struct Note<'a> {
    findings: &'a Findings,
    finding: Finding,
}

impl Note<'_> {
    /// Adds a place with a label. The first one is the place of the finding.
    pub(crate) fn at(mut self, span: Span, label: impl Into<String>) -> Self {
        self.finding.labels.push((span, shown(label)));
        self
    }

    /// Sets the remedy.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.finding.help = Some(shown(help));
        self
    }

    /// Sets the remedy, if there is one.
    pub(crate) fn maybe_help(mut self, help: Option<String>) -> Self {
        self.finding.help = help.map(shown);
        self
    }

    /// Keeps the finding.
    pub(crate) fn keep(self) {
        self.findings.keep(self.finding);
    }
}
