//! Opens TAP devices, also in containers, and packet sockets.

use std::sync::Arc;

use dpdk::Accepts;
use netvm_config::model::{PortConfig, PortKind};
use netvm_vnet::{ContainerOptions, Features, Offloads, SocketOptions, TapOptions};

use super::{Opened, Site};
use crate::ids::WorkerId;
use crate::manager::ports::{OpenProblem, interface};
use crate::port::Device;
use crate::port::kernel::{KernelDevice, SentOffloads};
use crate::port::missed::Missed;

pub(super) fn open(config: &PortConfig, site: &Site) -> Result<Opened, OpenProblem> {
    let queues = config.queues.max(1);
    let device = |interface: &String| {
        let mtu = Some(config.mtu);
        TapOptions { interface: interface.clone(), queues, mtu, offloads: true }
    };
    let mut namespace = None;
    let (opened, driver) = match &config.kind {
        PortKind::Tap { interface } => (netvm_vnet::tap::open(&device(interface))?, "TAP"),
        PortKind::Container(container) => {
            let options = ContainerOptions {
                tap: device(&container.interface),
                namespace: container.namespace_file(),
                mac: container.own_mac().0,
                addresses: container.addresses.iter().map(|a| (a.address, a.length)).collect(),
                gateways: container.gateways.clone(),
            };
            let (opened, within) = netvm_vnet::container::open(&options)?;
            namespace = Some(within);
            (opened, "TAP")
        }
        kind => {
            let interface = interface::of(kind).unwrap_or_default().to_owned();
            (netvm_vnet::packet_socket::open(&SocketOptions { interface, queues })?, "packet socket")
        }
    };
    let is_tap = matches!(config.kind, PortKind::Tap { .. } | PortKind::Container(_));
    let tap = opened.queues.first().filter(|_| is_tap).map(netvm_vnet::Queue::watch);
    let sent = SentOffloads::new(accepts(opened.offloads, config));
    let by = if opened.queues.iter().all(netvm_vnet::Queue::uses_io_uring) { ", io_uring" } else { "" };
    let mut missed = Vec::new();
    let mut device = |(n, queue): (usize, netvm_vnet::Queue)| -> (WorkerId, Box<dyn Device>) {
        missed.extend(queue.drops().map(Missed::Kernel));
        let (worker, memory) = site.queue(n);
        let device = KernelDevice::new(queue, (opened.offloads, sent.clone()), Arc::clone(memory));
        (worker, Box::new(device))
    };
    let queues = opened.queues.into_iter().enumerate().map(&mut device).collect();
    let offloads = words(accepts(opened.offloads, config));
    let sent = (!is_tap).then_some((opened.offloads, sent));
    let opened = Opened::new(queues, format!("{driver}, {offloads}{by}"));
    Ok(Opened { missed, tap, namespace, sent, ..opened })
}

/// Offloads that packets may leave to a port: those that the kernel passes on and, for packet sockets, that its interface has.
pub(crate) fn accepts(passed: Offloads, config: &PortConfig) -> Accepts {
    let PortKind::AfPacket { interface } = &config.kind else {
        let Offloads { tcp, udp } = passed;
        return Accepts { checksum: tcp, tso4: tcp, tso6: tcp, uso: udp };
    };
    let Features { checksum, tso4, tso6, uso } = Features::of(interface);
    Accepts {
        checksum: checksum && passed.tcp,
        tso4: tso4 && passed.tcp,
        tso6: tso6 && passed.tcp,
        uso: uso && passed.udp,
    }
}

/// Offloads in a port's driver.
pub(crate) const fn words(accepts: Accepts) -> &'static str {
    match accepts {
        Accepts { checksum: true, tso4: true, tso6: true, uso: true } => "checksums, TCP and UDP segments",
        Accepts { checksum: true, tso4: true, tso6: true, uso: false } => "checksums, TCP segments",
        Accepts { checksum: true, tso4: false, tso6: false, uso: false } => "checksums",
        Accepts { checksum: true, .. } => "checksums, some segments",
        Accepts { checksum: false, .. } => "no offloads",
    }
}
