//! Rules of other systems, read into netvm's: [`classbench`] filter sets, [`iptables`] (`iptables-save`) and [`nft`]
//! (`nft -j list ruleset`).
//!
//! Nothing is dropped silently: every line becomes a rule, or a [`Note`] that says why it does not, or an error. Rules
//! come in the order in which they are to be tried. Chains that rules jump to are written out in place, which may be
//! long: [`MAX_RULES`] and [`MAX_VALUES`] bound it.

#![forbid(unsafe_code)]

mod algebra;
mod chains;
pub mod classbench;
mod field;
mod interfaces;
pub mod iptables;
mod limit;
mod names;
pub mod nft;
mod note;
mod ranges;

pub use chains::{ExpandError, MAX_DEPTH, MAX_RULES, MAX_VALUES};
pub use interfaces::Interfaces;
pub use note::{Found, Note, Why};

use netvm_policy::Actions;
use netvm_policy::Match;

/// What a file says, as far as netvm has the same.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Imported {
    /// Rules in the order in which they are tried.
    pub rules: Vec<ImportedRule>,
    /// What has no equivalent or a slightly different one, by line.
    pub notes: Vec<Note>,
}

/// One rule. Several have the same line where one rule of the file needs more than one here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedRule {
    /// Line of the file, from 1.
    pub line: u32,
    /// The comment that the file has on it, else what it calls the rule; empty if neither.
    pub name: String,
    /// Which packets.
    pub matches: Match,
    /// What is done.
    pub actions: Actions,
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

    /// The version and the number of an address.
    const fn split(address: std::net::IpAddr) -> (Self, u128) {
        match address {
            std::net::IpAddr::V4(address) => (Self::V4, address.to_bits() as u128),
            std::net::IpAddr::V6(address) => (Self::V6, address.to_bits()),
        }
    }
}
