// SPDX-License-Identifier: Apache-2.0
//! Checks whether any packet can be in a cube.

use std::fmt;

use netvm_wire::{EtherType, Fragment, IpProto, VlanId};

use crate::cubes::{Cube, Family};

/// The reason why no packet can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Impossible {
    /// Addresses or EtherTypes of different families.
    Families,
    /// Ports of packets that have none: other protocols than TCP, UDP and SCTP, later fragments, packets that are not
    /// IP.
    Ports,
    /// TCP flags of packets that have none.
    TcpFlags,
    /// ICMP types or codes of packets that have none.
    Icmp,
    /// An ARP operation of packets that are not ARP.
    ArpOperation,
    /// Addresses, protocols, DSCPs, fragments or states of packets that are neither IP nor, for addresses, ARP.
    NotIp,
    /// A DSCP above 63 or a VLAN above 4094.
    Number,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Families => "its addresses and EtherTypes are of different families",
            Self::Ports => "only whole packets and first fragments of TCP, UDP and SCTP have ports",
            Self::TcpFlags => "only whole packets and first fragments of TCP have flags",
            Self::Icmp => "only whole packets and first fragments of ICMP and ICMPv6 have a type and a code",
            Self::ArpOperation => "only ARP packets have an ARP operation",
            Self::NotIp => {
                "packets of its EtherType have no addresses, protocol, DSCP, fragments or connections"
            }
            Self::Number => "DSCPs end at 63 and VLANs at 4094",
        })
    }
}

/// The reason why a cube is empty, if it is. A packet without a field has the value 0.
pub(super) fn check(cube: &Cube) -> Result<(), Impossible> {
    let fields = &cube.fields;
    let refuse = |wrong: bool, why| if wrong { Err(why) } else { Ok(()) };
    refuse(
        fields.dscp.first > 63 || fields.vlan.first > VlanId::MAX || fields.inner_vlan.first > VlanId::MAX,
        Impossible::Number,
    )?;
    let ip = cube.family != Family::Other;
    let arp = !ip && fields.ether_type.contains(EtherType::ARP.0);
    if !ip {
        let bytes = [fields.dscp, fields.fragment, fields.state];
        let zero = fields.protocol.contains(0) && bytes.iter().all(|span| span.contains(0));
        let addresses = arp || (fields.source.contains(0) && fields.destination.contains(0));
        refuse(!zero || !addresses, Impossible::NotIp)?;
    }
    let transport = ip && fields.fragment.first <= Fragment::First as u8;
    let protocol = |number: IpProto| transport && fields.protocol.contains(number.0);
    let ports = [IpProto::TCP, IpProto::UDP, IpProto::SCTP].into_iter().any(protocol);
    let icmp = match cube.family {
        Family::V4 => protocol(IpProto::ICMP),
        Family::V6 => protocol(IpProto::ICMPV6),
        Family::Other => false,
    };
    let without = fields.source_ports.contains(0) && fields.destination_ports.contains(0);
    refuse(!ports && !without, Impossible::Ports)?;
    refuse(!protocol(IpProto::TCP) && !fields.tcp_flags.contains(0), Impossible::TcpFlags)?;
    let without = fields.icmp_type.contains(0) && fields.icmp_code.contains(0);
    refuse(!icmp && !without, Impossible::Icmp)?;
    refuse(!arp && !fields.arp_operation.contains(0), Impossible::ArpOperation)
}

#[cfg(test)]
mod tests {
    use netvm_wire::{ConnState, IpNet, PortRange};
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::rules_and_keys;
    use crate::matching::Match;
    use crate::span::{Masked, Span};

    fn why(matches: &Match) -> Result<(), Impossible> {
        matches.cubes().unwrap().iter().try_for_each(check)
    }

    #[test]
    fn reasons_are_distinguished() {
        let udp = || Match { protocol: vec![IpProto::UDP], ..Match::default() };
        let arp = || Match { ether_type: vec![EtherType::ARP], ..Match::default() };
        let lldp = || Match { ether_type: vec![EtherType(0x88cc)], ..Match::default() };
        let syn = Some(Masked::<u8>::new(2, 2));
        let net: IpNet = "10.0.0.0/8".parse().unwrap();
        let port = vec![PortRange::single(53)];
        let cases = [
            (Match { tcp_flags: syn, ..udp() }, Err(Impossible::TcpFlags)),
            (Match { tcp_flags: Some(Masked::<u8>::new(0, 2)), ..udp() }, Ok(())),
            (Match { source_ports: port.clone(), ..udp() }, Ok(())),
            (
                Match { source_ports: port.clone(), fragment: vec![Fragment::Later], ..udp() },
                Err(Impossible::Ports),
            ),
            (Match { source_ports: port, ..arp() }, Err(Impossible::Ports)),
            (Match { icmp_type: vec![Span::single(8)], ..udp() }, Err(Impossible::Icmp)),
            (Match { arp_operation: vec![Span::single(1)], ..udp() }, Err(Impossible::ArpOperation)),
            (Match { arp_operation: vec![Span::single(1)], source: vec![net], ..arp() }, Ok(())),
            (Match { source: vec![net], ..lldp() }, Err(Impossible::NotIp)),
            (Match { protocol: vec![IpProto::TCP], ..arp() }, Err(Impossible::NotIp)),
            (Match { state: vec![ConnState::New], ..arp() }, Err(Impossible::NotIp)),
            (Match { state: vec![ConnState::Untracked], ..arp() }, Ok(())),
            (Match { dscp: vec![Span::single(64)], ..udp() }, Err(Impossible::Number)),
            (Match::default(), Ok(())),
        ];
        for (matches, expected) in cases {
            assert_eq!(why(&matches), expected, "{matches:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// The keys are those of possible packets.
        #[test]
        fn no_packet_is_in_an_impossible_cube((rules, keys) in rules_and_keys(1..4, 1..24)) {
            for cube in rules.iter().flat_map(|rule| rule.matches.cubes().unwrap()) {
                if let Err(why) = check(&cube) {
                    let key = keys.iter().find(|key| cube.contains(key));
                    prop_assert!(key.is_none(), "{:?} {:?}", key, why);
                }
            }
        }
    }
}
