// SPDX-License-Identifier: Apache-2.0
//! What statements of files translate connections to, as netvm's actions. In: addresses and ports. Out: an action, or
//! why there is none.

use std::net::IpAddr;

use netvm_model::{AddressRange, DestinationNat, NatAction, NatAddresses, NatTarget, SourceNat, pool_ports};
use netvm_policy::Match;
use netvm_wire::{EtherType, IpProto, PortRange};

use crate::{IpVersion, NoteReason};

/// Most targets of a rule.
const MAX_TARGETS: u128 = 256;

/// Addresses and ports that a statement names; `None`: it names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) addresses: Option<(IpAddr, IpAddr)>,
    pub(crate) ports: Option<PortRange>,
}

impl Ends {
    /// Other sources; without addresses, those of the interface.
    pub(crate) fn source(self) -> NatAction {
        let range = |(first, last): (IpAddr, IpAddr)| AddressRange { first: first.into(), last: last.into() };
        let addresses = self.addresses.map(|ends| NatAddresses::Ranges(vec![range(ends)]));
        let ports = self.ports.unwrap_or_else(pool_ports);
        NatAction::Source(SourceNat {
            addresses: addresses.unwrap_or_default(),
            ports,
            ..SourceNat::default()
        })
    }

    /// Other destinations of packets that fit one of these; without addresses, the interface's own.
    ///
    /// # Errors
    /// The reason why netvm has no such action.
    pub(crate) fn destination(self, fits: &[Match]) -> Result<NatAction, NoteReason> {
        Ok(NatAction::Destination(DestinationNat { targets: self.targets(fits, 1)?, health: None }))
    }

    /// The targets of packets that fit one of these.
    ///
    /// # Errors
    /// The reason why netvm has none.
    pub(crate) fn targets(self, fits: &[Match], weight: u16) -> Result<Vec<NatTarget>, NoteReason> {
        let port = self.port(fits)?;
        let Some((first, last)) = self.addresses else {
            return Ok(vec![NatTarget { address: None, port, weight }]);
        };
        let ((version, first), (_, last)) = (IpVersion::split(first), IpVersion::split(last));
        if last - first >= MAX_TARGETS {
            return Err(NoteReason::Targets);
        }
        let target = |value| NatTarget { address: Some(version.address(value).into()), port, weight };
        Ok((first..=last).map(target).collect())
    }

    /// The port of all packets; `None`: their own.
    fn port(self, fits: &[Match]) -> Result<Option<u16>, NoteReason> {
        let Some(ports) = self.ports else { return Ok(None) };
        let has_ports = |protocol: &IpProto| [IpProto::TCP, IpProto::UDP].contains(protocol);
        if fits.iter().any(|fits| fits.protocol.is_empty() || !fits.protocol.iter().all(has_ports)) {
            return Err(NoteReason::TranslatedPorts);
        }
        if ports.first() == ports.last() {
            return Ok(Some(ports.first()));
        }
        // A port in the range stays as it is.
        let stays = |of: &PortRange| ports.contains(of.first()) && ports.contains(of.last());
        let all_stay =
            |fits: &Match| !fits.destination_ports.is_empty() && fits.destination_ports.iter().all(stays);
        if fits.iter().all(all_stay) { Ok(None) } else { Err(NoteReason::TranslatedPorts) }
    }
}

/// The packets whose addresses an action can translate.
pub(crate) fn family(action: &NatAction) -> Match {
    let ether_type = match action.is_v4() {
        Some(true) => vec![EtherType::IPV4],
        Some(false) => vec![EtherType::IPV6],
        None => vec![],
    };
    Match { ether_type, ..Match::default() }
}
