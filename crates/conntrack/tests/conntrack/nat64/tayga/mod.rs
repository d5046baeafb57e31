//! tayga as the oracle: it translates random packets of both families, errors and fragments among them, and the crate
//! has to make the same of them.

mod daemon;
mod packets;

use std::collections::BTreeMap;

use netvm_conntrack::nat64::{Counterpart, Ends, Prefix};
use netvm_wire::{Address, IpProto};

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

fn explore(prefix: &str) {
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
    let mut different: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..PACKETS {
        let Sample { packet, features } = generator.sample();
        let ours = addresses.translate(&packet);
        let theirs = tayga.translate(&packet, marker);
        let same = match (&ours, &theirs[..]) {
            (None, []) => true,
            (Some(ours), [theirs]) => normal(ours) == normal(theirs),
            _ => false,
        };
        if !same {
            let what = match (&ours, &theirs[..]) {
                (None, _) => "we drop",
                (_, []) => "they drop",
                (_, [_]) => "differ",
                _ => "many",
            };
            let case = format!("v{} {what} {features:?}", packet[0] >> 4);
            different.entry(case).or_default().push(format!(
                "{packet:02x?}\n  {:02x?}\n {:02x?}",
                ours.map(|it| normal(&it)),
                theirs.iter().map(|it| normal(it)).collect::<Vec<_>>()
            ));
        }
    }
    for (case, all) in &different {
        println!("{case}: {} times, first\n  {}", all.len(), all[0]);
    }
    assert!(different.is_empty());
}

fn normal(packet: &[u8]) -> Vec<u8> {
    packet.to_vec()
}

#[test]
fn tayga_makes_the_same_of_packets() {
    explore(PREFIXES[0]);
}
