// SPDX-License-Identifier: Apache-2.0
//! Anti-spoofing: a port sends only from its own addresses.
//!
//! [`Guard::check`] checks the flow key: source MAC address, source IP address, ARP sender address. The result holds
//! for every packet of the flow, so the engine caches it. [`Guard::inspect`] checks the contents of ARP and neighbour
//! discovery, for the packets for which [`Guard::needs_inspection`] is true. What the guard cannot read, it refuses.
//!
//! Frames that are neither IP nor ARP are checked by their source MAC address alone.

mod neighbour;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::net::IpAddr;

use netvm_wire::{Address, EtherType, FlowKey, IpNet, IpProto, MacAddr, parse_prefix};
use thiserror::Error;

/// The addresses that a port may send from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// Source MAC addresses; empty: any.
    pub macs: Vec<MacAddr>,
    /// Source IP addresses, and addresses that the port may claim by ARP and neighbour discovery; empty: any.
    pub addresses: Vec<IpNet>,
    /// Admits DHCP requests from 0.0.0.0 to 255.255.255.255, UDP port 68 to 67 (RFC 2131 section 4.1).
    pub dhcp: bool,
    /// Admits probes for an address before the port uses it: ARP probes from 0.0.0.0 (RFC 5227 section 2.1.1), and from
    /// `::` neighbour solicitations, router solicitations and multicast listener reports (RFC 4862 section 5.4, RFC
    /// 4861 section 4.1, RFC 3590, RFC 3810 section 5.2.13).
    pub probes: bool,
    /// IPv6 link-local addresses that the port may use in addition.
    pub link_local: LinkLocal,
}

/// The addresses of fe80::/10 that a port may use beyond its configured addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum LinkLocal {
    /// None.
    None,
    /// The one derived from its MAC address (modified EUI-64, RFC 4291 appendix A).
    #[default]
    Eui64,
    /// Any, even that of a router.
    Any,
}

impl Default for GuardOptions {
    /// Any source, with DHCP, probes, and the EUI-64 link-local address.
    fn default() -> Self {
        Self {
            macs: Vec::new(),
            addresses: Vec::new(),
            dhcp: true,
            probes: true,
            link_local: LinkLocal::default(),
        }
    }
}

/// Why a guard cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GuardError {
    /// A source MAC address is a group address.
    #[error("{0} cannot be a source: it is a group address")]
    GroupMac(MacAddr),
    /// A list has more than [`Guard::MAX`] entries.
    #[error("a guard has {0} MAC addresses or prefixes: each list may have {max}", max = Guard::MAX)]
    TooLong(usize),
}

/// Why a packet fails the anti-spoofing check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Spoofed {
    /// The source MAC address is a group address.
    #[error("its source MAC address is a group address")]
    GroupMac,
    /// The source MAC address is not the port's.
    #[error("its source MAC address is not the port's")]
    Mac,
    /// The source IP address is multicast or the broadcast address.
    #[error("its source address is multicast or broadcast")]
    GroupAddress,
    /// The source IP address, or the ARP sender address, is not the port's.
    #[error("its source address is not the port's")]
    Address,
    /// ARP for other protocols than IPv4 over Ethernet, which the guard cannot check.
    #[error("its ARP message is for another protocol than IPv4 over Ethernet")]
    ArpKind,
    /// The ARP sender MAC address differs from the frame's source.
    #[error("its ARP sender MAC address differs from the frame's source")]
    ArpMac,
    /// A neighbour discovery message claims an address that is not the port's.
    #[error("its neighbour discovery message claims an address that is not the port's")]
    NeighbourTarget,
    /// A neighbour discovery message claims a MAC address other than the frame's source.
    #[error("its neighbour discovery message claims a MAC address other than the frame's source")]
    NeighbourMac,
    /// A neighbour discovery message is malformed or fragmented (RFC 6980).
    #[error("its neighbour discovery message is malformed or fragmented")]
    NeighbourMalformed,
    /// The frame, or the bytes at hand, end before the fields to check.
    #[error("its headers end before the fields to check")]
    Truncated,
}

/// Anti-spoofing filter of a port.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Sorted; empty: any.
    macs: Box<[MacAddr]>,
    /// `None`: any.
    addresses: Option<AddressSet>,
    dhcp: bool,
    probes: bool,
    link_local: LinkLocal,
}

impl Guard {
    /// Most MAC addresses, and most prefixes, per guard.
    pub const MAX: usize = 1024;

    /// Builds the filter.
    ///
    /// # Errors
    /// [`GuardError`] for a group MAC address or a list that is too long.
    pub fn new(options: GuardOptions) -> Result<Self, GuardError> {
        let GuardOptions { mut macs, addresses, dhcp, probes, link_local } = options;
        if let Some(mac) = macs.iter().find(|mac| mac.is_multicast()) {
            return Err(GuardError::GroupMac(*mac));
        }
        let longest = macs.len().max(addresses.len());
        if longest > Self::MAX {
            return Err(GuardError::TooLong(longest));
        }
        macs.sort_unstable();
        let addresses = (!addresses.is_empty()).then(|| AddressSet::new(&addresses));
        Ok(Self { macs: macs.into(), addresses, dhcp, probes, link_local })
    }

