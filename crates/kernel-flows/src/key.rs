// SPDX-License-Identifier: Apache-2.0
//! What identifies a flow. The layout is that of the program's stack:
//!
//! ```text
//!  bytes  0 .. 4   slot of the port that receives it
//!         4 .. 6   EtherType, as in the frame      6   IP protocol      7   0
//!         8 .. 14  destination MAC address         14 .. 20  source MAC address
//!        20 .. 22  source port                     22 .. 24  destination port
//!        24 .. 40  source address: IPv6, or IPv4 and zeros
//!        40 .. 56  destination address, likewise
//! ```

use std::net::IpAddr;

use netvm_wire::MacAddr;

/// Bytes of a key.
pub(crate) const BYTES: usize = 56;
pub(crate) const SLOT: usize = 0;
pub(crate) const ETHERTYPE: usize = 4;
pub(crate) const PROTOCOL: usize = 6;
pub(crate) const MACS: usize = 8;
pub(crate) const PORTS: usize = 20;
pub(crate) const SOURCE: usize = 24;
pub(crate) const DESTINATION: usize = 40;

/// A field of packets that may tell flows apart. The port that receives a packet, its EtherType and its IP protocol
/// always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Destination MAC address.
    DestinationMac,
    /// Source MAC address.
    SourceMac,
    /// Source address, the first bits.
    Source(u8),
    /// Destination address, the first bits.
    Destination(u8),
    /// Source port.
    SourcePort,
    /// Destination port.
    DestinationPort,
}

/// The fields that tell flows of a port apart: those that decisions may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask([u8; BYTES]);

impl Default for Mask {
    /// No field but those that always do.
    fn default() -> Self {
        let mut bytes = [0; BYTES];
        bytes.iter_mut().take(MACS).for_each(|byte| *byte = u8::MAX);
        Self(bytes)
    }
}

impl Mask {
    /// Every field as a whole.
    #[must_use]
    pub const fn all() -> Self {
        Self([u8::MAX; BYTES])
    }

    /// With a field.
    #[must_use]
    pub fn with(mut self, field: Field) -> Self {
        let (at, bits) = match field {
            Field::DestinationMac => (MACS, 48),
            Field::SourceMac => (MACS + 6, 48),
            Field::SourcePort => (PORTS, 16),
            Field::DestinationPort => (PORTS + 2, 16),
            Field::Source(bits) => (SOURCE, bits.min(128)),
            Field::Destination(bits) => (DESTINATION, bits.min(128)),
        };
        let set = |(n, byte): (usize, &mut u8)| {
            let left = usize::from(bits).saturating_sub(8 * n).min(8);
            *byte |= !(0xff_u16 >> left) as u8;
        };
        self.0.iter_mut().skip(at).take(16).enumerate().for_each(set);
        self
    }

