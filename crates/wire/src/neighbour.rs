// SPDX-License-Identifier: Apache-2.0
//! Messages by which hosts of a network find each other's MAC addresses: ARP (RFC 826) and neighbour discovery (RFC
//! 4861). In: whole frames. Out: what they ask or say, and answers.

use std::net::{IpAddr, Ipv4Addr};

use crate::{Address, EtherType, Fragment, FrameBuilder, IpProto, MacAddr, VlanId, checksum, parse_prefix};

/// The longest answer: Ethernet, a tag, IPv6, and an advertisement with its option.
pub const MAX_ANSWER: usize = 14 + 4 + 40 + ADVERTISEMENT_LENGTH;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: the target is a router; it answers somebody who has an address; it replaces what is
/// known.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Options with the MAC address of the sender, and of the target.
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
const ADVERTISEMENT_LENGTH: usize = 32;
/// Where the options of both messages begin.
const OPTIONS: usize = 24;
/// Who does not have the hop limit of a packet of this link is not on it.
const HOP_LIMIT: u8 = 255;
/// Who asks without an address gets the answer with all nodes.
const ALL_NODES: Address = Address::from_v6_bits(0xff02 << 112 | 1);
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

const ETHERNET: usize = 14;
/// ARP for IPv4 over Ethernet: hardware, protocol, and the lengths of their addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Somebody looks for an address.
    Request(Request),
    /// The sender has this address.
    Claim(Address, MacAddr),
}

/// A request of ARP, or a neighbour solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address that is looked for.
    pub target: Address,
    /// The sender's own address; `None`: it looks whether it may have the target.
    pub source: Option<Address>,
    /// The sender's MAC address.
    pub source_mac: MacAddr,
}

/// Who has an address that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its MAC address.
    pub mac: MacAddr,
    /// It is a router.
    pub is_router: bool,
    /// The tag of the answer.
    pub vlan: Option<VlanId>,
}

impl Message {
    /// Whether the first bytes of a frame without a tag can be those of such a message; cheap.
    #[inline]
    #[must_use]
    pub fn may_begin(front: &[u8]) -> bool {
        match front.get(12..14) {
            Some([8, 6]) => true,
            Some([0x86, 0xdd]) => {
                front.get(20) == Some(&IpProto::ICMPV6.0)
                    && matches!(front.get(54), Some(&(SOLICITATION | ADVERTISEMENT)))
            }
            _ => false,
        }
    }

    /// Reads a whole frame; `None` if it is another one, or if its sender's addresses contradict each other.
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<Self> {
        match EtherType(word(frame, 12)?) {
            EtherType::ARP => arp(frame),
            _ => discovery(frame),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

fn mac(bytes: &[u8], at: usize) -> Option<MacAddr> {
    bytes.get(at..)?.first_chunk().map(|mac| MacAddr(*mac))
}

fn arp(frame: &[u8]) -> Option<Message> {
    let message = frame.get(ETHERNET..)?;
    message.strip_prefix(&ARP_HEAD)?;
    let v4 = |at: usize| message.get(at..)?.first_chunk().map(|octets| Address::from_v4_octets(*octets));
    let (source_mac, source, target) = (mac(message, 8)?, v4(14)?, v4(24)?);
    if mac(frame, 6)? != source_mac || source_mac.is_multicast() {
        return None;
    }
    let is_unspecified = source == Ipv4Addr::UNSPECIFIED.into();
    match word(message, 6)? {
        ARP_REQUEST if is_unspecified => Some(Message::Request(Request { target, source: None, source_mac })),
        // It announces its own address.
        ARP_REQUEST if source == target => claim(source, source_mac),
        ARP_REQUEST => Some(Message::Request(Request { target, source: Some(source), source_mac })),
        ARP_REPLY => claim(source, source_mac),
        _ => None,
    }
}

/// A claim of an address that a host can have.
fn claim(address: Address, mac: MacAddr) -> Option<Message> {
    let is_one = match address.to_ip() {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() || v4.is_loopback())
        }
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast() || v6.is_loopback()),
    };
    is_one.then_some(Message::Claim(address, mac))
}

