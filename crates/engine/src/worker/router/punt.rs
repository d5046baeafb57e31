// SPDX-License-Identifier: Apache-2.0
//! Classifies punted packets. In: the cause, and the packet's headers. Out: the [`PuntReason`]; the limits of its class
//! apply.
//!
//! Cost: the key of each packet, and a lookup for packets whose destination is not on this link.

use dpdk::Mbuf;
use netvm_router::{NextHop, NextHopId, Tables};
use netvm_wire::{EtherType, FlowKey, IpProto, MacAddr};

use crate::router::PuntReason;
use crate::worker::packet::keys::key_of;

/// What is known of the reason for which a packet is punted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PuntCause {
    /// Its headers, before any lookup: this reason, unless it belongs to a protocol of routers or is for the router
    /// itself.
    Headers(PuntReason),
    /// Its destination is an address of the router.
    Local,
    /// This one.
    Of(PuntReason),
}

impl PuntCause {
    /// The cause if the next hop, which has this id, is to punt or to glean.
    pub(crate) const fn of(next_hop: &NextHop, id: NextHopId) -> Self {
        Self::Of(match id {
            _ if matches!(next_hop, NextHop::Glean(_)) => PuntReason::Miss,
            NextHopId::LOCAL => return Self::Local,
            NextHopId::RESOLVE => PuntReason::Miss,
            NextHopId::LOST => PuntReason::Lost,
            NextHopId::PUNT => PuntReason::NoRoute,
            NextHopId::KERNEL => PuntReason::KernelRoute,
            // Not a miss: many destinations share a gateway, and the kernel may reach it in another way.
            _ => PuntReason::Gateway,
        })
    }
}

/// Multicast addresses of IS-IS (ISO 10589 8.4.8: `AllL1ISs`, `AllL2ISs`; RFC 1195; `AllIntermediateSystems`).
const IS_IS: [MacAddr; 3] = [
    MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x14]),
    MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x15]),
    MacAddr([0x09, 0, 0x2b, 0, 0, 0x05]),
];
/// IP protocols that only routers use: IGMP, EIGRP, OSPF, PIM, VRRP, and RSVP.
const ROUTING_PROTOCOLS: [u8; 6] = [2, 88, 89, 103, 112, 46];
/// BGP and LDP (RFC 4271, RFC 5036).
const ROUTING_TCP: [u16; 2] = [179, 646];
/// RIP, RIPng, LDP, BFD (RFC 5881, 5883, 7130, 7419) and Babel.
const ROUTING_UDP: [u16; 8] = [520, 521, 646, 3784, 3785, 4784, 6784, 6696];

/// Why a packet with this key is punted.
pub(crate) fn reason_of(
    cause: PuntCause,
    key: impl FnOnce() -> Option<FlowKey>,
    tables: &Tables,
) -> PuntReason {
    match cause {
        PuntCause::Of(reason) => reason,
        PuntCause::Local => key().map_or(PuntReason::Local, |key| of_own(&key)),
        PuntCause::Headers(reason) => key().map_or(reason, |key| of_key(&key, reason, tables)),
    }
}

fn of_key(key: &FlowKey, reason: PuntReason, tables: &Tables) -> PuntReason {
    match key.ether_type {
        EtherType::ARP => PuntReason::Neighbour,
        EtherType::IPV4 | EtherType::IPV6 => match destination_scope(key, tables) {
            DestinationScope::Own => of_own(key),
            DestinationScope::Group if of_own(key) == PuntReason::Local => PuntReason::Group,
            DestinationScope::Group => of_own(key),
            DestinationScope::Beyond => reason,
        },
        _ if IS_IS.contains(&key.destination_mac) => PuntReason::Routing,
        _ => PuntReason::EtherType,
    }
}

/// The scope of a packet's destination.
enum DestinationScope {
    /// To this router.
    Own,
    /// To a multicast group.
    Group,
    /// To another host.
    Beyond,
}

fn destination_scope(key: &FlowKey, tables: &Tables) -> DestinationScope {
    let mut found = [NextHopId::PUNT];
    if let Some(v4) = key.destination.v4_bits() {
        match v4 >> 24 {
            224..=239 => return DestinationScope::Group,
            255 => return DestinationScope::Own,
            _ => tables.lookup_v4(&[v4], &mut found),
        }
    } else {
        let v6 = key.destination.v6_bits();
        if v6 >> 120 == 0xff {
            return DestinationScope::Group;
        }
        if v6 >> 118 == 0xfe80 >> 6 {
            return DestinationScope::Own;
        }
        tables.lookup_v6(&[v6.to_be_bytes()], &mut found);
    }
    if found == [NextHopId::LOCAL] { DestinationScope::Own } else { DestinationScope::Beyond }
}

/// Why an IP packet to the router is punted.
fn of_own(key: &FlowKey) -> PuntReason {
    let has = |ports: &[u16]| ports.contains(&key.destination_port) || ports.contains(&key.source_port);
    let is_routing = match key.protocol {
        IpProto::TCP => has(&ROUTING_TCP),
        IpProto::UDP => has(&ROUTING_UDP),
        other => ROUTING_PROTOCOLS.contains(&other.0),
    };
    // Router and neighbour solicitation and advertisement, redirects, and multicast listeners (RFC 4861, 2710, 3810).
    let is_discovery = || key.protocol == IpProto::ICMPV6 && matches!(key.icmp_type, 130..=137 | 143);
    if is_routing {
        PuntReason::Routing
    } else if is_discovery() {
        PuntReason::Neighbour
    } else {
        PuntReason::Local
    }
}

/// A hash of a packet's destination, for [`DestinationLimit`](crate::router::DestinationLimit).
pub(crate) fn destination_hash(router: u16, mbuf: &Mbuf) -> u64 {
    hash(router, key_of(mbuf).map_or(0, |key| key.destination.v6_bits()))
}

/// The same of its source. A host of IPv6 may have all addresses of its network of 64 bits.
pub(crate) fn source_hash(router: u16, mbuf: &Mbuf) -> u64 {
    const NETWORK: u128 = !0 << 64;
    let source = key_of(mbuf).map_or(0, |key| match key.source.v4_bits() {
        Some(v4) => u128::from(v4),
        None => key.source.v6_bits() & NETWORK,
    });
    hash(router, source)
}

fn hash(router: u16, address: u128) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let folded = (address >> 64) as u64 ^ (address as u64).rotate_left(17) ^ u64::from(router) << 48;
    let mixed = (folded ^ folded >> 29).wrapping_mul(MIX);
    mixed ^ mixed >> 32
}
