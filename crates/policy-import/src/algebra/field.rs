// SPDX-License-Identifier: Apache-2.0
//! The numeric fields of a [`Match`] as [`Ranges`].

use std::net::IpAddr;

use netvm_wire::{ConnState, Fragment, IpNet, IpProto, PortRange, VlanId};

use super::{Ranges, prefix_range};
use crate::IpVersion;
use netvm_policy::Match;
use netvm_policy::Span;

/// A field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the fields of Match")]
pub(crate) enum Field {
    /// Addresses of a version; the rule also has its EtherType.
    Source(IpVersion),
    Destination(IpVersion),
    Vlan,
    InnerVlan,
    Protocol,
    SourcePorts,
    DestinationPorts,
    Dscp,
    IcmpType,
    IcmpCode,
    Fragment,
    State,
    ArpOperation,
}

impl Field {
    /// All fields, with addresses of this version.
    pub(crate) const fn all(version: IpVersion) -> [Self; 13] {
        [
            Self::Source(version),
            Self::Destination(version),
            Self::Protocol,
            Self::SourcePorts,
            Self::DestinationPorts,
            Self::Dscp,
            Self::IcmpType,
            Self::IcmpCode,
            Self::Fragment,
            Self::State,
            Self::Vlan,
            Self::InnerVlan,
            Self::ArpOperation,
        ]
    }

    /// The highest value in packets.
    pub(crate) const fn highest(self) -> u128 {
        match self {
            Self::Source(version) | Self::Destination(version) => version.highest(),
            Self::Vlan | Self::InnerVlan => VlanId::MAX as u128,
            Self::Protocol | Self::IcmpType | Self::IcmpCode => u8::MAX as u128,
            Self::SourcePorts | Self::DestinationPorts | Self::ArpOperation => u16::MAX as u128,
            Self::Dscp => 63,
            Self::Fragment => Fragment::Later as u128,
            Self::State => ConnState::Invalid as u128,
        }
    }

    /// The match of packets with one of the values; `None` without values.
    pub(crate) fn among(self, values: &Ranges) -> Option<Match> {
        let values = values.intersect(&Ranges::all(self.highest()));
        let mut matches = Match::default();
        if values.is_empty() {
            return None;
        }
        self.set(&mut matches, &values);
        Some(matches)
    }

    /// The values that fit; `None` if all do.
    pub(crate) fn get(self, from: &Match) -> Option<Ranges> {
        match self {
            Self::Source(_) => nets(&from.source),
            Self::Destination(_) => nets(&from.destination),
            Self::Vlan => spans(&from.vlan),
            Self::InnerVlan => spans(&from.inner_vlan),
            Self::Protocol => singles(from.protocol.iter().map(|protocol| protocol.0)),
            Self::SourcePorts => ports(&from.source_ports),
            Self::DestinationPorts => ports(&from.destination_ports),
            Self::Dscp => spans(&from.dscp),
            Self::IcmpType => spans(&from.icmp_type),
            Self::IcmpCode => spans(&from.icmp_code),
            Self::Fragment => singles(from.fragment.iter().map(|fragment| *fragment as u8)),
            Self::State => singles(from.state.iter().map(|state| *state as u8)),
            Self::ArpOperation => spans(&from.arp_operation),
        }
    }

    /// Restricts the field to these values, at least one.
    pub(crate) fn set(self, to: &mut Match, values: &Ranges) {
        let any = *values == Ranges::all(self.highest());
        let values = || if any { None } else { Some(values.iter()) }.into_iter().flatten();
        let short = || values().map(|(first, last)| (first as u16, last as u16));
        let spans = || short().map(|(first, last)| Span { first, last }).collect();
        let bytes = || values().map(|(first, last)| Span { first: first as u8, last: last as u8 }).collect();
        let ports = || short().filter_map(|(first, last)| PortRange::new(first, last)).collect();
        let has = |number: u128| values().any(|(first, last)| (first..=last).contains(&number));
        match self {
            Self::Source(version) => to.source = prefixes(values(), version),
            Self::Destination(version) => to.destination = prefixes(values(), version),
            Self::Vlan => to.vlan = spans(),
            Self::InnerVlan => to.inner_vlan = spans(),
            Self::Protocol => {
                to.protocol =
                    values().flat_map(|(first, last)| first as u8..=last as u8).map(IpProto).collect();
            }
            Self::SourcePorts => to.source_ports = ports(),
            Self::DestinationPorts => to.destination_ports = ports(),
            Self::Dscp => to.dscp = bytes(),
            Self::IcmpType => to.icmp_type = bytes(),
            Self::IcmpCode => to.icmp_code = bytes(),
            Self::Fragment => {
                let kinds = [Fragment::Whole, Fragment::First, Fragment::Later];
                to.fragment = kinds.into_iter().filter(|kind| has(*kind as u128)).collect();
            }
            Self::State => {
                to.state = ConnState::ALL.into_iter().filter(|state| has(*state as u128)).collect();
            }
            Self::ArpOperation => to.arp_operation = spans(),
        }
    }
}

fn ranges(values: impl ExactSizeIterator<Item = (u128, u128)>) -> Option<Ranges> {
    (values.len() > 0).then(|| Ranges::union(values))
}

fn singles(values: impl ExactSizeIterator<Item = u8>) -> Option<Ranges> {
    ranges(values.map(|value| (value.into(), value.into())))
}

fn spans<T: Copy + Into<u128>>(spans: &[Span<T>]) -> Option<Ranges> {
    ranges(spans.iter().map(|span| (span.first.into(), span.last.into())))
}

fn ports(ports: &[PortRange]) -> Option<Ranges> {
    ranges(ports.iter().map(|ports| (ports.first().into(), ports.last().into())))
}

fn nets(nets: &[IpNet]) -> Option<Ranges> {
    ranges(nets.iter().map(|net| {
        let (version, value) = IpVersion::split(address_of(*net));
        prefix_range(value, net.length(), version.bits())
    }))
}

/// The network address.
fn address_of(net: IpNet) -> IpAddr {
    match net {
        IpNet::V4(net) => net.network().into(),
        IpNet::V6(net) => net.network().into(),
    }
}

fn prefixes(values: impl Iterator<Item = (u128, u128)>, version: IpVersion) -> Vec<IpNet> {
    let prefixes = Ranges::union(values).prefixes(version.bits());
    // Lengths and host bits are right by construction.
    prefixes
        .into_iter()
        .filter_map(|(value, length)| IpNet::new(version.address(value), length).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_round_trips() {
        for version in [IpVersion::V4, IpVersion::V6] {
            for field in Field::all(version) {
                for values in [
                    Ranges::single(0),
                    Ranges::single(field.highest()),
                    Ranges::union([(0, 0), (2, field.highest())]),
                    Ranges::single(1).complement(field.highest()),
                ] {
                    let matches = field.among(&values).unwrap();
                    assert_eq!(field.get(&matches), Some(values), "{field:?}");
                    let others =
                        Field::all(version).into_iter().filter(|other| other.get(&matches).is_some());
                    assert_eq!(others.collect::<Vec<_>>(), [field]);
                }
                assert_eq!(field.among(&Ranges::all(u128::MAX)), Some(Match::default()));
                assert_eq!(field.among(&Ranges::union([])), None);
            }
        }
    }
}
