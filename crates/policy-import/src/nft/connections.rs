// SPDX-License-Identifier: Apache-2.0
//! Connection tracking: `ct state`, and statements that change how connections are tracked.

use netvm_wire::ConnState;
use serde_json::Value;

use super::left::{LeftOperand, Target, ip};
use super::matches::Comparison;
use super::reader::{Draft, RuleReader, Stop};
use super::single;
use super::symbols::{Kind, state_bit};
use crate::NoteReason;
use crate::algebra::{Field, state_values};
use crate::chains::Tracking;
use netvm_policy::Match;

impl<'a> RuleReader<'a> {
    /// The left side `ct KEY`.
    pub(super) fn connection<'v>(&self, connection: &Value) -> Result<LeftOperand<'v>, Stop> {
        let key = connection.get("key").and_then(Value::as_str).unwrap_or_default();
        let what = format!("ct {key}");
        if key != "state" || self.objects.ingress.contains(&(self.family, self.table)) {
            return Err(Stop::Note(what, NoteReason::ConnectionState));
        }
        Ok(LeftOperand {
            what,
            implies: ip(),
            target: Target::State,
            kind: Kind::State,
            mask: None,
            transport: false,
            differs: None,
        })
    }

    /// Reads a match of what the router knows of a packet: whether its destination is the router's, or was translated.
    /// Returns whether the match is one of these.
    pub(super) fn of_router(&self, draft: &mut Draft, statement: &Value) -> Result<bool, Stop> {
        let part = |key| statement.get(key).unwrap_or(&Value::Null);
        let is_positive = part("op") == "==" || part("op") == "in";
        let (left, right) = (part("left"), part("right"));
        if let Some(fib) = left.get("fib") {
            let flags = fib.get("flags").unwrap_or(&Value::Null);
            let is_destination = flags == "daddr" || flags.as_array().is_some_and(|all| all == &["daddr"]);
            let is_local = is_positive && is_destination && fib.get("result").is_some_and(|it| it == "type");
            draft.local = (is_local && right == "local").then(|| "fib daddr type local".to_owned());
            return Ok(draft.local.is_some());
        }
        let is_status = left.get("ct").and_then(|of| of.get("key")).is_some_and(|key| key == "status");
        if !is_status || !is_positive || right != "dnat" {
            return Ok(false);
        }
        if self.objects.has_destinations {
            return Err(Stop::Note("ct status dnat".to_owned(), NoteReason::TranslatedStatus));
        }
        draft.narrow(&[]);
        Ok(true)
    }

    /// `ct state established,related`, `ct state { new, untracked }`, `ct state & (established | related) == 0`. The
    /// state of a packet is one bit.
    pub(super) fn states(
        &self,
        left: &LeftOperand<'_>,
        operator: Comparison,
        right: &'a Value,
    ) -> Result<Vec<Match>, Stop> {
        let stop = |why| Stop::Note(left.what.clone(), why);
        let mask = left.mask.map_or(Ok(Kind::State.highest()), |mask| self.bits(Kind::State, mask))?;
        let values = self
            .elements(right)?
            .into_iter()
            .map(|element| self.bits(Kind::State, element))
            .collect::<Result<Vec<_>, _>>()?;
        let in_set = right.get("set").is_some() || right.as_str().is_some_and(|text| text.starts_with('@'));
        let bits = values.iter().fold(0, |bits, value| bits | value);
        let fits = |state: ConnState| {
            let value = state_bit(state) & mask;
            match operator {
                Comparison::AnyBit if !in_set => Some(value & bits != 0),
                Comparison::Equal | Comparison::AnyBit => Some(values.contains(&value)),
                Comparison::NotEqual => Some(!values.contains(&value)),
                Comparison::NoBit => Some(value & bits == 0),
                _ => None,
            }
        };
        let mut states = vec![];
        for state in ConnState::ALL {
            if fits(state).ok_or_else(|| stop(NoteReason::Match))? {
                states.push(state);
            }
        }
        // There, packets that are not IP are untracked.
        if self.family == "bridge" && states.contains(&ConnState::Untracked) {
            return Err(stop(NoteReason::Opposite));
        }
        Ok(Field::State.among(&state_values(&states)).into_iter().collect())
    }

    /// What a rule changes of how connections are tracked, by its statements alone.
    pub(super) fn tracking(&self, rule: &Value) -> Option<Tracking> {
        let statements = rule.get("expr").and_then(Value::as_array).into_iter().flatten();
        let null = &Value::Null;
        let mut named = statements.filter_map(|statement| {
            statement.as_str().map(|name| (name, null)).or_else(|| single(statement))
        });
        named.find_map(|(kind, inner)| tracking(kind, inner))
    }
}

/// What a statement changes of how connections are tracked.
pub(super) fn tracking(kind: &str, inner: &Value) -> Option<Tracking> {
    match kind {
        "notrack" => Some(Tracking::Off),
        "ct helper" => Some(Tracking::Helper),
        "mangle" => {
            let of = inner.get("key")?.get("ct")?;
            let zone = inner.get("value")?.as_u64().and_then(|zone| zone.try_into().ok());
            // Each direction may have its own.
            let zone = zone.filter(|_| of.get("dir").is_none());
            (of.get("key")? == "zone").then_some(Tracking::Zone(zone))
        }
        _ => None,
    }
}
