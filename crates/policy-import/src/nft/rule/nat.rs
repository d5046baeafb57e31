// SPDX-License-Identifier: Apache-2.0
//! Statements that translate: `snat`, `masquerade`, `dnat`, `redirect`.

use std::net::IpAddr;

use netvm_model::{DestinationNat, NatAction, NatTarget};
use netvm_wire::{IpNet, PortRange};
use serde_json::Value;

use super::super::reader::{Draft, Ending, RuleReader, Stop};
use super::super::single;
use super::super::symbols::Kind;
use crate::algebra::product;
use crate::chains::End;
use crate::nat::{Ends, family};
use crate::{IpVersion, NoteReason};
use netvm_policy::Match;

/// A statement that translates.
#[derive(Clone, Copy)]
struct Statement<'a> {
    kind: &'a str,
    inner: &'a Value,
}

impl Statement<'_> {
    fn is_destination(self) -> bool {
        matches!(self.kind, "dnat" | "redirect")
    }

    fn has(self, key: &str, word: &str) -> bool {
        let is_word = |value: &Value| value == word;
        let of = self.inner.get(key);
        of.is_some_and(|of| is_word(of) || of.as_array().is_some_and(|list| list.iter().any(is_word)))
    }
}

impl<'a> RuleReader<'a> {
    /// `{"family": FAMILY, "addr": ADDRESSES, "port": PORTS, "flags": FLAGS, "type_flags": FLAGS}`.
    pub(super) fn translation(&self, draft: &mut Draft, kind: &'a str, inner: &'a Value) -> Result<(), Stop> {
        let statement = Statement { kind, inner };
        if statement.has("flags", "random") || statement.has("flags", "fully-random") {
            draft.notes.push((kind.to_owned(), NoteReason::Choice));
        }
        let map = inner.get("addr").and_then(|addresses| addresses.get("map"));
        let Some(map) = map else {
            let ends = self.ends(statement, inner.get("addr"))?;
            let nat = self.action(statement, ends, &draft.fits)?;
            let fits = vec![family(&nat)];
            draft.ends.push(Ending { fits, end: End::Accept, nat: Some(nat) });
            return Ok(());
        };
        let key = map.get("key").and_then(single);
        if let Some(("numgen" | "jhash" | "symhash", generator)) = key {
            let nat = self.balanced(draft, statement, map, generator)?;
            let fits = vec![family(&nat)];
            draft.ends.push(Ending { fits, end: End::Accept, nat: Some(nat) });
            return Ok(());
        }
        for (fits, data) in self.map_entries(draft, map)? {
            // What is in no entry is not translated.
            let fits = fits.ok_or_else(|| self.no_translation(statement))?;
            let nat = match data.get("prefix") {
                Some(_) if statement.has("type_flags", "prefix") => NatAction::Network(self.prefix(data)?),
                _ => {
                    let ends = self.ends(statement, Some(data))?;
                    self.action(statement, ends, &product(&draft.fits, &fits))?
                }
            };
            let fits = product(&fits, &[family(&nat)]);
            draft.ends.push(Ending { fits, end: End::Accept, nat: Some(nat) });
        }
        // The rule goes on with packets that are in no entry.
        if draft.ends.is_empty() {
            draft.ends.push(Ending::new(vec![], End::Next));
        }
        Ok(())
    }

    fn no_translation(&self, statement: Statement<'_>) -> Stop {
        Stop::Note(statement.kind.to_owned(), NoteReason::Translation)
    }

    fn action(&self, statement: Statement<'_>, ends: Ends, fits: &[Match]) -> Result<NatAction, Stop> {
        let needs_address = matches!(statement.kind, "dnat" | "snat") && ends.addresses.is_none();
        if needs_address || statement.has("type_flags", "prefix") {
            return Err(self.no_translation(statement));
        }
        if !statement.is_destination() {
            return Ok(ends.source());
        }
        ends.destination(fits).map_err(|why| Stop::Note(statement.kind.to_owned(), why))
    }

