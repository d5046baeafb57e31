// SPDX-License-Identifier: Apache-2.0
//! Existing interfaces, by packet sockets.

use dpdk::Accepts;
use netvm_vnet::{Drops, Features, Offloads, SocketOptions, packet_socket};

use super::device::SentOffloads;
use super::{devices, words};
use crate::interface::control::{Control, InterfaceView, KernelInterface, OpenProblem, Opened, Opening};

const DRIVER: &str = "packet socket";

/// The control side.
struct PacketSocket {
    interface: KernelInterface,
    /// Packets for which the kernel memory of each socket had no room.
    drops: Vec<Drops>,
    /// Offloads that the kernel passes on.
    passed: Offloads,
    /// What the interface takes of these.
    sent: SentOffloads,
}

impl Control for PacketSocket {
    fn link(&self) -> Option<bool> {
        Some(self.interface.has_link())
    }

    fn interface(&self) -> Option<InterfaceView> {
        Some(self.interface.view())
    }

    fn follow_interface(&mut self, _interface: &InterfaceView) -> Option<String> {
        let accepts = accepts(self.passed, self.interface.name());
        self.sent.set(accepts).then(|| format!("{DRIVER}, {}", words(accepts)))
    }

    fn missed(&self) -> u64 {
        self.drops.iter().map(Drops::get).sum()
    }

    fn refused(&self) -> u64 {
        self.interface.refused()
    }
}

pub(in crate::interface) fn open(opening: &Opening<'_>, interface: &str) -> Result<Opened, OpenProblem> {
    let options = SocketOptions { interface: interface.to_owned(), queues: opening.queues() };
    let opened = packet_socket::open(&options)?;
    let passed = opened.offloads;
    let sent = SentOffloads::new(accepts(passed, interface));
    let drops = opened.queues.iter().filter_map(netvm_vnet::Queue::drops).collect();
    let (queues, driver) = devices(opening, opened, &sent, DRIVER);
    let interface = KernelInterface::of(interface);
    Ok(Opened::new(queues, driver, PacketSocket { interface, drops, passed, sent }))
}

/// Offloads that packets may leave to an interface: those that the kernel passes on and the interface has.
fn accepts(passed: Offloads, interface: &str) -> Accepts {
    let Features { checksum, tso4, tso6, uso } = Features::of(interface);
    Accepts {
        checksum: checksum && passed.tcp,
        tso4: tso4 && passed.tcp,
        tso6: tso6 && passed.tcp,
        uso: uso && passed.udp,
    }
}
