// SPDX-License-Identifier: Apache-2.0
//! Set operations on matches: intersection, difference and cover. A list of matches is the union of their packets.
//!
//! A match with addresses also has an EtherType, here or in every match that it is combined with: only then is "other
//! addresses" its complement.

mod field;
mod ranges;
#[cfg(test)]
pub(super) mod tests;

use netvm_policy::{Masked, Match, PortId};
use netvm_wire::{ConnState, Fragment, IpNet};

use super::IpVersion;

pub(super) use field::Field;
pub(super) use ranges::{Ranges, prefix_range};

/// Bits of a MAC address.
const MAC_BITS: u64 = 0xffff_ffff_ffff;
/// Most masks that are not prefixes in a negation.
const MAX_MASKS: usize = 1024;

/// The intersection; `None` if empty.
pub(super) fn intersect(a: &Match, b: &Match) -> Option<Match> {
    let version = version(a, b)?;
    let mut both = a.clone();
    both.from = common(&a.from, &b.from)?;
    both.to = common(&a.to, &b.to)?;
    both.ether_type = common(&a.ether_type, &b.ether_type)?;
    both.source_mac = common_macs(&a.source_mac, &b.source_mac)?;
    both.destination_mac = common_macs(&a.destination_mac, &b.destination_mac)?;
    both.tcp_flags = match (a.tcp_flags, b.tcp_flags) {
        (Some(a), Some(b)) => Some(a.intersect(&b)?),
        (a, b) => a.or(b),
    };
    for field in Field::all(version) {
        let Some(other) = field.get(b) else { continue };
        let values = field.get(a).map_or_else(|| other.clone(), |values| values.intersect(&other));
        if values.is_empty() {
            return None;
        }
        field.set(&mut both, &values);
    }
    Some(both)
}

/// The difference of `a` and `b` as disjoint matches; `None` if the rule language cannot express it.
pub(super) fn subtract(a: &Match, b: &Match, ports: &[PortId]) -> Option<Vec<Match>> {
    let (Some(version), Some(_)) = (version(a, b), intersect(a, b)) else { return Some(vec![a.clone()]) };
    // The packets of `a` that are in `b` by the fields processed so far.
    let mut left = a.clone();
    let mut rest = Vec::new();
    let mut part = |left: &mut Match, outside: Vec<Match>, inside: Match| {
        let Some(within) = intersect(left, &inside) else { return };
        rest.extend(outside.iter().filter_map(|outside| intersect(left, outside)));
        *left = within;
    };
    for (set, all) in [(&b.from, false), (&b.to, true)] {
        if set.is_empty() {
            continue;
        }
        let place = |ports: Vec<PortId>| match all {
            false => Match { from: ports, ..Match::default() },
            true => Match { to: ports, ..Match::default() },
        };
        let others: Vec<_> = ports.iter().filter(|port| !set.contains(port)).copied().collect();
        let outside = if others.is_empty() { vec![] } else { vec![place(others)] };
        part(&mut left, outside, place(set.clone()));
    }
    if !b.ether_type.is_empty() {
        if a.ether_type.is_empty() {
            return None;
        }
        let others: Vec<_> =
            a.ether_type.iter().filter(|kind| !b.ether_type.contains(kind)).copied().collect();
        let place = |ether_type| Match { ether_type, ..Match::default() };
        let outside = if others.is_empty() { vec![] } else { vec![place(others)] };
        part(&mut left, outside, place(b.ether_type.clone()));
    }
    for field in Field::all(version) {
        let Some(values) = field.get(b) else { continue };
        let outside = field.among(&values.complement(field.highest()));
        if let Some(inside) = field.among(&values) {
            part(&mut left, outside.into_iter().collect(), inside);
        }
    }
    for (masks, source) in [(&b.source_mac, true), (&b.destination_mac, false)] {
        if masks.is_empty() {
            continue;
        }
        let place = |masks| match source {
            true => Match { source_mac: masks, ..Match::default() },
            false => Match { destination_mac: masks, ..Match::default() },
        };
        let others = other_macs(masks)?;
        let outside = if others.is_empty() { vec![] } else { vec![place(others)] };
        part(&mut left, outside, place(masks.clone()));
    }
    if let Some(flags) = b.tcp_flags {
        let place = |flags| Match { tcp_flags: Some(flags), ..Match::default() };
        part(&mut left, other_flags(flags).map(place).collect(), place(flags));
    }
    Some(rest)
}

/// The packets that fit one of `live` and none of `gone`; `None` if the rule language cannot express it within `most`
/// matches.
pub(super) fn without(live: &[Match], gone: &[Match], ports: &[PortId], most: usize) -> Option<Vec<Match>> {
    let mut live = live.to_vec();
    for gone in gone {
        let mut rest = Vec::with_capacity(live.len());
        for part in &live {
            rest.extend(subtract(part, gone, ports)?);
            if rest.len() > most {
                return None;
            }
        }
        live = rest;
    }
    Some(live)
}

/// The packets that fit one of `a` and one of `b`.
pub(super) fn product(a: &[Match], b: &[Match]) -> Vec<Match> {
    a.iter().flat_map(|a| b.iter().filter_map(move |b| intersect(a, b))).collect()
}

/// Whether `a` contains every packet of `b`; false if unknown.
pub(super) fn covers(a: &Match, b: &Match) -> bool {
    intersect(b, a).is_some_and(|both| both == canonical(b))
}

/// The match with each field in the canonical form of this module.
fn canonical(of: &Match) -> Match {
    intersect(&Match::default(), of).unwrap_or_else(|| of.clone())
}

