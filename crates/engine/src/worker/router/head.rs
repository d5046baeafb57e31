// SPDX-License-Identifier: Apache-2.0
//! A private copy of the headers that a router reads and changes. The router copies them once, checks and changes the
//! copy, and writes it back as a whole, so that no process that maps the buffer can change them in between.

use dpdk::Mbuf;
use netvm_router::{Checked, HeaderError, check_v4, check_v6, forward_v4, forward_v6};
use netvm_wire::{EtherType, MacAddr};

use crate::drop_reason::DropReason;
use crate::memory::mark::is_of_other_family;
use crate::router::{Ingress, InterfacePath, PortInterfaces, PuntReason, RouterPath};

/// Bytes that are copied: Ethernet header, a tag and IPv6 header, in one cache line.
const COPY_BYTES: usize = 64;
/// Free bytes before them, for a tag.
const TAG_ROOM: usize = 8;
pub(super) const ETHERNET: usize = 14;
pub(super) const TAG: usize = 4;
/// The length of an IPv4 header without options; others are punted.
pub(crate) const V4: usize = 20;
/// The length of an IPv6 header.
pub(crate) const V6: usize = 40;
const _: () = assert!(ETHERNET + TAG + V6 <= COPY_BYTES && TAG <= TAG_ROOM);

/// The class of a packet by its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// An IPv4 packet of `length` bytes that needs a route.
    V4 { destination: u32, length: u32 },
    /// An IPv6 packet of `length` bytes that needs a route.
    V6 { destination: [u8; 16], length: u32 },
    /// The router punts it to the kernel.
    Punt(PuntReason),
    /// Its source is an address of the router itself.
    Martian,
    /// The router drops it.
    Drop(DropReason),
}

/// Private copy of a packet's first bytes.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    bytes: [u8; TAG_ROOM + COPY_BYTES],
    /// Bytes of the packet in the copy.
    copied: u8,
    /// Of these, bytes before the IP header.
    l2: u8,
    /// Start of the header that [`Head::forward`] wrote.
    start: u8,
    /// Number of the ingress interface; [`NO_INTERFACE`] if there is none.
    interface: u16,
    /// NAT64 has chosen its source, which may be the router's own.
    has_chosen_source: bool,
}

/// No interface has this number.
const NO_INTERFACE: u16 = u16::MAX;

impl Head {
    pub(crate) const EMPTY: Self = Self {
        bytes: [0; TAG_ROOM + COPY_BYTES],
        copied: 0,
        l2: 0,
        start: 0,
        interface: 0,
        has_chosen_source: false,
    };

    /// Copies the headers of a packet.
    #[inline(always)]
    pub(super) fn read(&mut self, mbuf: &Mbuf) {
        let Some(line) = self.bytes.last_chunk_mut::<COPY_BYTES>() else { return };
        let copied = match mbuf.copy_first(line) {
            0 => mbuf.copy_to(line),
            copied => copied,
        };
        self.copied = copied as u8;
        self.has_chosen_source = is_of_other_family(mbuf);
    }

    /// Whether the source may be anything: nobody has sent it.
    pub(super) const fn has_chosen_source(&self) -> bool {
        self.has_chosen_source
    }

    /// Copies the headers from bytes.
    #[cfg(test)]
    pub(crate) fn of(packet: &[u8]) -> Self {
        let copied = packet.len().min(COPY_BYTES);
        let mut head = Self { copied: copied as u8, ..Self::EMPTY };
        head.bytes[TAG_ROOM..TAG_ROOM + copied].copy_from_slice(&packet[..copied]);
        head
    }

    /// Number of the ingress interface, once the packet is classified.
    #[inline(always)]
    pub(crate) const fn interface(&self) -> u16 {
        self.interface
    }

    /// Records the ingress interface of a packet, and whether it has a tag.
    #[inline(always)]
    pub(super) const fn set_ingress(&mut self, interface: u16, is_tagged: bool) {
        let tag = if is_tagged { TAG } else { 0 };
        (self.interface, self.l2) = (interface, (ETHERNET + tag) as u8);
    }

    /// Whether it has an outer tag.
    #[inline(always)]
    pub(super) const fn is_tagged(&self) -> bool {
        self.l2 as usize > ETHERNET
    }

    /// The source address of an IPv4 packet, once it is classified.
    #[inline]
    pub(super) fn source_v4(&self) -> u32 {
        self.ip_bytes(12).map_or(0, u32::from_be_bytes)
    }

    /// The source address of an IPv6 packet, in network order.
    #[inline]
    pub(super) fn source_v6(&self) -> [u8; 16] {
        self.ip_bytes(8).unwrap_or_default()
    }

