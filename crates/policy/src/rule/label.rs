//! Labels of ports, by which rules name them.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use netvm_ids::PortId;
use thiserror::Error;

/// Longest key and longest value of a label in bytes.
pub const LABEL_BYTES: usize = 128;
/// Most labels of a port.
pub const MAX_LABELS: usize = 32;

/// The port of a rule whose labels no port has: an empty list would match all ports.
pub(crate) const NO_PORT: PortId = PortId(u16::MAX);

/// The labels of a port.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Adds a label, or gives it another value.
    ///
    /// # Errors
    /// [`LabelError`].
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), LabelError> {
        if key.is_empty() || key.contains('=') || !is_short_word(key) {
            return Err(LabelError::Key);
        }
        if !is_short_word(value) {
            return Err(LabelError::Value);
        }
        if self.0.len() >= MAX_LABELS && !self.0.contains_key(key) {
            return Err(LabelError::TooMany);
        }
        self.0.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Whether a rule's label is one of them.
    #[must_use]
    pub fn has(&self, label: &Label) -> bool {
        let value = self.0.get(&label.key);
        value.is_some_and(|value| label.value.as_ref().is_none_or(|wanted| wanted == value))
    }

    /// All, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// A key or value: visible ASCII, which shells, logs and terminals show as it is.
fn is_short_word(text: &str) -> bool {
    text.len() <= LABEL_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A text is no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LabelError {
    /// The key.
    #[error("a label's key has 1 to {LABEL_BYTES} visible ASCII characters without blanks and `=`")]
    Key,
    /// The value.
    #[error("a label's value has at most {LABEL_BYTES} visible ASCII characters without blanks")]
    Value,
    /// The port has the most already.
    #[error("a port has at most {MAX_LABELS} labels")]
    TooMany,
}

/// A label as rules name it: `app=web`, or `app` for any value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    key: String,
    value: Option<String>,
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
        Labels::default().insert(key, value.unwrap_or_default())?;
        Ok(Self { key: key.to_owned(), value: value.map(str::to_owned) })
    }
}

impl Display for Label {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        self.value.iter().try_for_each(|value| write!(f, "={value}"))
    }
}

/// The ports of one side of a rule, as its author names them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct Ends {
    /// By name.
    pub ports: Vec<PortId>,
    /// All that have one of these labels.
    pub labels: Vec<Label>,
}

impl Ends {
    /// The ports, each once, or [`NO_PORT`]; `labelled`: all ports of the host.
    pub(crate) fn select(&self, labelled: &[(PortId, &Labels)]) -> Vec<PortId> {
        let mut ports = self.ports.clone();
        let has_one = |labels: &Labels| self.labels.iter().any(|label| labels.has(label));
        let chosen = labelled.iter().filter(|(_, labels)| has_one(labels)).map(|(port, _)| *port);
        ports.extend(chosen.filter(|port| !self.ports.contains(port)));
        if ports.is_empty() && !self.labels.is_empty() {
            ports.push(NO_PORT);
        }
        ports
    }
}

/// The ports of a rule that names some by label.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct Selection {
    /// Ingress ports; all if nothing is named.
    pub from: Ends,
    /// Egress ports; the rule is for received packets if nothing is named.
    pub to: Ends,
}

impl Selection {
    /// Both sides.
    pub(crate) fn sides(&self) -> [&Ends; 2] {
        [&self.from, &self.to]
    }

    /// All ports that it names, not those by label.
    pub fn ports_mut(&mut self) -> impl Iterator<Item = &mut PortId> {
        self.from.ports.iter_mut().chain(&mut self.to.ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_key_with_or_without_a_value() {
        let mut labels = Labels::default();
        labels.insert("app", "web").unwrap();
        labels.insert("io.kubernetes.pod.namespace", "").unwrap();
        let has = |text: &str| labels.has(&text.parse().unwrap());
        assert!(has("app=web") && has("app") && has("io.kubernetes.pod.namespace="));
        assert!(!has("app=") && !has("app=we") && !has("ap") && !has("web"));
        for (text, error) in [
            ("", LabelError::Key),
            ("=web", LabelError::Key),
            ("a b=web", LabelError::Key),
            ("app=web server", LabelError::Value),
            ("app=w\u{e9}b", LabelError::Value),
        ] {
            assert_eq!(text.parse::<Label>(), Err(error), "{text}");
        }
        assert_eq!(labels.insert("a=b", "c"), Err(LabelError::Key));
        for n in 0..MAX_LABELS - 2 {
            labels.insert(&format!("n{n}"), "1").unwrap();
        }
        assert_eq!(labels.insert("more", "1"), Err(LabelError::TooMany));
        labels.insert("app", "db").unwrap();
        assert_eq!("app=a=b".parse::<Label>().unwrap().to_string(), "app=a=b");
    }
}
