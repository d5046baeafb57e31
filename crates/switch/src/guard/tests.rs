// SPDX-License-Identifier: Apache-2.0
use netvm_wire::{FrameBuilder, Ipv6Net, TcpFlags, VlanId, parse};
use proptest::prelude::*;

use super::*;

const OWN: MacAddr = MacAddr([0x52, 0x54, 0, 1, 2, 3]);
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 9, 9, 9]);
const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The EUI-64 link-local address of `OWN`.
const EUI64: &str = "fe80::5054:ff:fe01:203";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts
        .iter()
        .map(|text| {
            let (address, length) = text.split_once('/').unwrap();
            IpNet::new(ip(address), length.parse().unwrap()).unwrap()
        })
        .collect()
}

fn options() -> GuardOptions {
    let addresses = nets(&["10.0.0.5/32", "192.0.2.0/28", "2001:db8::5/128", "2001:db8:1::/64"]);
    GuardOptions { macs: vec![OWN], addresses, ..GuardOptions::default() }
}

/// The combined result of `check` and `inspect`.
fn check(options: GuardOptions, frame: &[u8]) -> Result<(), Spoofed> {
    let guard = Guard::new(options).unwrap();
    let key = *parse(frame).unwrap().key();
    guard.check(&key)?;
    let inside = guard.inspect(frame, frame.len());
    assert!(guard.needs_inspection(&key) || inside.is_ok(), "inspected a packet that needs no inspection");
    inside
}

fn from(source: &str) -> Result<(), Spoofed> {
    from_with(options(), source)
}

fn from_with(options: GuardOptions, source: &str) -> Result<(), Spoofed> {
    let source = ip(source);
    let destination = if source.is_ipv4() { ip("10.0.0.1") } else { ip("2001:db8::1") };
    let frame =
        FrameBuilder::new(OWN, ROUTER).ip(source, destination).tcp(1, 2, TcpFlags::SYN).to_vec().unwrap();
    check(options, &frame)
}

#[test]
fn ip_sources_are_limited_to_the_port() {
    for own in ["10.0.0.5", "192.0.2.0", "192.0.2.15", "2001:db8::5", "2001:db8:1::1234", EUI64] {
        assert_eq!(from(own), Ok(()), "{own}");
    }
    for other in [
        "10.0.0.6",
        "192.0.2.16",
        "0.0.0.0",
        "2001:db8::6",
        "2001:db8:2::",
        "::",
        "fe80::1",
        "febf::1",
        "::1",
    ] {
        assert_eq!(from(other), Err(Spoofed::Address), "{other}");
    }
    for group in ["224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"] {
        assert_eq!(from(group), Err(Spoofed::GroupAddress), "{group}");
        assert_eq!(
            from_with(GuardOptions::default(), group),
            Err(Spoofed::GroupAddress),
            "{group} is no source"
        );
    }
    let any = |source| from_with(GuardOptions::default(), source);
    assert_eq!((any("10.0.0.6"), any("2001:db8::6")), (Ok(()), Ok(())));
    let link_local = |link_local, source| from_with(GuardOptions { link_local, ..options() }, source);
    assert_eq!(link_local(LinkLocal::Any, "febf::1"), Ok(()));
    assert_eq!(link_local(LinkLocal::Any, "fec0::1"), Err(Spoofed::Address));
    assert_eq!(link_local(LinkLocal::None, EUI64), Err(Spoofed::Address));
}

#[test]
fn mac_sources_are_limited_to_the_port() {
    let frame = |source| FrameBuilder::new(source, ROUTER).to_vec().unwrap();
    assert_eq!(check(options(), &frame(OWN)), Ok(()));
    assert_eq!(check(options(), &frame(OTHER)), Err(Spoofed::Mac));
    assert_eq!(check(GuardOptions::default(), &frame(OTHER)), Ok(()));
    let group = MacAddr([3, 0, 0, 0, 0, 1]);
    assert_eq!(check(GuardOptions::default(), &frame(group)), Err(Spoofed::GroupMac));
    let macs = vec![OWN, group];
    assert_eq!(Guard::new(GuardOptions { macs, ..options() }).unwrap_err(), GuardError::GroupMac(group));
    let macs = vec![OWN; Guard::MAX + 1];
    assert_eq!(
        Guard::new(GuardOptions { macs, ..options() }).unwrap_err(),
        GuardError::TooLong(Guard::MAX + 1)
    );
}

