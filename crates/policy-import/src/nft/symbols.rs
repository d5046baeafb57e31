// SPDX-License-Identifier: Apache-2.0
//! Kinds of values and their symbolic names, as in `nft describe`.

use netvm_wire::{ConnState, IpProto, MacAddr};
use serde_json::Value;

use crate::IpVersion;
use crate::names::{conn_state, dscp, number, protocol, tcp_flag};
use netvm_policy::mac_bits;

/// The kind of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Address(IpVersion),
    Mac,
    Port,
    Protocol,
    Dscp,
    Flags,
    EtherType,
    /// `meta nfproto`, as EtherTypes.
    Family,
    /// Type of ICMP or ICMPv6.
    Type(IpProto),
    /// Code of ICMP or ICMPv6.
    Code(IpProto),
    Operation,
    Vlan,
    /// Bits of `ct state`.
    State,
    Number,
}

impl Kind {
    /// Size of a value in bits.
    pub(super) const fn bits(self) -> u8 {
        match self {
            Self::Address(version) => version.bits(),
            Self::Mac => 48,
            Self::Port | Self::EtherType | Self::Family | Self::Operation | Self::Number => 16,
            Self::Vlan => 12,
            Self::Dscp => 6,
            Self::Protocol | Self::Flags | Self::Type(_) | Self::Code(_) => 8,
            Self::State => 32,
        }
    }

    pub(super) const fn highest(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Address(IpVersion::V4) => "IPv4 addresses",
            Self::Address(IpVersion::V6) => "IPv6 addresses",
            Self::Mac => "MAC addresses",
            Self::Port => "ports as numbers",
            Self::Protocol => "protocols",
            Self::Dscp => "code points",
            Self::Flags => "TCP flags",
            Self::EtherType => "EtherTypes",
            Self::Family => "ipv4 or ipv6",
            Self::Type(_) => "ICMP types",
            Self::Code(_) => "ICMP codes",
            Self::Operation => "ARP operations",
            Self::Vlan => "VLANs",
            Self::State => "states of connections",
            Self::Number => "numbers",
        }
    }

    /// The number of a value; `None` if it has another kind.
    pub(super) fn number(self, value: &Value) -> Option<u128> {
        let known = match value {
            Value::Number(number) => number.as_u64().map(u128::from),
            Value::String(name) => self.named(name).or_else(|| number(name).map(u128::from)),
            _ => None,
        };
        let is_address = matches!(self, Self::Address(_) | Self::Mac);
        known.filter(|number| *number <= self.highest() && (!is_address || value.is_string()))
    }

    fn named(self, name: &str) -> Option<u128> {
        let find = |names: &[(&str, u16)]| {
            names.iter().find(|(known, _)| *known == name).map(|(_, number)| u128::from(*number))
        };
        match self {
            Self::Address(version) => {
                let (found, number) = IpVersion::split(name.parse().ok()?);
                (found == version).then_some(number)
            }
            Self::Mac => name.parse::<MacAddr>().ok().map(|mac| mac_bits(mac).into()),
            Self::Protocol => protocol(name).map(u128::from),
            Self::Dscp => dscp(name).map(u128::from),
            Self::Flags => tcp_flag(name).map(|flag| flag.bits().into()),
            Self::EtherType => find(&[
                ("ip", 0x0800),
                ("arp", 0x0806),
                ("ip6", 0x86dd),
                ("8021q", 0x8100),
                ("vlan", 0x8100),
                ("8021ad", 0x88a8),
            ]),
            Self::Family => find(&[("ipv4", 0x0800), ("ipv6", 0x86dd)]),
            Self::Type(IpProto::ICMP) => find(&ICMP_TYPES),
            Self::Code(IpProto::ICMP) => find(&ICMP_CODES),
            Self::Type(_) => find(&ICMPV6_TYPES),
            Self::Code(_) => find(&ICMPV6_CODES),
            Self::Operation => find(&[
                ("request", 1),
                ("reply", 2),
                ("rrequest", 3),
                ("rreply", 4),
                ("inrequest", 8),
                ("inreply", 9),
                ("nak", 10),
            ]),
            Self::State => conn_state(name).map(state_bit),
            Self::Port | Self::Vlan | Self::Number => None,
        }
    }
}

/// The bit of a state in `ct state` (`NF_CT_STATE_BIT`).
pub(super) const fn state_bit(state: ConnState) -> u128 {
    match state {
        ConnState::Invalid => 1,
        ConnState::Established => 2,
        ConnState::Related => 4,
        ConnState::New => 8,
        ConnState::Untracked => 64,
    }
}

const ICMP_TYPES: [(&str, u16); 15] = [
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("info-reply", 16),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];

/// nft names the codes of all types like those of "destination unreachable".
const ICMP_CODES: [(&str, u16); 8] = [
    ("net-unreachable", 0),
    ("host-unreachable", 1),
    ("prot-unreachable", 2),
    ("port-unreachable", 3),
    ("frag-needed", 4),
    ("net-prohibited", 9),
    ("host-prohibited", 10),
    ("admin-prohibited", 13),
];

const ICMPV6_TYPES: [(&str, u16); 19] = [
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
];

const ICMPV6_CODES: [(&str, u16); 6] = [
    ("no-route", 0),
    ("admin-prohibited", 1),
    ("addr-unreachable", 3),
    ("port-unreachable", 4),
    ("policy-fail", 5),
    ("reject-route", 6),
];