    pub(crate) const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

/// A flow of TCP or UDP, as one port receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; BYTES]);

impl Key {
    /// The key of packets that the port of a slot receives with these MAC addresses, destination first.
    ///
    /// `None` if the addresses are not of one family.
    #[must_use]
    pub fn new(slot: u32, macs: [MacAddr; 2], transport: Transport) -> Option<Self> {
        let Transport { protocol, source, destination, ports } = transport;
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, from: &[u8]| {
            bytes.iter_mut().skip(at).zip(from).for_each(|(to, from)| *to = *from);
        };
        let ethertype: u16 = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                put(SOURCE, &source.octets());
                put(DESTINATION, &destination.octets());
                0x0800
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                put(SOURCE, &source.octets());
                put(DESTINATION, &destination.octets());
                0x86dd
            }
            _ => return None,
        };
        put(SLOT, &slot.to_ne_bytes());
        put(ETHERTYPE, &ethertype.to_be_bytes());
        put(PROTOCOL, &[protocol]);
        put(MACS, &macs[0].0);
        put(MACS + 6, &macs[1].0);
        put(PORTS, &ports[0].to_be_bytes());
        put(PORTS + 2, &ports[1].to_be_bytes());
        Some(Self(bytes))
    }

    /// The key of a frame that the port of a slot receives; `None` if it is always a miss.
    #[must_use]
    pub fn of_frame(slot: u32, frame: &[u8]) -> Option<Self> {
        const ETHERNET: usize = 14;
        let byte = |at: usize| frame.get(at).copied();
        let mac = |at: usize| Some(MacAddr(*frame.get(at..)?.first_chunk()?));
        let (source, destination, protocol, transport): (IpAddr, IpAddr, _, _) = match (byte(12)?, byte(13)?)
        {
            (0x08, 0x00) if byte(ETHERNET)? == 0x45 && byte(20)? & 0x3f == 0 && byte(21)? == 0 => {
                let address = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<4>()?));
                (address(26)?, address(30)?, byte(23)?, 34)
            }
            (0x86, 0xdd) => {
                let address = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<16>()?));
                (address(22)?, address(38)?, byte(20)?, 54)
            }
            _ => return None,
        };
        let header = match protocol {
            6 => 20,
            17 => 8,
            _ => return None,
        };
        let transport = frame.get(transport..transport + header)?;
        let ports = [0, 2].map(|at| {
            transport.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |port| u16::from_be_bytes(*port))
        });
        let macs = [mac(0)?, mac(6)?];
        Self::new(slot, macs, Transport { protocol, source, destination, ports })
    }

    /// The MAC addresses, destination first.
    #[must_use]
    pub fn macs(&self) -> [MacAddr; 2] {
        [MACS, MACS + 6].map(|at| MacAddr(self.part(at)))
    }

    /// Addresses, protocol and ports; what a mask has left out is zero.
    #[must_use]
    pub fn transport(&self) -> Transport {
        let port = |at: usize| u16::from_be_bytes(self.part(at));
        let addresses = [SOURCE, DESTINATION].map(|at| match self.part(ETHERTYPE) {
            [0x86, 0xdd] => IpAddr::from(self.part::<16>(at)),
            _ => IpAddr::from(self.part::<4>(at)),
        });
        let [protocol] = self.part(PROTOCOL);
        let ports = [port(PORTS), port(PORTS + 2)];
        Transport { protocol, source: addresses[0], destination: addresses[1], ports }
    }

    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
    }

    /// The key of all packets that have the fields of the mask in common with this one.
    #[must_use]
    pub fn masked(mut self, mask: &Mask) -> Self {
        self.0.iter_mut().zip(&mask.0).for_each(|(byte, mask)| *byte &= mask);
        self
    }

    /// The slot of the port.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.0.first_chunk().map_or(0, |slot| u32::from_ne_bytes(*slot))
    }

    pub(crate) const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    pub(crate) const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }
}

/// Addresses, protocol and ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address.
    pub destination: IpAddr,
    /// Its source and destination port.
    pub ports: [u16; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ports: [u16; 2]) -> Key {
        let macs = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
        let [source, destination] = ["10.1.2.3", "10.1.9.9"].map(|text| text.parse().unwrap());
        Key::new(7, macs, Transport { protocol: 6, source, destination, ports }).unwrap()
    }

    #[test]
    fn a_mask_keeps_its_fields_only() {
        let mask = Mask::default().with(Field::Destination(20)).with(Field::DestinationPort);
        let masked = key([1000, 80]).masked(&mask);
        assert_eq!(masked, key([2000, 80]).masked(&mask));
        assert_ne!(masked, key([1000, 81]).masked(&mask));
        assert_eq!(masked.slot(), 7);
        // 20 bits of 10.1.9.9.
        assert_eq!(masked.bytes()[DESTINATION..DESTINATION + 4], [10, 1, 0, 0]);
        assert_eq!(masked.bytes()[MACS..PORTS], [0; 12]);
        assert_eq!(masked.bytes()[SOURCE..DESTINATION], [0; 16]);
        assert_eq!(key([1, 2]).masked(&Mask::all()), key([1, 2]));
    }

    #[test]
    fn a_frame_has_the_key_of_its_headers() {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 1, 2, 3, 10, 1, 9, 9]);
        frame.extend([0x03, 0xe8, 0, 80]);
        frame.resize(54, 0);
        assert_eq!(Key::of_frame(7, &frame), Some(key([1000, 80])));
        let [source, destination] = ["10.1.2.3", "10.1.9.9"].map(|text| text.parse().unwrap());
        let transport = Transport { protocol: 6, source, destination, ports: [1000, 80] };
        assert_eq!(key([1000, 80]).transport(), transport);
        assert_eq!(key([1000, 80]).macs(), [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])]);
        assert_eq!(Key::of_frame(7, &frame[..53]), None, "cut in the header of TCP");
        for (at, byte) in [(13, 6), (14, 0x46), (20, 0x20), (21, 1), (23, 1)] {
            let mut other = frame.clone();
            other[at] = byte;
            assert_eq!(Key::of_frame(7, &other), None, "byte {at}");
        }
    }

    #[test]
    fn addresses_of_two_families_are_no_flow() {
        let [source, destination] = ["10.1.2.3", "fd00::1"].map(|text| text.parse().unwrap());
        let transport = Transport { protocol: 6, source, destination, ports: [1, 2] };
        assert_eq!(Key::new(0, [MacAddr([0; 6]); 2], transport), None);
    }
}
