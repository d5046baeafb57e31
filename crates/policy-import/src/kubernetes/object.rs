// SPDX-License-Identifier: Apache-2.0
//! Objects of the API as nodes: their fields, each once, with lines in errors.

use super::KubernetesError;
use super::yaml::{Key, Node, Value};

/// A node that must be a map; its fields are taken one by one.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) line: u32,
    /// What it is in errors, such as `spec`.
    what: &'static str,
    fields: Vec<(Key, Node)>,
}

impl Object {
    /// `null` is an object without fields.
    pub(super) fn of(node: Node, what: &'static str) -> Result<Self, KubernetesError> {
        match node.value {
            Value::Map(fields) => Ok(Self { line: node.line, what, fields }),
            Value::Null => Ok(Self { line: node.line, what, fields: Vec::new() }),
            _ => Err(KubernetesError::Shape { line: node.line, what, is: "a map" }),
        }
    }

    /// Takes a field; `null` counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Node> {
        let place = self.fields.iter().position(|(key, _)| key.name == name)?;
        let (_, node) = self.fields.remove(place);
        (!matches!(node.value, Value::Null)).then_some(node)
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, KubernetesError> {
        self.take(name).map(|node| text(node, name)).transpose()
    }

    /// The elements of a list; `None` if it is absent.
    pub(super) fn list(&mut self, name: &'static str) -> Result<Option<Vec<Node>>, KubernetesError> {
        self.take(name).map(|node| list(node, name)).transpose()
    }

    /// A map of texts, with their lines.
    pub(super) fn texts(&mut self, name: &'static str) -> Result<Vec<(Key, String)>, KubernetesError> {
        let Some(node) = self.take(name) else { return Ok(Vec::new()) };
        let fields = Self::of(node, name)?.fields;
        fields.into_iter().map(|(key, node)| Ok((key, text(node, name)?))).collect()
    }

    /// Refuses what was not taken: it would change the meaning.
    pub(super) fn end(self) -> Result<(), KubernetesError> {
        match self.fields.into_iter().next() {
            None => Ok(()),
            Some((Key { line, name }, _)) => Err(KubernetesError::Unknown { line, name, what: self.what }),
        }
    }
}

pub(super) fn text(node: Node, what: &'static str) -> Result<String, KubernetesError> {
    match node.value {
        Value::Text(text) => Ok(text),
        _ => Err(KubernetesError::Shape { line: node.line, what, is: "a text" }),
    }
}

pub(super) fn list(node: Node, what: &'static str) -> Result<Vec<Node>, KubernetesError> {
    match node.value {
        Value::List(list) => Ok(list),
        _ => Err(KubernetesError::Shape { line: node.line, what, is: "a list" }),
    }
}
