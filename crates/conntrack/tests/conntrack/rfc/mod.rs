// SPDX-License-Identifier: Apache-2.0
//! The requirements of RFC 4787, 5382, 5508, 6888 and 7857, as far as the table of connections meets them. Each test
//! has the number of its requirement; docs/reference/nat-requirements.md lists all of them.

mod page;
mod rfc4787;
mod rfc5382;
mod rfc5508;
mod rfc6888;
mod rfc7857;

use netvm_conntrack::{Config, Filtering, Packet, Pool, Target, Timeouts, Translation};
use netvm_wire::{ConnState, TcpFlags, parse};

use crate::nat::{OUTSIDE, REMOTE, masquerade, rig, source_of};
use crate::rig::{Rig, between};

/// Another remote host.
const OTHER_REMOTE: &str = "198.51.100.8";

fn from(sources: &[Pool]) -> Translation<'_> {
    Translation { sources, destination: None }
}

/// All ports of the address outside, to which everybody may send.
fn open_masquerade() -> [Pool; 1] {
    masquerade().map(|pool| Pool { filtering: Filtering::EndpointIndependent, ..pool })
}

/// The same, to those who have been sent to.
fn masquerade_by_address() -> [Pool; 1] {
    masquerade().map(|pool| Pool { filtering: Filtering::AddressDependent, ..pool })
}

fn with_timeouts(timeouts: Timeouts) -> Rig {
    let mapping_key = Some(1);
    Rig::new(&Config { sessions: 4096, mappings: 4096, mapping_key, timeouts, ..Config::default() })
}

fn segment(from: &str, to: &str, ports: [u16; 2], flags: TcpFlags) -> Vec<u8> {
    let acknowledgment = if flags.contains(TcpFlags::ACK) { 1 } else { 0 };
    let sequence = if flags.contains(TcpFlags::SYN) { 0 } else { 1 };
    let tcp = between(from, to).tcp(ports[0], ports[1], flags).numbers(sequence, acknowledgment);
    tcp.to_vec().unwrap()
}

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;

fn syn_ack() -> TcpFlags {
    SYN | ACK
}

impl Rig {
    /// Where a packet leads that begins a connection.
    pub fn target(&self, frame: &[u8], from_inside: bool) -> Option<Target> {
        let key = *parse(frame).unwrap().key();
        let packet = Packet { key: &key, zone: self.zone, front: frame, length: frame.len() };
        self.table.targets().of(&packet, from_inside)
    }

    /// Passes a packet from outside, as far as filtering permits.
    fn inwards(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let tracked = self.look(frame);
        match (tracked.connection, tracked.state) {
            (Some(_), _) => self.known(frame),
            (None, ConnState::New) => {
                let destination = Some(self.target(frame, false)?);
                self.through(frame, Translation { sources: &[], destination })
            }
            _ => None,
        }
    }

    /// Passes a packet from inside to an end outside that stands for another end inside.
    fn hairpin(&mut self, frame: &[u8], sources: &[Pool]) -> Option<Vec<u8>> {
        let destination = self.target(frame, true);
        self.through(frame, Translation { sources, destination })
    }

    fn expire(&mut self) {
        while self.table.expire(self.now, 4096) > 0 {}
    }
}

/// The port outside of an end inside, after a packet to the remote host.
fn port_outside(rig: &mut Rig, frame: &[u8]) -> u16 {
    let out = rig.through(frame, from(&masquerade())).unwrap();
    let (source, port) = source_of(&out);
    assert_eq!(source, crate::nat::address(OUTSIDE));
    port
}

fn plain() -> Rig {
    rig()
}

fn udp_to_remote(from: &str, port: u16) -> Vec<u8> {
    crate::nat::udp_frame(from, REMOTE, [port, 53])
}
