// SPDX-License-Identifier: Apache-2.0
//! Random IP packets of both families.

use netvm_wire::{Address, IpProto, checksum, parse};

use crate::kernel::conversation::Random;

/// A packet without an Ethernet header, and what is special about it.
#[derive(Clone, Debug)]
pub struct Sample {
    pub packet: Vec<u8>,
    pub features: Vec<Feature>,
}

/// What can be special about a packet, where tayga may do something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A source route in IPv4.
    SourceRoute,
    /// A routing header with a segment left.
    SegmentsLeft,
    /// UDP without a checksum.
    NoChecksum,
    /// An error about an ICMP message that is no echo request.
    AboutOtherIcmp,
    /// An error about a TCP segment without all of its header.
    AboutCut,
    /// An error about a fragment.
    AboutFragment,
    /// An error about a packet with a segment left.
    AboutSegmentsLeft,
    /// An error with extensions.
    Extensions,
    /// An error with a pointer.
    Pointer,
    /// The ICMPv6 error "address unreachable".
    AddressUnreachable,
    /// An error of an IPv6 router, with a code that a router does not use.
    FromRouter,
}

/// Addresses of a packet: source and destination.
pub type Ends = [Address; 2];

/// Addresses of packets by direction.
pub struct Places {
    /// To IPv6: of packets, and of errors that a router sends.
    pub to_v6: [Ends; 2],
    pub to_v4: [Ends; 2],
}

pub struct Generator<'a> {
    pub random: Random,
    pub places: &'a Places,
    features: Vec<Feature>,
    /// Of the next IPv4 packet: identification, offset, and whether more follow.
    fragment: Option<(u32, u16, bool)>,
}

