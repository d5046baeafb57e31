// SPDX-License-Identifier: Apache-2.0
//! ICMP types and codes in iptables rules.

use netvm_wire::IpProto;

use super::rule::{Draft, RuleReader, Stop};
use crate::IpVersion;
use crate::algebra::{Field, Ranges, product};
use crate::names::number;
use netvm_policy::Match;

impl RuleReader<'_> {
    /// `8`, `3/4`, `echo-request`, `any`.
    pub(super) fn icmp(&mut self, draft: &mut Draft, negated: bool) -> Result<(), Stop> {
        let word = self.value("an ICMP type")?;
        let protocol = if self.version == IpVersion::V4 { IpProto::ICMP } else { IpProto::ICMPV6 };
        draft.narrow(&[Match { protocol: vec![protocol], ..Match::default() }]);
        draft.transport = true;
        let byte = |text: &str| number(text).and_then(|number| u8::try_from(number).ok());
        let numbers = match word.text.split_once('/') {
            Some((kind, code)) => byte(kind).zip(byte(code)).map(|(kind, code)| (kind, Some(code))),
            None => byte(&word.text).map(|kind| (kind, None)),
        };
        let named = || {
            let names = if self.version == IpVersion::V4 { &ICMP[..] } else { &ICMPV6[..] };
            names
                .iter()
                .find(|(name, ..)| name.eq_ignore_ascii_case(&word.text))
                .map(|(_, kind, code)| (*kind, *code))
        };
        let Some((kind, code)) = numbers.or_else(named) else {
            return Err(self.expected("an ICMP type as number, number/number or name", word).into());
        };
        if self.version == IpVersion::V4 && kind == 255 {
            draft.narrow((!negated).then(Match::default).as_slice());
            return Ok(());
        }
        let among = |field: Field, value: u8, negated: bool| {
            let values = Ranges::single(value.into());
            field.among(&if negated { values.complement(255) } else { values })
        };
        let Some(code) = code else {
            draft.narrow(among(Field::IcmpType, kind, negated).as_slice());
            return Ok(());
        };
        if negated {
            let mut others: Vec<Match> = among(Field::IcmpType, kind, true).into_iter().collect();
            others.extend(both(&among(Field::IcmpType, kind, false), &among(Field::IcmpCode, code, true)));
            draft.narrow(&others);
        } else {
            draft.narrow(&both(&among(Field::IcmpType, kind, false), &among(Field::IcmpCode, code, false)));
        }
        Ok(())
    }
}

fn both(a: &Option<Match>, b: &Option<Match>) -> Vec<Match> {
    product(a.as_slice(), b.as_slice())
}

/// Types of ICMP and their codes by the names of `iptables -p icmp -h`.
const ICMP: [(&str, u8, Option<u8>); 40] = [
    ("any", 255, None),
    ("echo-reply", 0, None),
    ("pong", 0, None),
    ("destination-unreachable", 3, None),
    ("network-unreachable", 3, Some(0)),
    ("host-unreachable", 3, Some(1)),
    ("protocol-unreachable", 3, Some(2)),
    ("port-unreachable", 3, Some(3)),
    ("fragmentation-needed", 3, Some(4)),
    ("source-route-failed", 3, Some(5)),
    ("network-unknown", 3, Some(6)),
    ("host-unknown", 3, Some(7)),
    ("network-prohibited", 3, Some(9)),
    ("host-prohibited", 3, Some(10)),
    ("TOS-network-unreachable", 3, Some(11)),
    ("TOS-host-unreachable", 3, Some(12)),
    ("communication-prohibited", 3, Some(13)),
    ("host-precedence-violation", 3, Some(14)),
    ("precedence-cutoff", 3, Some(15)),
    ("source-quench", 4, None),
    ("redirect", 5, None),
    ("network-redirect", 5, Some(0)),
    ("host-redirect", 5, Some(1)),
    ("TOS-network-redirect", 5, Some(2)),
    ("TOS-host-redirect", 5, Some(3)),
    ("echo-request", 8, None),
    ("ping", 8, None),
    ("router-advertisement", 9, None),
    ("router-solicitation", 10, None),
    ("time-exceeded", 11, None),
    ("ttl-exceeded", 11, None),
    ("ttl-zero-during-transit", 11, Some(0)),
    ("ttl-zero-during-reassembly", 11, Some(1)),
    ("parameter-problem", 12, None),
    ("ip-header-bad", 12, Some(0)),
    ("required-option-missing", 12, Some(1)),
    ("timestamp-request", 13, None),
    ("timestamp-reply", 14, None),
    ("address-mask-request", 17, None),
    ("address-mask-reply", 18, None),
];

/// Types of ICMPv6 and their codes by the names of `ip6tables -p icmpv6 -h`.
const ICMPV6: [(&str, u8, Option<u8>); 26] = [
    ("destination-unreachable", 1, None),
    ("no-route", 1, Some(0)),
    ("communication-prohibited", 1, Some(1)),
    ("beyond-scope", 1, Some(2)),
    ("address-unreachable", 1, Some(3)),
    ("port-unreachable", 1, Some(4)),
    ("failed-policy", 1, Some(5)),
    ("reject-route", 1, Some(6)),
    ("packet-too-big", 2, None),
    ("time-exceeded", 3, None),
    ("ttl-exceeded", 3, None),
    ("ttl-zero-during-transit", 3, Some(0)),
    ("ttl-zero-during-reassembly", 3, Some(1)),
    ("parameter-problem", 4, None),
    ("bad-header", 4, Some(0)),
    ("unknown-header-type", 4, Some(1)),
    ("unknown-option", 4, Some(2)),
    ("echo-request", 128, None),
    ("ping", 128, None),
    ("echo-reply", 129, None),
    ("pong", 129, None),
    ("router-solicitation", 133, None),
    ("router-advertisement", 134, None),
    ("neighbour-solicitation", 135, None),
    ("neighbour-advertisement", 136, None),
    ("redirect", 137, None),
];
