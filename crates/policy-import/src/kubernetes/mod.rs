// SPDX-License-Identifier: Apache-2.0
//! Imports Kubernetes' network policies (`networking.k8s.io/v1`, kind `NetworkPolicy`), as YAML or JSON, also a list.
//!
//! Imported: `podSelector`, `namespaceSelector`, `ipBlock` with `except`, `ports` with `endPort`, `policyTypes`. A pod
//! that a policy selects is isolated in the directions of the policy: only what some policy allows passes, and the
//! replies. Pods are the ports that `netvm-cni` has added: they have the label `namespace`, and the labels that the
//! runtime gives. Labels of namespaces are those of the file's objects of kind `Namespace`; all namespaces have
//! `kubernetes.io/metadata.name`.
//!
//! Noted but not imported: ports by name, labels of namespaces that the file does not have, and pods' labels with a key
//! that `netvm-cni` uses itself.
//!
//! All rules are for packets that leave by a port, so that they know both ends. ARP and neighbour discovery pass.

mod object;
mod policy;
mod rules;
mod selector;
mod yaml;

use netvm_policy::Labels;
use thiserror::Error;

use self::object::{Object, list};
use self::policy::Policy;
use self::selector::Namespace;
use self::yaml::{Node, documents};
use super::{Effect, Imported, MAX_RULES, MAX_VALUES, Note, NoteReason};

/// A text has no network policies that can be imported. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubernetesError {
    /// Not YAML.
    #[error("line {line}: not YAML: {why}")]
    Syntax {
        /// Line.
        line: u32,
        /// The parser's words.
        why: String,
    },
    /// YAML that objects of Kubernetes do not need.
    #[error("line {line}: {why}")]
    Yaml {
        /// Line.
        line: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// A value of another type than the API's.
    #[error("line {line}: {what} must be {is}")]
    Shape {
        /// Line.
        line: u32,
        /// The field.
        what: &'static str,
        /// Its type.
        is: &'static str,
    },
    /// A field that the API does not have.
    #[error("line {line}: {what} has no field `{name}`: correct or remove it")]
    Unknown {
        /// Line.
        line: u32,
        /// The field.
        name: String,
        /// The object.
        what: &'static str,
    },
    /// A field is missing, or must not be there.
    #[error("line {line}: {what}")]
    Field {
        /// Line.
        line: u32,
        /// What is wrong, and the remedy.
        what: &'static str,
    },
    /// A key or value of a label.
    #[error("line {line}: `{text}` cannot be in a label: letters, digits, `-`, `_`, `.` and `/` can")]
    Label {
        /// Line.
        line: u32,
        /// The text.
        text: String,
    },
    /// A network, a port or a protocol.
    #[error("line {line}: `{text}` is not {what}")]
    Value {
        /// Line.
        line: u32,
        /// The text.
        text: String,
        /// What it must be.
        what: &'static str,
    },
    /// The text has no policy.
    #[error("no NetworkPolicy: provide the output of `kubectl get networkpolicy -A -o yaml`")]
    Empty,
    /// The result is too large.
    #[error(
        "line {line}: with this policy there are more than {MAX_RULES} rules or {MAX_VALUES} values: import parts of it"
    )]
    TooLarge {
        /// The line of the policy.
        line: u32,
    },
}

/// Parses policies.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(text: &str) -> Result<Imported, KubernetesError> {
    let mut file = File::default();
    for node in documents(text)? {
        file.read(node, 0)?;
    }
    if file.policies.is_empty() && file.notes.is_empty() {
        return Err(KubernetesError::Empty);
    }
    // Namespaces may follow the policies that name their labels.
    let namespaces = std::mem::take(&mut file.namespaces);
    let mut policies = Vec::new();
    for node in std::mem::take(&mut file.policies) {
        policies.push(Policy::read(node, &namespaces, &mut file.notes)?);
    }
    let rules = rules::of(&policies)?;
    file.notes.sort_by_key(|note| note.line);
    Ok(Imported { rules, notes: file.notes, ..Imported::default() })
}

/// What a file has.
#[derive(Debug, Default)]
struct File {
    policies: Vec<Object>,
    namespaces: Vec<Namespace>,
    notes: Vec<Note>,
}

impl File {
    /// Reads an object, or the objects of a list; `depth`: of lists.
    fn read(&mut self, node: Node, depth: u32) -> Result<(), KubernetesError> {
        let mut object = Object::of(node, "an object of Kubernetes")?;
        let line = object.line;
        let Some(kind) = object.text("kind")? else {
            return match object.end() {
                // An empty document.
                Ok(()) => Ok(()),
                Err(_) => Err(KubernetesError::Field { line, what: "an object without `kind`: add it" }),
            };
        };
        let version = object.text("apiVersion")?.unwrap_or_default();
        match (kind.as_str(), version.as_str()) {
            ("NetworkPolicy", "networking.k8s.io/v1") => self.policies.push(object),
            ("Namespace", "v1") => self.namespaces.push(namespace(object)?),
            (kind, _) if kind.ends_with("List") && depth == 0 => {
                for node in
                    object.take("items").map(|node| list(node, "items")).transpose()?.into_iter().flatten()
                {
                    self.read(node, depth + 1)?;
                }
            }
            (kind, version) => {
                let what = format!("{kind} of {version}");
                let is_policy = kind.ends_with("NetworkPolicy");
                let effect = if is_policy { Effect::Wider } else { Effect::Same };
                self.notes.push(Note::new(line, what, NoteReason::Object).with(effect));
            }
        }
        Ok(())
    }
}

/// A namespace with its labels, and the one that all have.
fn namespace(mut object: Object) -> Result<Namespace, KubernetesError> {
    let line = object.line;
    let metadata = object.take("metadata").map(|node| Object::of(node, "metadata")).transpose()?;
    let mut labels = Labels::default();
    let mut name = None;
    if let Some(mut metadata) = metadata {
        name = metadata.text("name")?;
        for (key, value) in metadata.texts("labels")? {
            let wrong = |_| KubernetesError::Label { line: key.line, text: format!("{}={value}", key.name) };
            labels.insert(&key.name, &value).map_err(wrong)?;
        }
    }
    let Some(name) = name else {
        return Err(KubernetesError::Field {
            line,
            what: "a Namespace without `name` in its metadata: add it",
        });
    };
    Ok(Namespace { name, labels })
}
