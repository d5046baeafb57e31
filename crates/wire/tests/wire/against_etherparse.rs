// SPDX-License-Identifier: Apache-2.0
//! Compares the parser with etherparse on well-formed frames, slightly damaged frames, and noise.

use crate::common::{Difference, Outcome, compare};
use etherparse::{
    Ethernet2Header, IpAuthHeader, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6FragmentHeader,
    Ipv6Header, Ipv6RawExtHeader, TcpHeader, UdpHeader,
};
use netvm_wire::{Malformed, Network, parse, parse_prefix};
use proptest::collection::vec;
use proptest::prelude::*;

/// The composition of a well-formed frame.
#[derive(Clone, Debug)]
struct Shape {
    macs: ([u8; 6], [u8; 6]),
    tags: Vec<(bool, u16, u8)>,
    ip: Ip,
    transport: Layer4,
    payload: Vec<u8>,
    padding: usize,
}

#[derive(Clone, Debug)]
enum Ip {
    V4 { source: [u8; 4], destination: [u8; 4], dscp: u8, options: usize, fragment: (u16, bool) },
    V6 { source: [u8; 16], destination: [u8; 16], class: u8, extensions: Vec<Extension> },
}

#[derive(Clone, Debug)]
enum Extension {
    Options(usize),
    Routing(usize),
    Authentication(usize),
    Fragment(u16, bool),
}

#[derive(Clone, Debug)]
enum Layer4 {
    Tcp { ports: (u16, u16), flags: u8, options: usize },
    Udp { ports: (u16, u16) },
    Icmp { kind: u8, code: u8 },
    Other(u8),
}

fn shape() -> impl Strategy<Value = Shape> {
    let tag = (any::<bool>(), 0u16..4095, 0u8..8);
    let offset = prop_oneof![6 => Just(0u16), 1 => 2u16..1000];
    let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>(), 0u8..64, 0usize..=10, (offset.clone(), weighted(1)))
        .prop_map(|(source, destination, dscp, options, fragment)| Ip::V4 {
            source,
            destination,
            dscp,
            options,
            fragment,
        });
    let extension = prop_oneof![
        (0usize..4).prop_map(Extension::Options),
        (0usize..4).prop_map(Extension::Routing),
        (0usize..4).prop_map(Extension::Authentication),
        (offset, any::<bool>()).prop_map(|(offset, more)| Extension::Fragment(offset, more)),
    ];
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>(), vec(extension, 0..5)).prop_map(
        |(source, destination, class, extensions)| Ip::V6 { source, destination, class, extensions },
    );
    let transport = prop_oneof![
        (any::<(u16, u16)>(), any::<u8>(), 0usize..=10).prop_map(|(ports, flags, options)| Layer4::Tcp {
            ports,
            flags,
            options
        }),
        any::<(u16, u16)>().prop_map(|ports| Layer4::Udp { ports }),
        any::<(u8, u8)>().prop_map(|(kind, code)| Layer4::Icmp { kind, code }),
        (61u8..=255).prop_map(Layer4::Other),
    ];
    (
        any::<([u8; 6], [u8; 6])>(),
        vec(tag, 0..=2),
        prop_oneof![v4, v6],
        transport,
        vec(any::<u8>(), 12..80),
        0usize..20,
    )
        .prop_map(|(macs, tags, ip, transport, payload, padding)| Shape {
            macs,
            tags,
            ip,
            transport,
            payload,
            padding,
        })
}

fn weighted(ones_in_eight: u32) -> impl Strategy<Value = bool> {
    prop_oneof![8 - ones_in_eight => Just(false), ones_in_eight => Just(true)]
}

