// SPDX-License-Identifier: Apache-2.0
//! The fields that rules use, so that the flow cache distinguishes flows by these only.

use netvm_wire::{ConnState, FlowKey, TcpFlags};

use crate::rule::Rule;

/// The fields that a list of rules uses.
///
/// Used bits are set: for TCP flags and MAC addresses those of the rules' masks, for other fields all or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[allow(missing_docs, reason = "named as the fields of the key")]
pub struct UsedFields {
    pub source_mac: u64,
    pub destination_mac: u64,
    pub arp_operation: u16,
    pub tcp_flags: u8,
    pub dscp: u8,
    pub icmp_type: u8,
    pub icmp_code: u8,
    pub ether_type: bool,
    pub vlan: bool,
    pub inner_vlan: bool,
    pub source: bool,
    pub destination: bool,
    pub protocol: bool,
    pub source_ports: bool,
    pub destination_ports: bool,
    pub fragment: bool,
    pub state: bool,
}

impl UsedFields {
    /// The fields of the rules.
    #[must_use]
    pub fn of(rules: &[Rule]) -> Self {
        rules.iter().fold(Self::default(), Self::with)
    }

    /// Adds the fields of a rule.
    #[must_use]
    pub fn with(self, rule: &Rule) -> Self {
        let matches = &rule.matches;
        let byte = |unused: bool| if unused { 0 } else { u8::MAX };
        Self {
            source_mac: matches.source_mac.iter().fold(self.source_mac, |bits, mac| bits | mac.mask),
            destination_mac: matches
                .destination_mac
                .iter()
                .fold(self.destination_mac, |bits, mac| bits | mac.mask),
            arp_operation: self.arp_operation | if matches.arp_operation.is_empty() { 0 } else { u16::MAX },
            tcp_flags: self.tcp_flags | matches.tcp_flags.map_or(0, |flags| flags.mask),
            dscp: self.dscp | byte(matches.dscp.is_empty()),
            icmp_type: self.icmp_type | byte(matches.icmp_type.is_empty()),
            icmp_code: self.icmp_code | byte(matches.icmp_code.is_empty()),
            ether_type: self.ether_type || !matches.ether_type.is_empty(),
            vlan: self.vlan || !matches.vlan.is_empty(),
            inner_vlan: self.inner_vlan || !matches.inner_vlan.is_empty(),
            source: self.source || !matches.source.is_empty(),
            destination: self.destination || !matches.destination.is_empty(),
            protocol: self.protocol || !matches.protocol.is_empty(),
            source_ports: self.source_ports || !matches.source_ports.is_empty(),
            destination_ports: self.destination_ports || !matches.destination_ports.is_empty(),
            fragment: self.fragment || !matches.fragment.is_empty(),
            state: self.state || !matches.state.is_empty(),
        }
    }

    /// Clears unused TCP flags, DSCP, ICMP type and code, ARP operation, and state, in which packets of a flow differ.
    /// Rules decide equally for both keys.
    #[inline]
    #[must_use]
    pub const fn mask(&self, mut key: FlowKey) -> FlowKey {
        key.tcp_flags = TcpFlags::from_bits_retain(key.tcp_flags.bits() & self.tcp_flags);
        key.dscp &= self.dscp;
        key.icmp_type &= self.icmp_type;
        key.icmp_code &= self.icmp_code;
        key.arp_operation &= self.arp_operation;
        if !self.state {
            key.state = ConnState::Untracked;
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use netvm_ids::PortId;
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{Generator, rules_and_keys};
    use crate::matching::Match;
    use crate::reference::decide;
    use crate::span::{Masked, Span};

    #[test]
    fn only_used_fields_remain() {
        let mut key = Generator::new(3).uniform_key();
        (key.tcp_flags, key.dscp, key.icmp_type, key.icmp_code, key.arp_operation) =
            (TcpFlags::SYN | TcpFlags::ACK, 46, 8, 1, 2);
        key.state = ConnState::Established;
        let masked = UsedFields::default().mask(key);
        assert_eq!(
            (masked.tcp_flags, masked.dscp, masked.state),
            (TcpFlags::empty(), 0, ConnState::Untracked)
        );
        assert_eq!((masked.icmp_type, masked.icmp_code, masked.arp_operation), (0, 0, 0));
        assert_eq!((masked.source, masked.source_port), (key.source, key.source_port));
        let rule = Rule::from(crate::RuleParts {
            id: crate::RuleId(0),
            name: String::new(),
            matches: Match {
                tcp_flags: Some(Masked::<u8>::new(0, TcpFlags::ACK.bits())),
                icmp_type: vec![Span::single(8)],
                state: vec![ConnState::New],
                ..Match::default()
            },
            actions: crate::Actions::default(),
        });
        let masked = UsedFields::of(&[rule]).mask(key);
        assert_eq!((masked.tcp_flags, masked.icmp_type, masked.icmp_code), (TcpFlags::ACK, 8, 0));
        assert_eq!(masked.state, ConnState::Established);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn rules_decide_equally_for_masked_keys((rules, keys) in rules_and_keys(0..8, 1..16)) {
            let used = UsedFields::of(&rules);
            for key in keys {
                for to in [None, Some(PortId(1))] {
                    let of = |key: FlowKey| decide(&rules, PortId(0), to, &key);
                    prop_assert_eq!(of(used.mask(key)), of(key));
                }
            }
        }
    }
}
