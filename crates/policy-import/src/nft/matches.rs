// SPDX-License-Identifier: Apache-2.0
//! Translates a match of an nft rule, fields, operator and values, to matches of which one must fit.

use netvm_wire::{EtherType, Fragment};
use serde_json::Value;

use super::left::{LeftOperand, Target};
use super::reader::{Draft, RuleReader, Stop};
use super::symbols::Kind;
use crate::NoteReason;
use crate::algebra::{Ranges, macs, other_flags, other_macs, prefix_range, product, without};
use netvm_policy::Match;
use netvm_policy::{Masked, Span};

/// Most EtherTypes of a rule.
const MAX_ETHER_TYPES: u128 = 64;
/// Most matches in the complement of a set of concatenations.
const MAX_OPPOSITE: usize = 4096;

/// The comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    /// One of the bits is set.
    AnyBit,
    /// None of the bits is set.
    NoBit,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

impl Comparison {
    fn of(operator: &str) -> Option<Self> {
        Some(match operator {
            "==" => Self::Equal,
            "!=" => Self::NotEqual,
            "in" => Self::AnyBit,
            "!" => Self::NoBit,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::More,
            ">=" => Self::MoreOrEqual,
            _ => return None,
        })
    }
}

impl<'a> RuleReader<'a> {
    /// `{"op": OPERATOR, "left": FIELD, "right": VALUES}`.
    pub(super) fn compare(&self, draft: &mut Draft, statement: &'a Value) -> Result<(), Stop> {
        if self.of_router(draft, statement)? {
            return Ok(());
        }
        let part = |key| statement.get(key).ok_or_else(|| self.schema("op, left and right", statement));
        let operator = part("op")?.as_str().and_then(Comparison::of);
        let operator = operator.ok_or_else(|| self.schema("an operator", &statement["op"]))?;
        let (left, right) = (self.left(part("left")?)?, part("right")?);
        self.implied(draft, &left)?;
        let fits = match &left[..] {
            [field] => self.fits(draft, field, operator, right)?,
            fields => {
                let fits = self.concatenations(draft, fields, right)?;
                match operator {
                    Comparison::Equal | Comparison::AnyBit => fits,
                    Comparison::NotEqual => {
                        let all = [Match::default()];
                        let others = without(&all, &fits, &self.interfaces.all(), MAX_OPPOSITE);
                        others.ok_or_else(|| Stop::Note(name(fields), NoteReason::Opposite))?
                    }
                    _ => return Err(Stop::Note(name(fields), NoteReason::Match)),
                }
            }
        };
        draft.narrow(&fits);
        Ok(())
    }