impl Shape {
    fn segment(&self, v6: bool) -> (u8, Vec<u8>) {
        let mut bytes = Vec::new();
        let number = match &self.transport {
            Layer4::Tcp { ports, flags, options } => {
                let mut header = TcpHeader::new(ports.0, ports.1, 1, 2);
                let bit = |bit: u8| flags >> bit & 1 != 0;
                (header.fin, header.syn, header.rst, header.psh) = (bit(0), bit(1), bit(2), bit(3));
                (header.ack, header.urg, header.ece, header.cwr) = (bit(4), bit(5), bit(6), bit(7));
                header.set_options_raw(&vec![1; options * 4]).unwrap();
                header.write(&mut bytes).unwrap();
                6
            }
            Layer4::Udp { ports } => {
                UdpHeader::with_ipv4_checksum(ports.0, ports.1, &Ipv4Header::default(), &self.payload)
                    .unwrap()
                    .write(&mut bytes)
                    .unwrap();
                17
            }
            Layer4::Icmp { kind, code } => {
                bytes.extend([*kind, *code, 0, 0, 0, 0, 0, 0]);
                // etherparse parses timestamp messages, which have 20 bytes.
                bytes.extend([0; 12]);
                if v6 { 58 } else { 1 }
            }
            Layer4::Other(number) => *number,
        };
        bytes.extend(&self.payload);
        (number, bytes)
    }

    fn build(&self) -> Vec<u8> {
        let v6 = matches!(self.ip, Ip::V6 { .. });
        let mut types: Vec<u16> =
            self.tags.iter().map(|(service, _, _)| if *service { 0x88a8 } else { 0x8100 }).collect();
        types.push(if v6 { 0x86dd } else { 0x0800 });
        let mut frame = Vec::new();
        Ethernet2Header { source: self.macs.0, destination: self.macs.1, ether_type: types[0].into() }
            .write(&mut frame)
            .unwrap();
        for ((_, id, priority), next) in self.tags.iter().zip(&types[1..]) {
            frame.extend((u16::from(*priority) << 13 | id).to_be_bytes());
            frame.extend(next.to_be_bytes());
        }
        let (number, segment) = self.segment(v6);
        match &self.ip {
            Ip::V4 { source, destination, dscp, options, fragment } => {
                let mut header =
                    Ipv4Header::new(segment.len() as u16, 64, IpNumber(number), *source, *destination)
                        .unwrap();
                header.dscp = (*dscp).try_into().unwrap();
                header.options = Ipv4Options::try_from(vec![1; options * 4].as_slice()).unwrap();
                header.fragment_offset = IpFragOffset::try_new(fragment.0).unwrap();
                header.more_fragments = fragment.1;
                header.set_payload_len(segment.len()).unwrap();
                header.write(&mut frame).unwrap();
                frame.extend(segment);
            }
            Ip::V6 { source, destination, class, extensions } => {
                let mut body = segment;
                let mut next = IpNumber(number);
                for extension in extensions.iter().rev() {
                    let (number, mut header) = extension.build(next);
                    header.append(&mut body);
                    body = header;
                    next = IpNumber(number);
                }
                let header = Ipv6Header {
                    traffic_class: *class,
                    payload_length: body.len() as u16,
                    next_header: next,
                    hop_limit: 64,
                    source: *source,
                    destination: *destination,
                    ..Default::default()
                };
                header.write(&mut frame).unwrap();
                frame.extend(body);
            }
        }
        frame.resize(frame.len() + self.padding, 0xee);
        frame
    }
}

impl Extension {
    fn build(&self, next: IpNumber) -> (u8, Vec<u8>) {
        let mut bytes = Vec::new();
        match self {
            Self::Options(units) | Self::Routing(units) => {
                let body = vec![0; 6 + units * 8];
                Ipv6RawExtHeader::new_raw(next, &body).unwrap().write(&mut bytes).unwrap();
                (if matches!(self, Self::Options(_)) { 60 } else { 43 }, bytes)
            }
            Self::Authentication(units) => {
                IpAuthHeader::new(next, 1, 2, &vec![3; 4 + units * 8]).unwrap().write(&mut bytes).unwrap();
                (51, bytes)
            }
            Self::Fragment(offset, more) => {
                let header = Ipv6FragmentHeader::new(next, (*offset).try_into().unwrap(), *more, 7);
                header.write(&mut bytes).unwrap();
                (44, bytes)
            }
        }
    }
}