#[test]
fn dhcp_requests_may_use_the_unspecified_address() {
    let frame = |to: &str, source, destination| {
        let builder = FrameBuilder::new(OWN, MacAddr::BROADCAST).ip(ip("0.0.0.0"), ip(to));
        builder.udp(source, destination).to_vec().unwrap()
    };
    let discover = frame("255.255.255.255", 68, 67);
    assert_eq!(check(options(), &discover), Ok(()));
    assert_eq!(check(GuardOptions { dhcp: false, ..options() }, &discover), Err(Spoofed::Address));
    for other in
        [frame("10.0.0.1", 68, 67), frame("255.255.255.255", 67, 68), frame("255.255.255.255", 68, 53)]
    {
        assert_eq!(check(options(), &other), Err(Spoofed::Address));
    }
}

fn arp(source: &str, reply: bool) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(target)) = (ip(source), ip("10.0.0.1")) else { unreachable!() };
    let builder = FrameBuilder::new(OWN, ROUTER).vlan(VlanId::new(7).unwrap());
    let builder = if reply { builder.arp_reply(source, target) } else { builder.arp_request(source, target) };
    builder.frame_len(64).to_vec().unwrap()
}

#[test]
fn arp_senders_are_limited_to_the_port() {
    for reply in [false, true] {
        assert_eq!(check(options(), &arp("10.0.0.5", reply)), Ok(()));
        assert_eq!(check(options(), &arp("10.0.0.1", reply)), Err(Spoofed::Address));
        assert_eq!(check(options(), &arp("255.255.255.255", reply)), Err(Spoofed::GroupAddress));
    }
    assert_eq!(check(options(), &arp("0.0.0.0", false)), Ok(()), "a probe");
    assert_eq!(check(options(), &arp("0.0.0.0", true)), Err(Spoofed::Address));
    let silent = GuardOptions { probes: false, ..options() };
    assert_eq!(check(silent, &arp("0.0.0.0", false)), Err(Spoofed::Address));

    let mut frame = arp("10.0.0.5", true);
    let sender = 18 + 8;
    assert_eq!(frame[sender..sender + 6], OWN.octets());
    frame[sender + 5] ^= 1;
    assert_eq!(check(options(), &frame), Err(Spoofed::ArpMac));
    let guard = Guard::new(options()).unwrap();
    assert_eq!(guard.inspect(&frame[..sender + 5], frame.len()), Err(Spoofed::Truncated));
    // Hosts take ARP of IEEE 802 networks as that of Ethernet. Of another type, the guard cannot tell the address's
    // owner.
    let of_type = |hardware, sender| {
        let mut frame = arp(sender, true);
        frame[18 + 1] = hardware;
        check(options(), &frame)
    };
    assert_eq!((of_type(6, "10.0.0.5"), of_type(6, "10.0.0.1")), (Ok(()), Err(Spoofed::Address)));
    assert_eq!(of_type(7, "10.0.0.5"), Err(Spoofed::ArpKind));
}

/// A neighbour discovery message: type, body after the reserved word, and options.
struct Discovery<'a> {
    source: &'a str,
    kind: u8,
    body: Vec<u8>,
    options: Vec<u8>,
}

impl Discovery<'_> {
    fn frame(&self) -> Vec<u8> {
        let mut message = vec![self.kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend(&self.body);
        message.extend(&self.options);
        let builder =
            FrameBuilder::new(OWN, MacAddr([0x33, 0x33, 0, 0, 0, 1])).ip(ip(self.source), ip("ff02::1"));
        builder.protocol(IpProto::ICMPV6).ttl(255).payload(&message).to_vec().unwrap()
    }

    fn check(&self) -> Result<(), Spoofed> {
        check(options(), &self.frame())
    }
}

fn target(address: &str) -> Vec<u8> {
    let IpAddr::V6(address) = ip(address) else { unreachable!() };
    address.octets().to_vec()
}

fn link_layer(kind: u8, mac: MacAddr) -> Vec<u8> {
    [&[kind, 1], mac.octets().as_slice()].concat()
}

