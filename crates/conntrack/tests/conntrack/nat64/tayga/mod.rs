// SPDX-License-Identifier: Apache-2.0
//! tayga as the oracle: it translates random packets of both families, errors and fragments among them, and the crate
//! has to make the same of them.

mod daemon;
mod packets;

use std::collections::BTreeMap;

use netvm_conntrack::nat64::{Counterpart, Ends, Prefix};
use netvm_wire::Address;

use self::daemon::Tayga;
use self::packets::{Feature, Generator, Places, Sample, frame_of, is_sound};
use super::{HOST, HOST_OUTSIDE, SERVER, address, apply};
use crate::rig::between;

/// Packets of a test.
const PACKETS: u32 = 6000;

const TAYGA: &str = "192.0.2.254";
const ROUTER: &str = "198.51.100.99";
const ROUTER_INSIDE: &str = "2001:db8:9::9";
const PREFIXES: [&str; 2] = ["2001:db8:64::/96", "2001:db8:6464::/48"];

/// The addresses of a translator without state.
struct Addresses {
    prefix: Prefix,
}

impl Addresses {
    fn other(&self, old: Address) -> Address {
        let pair = [address(HOST), address(HOST_OUTSIDE)];
        if let Some(at) = pair.iter().position(|end| *end == old) {
            return pair[1 - at];
        }
        let new = if old.is_v4() { self.prefix.embed(old) } else { self.prefix.extract(old) };
        // An error of a router without an address of its own.
        new.unwrap_or(address(TAYGA))
    }

    fn ends(&self, packet: &[u8]) -> Option<Ends> {
        let [source, destination] = if packet.first()? >> 4 == 4 {
            [12, 16].map(|at| Some(Address::from_v4_octets(*packet.get(at..)?.first_chunk()?)))
        } else {
            [8, 24].map(|at| Some(Address::from_v6_octets(*packet.get(at..)?.first_chunk()?)))
        };
        Some(Ends { source: self.other(source?), destination: self.other(destination?), ports: None })
    }

    /// What the crate makes of a packet.
    fn translate(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let ends = self.ends(packet)?;
        let header = if packet[0] >> 4 == 4 { usize::from(packet[0] & 15) * 4 } else { 40 };
        let extension = if packet[0] >> 4 == 6 && [0, 43, 60].contains(&packet[6]) { 8 } else { 0 };
        let about = packet.get(header + extension + 8..).and_then(|about| self.ends(about));
        let to = Counterpart { ends, about: about.unwrap_or(ends), identification: 0 };
        apply(&frame_of(packet), &to).ok().map(|frame| frame[14..].to_vec())
    }
}

/// What becomes of a packet here and there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Same,
    OnlyHere,
    OnlyThere,
    Different,
}

/// On what the crate and tayga do not agree, and why.
const DIFFERENCES: [(Feature, Outcome, &str); 13] = [
    (Feature::SourceRoute, Outcome::OnlyThere, "tayga does not look at options (RFC 7915 section 4.1)"),
    (Feature::SegmentsLeft, Outcome::OnlyThere, "tayga does not look at routing headers (section 5.1)"),
    (Feature::NoChecksum, Outcome::OnlyHere, "tayga translates no UDP without a checksum"),
    (Feature::AboutOtherIcmp, Outcome::OnlyHere, "tayga translates errors about echo requests, not replies"),
    (Feature::AboutCut, Outcome::OnlyHere, "tayga wants all of the TCP header of the packet in an error"),
    (Feature::AboutFragment, Outcome::OnlyHere, "tayga takes data of a later fragment for a header"),
    (
        Feature::AboutFragment,
        Outcome::Different,
        "tayga writes no fragment header and keeps its room in the MTU",
    ),
    (
        Feature::AboutSegmentsLeft,
        Outcome::OnlyThere,
        "a packet in an error with segments left was not translated",
    ),
    (Feature::Extensions, Outcome::OnlyHere, "tayga drops short errors with extensions (RFC 4884)"),
    (Feature::Extensions, Outcome::Different, "tayga cuts extensions (RFC 4884)"),
    (Feature::Pointer, Outcome::OnlyHere, "tayga translates no pointers (sections 4.2, 5.2)"),
    (Feature::AddressUnreachable, Outcome::OnlyHere, "tayga drops the code 3 of section 5.2"),
    (Feature::FromRouter, Outcome::OnlyHere, "tayga lends its address to errors that routers usually send"),
];

