// SPDX-License-Identifier: Apache-2.0
//! Neighbour discovery for the IPv6 addresses of NAT (RFC 4861). In: a neighbour solicitation that a router would give
//! to its kernel. Out: for an address that stands for hosts, the advertisement, in place of the solicitation.
//!
//! A kernel answers ARP for each address of a local route, but neighbour discovery only for addresses that an interface
//! has, and a pool may have 2^64 of them. Others' solicitations go on to the kernel.

use dpdk::Mbuf;
use netvm_model::AddressRange;
use netvm_wire::neighbour::{Holder, MAX_ANSWER, Message};

use crate::router::InterfacePath;
use crate::worker::packet::keys::HEADER_BYTES;

/// Makes the advertisement of a solicitation for one of these addresses, which an interface has received. Returns
/// false, and changes nothing, if it is none.
pub(super) fn answer(mbuf: &mut Mbuf, interface: &InterfacePath, addresses: &[AddressRange]) -> bool {
    let (mut front, mut answer) = ([0; HEADER_BYTES], [0; MAX_ANSWER]);
    let copied = mbuf.copy_to(&mut front);
    let frame = front.get(..copied).filter(|_| copied == mbuf.pkt_len() as usize);
    let length = frame.and_then(|frame| advertisement(frame, interface, addresses, &mut answer));
    let Some(length) = length else { return false };
    mbuf.forget_pending();
    mbuf.copy_from(&answer[..length]).is_ok()
}

/// Writes the advertisement; returns its length.
fn advertisement(
    frame: &[u8],
    interface: &InterfacePath,
    addresses: &[AddressRange],
    answer: &mut [u8],
) -> Option<usize> {
    let Some(Message::Request(request)) = Message::read(frame) else { return None };
    let is_own = addresses.iter().any(|range| (range.first..=range.last).contains(&request.target));
    if !is_own || request.target.is_v4() {
        return None;
    }
    request.answer(Holder { mac: interface.mac, is_router: true, vlan: interface.vlan }, answer)
}

#[cfg(test)]
mod tests {
    use netvm_wire::{Address, FrameBuilder, IpProto, MacAddr, VlanId, checksum};

    use super::*;
    use crate::worker::router::tests::{OWN, PEER, router, tagged};

    const SOLICITATION: u8 = 135;
    const ADVERTISEMENT: u8 = 136;
    const ALL_NODES: Address = Address::from_v6_bits(0xff02 << 112 | 1);
    const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    const POOL: &str = "2001:db8::100-2001:db8::1ff";

    /// A solicitation for a target, from an address, with the option of the sender's MAC address.
    fn solicitation(source: &str, target: &str, hop_limit: u8) -> Vec<u8> {
        let (source, target) = (source.parse().unwrap(), target.parse::<std::net::Ipv6Addr>().unwrap());
        let group = "ff02::1:ff00:101".parse().unwrap();
        let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        message.extend(target.octets());
        message.extend([1, 1]);
        message.extend(PEER.0);
        let sum = checksum::transport_checksum(
            std::net::IpAddr::V6(source).into(),
            std::net::IpAddr::V6(group).into(),
            IpProto::ICMPV6,
            &message,
        );
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let frame =
            FrameBuilder::new(PEER, MacAddr([0x33, 0x33, 0xff, 0, 1, 1])).ip(source.into(), group.into());
        frame.ttl(hop_limit).protocol(IpProto::ICMPV6).payload(&message).to_vec().unwrap()
    }

    fn answer_to(frame: &[u8], interface: usize) -> Option<Vec<u8>> {
        let mut answer = [0; MAX_ANSWER];
        let pool = [POOL.parse().unwrap()];
        let length = advertisement(frame, &router().interfaces[interface], &pool, &mut answer)?;
        Some(answer[..length].to_vec())
    }

    #[test]
    fn a_solicitation_for_an_address_of_a_pool_is_answered() {
        let asked = solicitation("2001:db8::9", "2001:db8::101", 255);
        let answer = answer_to(&asked, 0).unwrap();
        let parsed = netvm_wire::parse(&answer).unwrap();
        checksum::verify(&answer, &parsed).unwrap();
        let key = parsed.key();
        assert_eq!((key.source_mac, key.destination_mac, key.vlan), (OWN, PEER, None));
        assert_eq!(key.source.to_ip().to_string(), "2001:db8::101");
        assert_eq!(key.destination.to_ip().to_string(), "2001:db8::9");
        assert_eq!((key.icmp_type, answer[21], answer[58]), (ADVERTISEMENT, 255, 0xe0));
        assert_eq!(answer[80..], OWN.0, "the option");

        // Detection of duplicate addresses, and an interface with a tag.
        let asked = solicitation("::", "2001:db8::1ff", 255);
        let answer = answer_to(&tagged(&asked, [0x81, 0, 0, 5]), 1).unwrap();
        let key = *netvm_wire::parse(&answer).unwrap().key();
        assert_eq!((key.destination_mac, key.destination), (ALL_NODES_MAC, ALL_NODES));
        assert_eq!((key.vlan, answer[62]), (VlanId::new(5).ok(), 0xa0));
    }

    #[test]
    fn other_packets_are_the_kernels() {
        let good = solicitation("2001:db8::9", "2001:db8::101", 255);
        let mut wrong_sum = good.clone();
        wrong_sum[70] ^= 1;
        let mut advertisement = good.clone();
        advertisement[54] = ADVERTISEMENT;
        for frame in [
            solicitation("2001:db8::9", "2001:db8::200", 255),
            solicitation("2001:db8::9", "2001:db8::101", 64),
            wrong_sum,
            advertisement,
            good[..good.len() - 20].to_vec(),
        ] {
            assert_eq!(answer_to(&frame, 0), None);
        }
    }
}