impl<'a> Generator<'a> {
    pub fn new(seed: u64, places: &'a Places) -> Self {
        Self { random: Random(seed), places, features: Vec::new(), fragment: None }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.below(limit)
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    fn bytes(&mut self, count: u32) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    fn has(&mut self, feature: Feature) {
        self.features.push(feature);
    }

    pub fn sample(&mut self) -> Sample {
        self.features.clear();
        let is_v4 = self.one_in(2);
        let packet = if self.one_in(2) { self.error(is_v4) } else { self.packet(is_v4, false) };
        Sample { packet, features: self.features.clone() }
    }

    fn ends(&self, is_v4: bool, from_router: bool) -> Ends {
        let places = if is_v4 { &self.places.to_v6 } else { &self.places.to_v4 };
        places[usize::from(from_router)]
    }

    /// A packet that is no error. In an error, it goes the other way.
    fn packet(&mut self, is_v4: bool, is_about: bool) -> Vec<u8> {
        let mut ends = self.ends(is_v4, false);
        if is_about {
            ends.reverse();
        }
        let most = if is_about || !self.one_in(4) { 64 } else { 1400 };
        let length = self.below(most);
        let data = self.bytes(length);
        let (mut protocol, mut segment) = self.segment(is_v4, data);
        if is_about && protocol == icmp(is_v4) && segment[0] != if is_v4 { 8 } else { 128 } {
            self.has(Feature::AboutOtherIcmp);
        }
        let is_fragment = self.one_in(6);
        let checked = seal(&mut segment, protocol, ends);
        if checked && protocol == IpProto::UDP && !is_about && self.one_in(8) {
            segment[6..8].fill(0);
            self.has(Feature::NoChecksum);
        }
        let mut fragment = None;
        if is_fragment {
            if is_about {
                self.has(Feature::AboutFragment);
            }
            let at = self.below(segment.len() as u32 / 8 + 1) as usize * 8;
            let identification = self.below(u32::MAX);
            if self.one_in(2) {
                // The length of all but the last is a multiple of 8.
                segment.resize(at.max(24), 0);
                fragment = Some((identification, 0, true));
            } else {
                segment.drain(..at.min(segment.len() - 1));
                let is_last = self.one_in(2);
                if !is_last {
                    segment.resize((segment.len() + 1).next_multiple_of(8), 0);
                }
                fragment = Some((identification, (at / 8) as u16 + 3, !is_last));
            }
        } else if !is_v4 && !is_about && self.one_in(10) {
            fragment = Some((self.below(u32::MAX), 0, false));
        }
        if is_v4 {
            self.fragment = fragment;
            self.v4(ends, protocol, &segment, is_about)
        } else {
            if let Some((identification, offset, more)) = fragment {
                let mut header = vec![protocol.0, 0];
                header.extend((offset << 3 | u16::from(more)).to_be_bytes());
                header.extend(identification.to_be_bytes());
                segment.splice(0..0, header);
                protocol = IpProto::FRAGMENT;
            }
            self.v6(ends, protocol, &segment, is_about)
        }
    }

    /// A transport header and data.
    fn segment(&mut self, is_v4: bool, data: Vec<u8>) -> (IpProto, Vec<u8>) {
        let ports = self.bytes(4);
        let kind = self.below(9);
        match kind {
            0..3 => {
                let length = (data.len() as u16 + 8).to_be_bytes();
                (IpProto::UDP, [&ports[..], &length, &[0, 0], &data].concat())
            }
            3..5 => {
                let numbers = self.bytes(8);
                let header = [&ports[..], &numbers, &[0x50, 0x10, 9, 9, 0, 0, 0, 0]].concat();
                (IpProto::TCP, [header, data].concat())
            }
            5..7 => {
                let kinds = if is_v4 { [8, 0] } else { [128, 129] };
                let kind = kinds[self.below(2) as usize];
                (icmp(is_v4), [&[kind, 0, 0, 0][..], &ports, &data].concat())
            }
            7 => {
                // Those of one family are tried by the tests of headers.
                let protocols = [47, 50, 99, 132];
                (IpProto(protocols[self.below(4) as usize]), [self.bytes(24), data].concat())
            }
            _ => {
                let kinds: &[u8] =
                    if is_v4 { &[9, 10, 13, 14, 15, 17, 18, 40] } else { &[130, 133, 135, 144, 200] };
                let kind = kinds[self.below(kinds.len() as u32) as usize];
                (icmp(is_v4), [&[kind, 0, 0, 0][..], &ports, &data, &[0; 40]].concat())
            }
        }
    }

    /// An error about a packet.
    fn error(&mut self, is_v4: bool) -> Vec<u8> {
        let about = if self.one_in(12) {
            let inner = self.packet(is_v4, false);
            let message = [&[3, 1, 0, 0, 0, 0, 0, 0][..], &inner].concat();
            let mut ends = self.ends(is_v4, false);
            ends.reverse();
            if is_v4 {
                self.v4(ends, icmp(true), &message, true)
            } else {
                let message = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &inner].concat();
                self.v6(ends, icmp(false), &message, true)
            }
        } else {
            self.packet(is_v4, true)
        };
        let header = if is_v4 { usize::from(about[0] & 15) * 4 } else { 40 };
        let kept = header + 8 + self.below(120) as usize;
        let mut about = about[..about.len().min(kept)].to_vec();
        if about.len() < header + 28 {
            self.has(Feature::AboutCut);
        }
        let (mut kind, mut code) = if is_v4 {
            ([3, 3, 3, 11, 12, 4, 5][self.below(7) as usize], self.below(17) as u8)
        } else {
            ([1, 1, 2, 3, 4][self.below(5) as usize], self.below(6) as u8)
        };
        if self.one_in(4) {
            (kind, code) = if is_v4 { (3, 4) } else { (2, 0) };
        }
        let mut rest = [0; 4];
        match (is_v4, kind, code) {
            (true, 3, 4) => {
                let mtu = if self.one_in(5) { 0 } else { 500 + self.below(980) as u16 };
                rest[2..].copy_from_slice(&mtu.to_be_bytes());
            }
            (false, 2, _) => {
                rest = (1280 + self.below(220)).to_be_bytes();
            }
            (true, 12, _) => {
                self.has(Feature::Pointer);
                rest[0] = self.below(22) as u8;
            }
            (false, 4, _) => {
                self.has(Feature::Pointer);
                rest[3] = self.below(44) as u8;
            }
            (true, 3 | 11, _) | (false, 1 | 3, _) if self.one_in(8) => {
                self.has(Feature::Extensions);
                about.resize(128, 0);
                rest[usize::from(is_v4)] = if is_v4 { 32 } else { 16 };
                about.extend([0x20, 0, 0xf4, 0x2d, 0, 8, 1, 1, 0, 0x01, 0x81, 0x01]);
            }
            _ => {}
        }
        let from_router = self.one_in(3);
        let is_of_router = matches!((kind, code), (1, 0 | 2) | (2, _));
        if from_router && !is_v4 && !is_of_router {
            self.has(Feature::FromRouter);
        }
        if !is_v4 && (kind, code) == (1, 3) {
            self.has(Feature::AddressUnreachable);
        }
        let ends = self.ends(is_v4, from_router);
        let mut message = [&[kind, code, 0, 0][..], &rest, &about].concat();
        seal(&mut message, icmp(is_v4), ends);
        if is_v4 {
            self.v4(ends, icmp(true), &message, false)
        } else {
            self.v6(ends, icmp(false), &message, false)
        }
    }

