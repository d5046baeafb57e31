// SPDX-License-Identifier: Apache-2.0
//! The match of a rule.

use netvm_ids::PortId;
use netvm_wire::{ConnState, EtherType, FlowKey, Fragment, IpNet, IpProto, MacAddr, PortRange};

use crate::span::{Masked, Span};

/// Sets of values for the fields; an element of each must match; an empty set matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct Match {
    /// Ingress ports.
    pub from: Vec<PortId>,
    /// Egress ports, for a rule on transmitted packets. Empty: a rule on received packets.
    pub to: Vec<PortId>,
    /// Source MAC addresses, 48 bits.
    pub source_mac: Vec<Masked<u64>>,
    /// Destination MAC addresses, 48 bits.
    pub destination_mac: Vec<Masked<u64>>,
    /// EtherTypes after the VLAN tags.
    pub ether_type: Vec<EtherType>,
    /// VLANs of the outer tag; 0 is none.
    pub vlan: Vec<Span<u16>>,
    /// VLANs of the second tag; 0 is none.
    pub inner_vlan: Vec<Span<u16>>,
    /// Source networks.
    pub source: Vec<IpNet>,
    /// Destination networks.
    pub destination: Vec<IpNet>,
    /// IP protocols.
    pub protocol: Vec<IpProto>,
    /// Source ports; 0 also matches packets without ports.
    pub source_ports: Vec<PortRange>,
    /// Destination ports; 0 also matches packets without ports.
    pub destination_ports: Vec<PortRange>,
    /// TCP flags.
    pub tcp_flags: Option<Masked<u8>>,
    /// Differentiated services code points.
    pub dscp: Vec<Span<u8>>,
    /// ICMP and ICMPv6 types.
    pub icmp_type: Vec<Span<u8>>,
    /// ICMP and ICMPv6 codes.
    pub icmp_code: Vec<Span<u8>>,
    /// Fragments.
    pub fragment: Vec<Fragment>,
    /// What connection tracking says of them.
    pub state: Vec<ConnState>,
    /// ARP operations.
    pub arp_operation: Vec<Span<u16>>,
}

impl Match {
    /// Whether it matches all packets of its ports.
    #[must_use]
    pub fn is_any(&self) -> bool {
        let Self { from: _, to: _, .. } = self;
        *self == Self { from: self.from.clone(), to: self.to.clone(), ..Self::default() }
    }

    /// Whether the rule is for transmitted packets.
    #[must_use]
    pub const fn is_egress(&self) -> bool {
        !self.to.is_empty()
    }

    /// Whether a packet received on `from` (and to be sent on `to`) fits. The reference for classifiers.
    #[must_use]
    pub fn fits(&self, from: PortId, to: Option<PortId>, key: &FlowKey) -> bool {
        let ports = any(&self.from, |port| *port == from)
            && match to {
                None => self.to.is_empty(),
                Some(to) => self.to.contains(&to),
            };
        ports && self.fits_key(key)
    }

    /// Whether a packet's key fits, regardless of netvm ports.
    #[must_use]
    pub fn fits_key(&self, key: &FlowKey) -> bool {
        let vlan = |vlan: Option<netvm_wire::VlanId>| vlan.map_or(0, netvm_wire::VlanId::get);
        (!self.needs_ip() || key.is_ip())
            && any(&self.ether_type, |kind| *kind == key.ether_type)
            && any(&self.source_mac, |mac| mac.contains(mac_bits(key.source_mac)))
            && any(&self.destination_mac, |mac| mac.contains(mac_bits(key.destination_mac)))
            && any(&self.vlan, |span| span.contains(vlan(key.vlan)))
            && any(&self.inner_vlan, |span| span.contains(vlan(key.inner_vlan)))
            && any(&self.source, |net| net.contains(key.source))
            && any(&self.destination, |net| net.contains(key.destination))
            && any(&self.protocol, |protocol| *protocol == key.protocol)
            && any(&self.source_ports, |ports| ports.contains(key.source_port))
            && any(&self.destination_ports, |ports| ports.contains(key.destination_port))
            && self.tcp_flags.is_none_or(|flags| flags.contains(key.tcp_flags.bits()))
            && any(&self.dscp, |span| span.contains(key.dscp))
            && any(&self.icmp_type, |span| span.contains(key.icmp_type))
            && any(&self.icmp_code, |span| span.contains(key.icmp_code))
            && any(&self.fragment, |fragment| *fragment == key.fragment)
            && any(&self.state, |state| *state == key.state)
            && any(&self.arp_operation, |span| span.contains(key.arp_operation))
    }

    /// Whether only IP packets can fit: it has fields of layer 3 or above and no other EtherType.
    pub(crate) fn needs_ip(&self) -> bool {
        let above = !self.source.is_empty()
            || !self.destination.is_empty()
            || !self.protocol.is_empty()
            || !self.source_ports.is_empty()
            || !self.destination_ports.is_empty()
            || self.tcp_flags.is_some()
            || !self.dscp.is_empty()
            || !self.icmp_type.is_empty()
            || !self.icmp_code.is_empty()
            || !self.fragment.is_empty()
            || !self.state.is_empty();
        above && self.ether_type.is_empty()
    }
}

fn any<T>(set: &[T], fits: impl Fn(&T) -> bool) -> bool {
    set.is_empty() || set.iter().any(fits)
}

/// A MAC address as a big-endian number.
#[must_use]
pub fn mac_bits(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.octets();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