    /// Narrows to packets with the fields.
    pub(super) fn implied(&self, draft: &mut Draft, fields: &[LeftOperand<'_>]) -> Result<(), Stop> {
        for field in fields {
            let known = |fits: &Match| {
                !fits.protocol.is_empty() && fits.protocol.iter().all(|protocol| protocol.has_ports())
            };
            if let Some(why) = field.differs
                && !(why == NoteReason::SomePorts && draft.fits.iter().all(known))
            {
                return Err(Stop::Note(field.what.clone(), why));
            }
            draft.transport |= field.transport;
            draft.narrow(std::slice::from_ref(&field.implies));
        }
        Ok(())
    }

    /// The matches of a set of concatenations.
    pub(super) fn concatenations(
        &self,
        draft: &mut Draft,
        fields: &[LeftOperand<'a>],
        right: &'a Value,
    ) -> Result<Vec<Match>, Stop> {
        let mut all = vec![];
        for element in self.elements(right)? {
            let mut fits = vec![Match::default()];
            match element.get("concat").and_then(Value::as_array) {
                Some(parts) if parts.len() == fields.len() => {
                    for (field, part) in fields.iter().zip(parts) {
                        fits = product(&fits, &self.fits(draft, field, Comparison::Equal, part)?);
                    }
                }
                _ if element == "*" => {}
                _ => return Err(self.schema("a value for each field", element).into()),
            }
            all.extend(fits);
        }
        Ok(all)
    }

    /// The matches of a field.
    pub(super) fn fits(
        &self,
        draft: &mut Draft,
        left: &LeftOperand<'a>,
        operator: Comparison,
        right: &'a Value,
    ) -> Result<Vec<Match>, Stop> {
        match left.target {
            Target::Flags => return self.flags(left, operator, right),
            Target::FragmentBits => return self.fragments(left, operator, right),
            Target::State => return self.states(left, operator, right),
            Target::ComesIn | Target::GoesOut => return self.places(draft, left, operator, right),
            Target::SourceMac | Target::DestinationMac if left.mask.is_some() => {
                return self.masked_mac(left, operator, right);
            }
            _ => {}
        }
        let values = self.compared(left, operator, right)?;
        Ok(match left.target {
            Target::Field(field) => field.among(&values).into_iter().collect(),
            Target::EtherType => self.ether_types(left, &values)?,
            Target::FrameType => self.frame_types(left, &values)?,
            _ if values.is_empty() => vec![],
            target => vec![mac_match(target, macs(&values))],
        })
    }

    /// The values that satisfy the comparison.
    fn compared(
        &self,
        left: &LeftOperand<'_>,
        operator: Comparison,
        right: &'a Value,
    ) -> Result<Ranges, Stop> {
        let kind = left.kind;
        let mut values = self.ranges(kind, right)?;
        if let Some(mask) = left.mask {
            // Masks of other fields are address prefixes.
            let mask = self.bits(kind, mask)?;
            let (highest, bits) = (kind.highest(), kind.bits());
            let length = (mask << (128 - bits)).leading_ones() as u8;
            let only: Vec<_> = values.iter().collect();
            match only[..] {
                [(value, same)] if value == same && prefix_mask(length, bits) == mask & highest => {
                    let within = value & !mask == 0;
                    values = if within {
                        Ranges::one(value, value | (!mask & highest))
                    } else {
                        Ranges::union([])
                    };
                }
                _ => return Err(Stop::Note(left.what.clone(), NoteReason::Mask)),
            }
            if !matches!(operator, Comparison::Equal | Comparison::NotEqual) {
                return Err(Stop::Note(left.what.clone(), NoteReason::Match));
            }
        }
        let highest = kind.highest();
        let only = |values: &Ranges| match values.iter().collect::<Vec<_>>()[..] {
            [(value, same)] if value == same => Ok(value),
            _ => Err(self.schema("one value to compare with", right)),
        };
        Ok(match operator {
            Comparison::Equal | Comparison::AnyBit => values,
            Comparison::NotEqual => values.complement(highest),
            Comparison::Less => match only(&values)? {
                0 => Ranges::union([]),
                value => Ranges::one(0, value - 1),
            },
            Comparison::LessOrEqual => Ranges::one(0, only(&values)?),
            Comparison::More => Ranges::one(0, only(&values)?).complement(highest),
            Comparison::MoreOrEqual => Ranges::one(only(&values)?, highest),
            Comparison::NoBit => return Err(Stop::Note(left.what.clone(), NoteReason::Match)),
        })
    }

    /// EtherTypes after the VLAN tags. Their complement exists only if the table's family limits the EtherTypes.
    fn ether_types(&self, left: &LeftOperand<'_>, values: &Ranges) -> Result<Vec<Match>, Stop> {
        let universe = match (self.family, left.kind) {
            ("ip", _) => Some(&[EtherType::IPV4][..]),
            ("ip6", _) => Some(&[EtherType::IPV6][..]),
            ("inet", _) | (_, Kind::Family) => Some(&[EtherType::IPV4, EtherType::IPV6][..]),
            _ => None,
        };
        let has = |kind: &EtherType| !values.intersect(&Ranges::single(kind.0.into())).is_empty();
        let kinds: Vec<_> = match universe {
            Some(universe) => universe.iter().filter(|kind| has(kind)).copied().collect(),
            None => {
                let count = values.iter().fold(0, |count, (first, last)| count + (last - first + 1));
                if count > MAX_ETHER_TYPES {
                    return Err(Stop::Note(left.what.clone(), NoteReason::Opposite));
                }
                let all = values.iter().flat_map(|(first, last)| first as u16..=last as u16);
                all.map(EtherType).collect()
            }
        };
        if kinds.iter().any(|kind| kind.is_vlan()) {
            return Err(Stop::Note(format!("{} of a tag", left.what), NoteReason::Match));
        }
        Ok(if kinds.is_empty() { vec![] } else { vec![Match { ether_type: kinds, ..Match::default() }] })
    }

    /// EtherTypes directly after the MAC addresses: of untagged frames, or the tag's.
    fn frame_types(&self, left: &LeftOperand<'_>, values: &Ranges) -> Result<Vec<Match>, Stop> {
        let tag = Ranges::single(EtherType::VLAN.0.into());
        let mut fits = vec![];
        if !values.intersect(&tag).is_empty() {
            fits.push(Match { vlan: vec![Span { first: 1, last: 4094 }], ..Match::default() });
        }
        let others = values.intersect(&tag.complement(left.kind.highest()));
        let untagged = Match { vlan: vec![Span::single(0)], ..Match::default() };
        fits.extend(product(&self.ether_types(left, &others)?, &[untagged]));
        Ok(fits)
    }

    fn flags(
        &self,
        left: &LeftOperand<'_>,
        operator: Comparison,
        right: &'a Value,
    ) -> Result<Vec<Match>, Stop> {
        let mask = left.mask.map_or(Ok(0xff), |mask| self.bits(Kind::Flags, mask))? as u8;
        let fit = |flags: Masked<u8>| Match { tcp_flags: Some(flags), ..Match::default() };
        let mut values = vec![];
        for element in self.elements(right)? {
            values.push(self.bits(Kind::Flags, element)? as u8);
        }
        let bits = values.iter().fold(0, |bits, value| bits | value) & mask;
        let in_set = right.get("set").is_some() || right.as_str().is_some_and(|text| text.starts_with('@'));
        let exact =
            || values.iter().filter(|value| *value & !mask == 0).map(|value| Masked::<u8>::new(*value, mask));
        Ok(match operator {
            Comparison::AnyBit if !in_set => {
                let each = (0..8).map(|bit| 1u8 << bit).filter(|bit| bits & bit != 0);
                each.map(|bit| fit(Masked::<u8>::new(bit, bit))).collect()
            }
            Comparison::Equal | Comparison::AnyBit => exact().map(fit).collect(),
            Comparison::NotEqual => {
                let all = vec![Match::default()];
                exact()
                    .fold(all, |rest, flags| product(&rest, &other_flags(flags).map(fit).collect::<Vec<_>>()))
            }
            Comparison::NoBit => vec![fit(Masked::<u8>::new(0, bits))],
            _ => return Err(Stop::Note(left.what.clone(), NoteReason::Match)),
        })
    }

    /// `ip frag-off & 0x1fff != 0` is a later fragment; the flow key lacks other bits.
    fn fragments(
        &self,
        left: &LeftOperand<'_>,
        operator: Comparison,
        right: &'a Value,
    ) -> Result<Vec<Match>, Stop> {
        let stop = || Stop::Note(left.what.clone(), NoteReason::Match);
        let mask = left.mask.map_or(Ok(0), |mask| self.bits(Kind::Number, mask))?;
        let zero = self.ranges(Kind::Number, right)? == Ranges::single(0);
        let kinds = match operator {
            _ if mask != 0x1fff || !zero => return Err(stop()),
            Comparison::Equal => vec![Fragment::Whole, Fragment::First],
            Comparison::NotEqual | Comparison::More => vec![Fragment::Later],
            _ => return Err(stop()),
        };
        Ok(vec![Match { fragment: kinds, ..Match::default() }])
    }

    /// Interfaces by name; a trailing `*` matches any rest.
    fn places(
        &self,
        draft: &mut Draft,
        left: &LeftOperand<'_>,
        operator: Comparison,
        right: &'a Value,
    ) -> Result<Vec<Match>, Stop> {
        let mut ports = vec![];
        let mut unknown = vec![];
        for element in self.elements(right)? {
            let Some(name) = element.as_str() else {
                return Err(Stop::Note(format!("{} {element}", left.what), NoteReason::Match));
            };
            let named = self.interfaces.named(name, '*');
            if named.is_empty() {
                unknown.push(format!("{} {name}", left.what));
            }
            ports.extend(named);
        }
        let all_unknown = ports.is_empty() && !unknown.is_empty();
        match operator {
            Comparison::Equal | Comparison::AnyBit => {
                if all_unknown {
                    return Err(Stop::Note(unknown.join(", "), NoteReason::Interface));
                }
                draft.notes.extend(unknown.into_iter().map(|name| (name, NoteReason::SomeInterfaces)));
            }
            Comparison::NotEqual => {
                let is_complete = self.interfaces.is_complete();
                if !unknown.is_empty() && !is_complete {
                    return Err(Stop::Note(unknown.join(", "), NoteReason::Interface));
                }
                let all = self.interfaces.all();
                ports = all.into_iter().filter(|port| !ports.contains(port)).collect();
                // It applies to ports that the list should have.
                if ports.is_empty() && !is_complete {
                    return Err(Stop::Note(format!("{} != {right}", left.what), NoteReason::Interface));
                }
            }
            _ => return Err(Stop::Note(left.what.clone(), NoteReason::Match)),
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(match (ports.is_empty(), left.target) {
            (true, _) => vec![],
            (false, Target::ComesIn) => vec![Match { from: ports, ..Match::default() }],
            (false, _) => vec![Match { to: ports, ..Match::default() }],
        })
    }

    fn masked_mac(
        &self,
        left: &LeftOperand<'_>,
        operator: Comparison,
        right: &'a Value,
    ) -> Result<Vec<Match>, Stop> {
        let stop = |why| Stop::Note(left.what.clone(), why);
        let mask = left.mask.map_or(Ok(0), |mask| self.bits(Kind::Mac, mask))? as u64;
        let mut masks = vec![];
        for element in self.elements(right)? {
            let value = self.bits(Kind::Mac, element)? as u64;
            masks.extend((value & !mask == 0).then_some(Masked::<u64>::new(value, mask)));
        }
        let masks = match operator {
            Comparison::Equal | Comparison::AnyBit => masks,
            Comparison::NotEqual => other_macs(&masks).ok_or_else(|| stop(NoteReason::Opposite))?,
            _ => return Err(stop(NoteReason::Match)),
        };
        Ok(if masks.is_empty() { vec![] } else { vec![mac_match(left.target, masks)] })
    }
}

fn mac_match(target: Target, masks: Vec<Masked<u64>>) -> Match {
    match target {
        Target::SourceMac => Match { source_mac: masks, ..Match::default() },
        _ => Match { destination_mac: masks, ..Match::default() },
    }
}

/// The mask of a prefix of numbers of `bits` bits.
const fn prefix_mask(length: u8, bits: u8) -> u128 {
    let (first, _) = prefix_range(u128::MAX >> (128 - bits), length, bits);
    first
}

fn name(fields: &[LeftOperand<'_>]) -> String {
    fields.iter().map(|field| field.what.as_str()).collect::<Vec<_>>().join(" . ")
}
