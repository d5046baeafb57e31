//! Anti-spoofing: a port sends as itself only.
//!
//! [`Guard::check`] judges what the flow key has: source MAC address, source address of IP, sender's address of ARP. Its
//! verdict is that of every packet of the key, and can be remembered with the flow. [`Guard::inspect`] judges what is said
//! inside ARP and neighbour discovery, for the packets of which [`Guard::looks_into`] is true. It must be right in one
//! direction: what cannot be read is refused.
//!
//! Frames that are neither IP nor ARP are judged by their MAC address alone.

mod addresses;
mod neighbour;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use netvm_wire::{Address, EtherType, FlowKey, IpNet, IpProto, MacAddr, parse_prefix};
use thiserror::Error;

use addresses::AddressSet;

/// What a port may send as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// Source MAC addresses; empty: any.
    pub macs: Vec<MacAddr>,
    /// Source addresses of IP, and addresses that ARP and neighbour discovery may claim; empty: any.
    pub addresses: Vec<IpNet>,
    /// Whether it may ask for an address by DHCP: from 0.0.0.0 to 255.255.255.255, UDP port 68 to 67 (RFC 2131 section 4.1).
    pub dhcp: bool,
    /// Whether it may find out if an address of its own is free, before it uses it: ARP probes from 0.0.0.0 (RFC 5227 section
    /// 2.1.1), and from `::` neighbour solicitations, router solicitations and multicast listener reports (RFC 4862 section
    /// 5.4, RFC 4861 section 4.1, RFC 3590, RFC 3810 section 5.2.13).
    pub probes: bool,
    /// Which link-local addresses of IPv6 it may have besides.
    pub link_local: LinkLocal,
}

/// Which addresses of fe80::/10 a port may have that are not among its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum LinkLocal {
    /// None.
    None,
    /// The one made of its MAC address (modified EUI-64, RFC 4291 appendix A).
    #[default]
    Eui64,
    /// Any; then it may also have that of a router.
    Any,
}

impl Default for GuardOptions {
    /// Any source; with DHCP, probes, and the link-local address of the MAC address.
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

/// Why there is no such guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GuardError {
    /// No frame may come from it.
    #[error("{0} cannot be a source: it is a group address")]
    GroupMac(MacAddr),
    /// A list is too long.
    #[error("a guard with {0} MAC addresses or prefixes is too long: each list may have {max}", max = Guard::MAX)]
    TooLong(usize),
}

/// Why a packet may not come from its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Spoofed {
    /// Its source MAC address is a group's.
    #[error("its source MAC address is a group address")]
    GroupMac,
    /// Its source MAC address is not the port's.
    #[error("its source MAC address is not the port's")]
    Mac,
    /// Its source address is multicast or the broadcast address.
    #[error("its source address is multicast or broadcast")]
    GroupAddress,
    /// Its source address, or what ARP says it is, is not the port's.
    #[error("its source address is not the port's")]
    Address,
    /// ARP for something else than IPv4 over Ethernet, which nobody checks.
    #[error("ARP for something else than IPv4 over Ethernet")]
    ArpKind,
    /// The sender's MAC address in ARP is not the source of the frame.
    #[error("the sender's MAC address in ARP is not the source of the frame")]
    ArpMac,
    /// Neighbour discovery claims an address that is not the port's.
    #[error("neighbour discovery claims an address that is not the port's")]
    NeighbourTarget,
    /// Neighbour discovery claims a MAC address that is not the source of the frame.
    #[error("neighbour discovery claims a MAC address that is not the source of the frame")]
    NeighbourMac,
    /// Neighbour discovery that is not well-formed, or in fragments (RFC 6980).
    #[error("neighbour discovery that is not well-formed, or in fragments")]
    NeighbourMalformed,
    /// It ends, or the bytes at hand do, before what is to be judged.
    #[error("it ends before what is to be judged")]
    Truncated,
}

/// The anti-spoofing of a port.
#[derive(Clone, Debug)]
pub struct Guard {
    /// In order; empty: any.
    macs: Box<[MacAddr]>,
    /// `None`: any.
    addresses: Option<AddressSet>,
    dhcp: bool,
    probes: bool,
    link_local: LinkLocal,
}

impl Guard {
    /// MAC addresses that one may have, and prefixes.
    pub const MAX: usize = 1024;

    /// Of what the port may send as.
    ///
    /// # Errors
    /// [`GuardError`] for sources that cannot be, or too many.
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

    /// Judges by the key.
    ///
    /// # Errors
    /// [`Spoofed`] when the packet may not come from the port.
    #[inline]
    pub fn check(&self, key: &FlowKey) -> Result<(), Spoofed> {
        if key.source_mac.is_multicast() {
            return Err(Spoofed::GroupMac);
        }
        if !self.macs.is_empty() && self.macs.binary_search(&key.source_mac).is_err() {
            return Err(Spoofed::Mac);
        }
        let exempt: fn(&Self, &FlowKey) -> bool = match key.ether_type {
            EtherType::IPV4 => Self::asks_dhcp,
            EtherType::IPV6 => Self::is_unspecified_v6,
            EtherType::ARP if !key.source.is_v4() => return Err(Spoofed::ArpKind),
            EtherType::ARP => Self::probes_arp,
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

    /// Whether [`Guard::inspect`] has more to judge than [`Guard::check`] of the key.
    #[inline]
    #[must_use]
    pub fn looks_into(&self, key: &FlowKey) -> bool {
        key.ether_type == EtherType::ARP || neighbour::is_discovery(key)
    }

    /// Judges what ARP and neighbour discovery say inside, of a frame of `frame_len` bytes, of which the first are at hand:
    /// a private copy, as of memory that the sender can change. Any other packet passes.
    ///
    /// # Errors
    /// [`Spoofed`] when the packet may not come from the port.
    pub fn inspect(&self, bytes: &[u8], frame_len: usize) -> Result<(), Spoofed> {
        let headers = parse_prefix(bytes, frame_len).map_err(|_| Spoofed::Truncated)?;
        let key = headers.key();
        if key.ether_type == EtherType::ARP {
            // Behind types, lengths and operation (RFC 826).
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

    /// Whether an address is one of the port's, which has this MAC address.
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

    fn asks_dhcp(&self, key: &FlowKey) -> bool {
        self.dhcp
            && key.source == Address::from_v4_bits(0)
            && key.destination == Address::from_v4_bits(u32::MAX)
            && (key.protocol, key.source_port, key.destination_port) == (IpProto::UDP, 68, 67)
    }

    fn probes_arp(&self, key: &FlowKey) -> bool {
        const REQUEST: u16 = 1;
        self.probes && key.source == Address::from_v4_bits(0) && key.arp_operation == REQUEST
    }

    fn is_unspecified_v6(&self, key: &FlowKey) -> bool {
        self.probes && key.source == Address::UNSPECIFIED && neighbour::may_be_unspecified(key)
    }
}

/// The interface identifier made of a MAC address (RFC 4291 appendix A).
const fn eui64(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.octets();
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Whether no packet may come from the address: 224.0.0.0/4, 255.255.255.255 and ff00::/8.
#[inline]
const fn is_group(address: Address) -> bool {
    match address.v4_bits() {
        Some(bits) => bits >> 28 == 0xe || bits == u32::MAX,
        None => address.words()[0] >> 56 == 0xff,
    }
}