    /// Targets by a number that is made for each connection: as often as their share of the numbers.
    fn balanced(
        &self,
        draft: &mut Draft,
        statement: Statement<'a>,
        map: &'a Value,
        generator: &Value,
    ) -> Result<NatAction, Stop> {
        let stop = || self.no_translation(statement);
        let number = |key| generator.get(key).and_then(Value::as_u64);
        let (modulus, offset) = (number("mod").unwrap_or_default(), number("offset").unwrap_or_default());
        let mut targets: Vec<NatTarget> = vec![];
        let mut covered = 0;
        for entry in self.elements(map.get("data").ok_or_else(stop)?)? {
            let [value, data] = entry.as_array().map(Vec::as_slice).unwrap_or_default() else {
                return Err(self.schema("a value and a target", entry).into());
            };
            let (first, last) = self.range(Kind::Number, self.element(value)?)?;
            let (first, last) = (first.max(offset.into()), last.min(u128::from(offset + modulus) - 1));
            let weight = u16::try_from((last + 1).saturating_sub(first)).map_err(|_| stop())?;
            covered += u64::from(weight);
            let ends = self.ends(statement, Some(data))?;
            let made = ends
                .targets(&draft.fits, weight)
                .map_err(|why| Stop::Note(statement.kind.to_owned(), why))?;
            for made in made.into_iter().filter(|made| made.weight > 0) {
                let same = |of: &&mut NatTarget| (of.address, of.port) == (made.address, made.port);
                match targets.iter_mut().find(same) {
                    Some(known) => known.weight = known.weight.saturating_add(made.weight),
                    None => targets.push(made),
                }
            }
        }
        // Connections whose number has no entry are not translated.
        if !statement.is_destination() || covered != modulus || targets.is_empty() {
            return Err(stop());
        }
        draft.notes.push((statement.kind.to_owned(), NoteReason::Choice));
        Ok(NatAction::Destination(DestinationNat { targets, health: None }))
    }

    /// Addresses, and ports after them or of the statement.
    fn ends(&self, statement: Statement<'a>, addresses: Option<&'a Value>) -> Result<Ends, Stop> {
        let parts = addresses.and_then(|addresses| addresses.get("concat")?.as_array());
        let (addresses, port) = match parts.map(Vec::as_slice) {
            Some([addresses, port]) => (Some(addresses), Some(port)),
            Some(_) => return Err(self.no_translation(statement)),
            None => (addresses, statement.inner.get("port")),
        };
        let ports = match port {
            Some(port) => {
                let (first, last) = self.range(Kind::Port, port)?;
                PortRange::new(first as u16, last as u16)
            }
            None => None,
        };
        let addresses = match addresses {
            Some(addresses) => Some(self.addresses(addresses)?),
            None => None,
        };
        Ok(Ends { addresses, ports })
    }

    fn addresses(&self, addresses: &'a Value) -> Result<(IpAddr, IpAddr), Stop> {
        let version = self.version_of(addresses);
        let (first, last) = self.range(Kind::Address(version), addresses)?;
        Ok((version.address(first), version.address(last)))
    }

    fn prefix(&self, data: &'a Value) -> Result<IpNet, Stop> {
        let (first, _) = self.addresses(data)?;
        let length = data["prefix"]["len"].as_u64().and_then(|length| u8::try_from(length).ok());
        let net = length.and_then(|length| IpNet::new(first, length).ok());
        net.ok_or_else(|| self.schema("a network", data).into())
    }

    /// The version of the first address in a value.
    fn version_of(&self, value: &Value) -> IpVersion {
        let first = match single(value) {
            Some(("range", ends)) => &ends[0],
            Some(("prefix", prefix)) => &prefix["addr"],
            _ => value,
        };
        let is_v6 = first.as_str().is_some_and(|text| text.contains(':'));
        if is_v6 { IpVersion::V6 } else { IpVersion::V4 }
    }
}