#[test]
fn advertisements_claim_own_addresses_only() {
    let advertised =
        |address, options| Discovery { source: EUI64, kind: 136, body: target(address), options }.check();
    for own in ["2001:db8::5", "2001:db8:1::77", EUI64] {
        assert_eq!(advertised(own, link_layer(2, OWN)), Ok(()), "{own}");
        assert_eq!(advertised(own, vec![]), Ok(()), "{own}");
        assert_eq!(advertised(own, link_layer(2, OTHER)), Err(Spoofed::NeighbourMac), "{own}");
    }
    for other in ["2001:db8::1", "fe80::1", "ff02::1", "::"] {
        assert_eq!(advertised(other, link_layer(2, OWN)), Err(Spoofed::NeighbourTarget), "{other}");
    }
    // Behind another option. Only the option that counts in this message is checked.
    let behind = [vec![14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], link_layer(2, OTHER)].concat();
    assert_eq!(advertised("2001:db8::5", behind), Err(Spoofed::NeighbourMac));
    assert_eq!(advertised("2001:db8::5", link_layer(1, OTHER)), Ok(()));
    for broken in
        [vec![2], vec![2, 0], vec![2, 0, 1, 2, 3, 4, 5, 6], vec![2, 2, 1, 2, 3, 4, 5, 6], [2, 2].repeat(8)]
    {
        assert_eq!(advertised("2001:db8::5", broken.clone()), Err(Spoofed::NeighbourMalformed), "{broken:?}");
    }
}

#[test]
fn solicitations_come_from_own_addresses() {
    let solicited =
        |source, address, options| Discovery { source, kind: 135, body: target(address), options }.check();
    assert_eq!(
        solicited(EUI64, "2001:db8::1", link_layer(1, OWN)),
        Ok(()),
        "it asks for another host's address"
    );
    assert_eq!(solicited(EUI64, "2001:db8::1", link_layer(1, OTHER)), Err(Spoofed::NeighbourMac));
    assert_eq!(solicited("2001:db8::1", "2001:db8::5", vec![]), Err(Spoofed::Address));
    assert_eq!(solicited("::", "2001:db8::5", vec![]), Ok(()), "duplicate address detection");
    assert_eq!(solicited("::", "2001:db8::1", vec![]), Err(Spoofed::NeighbourTarget));
    assert_eq!(solicited("::", "2001:db8::5", link_layer(1, OWN)), Err(Spoofed::NeighbourMalformed));
    let detection = Discovery { source: "::", kind: 135, body: target("2001:db8::5"), options: vec![] };
    let silent = GuardOptions { probes: false, ..options() };
    assert_eq!(check(silent, &detection.frame()), Err(Spoofed::Address));
}

#[test]
fn router_and_listener_messages_come_from_own_addresses() {
    let message = |source, kind, body, options| Discovery { source, kind, body, options }.check();
    assert_eq!(message("::", 133, vec![], vec![]), Ok(()));
    assert_eq!(message("::", 143, vec![], vec![]), Ok(()));
    assert_eq!(message("::", 134, vec![0; 8], vec![]), Err(Spoofed::Address));
    assert_eq!(message("::", 128, vec![], vec![]), Err(Spoofed::Address));
    assert_eq!(message(EUI64, 133, vec![], link_layer(1, OTHER)), Err(Spoofed::NeighbourMac));
    assert_eq!(message(EUI64, 134, vec![0; 8], link_layer(1, OTHER)), Err(Spoofed::NeighbourMac));
    assert_eq!(message(EUI64, 134, vec![0; 8], link_layer(1, OWN)), Ok(()));
    assert_eq!(message(EUI64, 134, vec![0; 7], vec![]), Err(Spoofed::NeighbourMalformed));
    assert_eq!(
        message(EUI64, 137, vec![0; 32], link_layer(2, OTHER)),
        Ok(()),
        "a redirect names another host's address"
    );
}