    /// Checks the flow key.
    ///
    /// # Errors
    /// [`Spoofed`] if the port may not send the packet.
    #[inline]
    pub fn check(&self, key: &FlowKey) -> Result<(), Spoofed> {
        if key.source_mac.is_multicast() {
            return Err(Spoofed::GroupMac);
        }
        if !self.macs.is_empty() && self.macs.binary_search(&key.source_mac).is_err() {
            return Err(Spoofed::Mac);
        }
        let exempt: fn(&Self, &FlowKey) -> bool = match key.ether_type {
            EtherType::IPV4 => Self::is_dhcp_request,
            EtherType::IPV6 => Self::is_unspecified_v6,
            EtherType::ARP if !key.source.is_v4() => return Err(Spoofed::ArpKind),
            EtherType::ARP => Self::is_arp_probe,
            _ => return Ok(()),
        };
        if is_group(key.source) {
            Err(Spoofed::GroupAddress)
        } else if self.owns(key.source, key.source_mac) || exempt(self, key) {
            Ok(())
        } else {
            Err(Spoofed::Address)
        }
    }

    /// Whether [`Guard::inspect`] has more to check than [`Guard::check`].
    #[inline]
    #[must_use]
    pub fn needs_inspection(&self, key: &FlowKey) -> bool {
        key.ether_type == EtherType::ARP || neighbour::is_discovery(key)
    }

    /// Checks the contents of ARP and neighbour discovery in a frame of `frame_len` bytes; other packets pass. `bytes`
    /// is the start of the frame, as a private copy if the sender can still write to the original.
    ///
    /// # Errors
    /// [`Spoofed`] if the port may not send the packet.
    pub fn inspect(&self, bytes: &[u8], frame_len: usize) -> Result<(), Spoofed> {
        let headers = parse_prefix(bytes, frame_len).map_err(|_| Spoofed::Truncated)?;
        let key = headers.key();
        if key.ether_type == EtherType::ARP {
            // Follows the types, lengths and operation (RFC 826).
            const SENDER: usize = 8;
            let sender = bytes.get(headers.l3_offset() + SENDER..).and_then(<[u8]>::first_chunk);
            let sender = MacAddr(*sender.ok_or(Spoofed::Truncated)?);
            return if sender == key.source_mac { Ok(()) } else { Err(Spoofed::ArpMac) };
        }
        if !neighbour::is_discovery(key) {
            return Ok(());
        }
        let start = headers.l4_offset().ok_or(Spoofed::NeighbourMalformed)?;
        let message = bytes.get(start..headers.payload_end()).ok_or(Spoofed::Truncated)?;
        self.check_discovery(key, message)
    }

    /// Whether the port, sending from `mac`, may use the address.
    fn owns(&self, address: Address, mac: MacAddr) -> bool {
        let Some(addresses) = &self.addresses else { return true };
        addresses.contains(address) || self.owns_link_local(address, mac)
    }

    fn owns_link_local(&self, address: Address, mac: MacAddr) -> bool {
        let [high, low] = address.words();
        match self.link_local {
            LinkLocal::None => false,
            LinkLocal::Eui64 => high == 0xfe80 << 48 && low == eui64(mac),
            LinkLocal::Any => high >> 54 == 0xfe80 >> 6,
        }
    }

    fn is_dhcp_request(&self, key: &FlowKey) -> bool {
        self.dhcp
            && key.source == Address::from_v4_bits(0)
            && key.destination == Address::from_v4_bits(u32::MAX)
            && (key.protocol, key.source_port, key.destination_port) == (IpProto::UDP, 68, 67)
    }

    fn is_arp_probe(&self, key: &FlowKey) -> bool {
        const REQUEST: u16 = 1;
        self.probes && key.source == Address::from_v4_bits(0) && key.arp_operation == REQUEST
    }

    fn is_unspecified_v6(&self, key: &FlowKey) -> bool {
        self.probes && key.source == Address::UNSPECIFIED && neighbour::may_be_unspecified(key)
    }
}

/// The interface identifier derived from a MAC address (RFC 4291 appendix A).
const fn eui64(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.octets();
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Whether the address cannot be a source: 224.0.0.0/4, 255.255.255.255 and ff00::/8.
#[inline]
const fn is_group(address: Address) -> bool {
    match address.v4_bits() {
        Some(bits) => bits >> 28 == 0xe || bits == u32::MAX,
        None => address.words()[0] >> 56 == 0xff,
    }
}

/// Prefixes as sorted, disjoint ranges per family: a lookup is a binary search.
#[derive(Clone, Debug)]
struct AddressSet {
    v4: Box<[(Address, Address)]>,
    v6: Box<[(Address, Address)]>,
}

impl AddressSet {
    fn new(nets: &[IpNet]) -> Self {
        Self { v4: ranges(nets, true), v6: ranges(nets, false) }
    }

    /// Whether a prefix of the address's family contains it.
    #[inline]
    fn contains(&self, address: Address) -> bool {
        let ranges = if address.is_v4() { &self.v4 } else { &self.v6 };
        let end = ranges.partition_point(|(first, _)| *first <= address);
        ranges[..end].last().is_some_and(|(_, last)| address <= *last)
    }
}

fn ranges(nets: &[IpNet], v4: bool) -> Box<[(Address, Address)]> {
    let mut all: Vec<_> = nets.iter().filter(|net| net.is_v4() == v4).map(range).collect();
    all.sort_unstable();
    // Of two overlapping prefixes one contains the other, and the outer one sorts first.
    all.dedup_by(|inner, outer| inner.1 <= outer.1);
    all.into()
}

fn range(net: &IpNet) -> (Address, Address) {
    let last = match net {
        IpNet::V4(net) => IpAddr::V4(net.last()),
        IpNet::V6(net) => IpAddr::V6(net.last()),
    };
    (net.network().into(), last.into())
}
