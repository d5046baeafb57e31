// SPDX-License-Identifier: Apache-2.0
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
    #[error("there are at most {MAX_LABELS} labels")]
    TooMany,
}

/// Labels as rules name them, in the words of Kubernetes' selectors: `app=web`, `app` for any value, `app!=web` and
/// `!app` for ports without it, `app=web,tier=front` for ports that fit both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label(Vec<Requirement>);

/// What a port's labels must have, or must not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Requirement {
    is_not: bool,
    key: String,
    value: Option<String>,
}

impl Label {
    /// Whether a port with these labels is meant.
    #[must_use]
    pub fn fits(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.fits(labels))
    }

    /// Its parts, each alone: what commas separate.
    pub fn parts(&self) -> impl Iterator<Item = Self> {
        self.0.iter().map(|requirement| Self(vec![requirement.clone()]))
    }

    /// The ports that are meant by both; `None` if no port can be.
    #[must_use]
    pub fn and(&self, other: &Self) -> Option<Self> {
        let mut all: Vec<Requirement> = Vec::new();
        for new in self.0.iter().chain(&other.0) {
            if all.iter().any(|known| known.excludes(new)) {
                return None;
            }
            if !all.iter().any(|known| known.implies(new)) {
                all.retain(|known| !new.implies(known));
                all.push(new.clone());
            }
        }
        Some(Self(all))
    }
}

impl Requirement {
    fn fits(&self, labels: &Labels) -> bool {
        let has = |value: &String| self.value.as_ref().is_none_or(|wanted| wanted == value);
        labels.0.get(&self.key).is_some_and(has) != self.is_not
    }

    /// Whether every port that fits this one fits the other, too.
    fn implies(&self, other: &Self) -> bool {
        let holds = match (self.is_not, other.is_not) {
            (false, false) | (true, true) => {
                let wide = if self.is_not { &self.value } else { &other.value };
                wide.is_none() || self.value == other.value
            }
            (false, true) => self.value.is_some() && other.value.is_some() && self.value != other.value,
            (true, false) => false,
        };
        self.key == other.key && holds
    }

    /// Whether no port fits both.
    fn excludes(&self, other: &Self) -> bool {
        let fails = match (self.is_not, other.is_not) {
            (false, false) => self.value.is_some() && other.value.is_some() && self.value != other.value,
            (true, true) => false,
            (is_not, _) => {
                let (has, has_not) = if is_not { (other, self) } else { (self, other) };
                has_not.value.is_none() || has.value == has_not.value
            }
        };
        self.key == other.key && fails
    }
}

impl FromStr for Requirement {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
        let (is_not, key) = match value {
            Some(_) => key.strip_suffix('!').map_or((false, key), |key| (true, key)),
            None => key.strip_prefix('!').map_or((false, key), |key| (true, key)),
        };
        Labels::default().insert(key, value.unwrap_or_default())?;
        Ok(Self { is_not, key: key.to_owned(), value: value.map(str::to_owned) })
    }
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Display for Requirement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.is_not, &self.value) {
            (is_not, None) => write!(f, "{}{}", if is_not { "!" } else { "" }, self.key),
            (is_not, Some(value)) => write!(f, "{}{}={value}", self.key, if is_not { "!" } else { "" }),
        }
    }
}

impl Display for Label {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (place, requirement) in self.0.iter().enumerate() {
            write!(f, "{}{requirement}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The ports of one side of a rule, as its author names them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct Ends {
    /// By name.
    pub ports: Vec<PortId>,
    /// All that one of these means.
    pub labels: Vec<Label>,
}

impl Ends {
    /// The ports, each once, or [`NO_PORT`]; `labelled`: all ports of the host.
    pub(crate) fn select(&self, labelled: &[(PortId, &Labels)]) -> Vec<PortId> {
        let mut ports = self.ports.clone();
        let has_one = |labels: &Labels| self.labels.iter().any(|label| label.fits(labels));
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
    /// All labels that it names, each with the key of the configuration.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &Label)> {
        [("from", &self.from), ("to", &self.to)]
            .into_iter()
            .flat_map(|(key, ends)| ends.labels.iter().map(move |label| (key, label)))
    }

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
        let has = |text: &str| text.parse::<Label>().unwrap().fits(&labels);
        assert!(has("app=web") && has("app") && has("io.kubernetes.pod.namespace="));
        assert!(!has("app=") && !has("app=we") && !has("ap") && !has("web"));
        assert!(has("!tier") && has("app!=we") && has("tier!=front") && !has("!app") && !has("app!=web"));
        assert!(
            has("app=web,!tier") && has("app,tier!=front") && !has("app=web,tier") && !has("!tier,app!=web")
        );
        let parts: Vec<String> =
            "app=web,!tier".parse::<Label>().unwrap().parts().map(|part| part.to_string()).collect();
        assert_eq!(parts, ["app=web", "!tier"]);
        let both = "app=web,!tier".parse::<Label>().unwrap().and(&"!tier,x!=1".parse().unwrap());
        assert_eq!(both.unwrap().to_string(), "app=web,!tier,x!=1");
    }

    #[test]
    fn two_selectors_together_mean_the_ports_that_both_mean() {
        let one = |key: &str, value: &str| {
            let mut labels = Labels::default();
            labels.insert(key, value).unwrap();
            labels
        };
        let ports = [Labels::default(), one("a", ""), one("a", "1"), one("a", "2"), one("b", "1")];
        let all = ["a", "!a", "a=1", "a=2", "a!=1", "a!=2", "a=", "b=1", "!b", "a,a!=1", "!a,b"];
        let parsed: Vec<Label> = all.iter().map(|text| text.parse().unwrap()).collect();
        for (a, b) in parsed.iter().flat_map(|a| parsed.iter().map(move |b| (a, b))) {
            let both = a.and(b);
            for port in &ports {
                let fits = both.as_ref().is_some_and(|both| both.fits(port));
                assert_eq!(fits, a.fits(port) && b.fits(port), "{a} and {b}: {port:?}");
            }
        }
        let and = |a: &str, b: &str| a.parse::<Label>().unwrap().and(&b.parse().unwrap());
        assert_eq!(and("a", "a=1,b!=2").unwrap().to_string(), "a=1,b!=2");
        assert_eq!(and("a=1", "a!=1"), None);
    }

    #[test]
    fn a_port_has_a_bounded_number_of_labels() {
        let mut labels = Labels::default();
        labels.insert("app", "web").unwrap();
        labels.insert("b", "").unwrap();
        for (text, error) in [
            ("", LabelError::Key),
            ("=web", LabelError::Key),
            ("a b=web", LabelError::Key),
            ("app=web,", LabelError::Key),
            ("!=web", LabelError::Key),
            ("!", LabelError::Key),
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
