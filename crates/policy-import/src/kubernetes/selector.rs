// SPDX-License-Identifier: Apache-2.0
//! Label selectors: what Kubernetes matches with labels of pods or namespaces becomes labels of rules.
//!
//! A selector becomes several [`Label`]s, of which one must fit: those of `In` with several values.

use netvm_policy::{LABEL_BYTES, Label, Labels};

use super::KubernetesError;
use super::object::{Object, text};
use super::yaml::{Key, Node};

/// Labels that `netvm-cni` gives all ports, which the labels of pods cannot be told from.
const OWN: [&str; 3] = ["namespace", "network", "pod"];
/// The label that every namespace has, with its name.
const NAME: &str = "kubernetes.io/metadata.name";

/// A selector as the file has it.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    pub(super) line: u32,
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

/// A namespace of the file, with its labels.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) labels: Labels,
}

impl Selector {
    pub(super) fn read(node: Node, what: &'static str) -> Result<Self, KubernetesError> {
        let mut object = Object::of(node, what)?;
        let line = object.line;
        let mut requirements = Vec::new();
        for (Key { line, name }, value) in object.texts("matchLabels")? {
            let value = checked(line, value)?;
            requirements
                .push(Requirement { key: checked_key(line, name)?, operator: Operator::In(vec![value]) });
        }
        for node in object.list("matchExpressions")?.unwrap_or_default() {
            requirements.push(Requirement::read(node)?);
        }
        object.end()?;
        Ok(Self { line, requirements })
    }

    /// The pods of `within` that it means; `None` if it names labels that `netvm-cni` gives.
    pub(super) fn pods(&self, within: &[Label]) -> Option<Vec<Label>> {
        let is_own = |requirement: &Requirement| OWN.contains(&requirement.key.as_str());
        (!self.requirements.iter().any(is_own)).then(|| self.among(within, |key| key))
    }

    /// All pods of the namespaces that it means; `None` if it needs labels of namespaces, of which the file has none.
    pub(super) fn namespaces(&self, known: &[Namespace]) -> Option<Vec<Label>> {
        if self.requirements.iter().all(|requirement| requirement.key == NAME) {
            return Some(self.among(&any_namespace(), |_| "namespace"));
        }
        let fits = |one: &&Namespace| {
            let meant = |label: &Label| label.fits(&one.labels);
            self.requirements.iter().all(|requirement| requirement.labels(&requirement.key).iter().any(meant))
        };
        let names = known.iter().filter(fits).flat_map(|one| in_namespace(&one.name)).collect();
        (!known.is_empty()).then_some(names)
    }

    /// `rename`: the key that ports have.
    fn among<'a>(&'a self, within: &[Label], rename: impl Fn(&'a str) -> &'a str) -> Vec<Label> {
        let narrow = |all: Vec<Label>, requirement: &'a Requirement| {
            both(&all, &requirement.labels(rename(&requirement.key)))
        };
        self.requirements.iter().fold(within.to_vec(), narrow)
    }
}

impl Requirement {
    fn read(node: Node) -> Result<Self, KubernetesError> {
        let mut object = Object::of(node, "matchExpressions")?;
        let line = object.line;
        let missing = |is| KubernetesError::Shape { line, what: "an element of matchExpressions", is };
        let key = object.text("key")?.ok_or_else(|| missing("a map with `key`"))?;
        let word = object.text("operator")?.ok_or_else(|| missing("a map with `operator`"))?;
        let values = object.list("values")?.unwrap_or_default().into_iter();
        let values: Vec<String> = values
            .map(|node| checked(node.line, text(node, "values")?))
            .collect::<Result<_, KubernetesError>>()?;
        object.end()?;
        let operator = match (word.as_str(), values.is_empty()) {
            ("In", false) => Operator::In(values),
            ("NotIn", false) => Operator::NotIn(values),
            ("Exists", true) => Operator::Exists,
            ("DoesNotExist", true) => Operator::DoesNotExist,
            ("In" | "NotIn", true) => return Err(missing("a map with `values`, which In and NotIn need")),
            ("Exists" | "DoesNotExist", false) => {
                return Err(missing("a map without `values`, which Exists and DoesNotExist do not have"));
            }
            _ => return Err(missing("a map with the operator In, NotIn, Exists or DoesNotExist")),
        };
        Ok(Self { key: checked_key(line, key)?, operator })
    }

    /// Of these labels, one must fit.
    fn labels(&self, key: &str) -> Vec<Label> {
        let written: Vec<String> = match &self.operator {
            Operator::In(values) => values.iter().map(|value| format!("{key}={value}")).collect(),
            Operator::NotIn(values) => {
                let without: Vec<String> = values.iter().map(|value| format!("{key}!={value}")).collect();
                vec![without.join(",")]
            }
            Operator::Exists => vec![key.to_owned()],
            Operator::DoesNotExist => vec![format!("!{key}")],
        };
        written.iter().filter_map(|one| of(one)).collect()
    }
}

/// Pods of any namespace.
pub(super) fn any_namespace() -> Vec<Label> {
    of("namespace").into_iter().collect()
}

/// Ports of no pod.
pub(super) fn no_namespace() -> Vec<Label> {
    of("!namespace").into_iter().collect()
}

/// Pods of one namespace.
pub(super) fn in_namespace(name: &str) -> Vec<Label> {
    of(&format!("namespace={name}")).into_iter().collect()
}

/// What two lists have in common.
pub(super) fn both(a: &[Label], b: &[Label]) -> Vec<Label> {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    let mut common: Vec<Label> = Vec::new();
    for label in pairs.filter_map(|(a, b)| a.and(b)) {
        if !common.contains(&label) {
            common.push(label);
        }
    }
    common
}

/// All keys and values are checked, so that this is a label.
fn of(written: &str) -> Option<Label> {
    written.parse().ok()
}

fn checked_key(line: u32, key: String) -> Result<String, KubernetesError> {
    if key.is_empty() { Err(KubernetesError::Label { line, text: key }) } else { checked(line, key) }
}

/// A key or a value: of letters, digits, `-`, `_`, `.` and `/`, as Kubernetes has them.
fn checked(line: u32, text: String) -> Result<String, KubernetesError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if text.len() > LABEL_BYTES || !text.bytes().all(is_plain) {
        return Err(KubernetesError::Label { line, text });
    }
    Ok(text)
}