/// A packet without what neither side has to choose in the same way: the hop limit, which tayga decrements; whether an
/// IPv4 packet may be fragmented, which depends on what tayga saw before; and its identification.
fn comparable(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 6 {
        packet[7] = 0;
        return packet;
    }
    let header = usize::from(packet[0] & 15) * 4;
    clear_header(&mut packet);
    packet[8] = 0;
    if packet[9] == 1 && [3, 11, 12].contains(&packet[header]) {
        packet[header + 2..header + 4].fill(0);
        if let Some(about) = packet.get_mut(header + 8..).filter(|about| about.len() >= 20) {
            clear_header(about);
        }
    }
    packet
}

fn clear_header(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let is_fragment = ip[6] & 0x3f != 0 || ip[7] != 0;
    if !is_fragment {
        ip[4..8].fill(0);
    }
}

/// Plays packets to both.
fn compare(prefix: &str) {
    let addresses = Addresses { prefix: Prefix::new(prefix.parse().unwrap()).unwrap() };
    let configuration =
        format!("ipv4-addr {TAYGA}\nipv6-addr 2001:db8:ff::1\nprefix {prefix}\nmap {HOST_OUTSIDE} {HOST}\n");
    let Some(mut tayga) = Tayga::new(&configuration) else { return };
    let inside = |text| addresses.prefix.embed(address(text)).unwrap();
    let places = Places {
        to_v6: [[address(SERVER), address(HOST_OUTSIDE)], [address(ROUTER), address(HOST_OUTSIDE)]],
        to_v4: [[address(HOST), inside(SERVER)], [address(ROUTER_INSIDE), inside(SERVER)]],
    };
    let marker = |number: u32| {
        let frame = between(SERVER, HOST_OUTSIDE).udp(9, 9).payload(&number.to_be_bytes()).to_vec().unwrap();
        frame[14..].to_vec()
    };
    let mut generator = Generator::new(64, &places);
    let (mut same, mut different) = (0, BTreeMap::<String, Vec<String>>::new());
    for _ in 0..PACKETS {
        let Sample { packet, features } = generator.sample();
        let ours = addresses.translate(&packet);
        let theirs = tayga.translate(&packet, marker);
        assert!(ours.as_ref().is_none_or(|ours| is_sound(ours)), "{packet:02x?} {ours:02x?}");
        let outcome = match (&ours, &theirs[..]) {
            (None, []) => Outcome::Same,
            (Some(_), []) => Outcome::OnlyHere,
            (None, _) => Outcome::OnlyThere,
            (Some(ours), [theirs]) if comparable(ours) == comparable(theirs) => {
                same += 1;
                Outcome::Same
            }
            _ => Outcome::Different,
        };
        let is_known =
            |(feature, of, _): &(Feature, Outcome, &str)| *of == outcome && features.contains(feature);
        if outcome != Outcome::Same && !DIFFERENCES.iter().any(is_known) {
            let hex = |packet: &[u8]| packet.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let ours = ours.map(|packet| hex(&comparable(&packet)));
            let theirs: Vec<_> = theirs.iter().map(|packet| hex(&comparable(packet))).collect();
            let case = format!("{outcome:?} {features:?}");
            different.entry(case).or_default().push(format!("{}\n  {ours:?}\n  {theirs:?}", hex(&packet)));
        }
    }
    for (case, all) in &different {
        println!("{case}: {} times, first\n  {}", all.len(), all[0]);
    }
    assert!(different.is_empty());
    assert!(same > PACKETS / 2, "{same} packets of {PACKETS} were translated by both");
}

#[test]
fn tayga_makes_the_same_of_packets() {
    compare(PREFIXES[0]);
}

#[test]
fn tayga_makes_the_same_of_packets_with_a_short_prefix() {
    compare(PREFIXES[1]);
}
