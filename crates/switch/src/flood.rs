// SPDX-License-Identifier: Apache-2.0
//! Forwarding decision: a frame goes out of the port that its destination is behind, or floods its VLAN.
//!
//! A [`Bridge`] is immutable and shared by all workers; a new configuration builds a new one. The addresses are in the
//! [`crate::Fdb`].

use std::fmt;
use std::num::NonZeroU16;

use netvm_wire::MacAddr;
use thiserror::Error;

use crate::fdb::{Fdb, MAX_PORTS};
use crate::port_sets::{PortSet, PortSets};
use crate::vlan::{Tagging, VlanError, VlanPort};

/// All VLAN ids; VLAN-unaware ports use 0.
const VLANS: usize = 4096;

/// A port of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// VLAN mode of the port.
    pub vlan: VlanPort,
    /// Split-horizon group: ports of one group do not send to each other.
    pub group: Option<NonZeroU16>,
    /// Limit of learned addresses; `None`: the database's default.
    pub limit: Option<u32>,
    /// Limit of new addresses per second; `None`: the database's default.
    pub new_per_second: Option<u32>,
}

/// Why a bridge cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BridgeError {
    /// The port number is too large.
    #[error("port {0} cannot be in a bridge: port numbers are below {MAX_PORTS}")]
    Port(u16),
    /// The port is listed twice.
    #[error("the bridge lists port {0} twice")]
    Duplicate(u16),
}

/// A frame to flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodOf {
    /// Its ingress port.
    pub ingress: u16,
    /// Its VLAN.
    pub vlan: u16,
    /// The ports below this one have got it.
    pub first: u16,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Out of one port.
    Port(u16),
    /// Out of each port that [`Bridge::flood`] gives, at least one.
    Flood,
    /// Nowhere.
    Drop(NotForwarded),
}

/// Why a frame is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum NotForwarded {
    /// The destination is one of 01:80:c2:00:00:00 to 0f (STP, LACP, LLDP, PAUSE; IEEE 802.1Q table 8-1), which bridges
    /// do not forward unless told so ([`Bridge::with_bpdus`]).
    #[error(
        "its destination is a link-local group address, which bridges do not forward (`forward_bpdu` of [switch])"
    )]
    LinkLocal,
    /// The destination is behind the ingress port.
    #[error("its destination is behind its ingress port")]
    SamePort,
    /// The destination is behind a port of the same split-horizon group.
    #[error("its destination is behind a port of the same split-horizon group")]
    SplitHorizon,
    /// The destination is behind a port that is not, or no longer, a member of the VLAN.
    #[error("its destination is behind a port that is not in its VLAN")]
    NotMember,
    /// The VLAN has no other port to flood.
    #[error("no other port is in its VLAN")]
    NoMembers,
}

/// The ports of L2 switching and which ports each may send to.
pub struct Bridge {
    ports: Box<[Option<BridgePort>]>,
    /// By VLAN.
    members: PortSets,
    /// By port, the ports it may send to.
    reach: PortSets,
    /// Whether frames to link-local groups are flooded.
    forwards_bpdus: bool,
}

impl Bridge {
    /// Builds a bridge from ports and their numbers.
    ///
    /// # Errors
    /// [`BridgeError`] if a number is too large or listed twice.
    pub fn new(given: impl IntoIterator<Item = (u16, BridgePort)>) -> Result<Self, BridgeError> {
        let mut ports = Vec::new();
        for (number, port) in given {
            let index = usize::from(number);
            if index >= MAX_PORTS {
                return Err(BridgeError::Port(number));
            }
            if ports.len() <= index {
                ports.resize(index + 1, None);
            }
            if ports[index].replace(port).is_some() {
                return Err(BridgeError::Duplicate(number));
            }
        }
        let numbered = || (0..).zip(&ports).filter_map(|(number, port)| Some((number, port.as_ref()?)));
        let mut members = PortSets::new(VLANS, ports.len());
        for (number, port) in numbered() {
            port.vlan.vlans().for_each(|vlan| members.insert(vlan.into(), number));
        }
        let mut reach = PortSets::new(ports.len(), ports.len());
        for (from, port) in numbered() {
            let apart = |other: &BridgePort| other.group.is_none() || other.group != port.group;
            let others = numbered().filter(|(number, other)| *number != from && apart(other));
            others.for_each(|(number, _)| reach.insert(from.into(), number));
        }
        Ok(Self { ports: ports.into(), members, reach, forwards_bpdus: false })
    }

    /// Whether to flood frames to 01:80:c2:00:00:00 to 0f (STP, LACP, LLDP), as a wire does and a bridge must not;
    /// PAUSE frames (:01) stay on their link in any case.
    #[must_use]
    pub fn with_bpdus(self, forwards_bpdus: bool) -> Self {
        Self { forwards_bpdus, ..self }
    }

