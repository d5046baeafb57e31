// SPDX-License-Identifier: Apache-2.0
//! Reads YAML, of which JSON is a part, into nodes with their lines.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError};

use super::KubernetesError;

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// A value and its line, from 1.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u32,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Text(String),
    List(Vec<Node>),
    /// Keys with their lines, in the order of the file.
    Map(Vec<(Key, Node)>),
}

/// A key and its line.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) line: u32,
    pub(super) name: String,
}

/// A list or map that has not ended.
struct Open {
    node: Node,
    key: Option<Key>,
}

/// The documents of a text.
///
/// # Errors
/// It is not YAML, or has aliases or keys that are no text.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, KubernetesError> {
    let mut documents = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        let line = span.start.line() as u32;
        let refuse = |why| Err(KubernetesError::Yaml { line, why });
        let ended = match event {
            Event::Scalar(text, style, ..) => {
                let is_null =
                    style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if is_null { Value::Null } else { Value::Text(text.into_owned()) };
                Node { line, value }
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= MAX_DEPTH => {
                return refuse("it is nested too deeply");
            }
            Event::SequenceStart(..) => {
                open.push(Open { node: Node { line, value: Value::List(Vec::new()) }, key: None });
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open { node: Node { line, value: Value::Map(Vec::new()) }, key: None });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open { node, .. }) => node,
                None => return refuse("something ends that has not begun"),
            },
            Event::Alias(_) => {
                return refuse("it refers to an anchor (`*name`): write out what that stands for");
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => continue,
        };
        let Some(Open { node, key }) = open.last_mut() else {
            documents.push(ended);
            continue;
        };
        match (&mut node.value, key.take(), ended) {
            (Value::List(list), _, ended) => list.push(ended),
            (Value::Map(map), Some(key), ended) => {
                if map.iter().any(|(known, _)| known.name == key.name) {
                    return Err(KubernetesError::Yaml { line: key.line, why: "this key is there twice" });
                }
                map.push((key, ended));
            }
            (_, _, Node { line, value: Value::Text(name) }) => *key = Some(Key { line, name }),
            _ => return refuse("a key must be a text"),
        }
    }
    Ok(documents)
}

fn syntax(error: &ScanError) -> KubernetesError {
    KubernetesError::Syntax { line: error.marker().line() as u32, why: error.info().to_owned() }
}