    fn ip_bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(TAG_ROOM + usize::from(self.l2) + at..)?.first_chunk().copied()
    }

    /// Finds the ingress interface of a packet of `length` bytes, of those on its port, and checks the packet.
    #[inline(always)]
    pub(crate) fn classify(
        &mut self,
        router: &RouterPath,
        interfaces_here: PortInterfaces<'_>,
        length: u32,
    ) -> Class {
        (self.interface, self.l2) = (NO_INTERFACE, 0);
        let end = TAG_ROOM + usize::from(self.copied).min(COPY_BYTES);
        let packet = &self.bytes[TAG_ROOM..end];
        let Some(ethernet) = packet.first_chunk::<ETHERNET>() else {
            return Class::Drop(DropReason::BadIpHeader);
        };
        let mut ether_type = EtherType(u16::from_be_bytes([ethernet[12], ethernet[13]]));
        let (mut vlan, mut l2) = (0, ETHERNET);
        if ether_type.is_vlan() {
            let Some([_, _, high, low]) = packet.get(ETHERNET..).and_then(|rest| rest.first_chunk()) else {
                return Class::Drop(DropReason::BadIpHeader);
            };
            let tag = u16::from_be_bytes([packet[ETHERNET], packet[ETHERNET + 1]]);
            // VLAN 0 is a priority tag without a VLAN (IEEE 802.1Q, table 9-2).
            (vlan, l2) = (tag & 0x0fff, ETHERNET + TAG);
            ether_type = EtherType(u16::from_be_bytes([*high, *low]));
        }
        self.l2 = l2 as u8;
        let Some(number) = interfaces_here.with(vlan) else {
            return Class::Drop(DropReason::NoRouterInterface);
        };
        self.interface = number;
        let Some(interface) = router.interface(number) else {
            return Class::Drop(DropReason::NoRouterInterface);
        };
        let ingress = interface.ingress;
        if ingress.has(Ingress::DOWN) {
            return Class::Drop(DropReason::InterfaceDown);
        }
        let [a, b, c, d, e, f, ..] = *ethernet;
        let to = MacAddr([a, b, c, d, e, f]);
        if to.is_multicast() {
            return Class::Punt(PuntReason::Group);
        }
        if ingress.has(Ingress::ENSLAVED) {
            return Class::Punt(PuntReason::NotForwarding);
        }
        if interface.mac != to && !interface.also.contains(&to) {
            return Class::Drop(DropReason::NotForRouter);
        }
        let (ip, room) = (&packet[l2..], (length as usize).saturating_sub(l2));
        match ether_type {
            EtherType::IPV4 => match check_v4(ip, room) {
                Ok(Checked::Route { .. }) if ingress.has(Ingress::PUNTS_V4) => {
                    Class::Punt(PuntReason::NotForwarding)
                }
                Ok(Checked::Route { destination, length }) => {
                    let is_own = router.own.have(self.source_v4());
                    if is_own && !ingress.has(Ingress::ACCEPTS_LOCAL) && !self.has_chosen_source {
                        return Class::Martian;
                    }
                    Class::V4 { destination, length }
                }
                Ok(Checked::Punt(reason)) => Class::Punt(reason.into()),
                Err(error) => bad(error, ingress),
            },
            EtherType::IPV6 => match check_v6(ip, room) {
                Ok(Checked::Route { .. }) if ingress.has(Ingress::PUNTS_V6) => {
                    Class::Punt(PuntReason::NotForwarding)
                }
                Ok(Checked::Route { .. }) if is_discovery(ip) => Class::Punt(PuntReason::Neighbour),
                Ok(Checked::Route { destination, length }) => Class::V6 { destination, length },
                Ok(Checked::Punt(reason)) => Class::Punt(reason.into()),
                Err(error) => bad(error, ingress),
            },
            _ => Class::Punt(PuntReason::EtherType),
        }
    }

    /// Bytes of the packet up to the end of an IP header of `header` bytes.
    #[inline(always)]
    pub(crate) fn old(&self, header: usize) -> u16 {
        u16::from(self.l2) + header as u16
    }

    /// Rewrites the headers of a packet to forward, which leaves by `out` to neighbour `to`. Returns the bytes that
    /// replace the first [`Self::old`] bytes of the packet; `None` if its TTL expires here.
    #[inline(always)]
    pub(crate) fn forward(&mut self, out: &InterfacePath, to: MacAddr, header: usize) -> Option<&[u8]> {
        let ip = TAG_ROOM + usize::from(self.l2);
        let counted = self.bytes.get_mut(ip..ip + header)?;
        if header == V4 { forward_v4(counted) } else { forward_v6(counted) }.ok()?;
        let priority = if self.is_tagged() { self.bytes[TAG_ROOM + ETHERNET] & 0xf0 } else { 0 };
        let tag = if out.vlan.is_some() { TAG } else { 0 };
        let start = ip - ETHERNET - tag;
        let link = self.bytes.get_mut(start..start + ETHERNET + 2)?;
        link[..6].copy_from_slice(&to.0);
        link[6..12].copy_from_slice(&out.mac.0);
        if let Some(vlan) = out.vlan {
            link[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
            let [high, low] = vlan.get().to_be_bytes();
            link[14..16].copy_from_slice(&[priority | high, low]);
        }
        // The EtherType before the IP header stays in place.
        self.start = start as u8;
        self.bytes.get(start..ip + header)
    }

    /// The bytes that [`Head::forward`] returned.
    #[inline(always)]
    pub(super) fn rewritten(&self, header: usize) -> &[u8] {
        let end = TAG_ROOM + usize::from(self.l2) + header;
        self.bytes.get(usize::from(self.start)..end).unwrap_or_default()
    }
}

/// What becomes of a packet with an invalid IP header. The kernel may accept or log its addresses (`route_localnet`,
/// `log_martians`).
#[cold]
fn bad(error: HeaderError, ingress: Ingress) -> Class {
    match error {
        HeaderError::Source | HeaderError::Destination if ingress.has(Ingress::SEES_MARTIANS) => {
            Class::Punt(PuntReason::Martian)
        }
        _ => Class::Drop(DropReason::BadIpHeader),
    }
}

/// Whether an IPv6 packet is of neighbour or router discovery, whose hop limit shows that no router has forwarded it
/// (RFC 4861 section 6.1, 7.1). The kernel may answer it for the destination (`proxy_ndp`, RFC 4389).
#[inline(always)]
fn is_discovery(ip: &[u8]) -> bool {
    const ICMP: u8 = 58;
    ip.get(6..8) == Some(&[ICMP, 255]) && ip.get(V6).is_some_and(|kind| (133..=137).contains(kind))
}
