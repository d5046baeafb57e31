// SPDX-License-Identifier: Apache-2.0
//! Imports rules of other systems: [`classbench`] filter sets, [`iptables`] (`iptables-save`) and [`nft`] (`nft -j list
//! ruleset`), the latter two with what they translate (NAT), and network policies of [`kubernetes`].
//!
//! Nothing is lost silently: every line becomes a rule, a [`Note`] with the reason, or an error. A note has its
//! [`Effect`]: without notes of effect [`Effect::Stricter`] or [`Effect::Wider`], the rules pass, drop and translate
//! exactly what the file does. Limits count as conditions that hold or do not; their rates may be rounded. Rules are in
//! the order of their evaluation. Chains are expanded in place, within [`MAX_RULES`] and [`MAX_VALUES`].

#![forbid(unsafe_code)]

mod algebra;
mod chains;
pub mod classbench;
mod interfaces;
pub mod iptables;
pub mod kubernetes;
mod limit;
mod names;
mod nat;
pub mod nft;
mod note;

pub use chains::{ExpandError, MAX_DEPTH, MAX_RULES, MAX_VALUES};
pub use interfaces::Interfaces;
pub use note::{Effect, Note, NoteReason, Token};

use netvm_model::NatAction;
use netvm_policy::{Actions, Match, PortId, Selection};

impl Imported {
    /// Whether rules match states of connections, or translate them: all ports must track them.
    #[must_use]
    pub fn tracks(&self) -> bool {
        !self.nat.is_empty() || self.rules.iter().any(|rule| !rule.matches.state.is_empty())
    }

    /// The effect of all notes together.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.notes.iter().map(|note| note.effect).max().unwrap_or_default()
    }
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Imported {
    /// Rules in the order of evaluation.
    pub rules: Vec<ImportedRule>,
    /// NAT rules: those for destinations, then those for sources, each in the order of evaluation.
    pub nat: Vec<ImportedNat>,
    /// Lines without an exact equivalent.
    pub notes: Vec<Note>,
    /// Zones of ports in connection tracking, if not 0.
    pub zones: Vec<(PortId, u16)>,
}

/// An imported rule. A rule of the file may become several, with the same line.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ImportedRule {
    /// Line of the file, from 1.
    pub line: u32,
    /// Its comment in the file, else its name there; empty without both.
    pub name: String,
    /// The match.
    pub matches: Match,
    /// The actions.
    pub actions: Actions,
    /// Its ports by label; the match then has none.
    pub selection: Option<Selection>,
}

/// An imported NAT rule. One with `matches.to` translates sources, others destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedNat {
    /// Line of the file, from 1.
    pub line: u32,
    /// Its comment in the file, else its name there; empty without both.
    pub name: String,
    /// The first packets of connections that it takes.
    pub matches: Match,
    /// Only packets to the router's own addresses.
    pub is_local: bool,
    /// What it does.
    pub action: NatAction,
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Its EtherType.
    #[must_use]
    pub const fn ether_type(self) -> netvm_wire::EtherType {
        match self {
            Self::V4 => netvm_wire::EtherType::IPV4,
            Self::V6 => netvm_wire::EtherType::IPV6,
        }
    }

    /// Bits of an address.
    const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The highest address as a number.
    const fn highest(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

    /// The address of a number.
    const fn address(self, value: u128) -> std::net::IpAddr {
        match self {
            Self::V4 => std::net::IpAddr::V4(std::net::Ipv4Addr::from_bits(value as u32)),
            Self::V6 => std::net::IpAddr::V6(std::net::Ipv6Addr::from_bits(value)),
        }
    }

    /// The version and the number of an address.
    const fn split(address: std::net::IpAddr) -> (Self, u128) {
        match address {
            std::net::IpAddr::V4(address) => (Self::V4, address.to_bits() as u128),
            std::net::IpAddr::V6(address) => (Self::V6, address.to_bits()),
        }
    }
}
