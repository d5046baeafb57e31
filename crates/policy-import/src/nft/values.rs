// SPDX-License-Identifier: Apache-2.0
//! The right side of a match: values, ranges, prefixes, sets.

use serde_json::Value;

use super::reader::{RuleReader, Stop};
use super::single;
use super::symbols::Kind;
use crate::NoteReason;
use crate::algebra::{Ranges, prefix_range};

impl<'a> RuleReader<'a> {
    /// The values of a right side.
    pub(super) fn ranges(&self, kind: Kind, right: &'a Value) -> Result<Ranges, Stop> {
        let mut ranges = vec![];
        for element in self.elements(right)? {
            ranges.push(self.range(kind, element)?);
        }
        Ok(Ranges::union(ranges))
    }

    /// The elements of a named or anonymous set; a single value is one element.
    pub(super) fn elements(&self, right: &'a Value) -> Result<Vec<&'a Value>, Stop> {
        if let Some(name) = right.as_str().and_then(|text| text.strip_prefix('@')) {
            return self.named_set(name);
        }
        let Some(set) = right.get("set") else { return Ok(vec![self.element(right)?]) };
        match set {
            Value::Array(elements) => elements.iter().map(|element| self.element(element)).collect(),
            Value::String(_) => self.elements(set),
            element => Ok(vec![self.element(element)?]),
        }
    }

    /// The elements of a set or map of the table, if it is static.
    fn named_set(&self, name: &str) -> Result<Vec<&'a Value>, Stop> {
        let stop = |why| Stop::Note(format!("@{name}"), why);
        let key = (self.family, self.table, name);
        let Some(set) = self.objects.sets.get(&key).copied() else { return Err(stop(NoteReason::Missing)) };
        let flags = set.get("flags").and_then(Value::as_array).into_iter().flatten();
        let changes = flags.into_iter().any(|flag| flag == "dynamic" || flag == "timeout");
        if changes || set.get("timeout").is_some() || self.objects.dynamic.contains(&key) {
            return Err(stop(NoteReason::DynamicSet));
        }
        match set.get("elem") {
            None => Ok(vec![]),
            Some(Value::Array(elements)) => elements.iter().map(|element| self.element(element)).collect(),
            Some(element) => Ok(vec![self.element(element)?]),
        }
    }

    /// An element without its attributes.
    pub(super) fn element(&self, element: &'a Value) -> Result<&'a Value, Stop> {
        let Some(full) = element.get("elem") else { return Ok(element) };
        if full.get("timeout").is_some() || full.get("expires").is_some() {
            return Err(Stop::Note("element with a timeout".into(), NoteReason::DynamicSet));
        }
        full.get("val").ok_or_else(|| self.schema("an element with a value", element).into())
    }

    /// The first and the last value of an element.
    pub(super) fn range(&self, kind: Kind, element: &Value) -> Result<(u128, u128), Stop> {
        let wrong = || self.schema(kind.expected(), element);
        let number = |value: &Value| kind.number(value).ok_or_else(wrong);
        if element == "*" {
            return Ok((0, kind.highest()));
        }
        let range = match single(element) {
            None => number(element).map(|value| (value, value))?,
            Some(("range", ends)) => {
                let [first, last] = ends.as_array().map(Vec::as_slice).unwrap_or_default() else {
                    return Err(wrong().into());
                };
                (number(first)?, number(last)?)
            }
            Some(("prefix", prefix)) => {
                let length = prefix.get("len").and_then(Value::as_u64);
                let length = length.and_then(|length| u8::try_from(length).ok());
                let length = length.filter(|length| *length <= kind.bits()).ok_or_else(wrong)?;
                prefix_range(number(&prefix["addr"])?, length, kind.bits())
            }
            Some(("map" | "jhash" | "numgen" | "symhash" | "payload" | "meta", _)) => {
                return Err(Stop::Note("a value that is not constant".into(), NoteReason::Match));
            }
            Some(_) => return Err(wrong().into()),
        };
        // Ends of symbolic names can be inverted only if they are also numbers.
        if range.0 <= range.1 { Ok(range) } else { Err(wrong().into()) }
    }

    /// Combined bits: a number, a name, a list, or `|`.
    pub(super) fn bits(&self, kind: Kind, value: &Value) -> Result<u128, Stop> {
        let parts = match value {
            Value::Array(parts) => parts,
            Value::Object(_) => match value.get("|").and_then(Value::as_array) {
                Some(parts) => parts,
                None => return Err(self.schema(kind.expected(), value).into()),
            },
            _ => return kind.number(value).ok_or_else(|| self.schema(kind.expected(), value).into()),
        };
        parts.iter().try_fold(0, |bits, part| Ok(bits | self.bits(kind, part)?))
    }
}
