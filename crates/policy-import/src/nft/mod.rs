// SPDX-License-Identifier: Apache-2.0
//! Imports output of `nft -j list ruleset`: the JSON of libnftables-json(5), schema 1 (nftables 0.9 to 1.1).
//!
//! Imported:
//! - Chains with hook `forward` of families `ip`, `ip6`, `inet` and `bridge`, with hook `ingress` of `netdev` and
//!   `inet`, with their policies, in the order of priority; packets that one accepts go to the next. Chains reached by
//!   `jump` and `goto`, with `return`.
//! - `match` of `ip` (`saddr`, `daddr`, `protocol`, `dscp`, fragment offset and "more fragments" as nft writes "is a
//!   later fragment"), `ip6` (`saddr`, `daddr`, `nexthdr`, `dscp`), `tcp`, `udp`, `sctp`, `th` (ports; flags of TCP),
//!   `icmp` and `icmpv6` (`type`, `code`), `ether`, `vlan` (`id`, `type`), `arp` (`operation`, `saddr ip`, `daddr ip`),
//!   of `ct` `state`, and of `meta` `iifname`, `oifname`, `iif`, `oif`, `l4proto`, `nfproto`, `protocol`.
//! - Values, ranges, prefixes, anonymous and named sets as they are now, concatenations, masks of flags, prefixes and
//!   MAC addresses; all comparisons.
//! - `accept`, `drop`, `reject`, `continue`; verdict maps; `limit` of accepted packets, `limit over` of dropped
//!   packets; rules without a verdict count; `counter`.
//! - `notrack` and `ct zone set` of chains with hook `prerouting`.
//! - Chains of type `nat` with hook `prerouting` and `postrouting`: `masquerade`, `snat`, `dnat`, `redirect`, with maps
//!   from fields of packets, from `numgen` and hashes, and of prefixes; `fib daddr type local` of destinations.
//!
//! Noted but not imported: other hooks, other fields of connections, `log` (its rule is imported without it), dynamic
//! sets, `xt` of iptables-nft, all other matches and statements.
//!
//! A field implies its protocol, as in nft: `tcp dport != 80` is TCP to another port. Rules on ports, flags or ICMP
//! types match no later fragments. Rules of `bridge` tables with `ether type` are for untagged frames, as in the
//! kernel.
//!
//! netvm classifies packets on receive and on transmit. A rule with `oif` or `oifname` can act only on transmit, so all
//! rules of a file with one are for transmitted packets.
//!
//! nft prints a single line, so notes and rules also name the rule's handle.

mod connections;
mod left;
mod matches;
mod objects;
mod reader;
mod rule;
mod symbols;
mod values;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use self::objects::{Name, Objects};
use super::chains::{ExpandError, expand};
use super::{Imported, Interfaces};

/// A text is not output of `nft -j list ruleset`.
#[derive(Debug, Error)]
pub enum NftError {
    /// It is not JSON, or not an object with an array `nftables`.
    #[error("not the JSON that `nft -j list ruleset` prints: {0}")]
    Json(#[from] serde_json::Error),
    /// A part violates the schema.
    #[error("line {line}, {place}: expected {expected}, found {found}")]
    Schema {
        /// Line, from 1.
        line: u32,
        /// The object that holds the part.
        place: String,
        /// The expected part.
        expected: &'static str,
        /// The beginning of the part found.
        found: String,
    },
    /// A later schema.
    #[error("line {line}: unsupported schema version {version}: this netvm supports version 1")]
    Version {
        /// Line, from 1.
        line: u32,
        /// The version.
        version: u64,
    },
    /// A command instead of an object.
    #[error("line {line}: `{command}` is a command: provide output of `nft -j list ruleset`")]
    Command {
        /// Line, from 1.
        line: u32,
        /// The command.
        command: String,
    },
    /// A rule or a jump names an unknown chain.
    #[error("line {line}, {place}: no chain {chain} in this table")]
    Chain {
        /// Line, from 1.
        line: u32,
        /// The rule.
        place: String,
        /// The chain.
        chain: String,
    },
    /// A chain occurs twice.
    #[error("line {line}: chain {chain} occurs twice: import one ruleset at a time")]
    Twice {
        /// Line of the second, from 1.
        line: u32,
        /// The chain.
        chain: String,
    },
    /// The chains cannot be expanded.
    #[error(transparent)]
    Expand(#[from] ExpandError),
}

#[derive(Deserialize)]
struct Ruleset<'a> {
    #[serde(borrow)]
    nftables: Vec<&'a RawValue>,
}

/// Parses a ruleset.
///
/// # Errors
/// The first malformed part, or chains that cannot be expanded.
pub fn parse(text: &str, interfaces: &Interfaces) -> Result<Imported, NftError> {
    let ruleset: Ruleset<'_> = serde_json::from_str(text)?;
    let mut lines = Lines { text, at: 0, line: 1 };
    let mut listed = Vec::with_capacity(ruleset.nftables.len());
    for object in ruleset.nftables {
        let line = lines.of(object.get());
        listed.push((line, serde_json::from_str::<Value>(object.get())?));
    }
    let mut objects = Objects::collect(&listed, interfaces)?;
    let mut program = objects.program();
    rule::read_rules(&mut program, &objects, &listed, interfaces)?;
    let mut imported = expand(&program, &interfaces.all())?;
    imported.notes.extend(objects.notes);
    imported.notes.sort_by_key(|note| note.line);
    Ok(imported)
}

/// Finds the lines of parts of a text, in order.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl Lines<'_> {
    fn of(&mut self, part: &str) -> u32 {
        let at = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        if let Some(before) = self.text.as_bytes().get(self.at..at) {
            self.line += before.iter().filter(|byte| **byte == b'\n').count() as u32;
            self.at = at;
        }
        self.line
    }
}

/// The location of an object, for errors, with access to its required members.
struct Location<'a> {
    line: u32,
    name: &'a str,
}

impl Location<'_> {
    fn error(&self, expected: &'static str, found: &Value) -> NftError {
        let found: String = found.to_string().chars().take(80).collect();
        NftError::Schema { line: self.line, place: self.name.to_owned(), expected, found }
    }

    fn text<'v>(&self, object: &'v Value, key: &str, expected: &'static str) -> Result<&'v str, NftError> {
        object.get(key).and_then(Value::as_str).ok_or_else(|| self.error(expected, object))
    }

    /// The name of an object of a table, whose member `key` has its last part.
    fn name_of<'v>(&self, object: &'v Value, key: &str) -> Result<Name<'v>, NftError> {
        let text = |key, expected| self.text(object, key, expected);
        Ok((text("family", "a family")?, text("table", "a table")?, text(key, "a name")?))
    }
}

/// The only member of an object.
fn single(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object()?;
    let (key, inner) = object.iter().next()?;
    (object.len() == 1).then_some((key, inner))
}