#[test]
fn fragmented_and_truncated_discovery_is_refused() {
    let advertisement =
        Discovery { source: EUI64, kind: 136, body: target("2001:db8::5"), options: link_layer(2, OWN) };
    let frame = advertisement.frame();
    let guard = Guard::new(options()).unwrap();
    assert_eq!(guard.inspect(&frame, frame.len()), Ok(()));
    for length in 0..frame.len() {
        assert_eq!(guard.inspect(&frame[..length], frame.len()), Err(Spoofed::Truncated), "{length} bytes");
    }
    let mut message = vec![136, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target("2001:db8::5"));
    let builder = FrameBuilder::new(OWN, OTHER).ip(ip(EUI64), ip("ff02::1"));
    let builder = builder.fragment(1, 0, true).protocol(IpProto::ICMPV6).payload(&message);
    assert_eq!(check(options(), &builder.to_vec().unwrap()), Err(Spoofed::NeighbourMalformed));
}

proptest! {
    /// Compares with a linear search of the prefixes.
    #[test]
    fn address_set_agrees_with_a_linear_search(
        given in prop::collection::vec((any::<bool>(), any::<u128>(), 0..=128u8, 0..3u8), 0..20),
        asked in prop::collection::vec((any::<bool>(), any::<u128>(), any::<prop::sample::Index>()), 1..20),
    ) {
        // Few significant bits, so that prefixes nest.
        let sparse = |bits: u128| bits & 0x1111_0000_0000_0000_0000_0000_0000_0001;
        let net = |(v4, bits, length, twist): &(bool, u128, u8, u8)| match v4 {
            true => IpNet::V4(netvm_wire::Ipv4Net::containing(((sparse(*bits) >> 96) as u32).into(), length % 33).unwrap()),
            false if *twist == 0 => IpNet::V6(Ipv6Net::ALL),
            false => IpNet::V6(Ipv6Net::containing(sparse(*bits).into(), *length).unwrap()),
        };
        let nets: Vec<_> = given.iter().map(net).collect();
        let set = AddressSet::new(&nets);
        for (v4, bits, index) in asked {
            let mut addresses = vec![match v4 {
                true => Address::from_v4_bits((sparse(bits) >> 96) as u32),
                false => Address::from_v6_bits(sparse(bits)),
            }];
            if !nets.is_empty() {
                addresses.push(nets[index.index(nets.len())].network().into());
            }
            for address in addresses {
                prop_assert_eq!(set.contains(address), nets.iter().any(|net| net.contains(address)), "{}", address);
            }
        }
    }

    /// No input panics, and no truncated frame passes if the whole one does not.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        kind in 130..140u8,
        own in any::<bool>(),
        body in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()], 0..80),
        change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        cut in any::<prop::sample::Index>(),
    ) {
        let source = if own { EUI64 } else { "::" };
        let mut frame = Discovery { source, kind, body, options: vec![] }.frame();
        if let Some((at, byte)) = change {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        let guard = Guard::new(options()).unwrap();
        let whole = guard.inspect(&frame, frame.len());
        let length = cut.index(frame.len() + 1);
        let cut = guard.inspect(&frame[..length], frame.len());
        prop_assert!(cut == whole || cut == Err(Spoofed::Truncated), "{:?} of {} bytes, {:?} of all", cut, length, whole);
        let _ = guard.inspect(&frame, length);
    }

    /// Every accepted advertisement claims only the port's own addresses, by a slow second parser.
    #[test]
    fn accepted_advertisements_claim_own_addresses(
        body in prop_oneof![
            Just(target("2001:db8::5")),
            prop::collection::vec(any::<u8>(), 0..24),
        ],
        options in prop::collection::vec((1..4u8, prop_oneof![4 => Just(1u8), 1 => 0..3u8], any::<bool>()), 0..4),
    ) {
        let options: Vec<u8> = options
            .into_iter()
            .flat_map(|(kind, length, own)| [vec![kind, length], if own { OWN } else { OTHER }.octets().to_vec()].concat())
            .collect();
        let result = Discovery { source: EUI64, kind: 136, body: body.clone(), options: options.clone() }.check();
        let all = [body, options].concat();
        let mut expected = all.len() >= 16 && all[..16] == target("2001:db8::5");
        let mut rest = all.get(16..).unwrap_or_default();
        while expected && !rest.is_empty() {
            let length = 8 * usize::from(*rest.get(1).unwrap_or(&0));
            expected = (8..=rest.len()).contains(&length)
                && (rest[0] != 2 || (length == 8 && rest[2..8] == OWN.octets()));
            rest = rest.get(length..).unwrap_or_default();
        }
        prop_assert_eq!(result.is_ok(), expected, "{:?}", result);
    }
}