fn discovery(frame: &[u8]) -> Option<Message> {
    let parsed = parse_prefix(frame, frame.len()).ok()?;
    let key = parsed.key();
    let is_one = key.protocol == IpProto::ICMPV6
        && matches!(key.icmp_type, SOLICITATION | ADVERTISEMENT)
        && key.fragment == Fragment::Whole
        && *frame.get(parsed.l3_offset() + 7)? == HOP_LIMIT;
    if !is_one || key.source_mac.is_multicast() || checksum::verify(frame, &parsed).is_err() {
        return None;
    }
    let l3 = parsed.l3_offset();
    let end = l3 + 40 + usize::from(word(frame, l3 + 4)?);
    let message = frame.get(parsed.l4_offset()?..end)?;
    let target = Address::from_v6_octets(*message.get(8..)?.first_chunk()?);
    let source_mac = key.source_mac;
    let option = option(message.get(OPTIONS..)?, key.icmp_type)?;
    let claimed = claim(target, source_mac).filter(|_| option.is_none_or(|named| named == source_mac))?;
    if key.icmp_type == ADVERTISEMENT {
        return Some(claimed);
    }
    let source = Some(key.source).filter(|source| *source != Address::UNSPECIFIED);
    Some(Message::Request(Request { target, source, source_mac }))
}

/// The MAC address in the options of a message of this type (outer `None`: they are invalid).
fn option(mut options: &[u8], message: u8) -> Option<Option<MacAddr>> {
    let wanted = if message == ADVERTISEMENT { TARGET_OPTION } else { SOURCE_OPTION };
    let mut found = None;
    while let [kind, length, ..] = *options {
        // RFC 4861 section 4.6: a length of 0 makes the whole packet invalid.
        let (option, rest) = options.split_at_checked(usize::from(length) * 8).filter(|_| length > 0)?;
        if kind == wanted {
            found = Some(mac(option, 2)?);
        }
        options = rest;
    }
    options.is_empty().then_some(found)
}

