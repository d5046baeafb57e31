//! Reading values out of TOML tables: every value comes with its place, every wrong one becomes a finding, and keys
//! that nobody asked for are unknown ones.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::finding::{Findings, Kind, Span};
use crate::model::MAX_SET;
use crate::suggest::{did_you_mean, nearest};

/// A list with its place, and its elements' places.
pub(crate) type List<T> = Spanned<Vec<Spanned<T>>>;

const LISTS: &str = "a list of lists of whole numbers, such as [[0], [1]]";

/// Makes a value with its place.
pub(crate) fn at<T>(span: Span, value: T) -> Spanned<T> {
    Spanned::new(span, value)
}

/// A table that is being read.
pub(crate) struct Reader<'a> {
    table: &'a DeTable<'a>,
    /// How people know it, such as `[[port]]`.
    pub(crate) title: &'static str,
    /// Its header.
    pub(crate) span: Span,
    pub(crate) findings: &'a Findings,
    asked: RefCell<Vec<&'static str>>,
    /// Keys that must be there and are not, with what would help.
    missing: RefCell<Vec<(&'static str, String)>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        table: &'a DeTable<'a>,
        title: &'static str,
        span: Span,
        findings: &'a Findings,
    ) -> Self {
        Self { table, title, span, findings, asked: RefCell::default(), missing: RefCell::default() }
    }

    fn value(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().push(key);
        self.table.get(key)
    }

    /// The place of a key, if it is there.
    pub(crate) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    /// The first of these keys that is there, asked for or not.
    pub(crate) fn first_of(&self, keys: &[&'static str]) -> Option<&'static str> {
        keys.iter().copied().find(|key| self.table.contains_key(*key))
    }

    /// Takes keys for known ones.
    pub(crate) fn know(&self, keys: impl IntoIterator<Item = &'static str>) {
        self.asked.borrow_mut().extend(keys);
    }

    /// Notes that a key must be there, for [`Self::finish`] to say.
    pub(crate) fn missing(&self, key: &'static str, help: impl Into<String>) {
        self.missing.borrow_mut().push((key, help.into()));
    }

    /// A text.
    pub(crate) fn text(&self, key: &'static str) -> Option<Spanned<String>> {
        self.to_text(key, self.value(key)?)
    }

    fn to_text(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<Spanned<String>> {
        match value.get_ref() {
            DeValue::String(text) => Some(at(value.span(), text.to_string())),
            _ => self.wrong_type(key, value, "a text in quotes"),
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &'static str) -> Option<List<String>> {
        let value = self.value(key)?;
        let DeValue::Array(list) = value.get_ref() else {
            return self.wrong_type(key, value, "a list of texts, such as [\"a\", \"b\"]");
        };
        let texts: Vec<_> = list.iter().map(|item| self.to_text(key, item)).collect();
        texts.into_iter().collect::<Option<Vec<_>>>().map(|texts| at(value.span(), texts))
    }

    /// Yes or no.
    pub(crate) fn flag(&self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.wrong_type(key, value, "`true` or `false`"),
        }
    }

    /// Yes, no, or one of some words.
    pub(crate) fn flag_or_word<T: Copy>(
        &self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<Result<bool, T>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(Ok(*flag)),
            DeValue::String(_) => self.word(key, words).map(|word| Err(word.into_inner())),
            _ => self.wrong_type(key, value, "`true`, `false` or a word in quotes"),
        }
    }

    /// A number within a range.
    pub(crate) fn number<T: TryFrom<u64>>(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<Spanned<T>> {
        self.to_number(key, self.value(key)?, range)
    }

    fn to_number<T: TryFrom<u64>>(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        range: RangeInclusive<u64>,
    ) -> Option<Spanned<T>> {
        let DeValue::Integer(integer) = value.get_ref() else {
            return self.wrong_type(key, value, "a whole number");
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let fits = number.filter(|number| range.contains(number)).and_then(|number| T::try_from(number).ok());
        if fits.is_none() {
            let (low, high) = range.into_inner();
            self.bad_value(key, value.span(), &format!("is {integer}"))
                .help(format!("from {low} to {high} is possible"))
                .keep();
        }
        fits.map(|number| at(value.span(), number))
    }

    /// A list of numbers within a range.
    pub(crate) fn numbers(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<List<u32>> {
        self.to_numbers(key, self.value(key)?, &range)
    }

    fn to_numbers(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        range: &RangeInclusive<u64>,
    ) -> Option<List<u32>> {
        let DeValue::Array(list) = value.get_ref() else {
            return self.wrong_type(key, value, "a list of whole numbers, such as [0, 1]");
        };
        let numbers: Vec<_> = list.iter().map(|item| self.to_number(key, item, range.clone())).collect();
        numbers.into_iter().collect::<Option<Vec<_>>>().map(|numbers| at(value.span(), numbers))
    }

    /// A list of lists of numbers within a range.
    pub(crate) fn number_lists(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<List<Vec<Spanned<u32>>>> {
        let value = self.value(key)?;
        let DeValue::Array(list) = value.get_ref() else {
            return self.wrong_type(key, value, LISTS);
        };
        if let Some(item) = list.iter().find(|item| !item.get_ref().is_array()) {
            return self.wrong_type(key, item, LISTS);
        }
        let lists: Vec<_> = list.iter().map(|item| self.to_numbers(key, item, &range)).collect();
        lists.into_iter().collect::<Option<Vec<_>>>().map(|lists| at(value.span(), lists))
    }

    /// One of some words.
    pub(crate) fn word<T: Copy>(&self, key: &'static str, words: &[(&'static str, T)]) -> Option<Spanned<T>> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| word == text.get_ref());
        if found.is_none() {
            self.bad_value(key, text.span(), &format!("cannot be `{}`", text.get_ref()))
                .maybe_help(did_you_mean(
                    text.get_ref(),
                    words.iter().map(|(word, _)| *word),
                    "possible values",
                ))
                .keep();
        }
        found.map(|(_, value)| at(text.span(), *value))
    }

    /// A text that means something: an address, a range. A number stands for its digits.
    pub(crate) fn parsed<T, E: Display>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Spanned<T>> {
        self.to_parsed(key, self.value(key)?, &parse, "a text in quotes, or a number")
    }

    fn to_parsed<T, E: Display>(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        parse: &impl Fn(&str) -> Result<T, E>,
        expected: &str,
    ) -> Option<Spanned<T>> {
        let text: Cow<'_, str> = match value.get_ref() {
            DeValue::String(text) => Cow::Borrowed(text),
            DeValue::Integer(integer) if integer.radix() == 10 => Cow::Borrowed(integer.as_str()),
            DeValue::Integer(integer) => match u64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(number) => Cow::Owned(number.to_string()),
                Err(_) => Cow::Borrowed(integer.as_str()),
            },
            _ => return self.wrong_type(key, value, expected),
        };
        match parse(&text) {
            Ok(parsed) => Some(at(value.span(), parsed)),
            Err(error) => {
                self.bad_value(key, value.span(), &format!("cannot be `{text}`"))
                    .help(error.to_string())
                    .keep();
                None
            }
        }
    }

    /// One value or a list of at least one, each a text that means something or a number; empty when it is absent.
    pub(crate) fn set<T, E: Display>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<Spanned<T>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Array(list) = value.get_ref() else {
            let one = self.to_parsed(key, value, &parse, "a text in quotes, a number, or a list of them");
            return one.into_iter().collect();
        };
        if list.is_empty() {
            self.bad_value(key, value.span(), "is an empty list, which nothing can fit")
                .help("name at least one, or leave it out")
                .keep();
        }
        if let Some(extra) = list.get(MAX_SET) {
            self.findings
                .note(Kind::TooMany, format!("{} elements of `{key}`", list.len()))
                .at(extra.span(), "one too many")
                .help(format!("a list has at most {MAX_SET} elements here: make several rules of it"))
                .keep();
        }
        let parsed = |item| self.to_parsed(key, item, &parse, "texts in quotes or numbers in its list");
        list.iter().filter_map(parsed).collect()
    }

    /// Texts by name.
    pub(crate) fn variables(&self, key: &'static str) -> Vec<(Spanned<String>, String)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Table(table) = value.get_ref() else {
            return self
                .wrong_type(key, value, "a table of texts, such as { NAME = \"value\" }")
                .unwrap_or_default();
        };
        let variable = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let name: &Cow<'_, str> = name.get_ref();
            let text = self.to_text(name, value)?;
            Some((name.to_string(), text))
        };
        let spans = table.keys().map(Spanned::span);
        let read = table.iter().map(variable).zip(spans);
        read.filter_map(|(pair, span)| pair.map(|(name, text)| (at(span, name), text.into_inner()))).collect()
    }

    /// A table in this one.
    pub(crate) fn table(&self, key: &'static str, title: &'static str) -> Option<Reader<'a>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Reader::new(table, title, value.span(), self.findings)),
            _ => self.wrong_type(key, value, &format!("a table: {title}")),
        }
    }

    /// A text, or a table in this one.
    pub(crate) fn text_or_table(
        &self,
        key: &'static str,
        title: &'static str,
    ) -> Option<Result<Spanned<String>, Reader<'a>>> {
        match self.value(key)?.get_ref() {
            DeValue::Table(_) => self.table(key, title).map(Err),
            _ => self.text(key).map(Ok),
        }
    }

    /// Notes it when none of these keys is there (the last is missing then, and `help` says what can be written), or more
    /// than one.
    pub(crate) fn just_one(&self, keys: &[&'static str], help: &str) {
        let given: Vec<&str> = keys.iter().copied().filter(|key| self.key_span(key).is_some()).collect();
        match (given.as_slice(), keys) {
            ([], [.., last]) => self.missing(last, help),
            ([first, second, ..], _) => self
                .findings
                .note(Kind::Conflict, format!("`{second}` and `{first}` in one `{}`", self.title))
                .at(self.key_span(second).unwrap_or_default(), "this as well?")
                .at(self.key_span(first).unwrap_or_default(), "this is said already")
                .help("keep one of them")
                .keep(),
            _ => {}
        }
    }

    /// The tables of an array of tables; none when it is absent.
    pub(crate) fn tables(&self, key: &'static str, title: &'static str) -> Vec<Reader<'a>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Array(list) = value.get_ref() else {
            if let DeValue::Table(_) = value.get_ref() {
                self.findings
                    .note(Kind::WrongType, format!("`[{key}]` is one table, but there can be several"))
                    .at(value.span(), "")
                    .help(format!("write {title}, with two brackets"))
                    .keep();
                return Vec::new();
            }
            return self.wrong_type(key, value, &format!("an array of tables: {title}")).unwrap_or_default();
        };
        let reader = |item: &'a Spanned<DeValue<'a>>| match item.get_ref() {
            DeValue::Table(table) => Some(Reader::new(table, title, item.span(), self.findings)),
            _ => self.wrong_type(key, item, &format!("a table: {title}")),
        };
        list.iter().filter_map(reader).collect()
    }

    /// Says that a value cannot be.
    pub(crate) fn bad_value(&self, key: &str, span: Span, what: &str) -> crate::finding::Note<'a> {
        self.findings.note(Kind::BadValue, format!("`{key}` {what}")).at(span, "not possible")
    }

    fn wrong_type<T>(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) -> Option<T> {
        let found = match value.get_ref() {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "`true` or `false`",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.findings
            .note(Kind::WrongType, format!("`{key}` is of the wrong type"))
            .at(value.span(), format!("this is {found}"))
            .help(format!("it takes {expected}"))
            .keep();
        None
    }

    /// Says which keys are unknown, since nobody asked for them, and which are missing. `foreign` are keys that belong
    /// to other forms of this table, with the form.
    pub(crate) fn finish(&self, foreign: &[(&'static str, &str)]) {
        let asked = self.asked.borrow();
        let mut meant = Vec::new();
        for key in self.table.keys().filter(|key| !asked.contains(&key.get_ref().as_ref())) {
            match foreign.iter().find(|(name, _)| *name == key.get_ref()) {
                Some((name, form)) => self
                    .findings
                    .note(Kind::Conflict, format!("`{name}` does not belong here"))
                    .at(key.span(), format!("goes with {form} only"))
                    .help("remove it")
                    .keep(),
                None => meant.extend(self.unknown(key, &asked, foreign)),
            }
        }
        for (key, help) in self.missing.borrow().iter().filter(|(key, _)| !meant.contains(key)) {
            self.findings
                .note(Kind::MissingKey, format!("{} has no `{key}`", self.title))
                .at(self.span.clone(), format!("`{key}` is missing here"))
                .help(help)
                .keep();
        }
    }

    /// Says that a key is unknown; the result is the key that may be meant.
    fn unknown(
        &self,
        key: &Spanned<Cow<'_, str>>,
        asked: &[&'static str],
        foreign: &[(&'static str, &str)],
    ) -> Option<&'static str> {
        let name: &str = key.get_ref();
        let known = asked.iter().copied().chain(foreign.iter().map(|(key, _)| *key));
        let meant = nearest(name, known);
        let help = meant.map_or_else(
            || {
                let all: Vec<String> = asked.iter().map(|key| format!("`{key}`")).collect();
                format!("keys of {} are {}", self.title, all.join(", "))
            },
            |key| format!("did you mean `{key}`?"),
        );
        self.findings
            .note(Kind::UnknownKey, format!("unknown key `{name}` in {}", self.title))
            .at(key.span(), "unknown")
            .help(help)
            .keep();
        meant
    }
}