    fn v4(&mut self, ends: Ends, protocol: IpProto, segment: &[u8], is_about: bool) -> Vec<u8> {
        let mut options = Vec::new();
        if self.one_in(8) {
            options = match self.below(if is_about { 2 } else { 4 }) {
                0 => vec![1, 1, 1, 0],
                1 => vec![7, 7, 4, 0, 0, 0, 0, 0],
                kind => {
                    self.has(Feature::SourceRoute);
                    vec![if kind == 2 { 131 } else { 137 }, 7, 4, 10, 0, 0, 1, 0]
                }
            };
        }
        let header = 20 + options.len();
        let total = ((header + segment.len()) as u16).to_be_bytes();
        let (identification, field) = match self.fragment.take() {
            Some((identification, offset, more)) => (identification as u16, offset | u16::from(more) << 13),
            // A long one that may be fragmented is fragmented by tayga.
            None if segment.len() > 1200 || self.one_in(2) => (self.below(65_536) as u16, 0x4000),
            None => (self.below(65_536) as u16, 0),
        };
        let (class, hops) = (self.below(256) as u8, 2 + self.below(254) as u8);
        let mut packet = vec![0x40 | (header / 4) as u8, class, total[0], total[1]];
        packet.extend(identification.to_be_bytes());
        packet.extend(field.to_be_bytes());
        packet.extend([hops, protocol.0, 0, 0]);
        for end in ends {
            packet.extend(end.v4_bits().unwrap().to_be_bytes());
        }
        packet.extend(options);
        let sum = checksum::internet_checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(segment);
        packet
    }

    fn v6(&mut self, ends: Ends, protocol: IpProto, segment: &[u8], is_about: bool) -> Vec<u8> {
        let mut next = protocol;
        let mut body = segment.to_vec();
        if self.one_in(8) {
            let kinds = [IpProto::HOP_BY_HOP, IpProto::DESTINATION_OPTIONS, IpProto::ROUTING];
            let kind = kinds[self.below(3) as usize];
            let mut extension = vec![next.0, 0, 1, 4, 0, 0, 0, 0];
            if kind == IpProto::ROUTING {
                extension[3] = self.below(2) as u8;
                if extension[3] == 1 {
                    self.has(if is_about { Feature::AboutSegmentsLeft } else { Feature::SegmentsLeft });
                }
            }
            next = kind;
            body.splice(0..0, extension);
        }
        let length = (body.len() as u16).to_be_bytes();
        let (class, hops) = (self.below(256) as u8, 2 + self.below(254) as u8);
        let mut packet = vec![0x60 | class >> 4, class << 4, 0, 0, length[0], length[1], next.0, hops];
        for end in ends {
            packet.extend(end.v6_bits().to_be_bytes());
        }
        packet.extend(body);
        packet
    }
}

fn icmp(is_v4: bool) -> IpProto {
    if is_v4 { IpProto::ICMP } else { IpProto::ICMPV6 }
}

/// Writes the checksum of a whole segment. Returns whether its protocol has one.
fn seal(segment: &mut [u8], protocol: IpProto, [source, destination]: Ends) -> bool {
    let place = match protocol {
        IpProto::TCP => 16,
        IpProto::UDP => 6,
        IpProto::ICMP | IpProto::ICMPV6 => 2,
        _ => return false,
    };
    segment[place..place + 2].fill(0);
    let sum = match protocol {
        IpProto::ICMP => checksum::internet_checksum(segment),
        IpProto::UDP => checksum::udp_checksum(source, destination, segment),
        _ => checksum::transport_checksum(source, destination, protocol, segment),
    };
    segment[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Whether the checksums of an IP packet are right.
pub fn is_sound(packet: &[u8]) -> bool {
    let frame = frame_of(packet);
    parse(&frame).is_ok_and(|headers| checksum::verify(&frame, &headers).is_ok())
}

/// With an Ethernet header.
pub fn frame_of(packet: &[u8]) -> Vec<u8> {
    let ether_type: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&[2; 12][..], &ether_type, packet].concat()
}