    /// Whether a port is in the bridge.
    #[must_use]
    pub fn has(&self, port: u16) -> bool {
        self.port(port).is_some()
    }

    /// Sets the learning limits of the ports in a forwarding database. Ports outside the bridge learn nothing.
    pub fn set_limits(&self, fdb: &Fdb) {
        let options = fdb.options();
        for number in 0..MAX_PORTS as u16 {
            let limits = self.port(number).map(|port| {
                (port.limit.unwrap_or(options.limit), port.new_per_second.unwrap_or(options.new_per_second))
            });
            let (limit, quota) = limits.unwrap_or((0, 0));
            fdb.set_limit(number, limit);
            fdb.set_quota(number, quota);
        }
    }

    /// Like [`VlanPort::ingress`]; `None` if the port is not in the bridge.
    ///
    /// # Errors
    /// [`VlanError`] if the port does not admit the frame.
    #[inline]
    pub fn ingress(&self, port: u16, tag: Option<u16>) -> Option<Result<u16, VlanError>> {
        Some(self.port(port)?.vlan.ingress(tag))
    }

    /// Like [`VlanPort::egress`]; `None` also if the port is not in the bridge.
    #[inline]
    #[must_use]
    pub fn egress(&self, port: u16, vlan: u16) -> Option<Tagging> {
        self.port(port)?.vlan.egress(vlan)
    }

    /// Decides where a frame of `vlan` from port `ingress` to `destination` goes. `behind` is the port that the
    /// forwarding database knows for the destination, `None` if unknown.
    #[inline]
    #[must_use]
    pub fn forward(&self, ingress: u16, vlan: u16, destination: MacAddr, behind: Option<u16>) -> Forward {
        match behind {
            Some(port) if !destination.is_multicast() => self.unicast(ingress, vlan, port),
            _ if self.is_withheld(destination) => Forward::Drop(NotForwarded::LinkLocal),
            _ if self.flood(ingress, vlan).next().is_none() => Forward::Drop(NotForwarded::NoMembers),
            _ => Forward::Flood,
        }
    }

    /// The ports that a frame of `vlan` from port `ingress` floods, in ascending order.
    #[inline]
    pub fn flood(&self, ingress: u16, vlan: u16) -> impl Iterator<Item = u16> + '_ {
        self.flood_from(ingress, vlan, 0)
    }

    /// The same without the ports below `first`.
    #[inline]
    pub fn flood_from(&self, ingress: u16, vlan: u16, first: u16) -> impl Iterator<Item = u16> + '_ {
        self.members_of(vlan).common(self.reach_of(ingress), first)
    }

    /// The same, of those that are in a set.
    #[inline]
    pub(crate) fn flood_within<'a>(
        &'a self,
        of: FloodOf,
        set: PortSet<'a>,
    ) -> impl Iterator<Item = u16> + 'a {
        self.members_of(of.vlan).common_to_three([self.reach_of(of.ingress), set], of.first)
    }

    /// The ports of a VLAN, in ascending order.
    pub fn members(&self, vlan: u16) -> impl Iterator<Item = u16> + '_ {
        let all = self.members_of(vlan);
        all.common(all, 0)
    }

    /// The VLANs of at least two ports, in ascending order; 0: of ports that are not VLAN-aware.
    pub fn vlans(&self) -> impl Iterator<Item = u16> + '_ {
        (0..VLANS as u16).filter(|vlan| self.members(*vlan).nth(1).is_some())
    }

    #[inline]
    fn unicast(&self, ingress: u16, vlan: u16, port: u16) -> Forward {
        let (is_member, is_reached) =
            (self.members_of(vlan).contains(port), self.reach_of(ingress).contains(port));
        if is_member && is_reached {
            Forward::Port(port)
        } else if port == ingress {
            Forward::Drop(NotForwarded::SamePort)
        } else if is_member {
            Forward::Drop(NotForwarded::SplitHorizon)
        } else {
            Forward::Drop(NotForwarded::NotMember)
        }
    }

    /// Whether the address is one of IEEE 802.1Q table 8-1 whose frames stay on their link.
    #[inline]
    fn is_withheld(&self, address: MacAddr) -> bool {
        const PAUSE: u8 = 1;
        match address.octets() {
            [0x01, 0x80, 0xc2, 0, 0, last @ 0..=0x0f] => !self.forwards_bpdus || last == PAUSE,
            _ => false,
        }
    }

    #[inline]
    fn port(&self, port: u16) -> Option<&BridgePort> {
        self.ports.get(usize::from(port))?.as_ref()
    }

    #[inline]
    fn members_of(&self, vlan: u16) -> PortSet<'_> {
        self.members.get(vlan.into())
    }

    #[inline]
    fn reach_of(&self, port: u16) -> PortSet<'_> {
        self.reach.get(port.into())
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = (0u16..).zip(&self.ports).filter_map(|(number, port)| Some((number, port.as_ref()?)));
        f.debug_map().entries(ports).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
