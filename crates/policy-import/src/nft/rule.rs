// SPDX-License-Identifier: Apache-2.0
//! Parses the rules of a ruleset: the statements of each in order.

mod nat;

use netvm_wire::{EtherType, IpProto};
use serde_json::Value;

use super::connections::tracking;
use super::matches::Comparison;
use super::objects::Objects;
use super::reader::{Draft, Ending, RuleReader, Stop};
use super::{Location, NftError, single};
use crate::algebra::{product, with_transport_header, without};
use crate::chains::{End, Program, Step};
use crate::limit::{Limit, seconds};
use crate::{Effect, Interfaces, Note, NoteReason};
use netvm_policy::Match;

/// Most matches for the values outside a verdict map.
const MAX_OTHERS: usize = 4096;
/// Default burst of a limit in packets (`NFT_LIMIT_PKT_BURST_DEFAULT`).
const DEFAULT_BURST: u64 = 5;

/// An entry of a map: the packets that its key matches (`None`: `*`, all others), and its data.
type MapEntry<'a> = (Option<Vec<Match>>, &'a Value);

/// Reads the rules of all chains into the program, with their notes.
pub(super) fn read_rules<'a>(
    program: &mut Program,
    objects: &Objects<'a>,
    listed: &'a [(u32, Value)],
    interfaces: &Interfaces,
) -> Result<(), NftError> {
    for (line, object) in listed {
        let Some(rule) = object.get("rule") else { continue };
        let place = Location { line: *line, name: "rule" };
        let (family, table, chain) = place.name_of(rule, "chain")?;
        if objects.dormant.contains(&(family, table)) {
            continue;
        }
        let handle = rule.get("handle").and_then(Value::as_u64);
        let handle = handle.map_or(String::new(), |handle| format!(" {handle}"));
        let what = format!("rule{handle} of chain {family} {table} {chain}");
        let Some(&index) = objects.chains.get(&(family, table, chain)) else {
            return Err(NftError::Chain { line: *line, place: what, chain: chain.to_owned() });
        };
        let reader = RuleReader { line: *line, what: &what, family, table, objects, interfaces };
        let (steps, notes) = reader.read(rule)?;
        program.chains[index].steps.extend(steps);
        program.chains[index].notes.extend(notes);
    }
    Ok(())
}

impl<'a> RuleReader<'a> {
    /// The steps of a rule, if it has an equivalent, and the notes.
    fn read(&self, rule: &'a Value) -> Result<(Vec<Step>, Vec<Note>), NftError> {
        let note = |(what, why): (String, NoteReason)| match why {
            NoteReason::Answer => Note::new(self.line, what, why),
            NoteReason::SomeInterfaces if !self.interfaces.is_complete() => {
                Note::new(self.line, format!("{}: {what}", self.what), why).with(Effect::Wider)
            }
            _ => Note::new(self.line, format!("{}: {what}", self.what), why),
        };
        let mut draft = Draft::new();
        let read = self.statements(&mut draft, rule).and_then(|()| self.steps(&mut draft, rule));
        match read {
            Ok(steps) => Ok((steps, draft.notes.into_iter().map(note).collect())),
            Err(Stop::Note(what, NoteReason::Interface)) if self.interfaces.is_complete() => {
                Ok((vec![], vec![note((what, NoteReason::Interface))]))
            }
            // A skipped rule has only the note with the reason.
            Err(Stop::Note(what, why)) => {
                let what = format!("{}: {what}", self.what);
                let end = self.end(rule);
                let unsure = Some((what, why));
                let (tracking, local) = (self.tracking(rule), draft.local.take());
                let step = Step { end, unsure, tracking, local, ..self.step(rule, draft.fits) };
                Ok((vec![step], vec![]))
            }
            Err(Stop::Error(error)) => Err(error),
        }
    }

    /// A step for a rule that counts packets.
    fn step(&self, rule: &Value, fits: Vec<Match>) -> Step {
        let comment = rule.get("comment").and_then(Value::as_str);
        let name = comment.unwrap_or(self.what).to_owned();
        Step { name, ..Step::new(self.line, self.what, fits) }
    }

    /// What a rule does to packets that match, by its statements alone.
    fn end(&self, rule: &Value) -> End {
        let statements = rule.get("expr").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut end = End::Next;
        for statement in statements {
            let null = &Value::Null;
            let named = statement.as_str().map(|name| (name, null));
            let Some((kind, inner)) = named.or_else(|| single(statement)) else { return End::Unknown };
            match kind {
                "match" | "limit" | "quota" | "ct count" | "meter" => {}
                "reject" => end = End::Reject,
                "accept" | "drop" | "return" | "continue" | "jump" | "goto" => {
                    end = self.verdict(kind, inner).unwrap_or(End::Unknown);
                }
                _ if goes_on(kind, inner) => {}
                _ => return End::Unknown,
            }
        }
        end
    }

