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
mod tests {
    use netvm_wire::VlanId;
    use proptest::prelude::*;

    use super::*;
    use crate::{FdbOptions, Learned};

    const GUEST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn id(vlan: u16) -> VlanId {
        VlanId::new(vlan).unwrap()
    }

    fn port(vlan: VlanPort, group: u16) -> BridgePort {
        BridgePort { vlan, group: NonZeroU16::new(group), limit: None, new_per_second: None }
    }

    /// Ports 1 and 2 of group 7, port 3 of no group, uplink 900, port 5 of another VLAN, and VLAN-unaware port 255.
    fn bridge() -> Bridge {
        let access = VlanPort::Access(id(10));
        let uplink = VlanPort::Trunk { allowed: [id(10), id(20)].into_iter().collect(), native: None };
        Bridge::new([
            (1, port(access.clone(), 7)),
            (2, port(access.clone(), 7)),
            (3, port(access, 0)),
            (900, port(uplink, 0)),
            (5, port(VlanPort::Access(id(20)), 7)),
            (255, port(VlanPort::Unaware, 0)),
        ])
        .unwrap()
    }

    #[test]
    fn floods_skip_the_ingress_port_and_its_group() {
        let bridge = bridge();
        let flooded = |ingress, vlan| bridge.flood(ingress, vlan).collect::<Vec<_>>();
        let empty = [(900, 30), (255, 0), (9, 10), (256, u16::MAX), (1023, 10), (u16::MAX, 10)];
        for destination in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), GUEST] {
            let forward = |ingress, vlan| bridge.forward(ingress, vlan, destination, None);
            for (ingress, vlan) in [(1, 10), (3, 10), (900, 10), (900, 20)] {
                assert_eq!(forward(ingress, vlan), Forward::Flood);
            }
            for (ingress, vlan) in empty {
                assert_eq!(forward(ingress, vlan), Forward::Drop(NotForwarded::NoMembers));
            }
        }
        assert_eq!(flooded(1, 10), [3, 900]);
        assert_eq!(flooded(3, 10), [1, 2, 900]);
        assert_eq!(flooded(900, 10), [1, 2, 3]);
        assert_eq!(flooded(900, 20), [5]);
        assert!(empty.iter().all(|(ingress, vlan)| flooded(*ingress, *vlan).is_empty()));
    }

    #[test]
    fn known_destinations_are_checked_against_vlan_and_group() {
        let bridge = bridge();
        let forward = |ingress, vlan, behind| bridge.forward(ingress, vlan, GUEST, Some(behind));
        assert_eq!(forward(1, 10, 900), Forward::Port(900));
        assert_eq!(forward(1, 10, 1), Forward::Drop(NotForwarded::SamePort));
        assert_eq!(forward(1, 10, 2), Forward::Drop(NotForwarded::SplitHorizon));
        assert_eq!(forward(1, 10, 5), Forward::Drop(NotForwarded::NotMember));
        assert_eq!(forward(1, 10, 300), Forward::Drop(NotForwarded::NotMember));
        assert_eq!(forward(1, 10, 2000), Forward::Drop(NotForwarded::NotMember));
        assert_eq!(bridge.forward(1, 10, MacAddr::BROADCAST, Some(900)), Forward::Flood);
    }

    #[test]
    fn link_local_groups_are_forwarded_on_request_only() {
        let (bridge, wire) = (bridge(), bridge().with_bpdus(true));
        for last in 0..=255 {
            let group = MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
            let forwards =
                |by: &Bridge| by.forward(1, 10, group, None) != Forward::Drop(NotForwarded::LinkLocal);
            assert_eq!(forwards(&bridge), last > 0x0f, "{group}");
            assert_eq!(forwards(&wire), last != 1, "{group}: all but PAUSE frames");
        }
    }

    #[test]
    fn vlans_are_classified_by_port() {
        let bridge = bridge();
        assert_eq!(bridge.ingress(1, None), Some(Ok(10)));
        assert_eq!(bridge.ingress(1, Some(10)), Some(Err(VlanError::Tagged)));
        assert_eq!((bridge.ingress(9, None), bridge.ingress(901, None)), (None, None));
        assert_eq!((bridge.egress(900, 20), bridge.egress(900, 30)), (Some(Tagging::Tagged), None));
        assert_eq!(bridge.egress(9, 10), None);
    }

    #[test]
    fn limits_are_set_per_port() {
        let fdb = Fdb::new(FdbOptions::default()).unwrap();
        let limited = BridgePort { limit: Some(2), ..port(VlanPort::Unaware, 0) };
        let slow = BridgePort { new_per_second: Some(3), ..port(VlanPort::Unaware, 0) };
        let bridge = Bridge::new([(1, limited), (2, slow)]).unwrap();
        bridge.set_limits(&fdb);
        let learned = |port: u8| {
            let outcome = |n| fdb.learn(0, MacAddr([2, 0, 0, 0, port, n]), port.into(), 0);
            [0, 1, 2, 3].map(outcome)
        };
        use Learned::{LimitReached, New, OverQuota};
        assert_eq!(learned(1), [New, New, LimitReached, LimitReached]);
        assert_eq!(learned(2), [New, New, New, OverQuota]);
        assert_eq!(learned(3), [LimitReached; 4]);
    }

    #[test]
    fn invalid_and_duplicate_ports_are_refused() {
        let port = || port(VlanPort::Unaware, 0);
        assert_eq!(Bridge::new([(1024, port())]).unwrap_err(), BridgeError::Port(1024));
        assert_eq!(Bridge::new([(1, port()), (1, port())]).unwrap_err(), BridgeError::Duplicate(1));
    }

    fn any_port() -> impl Strategy<Value = BridgePort> {
        let vlan = prop_oneof![
            Just(VlanPort::Unaware),
            (1..4u16).prop_map(|vlan| VlanPort::Access(id(vlan))),
            (prop::collection::vec((1..4u16).prop_map(id), 0..3), prop::option::of((1..4u16).prop_map(id)))
                .prop_map(|(allowed, native)| VlanPort::Trunk {
                    allowed: allowed.into_iter().collect(),
                    native
                }),
        ];
        (vlan, 0..3u16).prop_map(|(vlan, group)| port(vlan, group))
    }

    proptest! {
        /// Asks each port on its own whether it may receive the frame.
        #[test]
        fn a_flood_reaches_every_eligible_port(
            ports in prop::collection::btree_map(0..1024u16, any_port(), 1..12),
            vlan in 0..5u16,
            behind in 0..1024u16,
        ) {
            let bridge = Bridge::new(ports.clone()).unwrap();
            for (from, own) in &ports {
                let may = |to: u16, other: &BridgePort| {
                    let apart = own.group.is_none() || own.group != other.group;
                    to != *from && apart && other.vlan.egress(vlan).is_some()
                };
                let wanted: Vec<u16> = ports.iter().filter(|(to, other)| may(**to, other)).map(|(to, _)| *to).collect();
                prop_assert_eq!(&bridge.flood(*from, vlan).collect::<Vec<_>>(), &wanted);
                for behind in wanted.iter().copied().chain([behind]) {
                    let unicast = bridge.forward(*from, vlan, GUEST, Some(behind));
                    prop_assert_eq!(unicast == Forward::Port(behind), wanted.contains(&behind));
                }
                let group = bridge.forward(*from, vlan, MacAddr::BROADCAST, None);
                prop_assert_eq!(group == Forward::Flood, !wanted.is_empty());
            }
        }
    }
}
