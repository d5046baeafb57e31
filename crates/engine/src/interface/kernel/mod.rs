// SPDX-License-Identifier: Apache-2.0
//! Kernel interfaces that exchange offloads with the port: TAP devices, also in containers, and packet sockets.

mod container;
mod device;
mod fast;
mod packet_socket;
mod tap;

use std::net::IpAddr;
use std::sync::Arc;

use dpdk::Accepts;
use netvm_model::InterfaceAddress;
use netvm_vnet::{Addressing, LinkEvent, ManagedInterface, Offloads, TapOptions};

use super::control::{Opening, Queues};
pub(super) use container::open as open_container;
use device::{KernelDevice, SentOffloads};
pub(super) use packet_socket::open as open_packet_socket;
pub(super) use tap::{open as open_tap, open_host};

/// A TAP device as configured.
fn tap_options(opening: &Opening<'_>, interface: &str) -> TapOptions {
    let (interface, queues) = (interface.to_owned(), opening.queues());
    TapOptions { interface, queues, mtu: Some(opening.config.mtu), offloads: true }
}

fn addressing(addresses: &[InterfaceAddress], gateways: &[IpAddr]) -> Addressing {
    Addressing {
        addresses: addresses.iter().map(|a| (a.address, a.length)).collect(),
        gateways: gateways.to_owned(),
    }
}

/// Gives an interface its addresses and routes again, if it came up.
fn restore(managed: Option<&mut ManagedInterface>, links: &[LinkEvent]) {
    let Some(managed) = managed else { return };
    if links.iter().any(|link| link.is_up && managed.is(link.namespace, link.index)) {
        managed.restore();
    }
}

/// What packets may leave to an interface that takes every offload of the kernel.
const fn accepts(offloads: Offloads) -> Accepts {
    let Offloads { tcp, udp } = offloads;
    Accepts { checksum: tcp, tso4: tcp, tso6: tcp, uso: udp }
}

/// The devices of an open interface, and its driver.
fn devices(
    opening: &Opening<'_>,
    opened: netvm_vnet::Opened,
    sent: &SentOffloads,
    driver: &str,
) -> (Queues, String) {
    let offloads = words(sent.get());
    let by = if opened.queues.iter().all(netvm_vnet::Queue::uses_io_uring) { ", io_uring" } else { "" };
    let mut queues = Queues::new();
    for (n, queue) in opened.queues.into_iter().enumerate() {
        let (worker, memory) = opening.queue(n);
        let device = KernelDevice::new(queue, opened.offloads, sent.clone(), Arc::clone(memory));
        queues.push((worker, Box::new(device)));
    }
    (queues, format!("{driver}, {offloads}{by}"))
}

/// Offloads in a port's driver.
const fn words(accepts: Accepts) -> &'static str {
    match accepts {
        Accepts { checksum: true, tso4: true, tso6: true, uso: true } => "checksums, TCP and UDP segments",
        Accepts { checksum: true, tso4: true, tso6: true, uso: false } => "checksums, TCP segments",
        Accepts { checksum: true, tso4: false, tso6: false, uso: false } => "checksums",
        Accepts { checksum: true, .. } => "checksums, some segments",
        Accepts { checksum: false, .. } => "no offloads",
    }
}