    fn statements(&self, draft: &mut Draft, rule: &'a Value) -> Result<(), Stop> {
        let Some(statements) = rule.get("expr").and_then(Value::as_array) else {
            return Err(self.schema("expr, an array of statements", rule).into());
        };
        for statement in statements {
            // A statement without arguments may be a string.
            let null = &Value::Null;
            let named = statement.as_str().map(|name| (name, null));
            let Some((kind, inner)) = named.or_else(|| single(statement)) else {
                return Err(self.schema("a statement", statement).into());
            };
            if !draft.ends.is_empty() && kind != "comment" {
                return Err(Stop::Note(format!("{kind} after a verdict"), NoteReason::Action));
            }
            match kind {
                "match" => self.compare(draft, inner)?,
                "counter" => {}
                "log" => draft.notes.push(("log".into(), NoteReason::Log)),
                "limit" => self.limit(draft, inner)?,
                "vmap" => self.verdict_map(draft, inner)?,
                "reject" => {
                    self.answer(draft, inner);
                    draft.ends.push(Ending::of_all(End::Reject));
                }
                "accept" | "drop" | "return" | "continue" | "jump" | "goto" => {
                    draft.ends.push(Ending::of_all(self.verdict(kind, inner)?));
                }
                "snat" | "masquerade" | "dnat" | "redirect" => self.translation(draft, kind, inner)?,
                "xt" => match inner.get("name").and_then(Value::as_str) {
                    Some("comment") => {}
                    name => {
                        return Err(Stop::Note(
                            format!("xt {}", name.unwrap_or_default()),
                            NoteReason::Xtables,
                        ));
                    }
                },
                _ if tracking(kind, inner).is_some() => {
                    draft.tracking = draft.tracking.or(tracking(kind, inner));
                }
                _ if goes_on(kind, inner) => draft.notes.push((kind.to_owned(), NoteReason::Undone)),
                "quota" | "ct count" | "meter" => return Err(Stop::Note(kind.to_owned(), NoteReason::Match)),
                _ => return Err(Stop::Note(kind.to_owned(), NoteReason::Action)),
            }
        }
        Ok(())
    }

    fn steps(&self, draft: &mut Draft, rule: &Value) -> Result<Vec<Step>, Stop> {
        if draft.ends.is_empty() {
            draft.ends.push(Ending::of_all(End::Next));
        }
        let mut steps = vec![];
        for Ending { fits, mut end, nat } in std::mem::take(&mut draft.ends) {
            let mut fits = product(&draft.fits, &fits);
            if draft.transport {
                fits = fits.into_iter().filter_map(with_transport_header).collect();
            }
            let mut police = None;
            if let Some(limit) = draft.limit {
                let applied = limit.applied(end, draft.late);
                let (act, bucket, differs) = applied.map_err(|why| Stop::Note("limit".into(), why))?;
                (end, police) = (act, Some(bucket));
                draft.notes.extend(differs.into_iter().map(|why| ("limit".into(), why)));
            }
            let (tracking, local) = (draft.tracking, draft.local.clone());
            steps.push(Step { police, end, tracking, local, nat, ..self.step(rule, fits) });
        }
        Ok(steps)
    }

    fn verdict(&self, kind: &str, inner: &Value) -> Result<End, Stop> {
        Ok(match kind {
            "accept" => End::Accept,
            "drop" => End::Drop,
            "return" => End::Return,
            "continue" => End::Next,
            "jump" | "goto" => {
                let Some(name) = inner.get("target").and_then(Value::as_str) else {
                    return Err(self.schema("the target of a jump", inner).into());
                };
                let Some(&chain) = self.objects.chains.get(&(self.family, self.table, name)) else {
                    let (line, place) = (self.line, self.what.to_owned());
                    return Err(NftError::Chain { line, place, chain: name.to_owned() }.into());
                };
                if kind == "jump" { End::Jump(chain) } else { End::Goto(chain) }
            }
            _ => return Err(Stop::Note(kind.to_owned(), NoteReason::Action)),
        })
    }

    /// `{"key": FIELD, "data": {"set": [[VALUE, VERDICT], ...]}}`, or `"data": "@map"`.
    fn verdict_map(&self, draft: &mut Draft, map: &'a Value) -> Result<(), Stop> {
        let mut named = vec![];
        let mut rest = None;
        for (fits, verdict) in self.map_entries(draft, map)? {
            let named_verdict = verdict.as_str().map(|name| (name, verdict)).or_else(|| single(verdict));
            let (kind, inner) = named_verdict.ok_or_else(|| self.schema("a verdict", verdict))?;
            let end = self.verdict(kind, inner)?;
            let Some(fits) = fits else {
                rest = Some(end);
                continue;
            };
            named.extend(fits.iter().cloned());
            draft.ends.push(Ending::new(fits, end));
        }
        if let Some(end) = rest {
            let others = without(&[Match::default()], &named, &self.interfaces.all(), MAX_OTHERS);
            let others = others.ok_or_else(|| Stop::Note("vmap".into(), NoteReason::Opposite))?;
            draft.ends.push(Ending::new(others, end));
        }
        if draft.ends.is_empty() {
            draft.ends.push(Ending::new(vec![], End::Next));
        }
        Ok(())
    }