/// Excludes later fragments, for rules on the transport header: these lack it and match no such rule, but their keys
/// have 0.
/// `None` if nothing remains.
pub(super) fn with_transport_header(of: Match) -> Option<Match> {
    let not_zero =
        |field: Field| field.get(&of).is_some_and(|values| values.intersect(&Ranges::single(0)).is_empty());
    let fields = [Field::SourcePorts, Field::DestinationPorts, Field::IcmpType, Field::IcmpCode];
    if fields.into_iter().any(not_zero) || of.tcp_flags.is_some_and(|flags| flags.value != 0) {
        return Some(of);
    }
    intersect(&of, &Match { fragment: vec![Fragment::Whole, Fragment::First], ..Match::default() })
}

/// States as values of [`Field::State`].
pub(super) fn state_values(states: &[ConnState]) -> Ranges {
    Ranges::union(states.iter().map(|state| (*state as u128, *state as u128)))
}

/// The MAC addresses outside all masks; `None` if the masks are too many and not prefixes.
pub(super) fn other_macs(masks: &[Masked<u64>]) -> Option<Vec<Masked<u64>>> {
    if let Some(ranges) = mac_ranges(masks) {
        return Some(macs(&ranges.complement(MAC_BITS.into())));
    }
    let mut others = vec![Masked::<u64>::ANY];
    for mask in masks {
        let outside: Vec<_> = opposite(mask.value, mask.mask & MAC_BITS).collect();
        others = common_masks(&others, &outside);
        if others.len() > MAX_MASKS {
            return None;
        }
    }
    Some(others)
}

/// The MAC addresses of ranges.
pub(super) fn macs(ranges: &Ranges) -> Vec<Masked<u64>> {
    let mask = |length: u8| MAC_BITS & !(MAC_BITS.checked_shr(length.into()).unwrap_or(0));
    let prefixes = ranges.intersect(&Ranges::all(MAC_BITS.into())).prefixes(48);
    prefixes.into_iter().map(|(value, length)| Masked::<u64>::new(value as u64, mask(length))).collect()
}

/// The masks as ranges, if all are prefixes.
fn mac_ranges(masks: &[Masked<u64>]) -> Option<Ranges> {
    let mut ranges = Vec::with_capacity(masks.len());
    for mask in masks {
        let free = !mask.mask & MAC_BITS;
        if free & (free + 1) != 0 {
            return None;
        }
        ranges.push((mask.value.into(), (mask.value | free).into()));
    }
    Some(Ranges::union(ranges))
}

/// The flags outside the mask.
pub(super) fn other_flags(flags: Masked<u8>) -> impl Iterator<Item = Masked<u8>> {
    opposite(flags.value.into(), flags.mask.into())
        .map(|other| Masked::<u8>::new(other.value as u8, other.mask as u8))
}

/// Numbers that differ in a bit of the mask: disjoint sets by the highest differing bit.
fn opposite(value: u64, mask: u64) -> impl Iterator<Item = Masked<u64>> {
    let bits = (0..u64::BITS).rev().map(|bit| 1u64 << bit).filter(move |bit| mask & bit != 0);
    bits.map(move |bit| {
        let above = mask & !(bit | (bit - 1));
        Masked::<u64>::new(value ^ bit, above | bit)
    })
}

/// The IP version of the addresses; IPv4 without any. `None` if they differ, so that nothing fits both.
fn version(a: &Match, b: &Match) -> Option<IpVersion> {
    let of = |net: &IpNet| if net.is_v4() { IpVersion::V4 } else { IpVersion::V6 };
    let mut versions = [&a.source, &a.destination, &b.source, &b.destination]
        .into_iter()
        .filter_map(|nets| nets.first().map(of));
    let version = versions.next().unwrap_or(IpVersion::V4);
    versions.all(|other| other == version).then_some(version)
}

fn common<T: Copy + PartialEq>(a: &[T], b: &[T]) -> Option<Vec<T>> {
    if a.is_empty() || b.is_empty() {
        return Some(if a.is_empty() { b } else { a }.to_vec());
    }
    let common: Vec<T> = a.iter().filter(|value| b.contains(value)).copied().collect();
    (!common.is_empty()).then_some(common)
}

fn common_macs(a: &[Masked<u64>], b: &[Masked<u64>]) -> Option<Vec<Masked<u64>>> {
    if a.is_empty() || b.is_empty() {
        return Some(tidy(if a.is_empty() { b } else { a }.to_vec()));
    }
    let common = match (mac_ranges(a), mac_ranges(b)) {
        (Some(a), Some(b)) => macs(&a.intersect(&b)),
        _ => common_masks(a, b),
    };
    if common.is_empty() { None } else { Some(tidy(common)) }
}

/// Removes masks that others cover; empty if all addresses fit.
fn tidy(masks: Vec<Masked<u64>>) -> Vec<Masked<u64>> {
    let tidy = match mac_ranges(&masks) {
        Some(ranges) => macs(&ranges),
        None if masks.len() > MAX_MASKS => masks,
        None => {
            let spare = |at: usize| {
                let covered = |(other, by): (usize, &Masked<u64>)| {
                    by.covers(&masks[at]) && (other < at || !masks[at].covers(by))
                };
                masks.iter().enumerate().any(covered)
            };
            (0..masks.len()).filter(|at| !spare(*at)).map(|at| masks[at]).collect()
        }
    };
    if tidy == [Masked::<u64>::ANY] { vec![] } else { tidy }
}

fn common_masks(a: &[Masked<u64>], b: &[Masked<u64>]) -> Vec<Masked<u64>> {
    a.iter().flat_map(|a| b.iter().filter_map(|b| a.intersect(b))).collect()
}