/// EtherTypes and headers that may follow the MAC addresses.
const STARTS: &[&[u8]] = &[
    &[0x08, 0x00],
    &[0x08, 0x00, 0x45],
    &[0x86, 0xdd],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0],
    &[0x08, 0x06],
    &[0x08, 0x06, 0, 1, 8, 0, 6, 4],
    &[0x81, 0x00],
    &[0x88, 0xa8, 0, 1, 0x81, 0x00],
    &[0, 40],
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    /// Both parsers agree on well-formed frames.
    #[test]
    fn well_formed_frames(shape in shape()) {
        let frame = shape.build();
        match compare(&frame) {
            Ok(Outcome::Same | Outcome::Differs(Difference::LaterFragmentBody)) => {}
            // Rare, and the generator does not avoid them.
            Ok(Outcome::Differs(Difference::Stricter(Malformed::Ipv6MappedAddress | Malformed::FragmentOverTcpFlags))) => {}
            // Only if a fragment carries headers in its data.
            Ok(Outcome::Differs(Difference::Stricter(_))) if frame_is_fragment(&shape) => {}
            other => prop_assert!(false, "{other:?}"),
        }
    }

    /// Frames with a few changed bytes.
    #[test]
    fn damaged_frames(shape in shape(), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>(), is_cut: bool) {
        let mut frame = shape.build();
        for (place, value) in damage {
            let place = place.index(frame.len().min(80));
            frame[place] = value;
        }
        if is_cut {
            frame.truncate(cut.index(frame.len()));
        }
        prop_assert!(compare(&frame).is_ok(), "{:?}", compare(&frame));
    }

    /// Noise after the start of a header.
    #[test]
    fn noise(mut frame in vec(any::<u8>(), 0..200), start in prop::sample::select(STARTS)) {
        if let Some(place) = frame.get_mut(12..12 + start.len()) {
            place.copy_from_slice(start);
        }
        prop_assert!(compare(&frame).is_ok(), "{:?}", compare(&frame));
    }

    /// Parsing a prefix yields the result for the whole frame, or `BeyondPrefix`.
    #[test]
    fn prefixes(shape in shape(), cut in any::<prop::sample::Index>(), damage in any::<(prop::sample::Index, u8)>()) {
        let mut frame = shape.build();
        let place = damage.0.index(frame.len());
        frame[place] = damage.1;
        let prefix = &frame[..cut.index(frame.len() + 1)];
        let whole = parse(&frame);
        match parse_prefix(prefix, frame.len()) {
            Err(Malformed::BeyondPrefix) => prop_assert!(prefix.len() < frame.len()),
            result => prop_assert_eq!(result, whole),
        }
        if let Ok(headers) = whole {
            // A prefix up to the end of the headers suffices; with LLC, one with what could have been a SNAP header.
            let needed = headers.payload_offset() + if headers.network() == Network::Llc { 8 } else { 0 };
            prop_assert_eq!(parse_prefix(&frame[..needed.min(frame.len())], frame.len()), Ok(headers));
        }
    }
}

fn frame_is_fragment(shape: &Shape) -> bool {
    match &shape.ip {
        Ip::V4 { fragment, .. } => *fragment != (0, false),
        Ip::V6 { extensions, .. } => extensions
            .iter()
            .any(|it| matches!(it, Extension::Fragment(offset, more) if *offset != 0 || *more)),
    }
}

#[test]
fn timestamps_of_another_length_are_a_known_difference() {
    // An Ethernet header, an IPv4 header of 20 bytes for 52, and 32 bytes of ICMP.
    let mut frame = vec![0u8; 66];
    frame[12..14].copy_from_slice(&[0x08, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 52, 0, 0, 0, 0, 64, 1]);
    for icmp_type in [13, 14] {
        frame[34] = icmp_type;
        assert_eq!(compare(&frame), Ok(Outcome::Differs(Difference::IcmpTimestamp)));
    }
    frame[34] = 8;
    assert_eq!(compare(&frame), Ok(Outcome::Same));
}