    /// The entries of a map.
    fn map_entries(&self, draft: &mut Draft, map: &'a Value) -> Result<Vec<MapEntry<'a>>, Stop> {
        let wrong = || self.schema("key and data", map);
        let left = self.left(map.get("key").ok_or_else(wrong)?)?;
        self.implied(draft, &left)?;
        let mut entries = vec![];
        for entry in self.elements(map.get("data").ok_or_else(wrong)?)? {
            let [value, data] = entry.as_array().map(Vec::as_slice).unwrap_or_default() else {
                return Err(self.schema("a value and what it stands for", entry).into());
            };
            let value = self.element(value)?;
            let fits = match &left[..] {
                _ if value == "*" => None,
                [field] => Some(self.fits(draft, field, Comparison::Equal, value)?),
                fields => Some(self.concatenations(draft, fields, value)?),
            };
            entries.push((fits, data));
        }
        Ok(entries)
    }

    /// `{"rate": N, "per": UNIT, "burst": N, "inv": BOOL, "rate_unit": UNIT, "burst_unit": UNIT}`, or a limit's name.
    fn limit(&self, draft: &mut Draft, inner: &'a Value) -> Result<(), Stop> {
        let limit = match inner.as_str() {
            None => inner,
            Some(name) => {
                let named = self.objects.limits.get(&(self.family, self.table, name));
                named.ok_or_else(|| Stop::Note(format!("limit {name}"), NoteReason::Missing))?
            }
        };
        let wrong = || self.schema("a rate", limit);
        let text = |key| limit.get(key).and_then(Value::as_str);
        let units = |key| match text(key) {
            None | Some("packets") => Some((1, false)),
            Some("bytes") => Some((1, true)),
            Some("kbytes") => Some((1 << 10, true)),
            Some("mbytes") => Some((1 << 20, true)),
            Some(_) => None,
        };
        // Named limits have the same unit for both.
        let (scale, bytes) =
            units("rate_unit").zip(units("unit")).map(|(a, b)| a.max(b)).ok_or_else(wrong)?;
        let (burst_scale, _) = units("burst_unit").ok_or_else(wrong)?;
        let rate = limit.get("rate").and_then(Value::as_u64).ok_or_else(wrong)?.saturating_mul(scale);
        let seconds = text("per").map_or(Some(1), seconds).ok_or_else(wrong)?;
        let burst = limit.get("burst").and_then(Value::as_u64).unwrap_or(0);
        // Byte buckets hold rate plus burst, packet buckets the burst (nft_limit.c, nft_limit_init).
        let burst = match (bytes, burst) {
            (true, burst) => rate.saturating_add(burst.saturating_mul(burst_scale)),
            (false, 0) => DEFAULT_BURST,
            (false, burst) => burst,
        };
        let above = limit.get("inv").and_then(Value::as_bool).unwrap_or(false);
        if draft.limit.replace(Limit { rate, seconds, burst, bytes, above }).is_some() {
            return Err(Stop::Note("a second limit".into(), NoteReason::LimitUse));
        }
        Ok(())
    }

    /// Narrows to the packets of a reject statement, as nft implies, and notes if netvm answers differently.
    fn answer(&self, draft: &mut Draft, reject: &Value) {
        let text = |key| reject.get(key).and_then(Value::as_str).unwrap_or_default();
        let (kind, code) = (text("type"), text("expr"));
        let (v4, v6) = (EtherType::IPV4, EtherType::IPV6);
        let (kinds, protocol) = match kind {
            "tcp reset" => (vec![v4, v6], vec![IpProto::TCP]),
            "icmp" => (vec![v4], vec![]),
            "icmpv6" => (vec![v6], vec![]),
            _ => (vec![v4, v6], vec![]),
        };
        draft.narrow(&[Match { ether_type: kinds, protocol, ..Match::default() }]);
        let tcp = |fits: &Match| fits.protocol.is_empty() || fits.protocol.contains(&IpProto::TCP);
        let prohibited = code == "admin-prohibited" && !draft.fits.iter().any(tcp);
        if kind != "tcp reset" && !prohibited {
            let words: Vec<_> = ["reject", kind, code].into_iter().filter(|word| !word.is_empty()).collect();
            draft.notes.push((words.join(" "), NoteReason::Answer));
        }
    }
}

/// Whether packets go on to the next statement after this one, with the fields that rules match as they are.
fn goes_on(kind: &str, inner: &Value) -> bool {
    let of_packet = |key: &Value| ["meta", "ct", "tcp option"].iter().any(|of| key.get(of).is_some());
    match kind {
        "counter" | "log" | "comment" | "notrack" | "dup" | "flow" | "secmark" | "ct helper"
        | "ct timeout" | "ct expectation" => true,
        // Marks and the like, and the largest segment that hosts may send. Other keys are fields of the packet.
        "mangle" => inner.get("key").is_some_and(of_packet),
        // Elements of sets; with statements, they match packets.
        "set" | "map" => inner.get("stmt").is_none(),
        "xt" => inner.get("name").is_some_and(|name| name == "comment"),
        _ => false,
    }
}