impl Request {
    /// Writes the holder's reply to `out`, as an Ethernet frame; returns its length.
    #[must_use]
    pub fn answer(&self, by: Holder, out: &mut [u8]) -> Option<usize> {
        let Self { target, source, source_mac } = *self;
        let mut tagged = |frame: FrameBuilder<'_>| match by.vlan {
            Some(vlan) => frame.vlan(vlan).write(out).ok(),
            None => frame.write(out).ok(),
        };
        let IpAddr::V4(target_v4) = target.to_ip() else {
            let (to, to_mac, solicited) = match source {
                Some(source) => (source, source_mac, SOLICITED),
                None => (ALL_NODES, ALL_NODES_MAC, 0),
            };
            let mut message = [0; ADVERTISEMENT_LENGTH];
            let router = if by.is_router { ROUTER } else { 0 };
            (message[0], message[4]) = (ADVERTISEMENT, router | solicited | OVERRIDE);
            message[8..OPTIONS].copy_from_slice(&target.v6_bits().to_be_bytes());
            (message[OPTIONS], message[OPTIONS + 1]) = (TARGET_OPTION, 1);
            message[OPTIONS + 2..].copy_from_slice(&by.mac.0);
            let sum = checksum::transport_checksum(target, to, IpProto::ICMPV6, &message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let frame = FrameBuilder::new(by.mac, to_mac).ip(target.to_ip(), to.to_ip()).ttl(HOP_LIMIT);
            return tagged(frame.protocol(IpProto::ICMPV6).payload(&message));
        };
        let source = source.map_or(Ipv4Addr::UNSPECIFIED, |source| source.v4_bits().unwrap_or(0).into());
        tagged(FrameBuilder::new(by.mac, source_mac).arp_reply(target_v4, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const HOLDER: Holder = Holder { mac: OTHER, is_router: false, vlan: None };

    fn address(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    fn arp_request(source: &str, target: &str) -> Vec<u8> {
        let frame = FrameBuilder::new(HOST, MacAddr::BROADCAST);
        frame.arp_request(source.parse().unwrap(), target.parse().unwrap()).frame_len(60).to_vec().unwrap()
    }

    fn icmp(kind: u8, source: &str, target: &str, option: Option<(u8, MacAddr)>) -> Vec<u8> {
        let (source, group) = (address(source), address("ff02::1:ff00:2"));
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend(address(target).v6_bits().to_be_bytes());
        if let Some((kind, mac)) = option {
            message.extend([kind, 1]);
            message.extend(mac.0);
        }
        let sum = checksum::transport_checksum(source, group, IpProto::ICMPV6, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let frame = FrameBuilder::new(HOST, MacAddr([0x33, 0x33, 0xff, 0, 0, 2]));
        let frame = frame.ip(source.to_ip(), group.to_ip()).ttl(HOP_LIMIT).protocol(IpProto::ICMPV6);
        frame.payload(&message).to_vec().unwrap()
    }

    fn request(frame: &[u8]) -> Request {
        assert!(Message::may_begin(&frame[..55.min(frame.len())]));
        match Message::read(frame) {
            Some(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_of_arp_is_read_and_answered() {
        let asked = request(&arp_request("10.0.0.1", "10.0.0.2"));
        let expected =
            Request { target: address("10.0.0.2"), source: Some(address("10.0.0.1")), source_mac: HOST };
        assert_eq!(asked, expected);
        let mut out = [0; MAX_ANSWER];
        let length = asked.answer(HOLDER, &mut out).unwrap();
        assert_eq!((&out[..6], length), (&HOST.0[..], 42));
        assert_eq!(Message::read(&out[..length]), Some(Message::Claim(address("10.0.0.2"), OTHER)));
        assert_eq!(request(&arp_request("0.0.0.0", "10.0.0.2")).source, None, "a probe");
        let announced = Message::read(&arp_request("10.0.0.1", "10.0.0.1"));
        assert_eq!(announced, Some(Message::Claim(address("10.0.0.1"), HOST)));
    }

    #[test]
    fn a_solicitation_is_read_and_answered() {
        for option in [None, Some((SOURCE_OPTION, HOST))] {
            let asked = request(&icmp(SOLICITATION, "2001:db8::1", "2001:db8::2", option));
            assert_eq!((asked.target, asked.source), (address("2001:db8::2"), Some(address("2001:db8::1"))));
            let mut out = [0; MAX_ANSWER];
            let length = asked.answer(HOLDER, &mut out).unwrap();
            checksum::verify(&out[..length], &parse(&out[..length]).unwrap()).unwrap();
            assert_eq!((&out[..6], out[58]), (&HOST.0[..], 0x60));
            assert_eq!(Message::read(&out[..length]), Some(Message::Claim(address("2001:db8::2"), OTHER)));
        }
        let asked = request(&icmp(SOLICITATION, "::", "2001:db8::2", None));
        assert_eq!(asked.source, None, "detection of duplicate addresses");
        let mut out = [0; MAX_ANSWER];
        let length = asked.answer(Holder { is_router: true, ..HOLDER }, &mut out).unwrap();
        assert_eq!((&out[..6], out[58], length), (&ALL_NODES_MAC.0[..], 0xa0, 86));
    }

    #[test]
    fn what_contradicts_itself_says_nothing() {
        let mut foreign = arp_request("10.0.0.1", "10.0.0.2");
        foreign[27] = 9;
        let mut hardware = arp_request("10.0.0.1", "10.0.0.2");
        hardware[15] = 2;
        let good = icmp(SOLICITATION, "2001:db8::1", "2001:db8::2", Some((SOURCE_OPTION, HOST)));
        let mut from_afar = good.clone();
        from_afar[21] = 64;
        let mut wrong_sum = good.clone();
        wrong_sum[70] ^= 1;
        let mut endless = icmp(SOLICITATION, "2001:db8::1", "2001:db8::2", Some((9, HOST)));
        endless[79] = 0;
        let tagged = FrameBuilder::new(HOST, MacAddr::BROADCAST).vlan(VlanId::new(5).unwrap());
        let tagged = tagged.arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).to_vec().unwrap();
        for frame in [
            foreign,
            hardware,
            from_afar,
            wrong_sum,
            endless,
            tagged,
            icmp(ADVERTISEMENT, "2001:db8::1", "ff02::1", None),
            icmp(ADVERTISEMENT, "2001:db8::1", "2001:db8::1", Some((TARGET_OPTION, OTHER))),
            arp_request("224.0.0.1", "224.0.0.1"),
            good[..good.len() - 1].to_vec(),
            Vec::new(),
        ] {
            assert_eq!(Message::read(&frame), None, "{frame:02x?}");
        }
    }
}
