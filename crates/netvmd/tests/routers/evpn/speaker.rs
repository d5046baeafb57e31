// SPDX-License-Identifier: Apache-2.0
//! A BGP speaker that announces EVPN routes as fast as its peer takes them. gobgp's command line adds one route in a
//! process each (100,000 take half an hour), and exabgp's process API has no EVPN; so it writes the messages itself
//! (RFC 4271, RFC 4760, RFC 7432, RFC 8365, RFC 9136).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use netvm_wire::MacAddr;

const AS: u16 = 65000;
/// L2VPN, EVPN.
const FAMILY: [u8; 4] = [0, 25, 0, 70];
const UPDATE: u8 = 2;
const KEEPALIVE: u8 = 4;
/// Routes of a message, which has at most 4096 bytes.
const ROUTES: usize = 90;

/// A session.
pub struct Speaker {
    stream: TcpStream,
    own: Ipv4Addr,
}

/// Whose routes they are.
#[derive(Clone, Copy)]
pub struct Behind {
    /// The VTEP.
    pub vtep: Ipv4Addr,
    /// The network.
    pub vni: u32,
    /// How often hosts have moved.
    pub moves: u32,
    /// The router's MAC address, of prefixes.
    pub router: Option<MacAddr>,
}

impl Speaker {
    /// Waits for the peer at this address of the calling thread's namespace.
    pub fn accept(own: Ipv4Addr) -> Self {
        let listener = TcpListener::bind((own, 179)).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut speaker = Self { stream, own };
        let [high, low] = AS.to_be_bytes();
        let family = [&[2u8, 6, 1, 4][..], &FAMILY].concat();
        let wide = [2, 6, 65, 4, 0, 0, high, low];
        // Version 4, and no hold time.
        let mut open = vec![4, high, low, 0, 0];
        open.extend(own.octets());
        open.push((family.len() + wide.len()) as u8);
        open.extend(family);
        open.extend(wide);
        speaker.send(1, &open);
        speaker.send(KEEPALIVE, &[]);
        while speaker.receive() != KEEPALIVE {}
        // What the peer announces is not read by anybody, but must not fill its socket.
        let mut unread = speaker.stream.try_clone().unwrap();
        std::thread::spawn(move || std::io::copy(&mut unread, &mut std::io::sink()));
        speaker
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        let length = u16::try_from(19 + body.len()).unwrap();
        assert!(length <= 4096);
        let mut message = vec![0xff; 16];
        message.extend(length.to_be_bytes());
        message.push(kind);
        message.extend(body);
        self.stream.write_all(&message).unwrap();
    }

    /// The type of the next message.
    fn receive(&mut self) -> u8 {
        let mut head = [0; 19];
        self.stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[16], head[17]])) - 19];
        self.stream.read_exact(&mut body).unwrap();
        assert_ne!(head[18], 3, "a notification: {body:?}");
        head[18]
    }

    /// Announces hosts: MAC and IP address of each (type 2).
    pub fn hosts(&mut self, behind: Behind, hosts: &[(MacAddr, Ipv4Addr)]) {
        let route = |(mac, ip): &(MacAddr, Ipv4Addr)| {
            let mut route = vec![2, 37];
            route.extend(self.distinguisher());
            route.extend([0; 14]);
            route.push(48);
            route.extend(mac.0);
            route.push(32);
            route.extend(ip.octets());
            route.extend(&behind.vni.to_be_bytes()[1..]);
            route
        };
        let routes: Vec<_> = hosts.iter().map(route).collect();
        self.announce(behind, &routes);
    }

    /// Announces prefixes of 24 bits (type 5).
    pub fn prefixes(&mut self, behind: Behind, prefixes: &[Ipv4Addr]) {
        let route = |prefix: &Ipv4Addr| {
            let mut route = vec![5, 34];
            route.extend(self.distinguisher());
            route.extend([0; 14]);
            route.push(24);
            route.extend(prefix.octets());
            route.extend([0; 4]);
            route.extend(&behind.vni.to_be_bytes()[1..]);
            route
        };
        let routes: Vec<_> = prefixes.iter().map(route).collect();
        self.announce(behind, &routes);
    }

    fn distinguisher(&self) -> [u8; 8] {
        let [a, b, c, d] = self.own.octets();
        [0, 1, a, b, c, d, 0, 2]
    }

    fn announce(&mut self, behind: Behind, routes: &[Vec<u8>]) {
        for routes in routes.chunks(ROUTES) {
            let update = update(behind, &routes.concat());
            self.send(UPDATE, &update);
        }
    }
}

/// The body of an update.
fn update(behind: Behind, routes: &[u8]) -> Vec<u8> {
    let [high, low] = AS.to_be_bytes();
    // The route target, and VXLAN as the encapsulation.
    let mut communities = vec![0, 2, high, low];
    communities.extend(behind.vni.to_be_bytes());
    communities.extend([3, 0x0c, 0, 0, 0, 0, 0, 8]);
    if behind.moves > 0 {
        communities.extend([6, 0, 0, 0]);
        communities.extend(behind.moves.to_be_bytes());
    }
    if let Some(mac) = behind.router {
        communities.extend([6, 3]);
        communities.extend(mac.0);
    }
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 5, 4, 0, 0, 0, 100];
    attributes.extend([0xc0, 16, communities.len() as u8]);
    attributes.extend(communities);
    let mut reach = FAMILY[..2].to_vec();
    reach.extend([FAMILY[3], 4]);
    reach.extend(behind.vtep.octets());
    reach.push(0);
    reach.extend(routes);
    attributes.extend([0x90, 14]);
    attributes.extend((reach.len() as u16).to_be_bytes());
    attributes.extend(reach);
    let mut body = vec![0, 0];
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body
}
