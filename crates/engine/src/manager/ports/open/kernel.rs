//! Opens TAP devices, also in containers, and packet sockets.

use std::sync::Arc;

use netvm_config::model::{PortConfig, PortKind};
use netvm_vnet::{ContainerOptions, Offloads, SocketOptions, TapOptions};

use super::{Opened, Site};
use crate::ids::WorkerId;
use crate::manager::ports::{OpenProblem, interface};
use crate::port::Device;
use crate::port::kernel::KernelDevice;
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
    let by = if opened.queues.iter().all(netvm_vnet::Queue::uses_io_uring) { ", io_uring" } else { "" };
    let mut missed = Vec::new();
    let mut device = |(n, queue): (usize, netvm_vnet::Queue)| -> (WorkerId, Box<dyn Device>) {
        missed.extend(queue.drops().map(Missed::Kernel));
        let (worker, memory) = site.queue(n);
        (worker, Box::new(KernelDevice::new(queue, opened.offloads, Arc::clone(memory))))
    };
    let queues = opened.queues.into_iter().enumerate().map(&mut device).collect();
    let offloads = match opened.offloads {
        Offloads { tcp: true, udp: true } => "checksums, TCP and UDP segments",
        Offloads { tcp: true, udp: false } => "checksums, TCP segments",
        Offloads { .. } => "no offloads",
    };
    Ok(Opened { missed, tap, namespace, ..Opened::new(queues, format!("{driver}, {offloads}{by}")) })
}
