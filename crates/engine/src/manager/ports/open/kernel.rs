//! Opens TAP devices, also in containers, and packet sockets.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use dpdk::Accepts;
use netvm_model::{InterfaceAddress, PortConfig, PortKind};
use netvm_vnet::{Addressing, ContainerOptions, Features, Offloads, SocketOptions, TapOptions};

use super::{Opened, Site};
use crate::ids::WorkerId;
use crate::interface::Device;
use crate::interface::kernel::{KernelDevice, SentOffloads};
use crate::interface::missed::Missed;
use crate::manager::ports::OpenProblem;

pub(super) fn open(config: &PortConfig, site: &Site) -> Result<Opened, OpenProblem> {
    let queues = config.queues.max(1);
    let device = |interface: &String| {
        let mtu = Some(config.mtu);
        TapOptions { interface: interface.clone(), queues, mtu, offloads: true }
    };
    let addressing = |addresses: &[InterfaceAddress], gateways: &[IpAddr]| Addressing {
        addresses: addresses.iter().map(|a| (a.address, a.length)).collect(),
        gateways: gateways.to_owned(),
    };
    let mut managed = None;
    let (opened, driver) = match &config.kind {
        PortKind::Tap { interface } => (netvm_vnet::tap::open(&device(interface))?, "TAP"),
        PortKind::Container(container) => {
            let options = ContainerOptions {
                tap: device(&container.interface),
                namespace: container.namespace_file(),
                mac: container.own_mac().0,
                addressing: addressing(&container.addresses, &container.gateways),
            };
            let (opened, kept) = netvm_vnet::container::open(&options)?;
            managed = Some(kept);
            (opened, "TAP")
        }
        PortKind::Host(host) => {
            let options = (device(&host.interface), host.mac_on(machine()).0);
            let addressing = addressing(&host.addresses, &host.gateways);
            let (opened, kept) = netvm_vnet::host::open(&options.0, options.1, &addressing)?;
            managed = Some(kept);
            (opened, "TAP")
        }
        kind => {
            let interface = kind.info().interface().unwrap_or_default().to_owned();
            (netvm_vnet::packet_socket::open(&SocketOptions { interface, queues })?, "packet socket")
        }
    };
    let is_tap = matches!(config.kind, PortKind::Tap { .. } | PortKind::Container(_) | PortKind::Host(_));
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
    Ok(Opened { missed, tap, managed, sent, ..opened })
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

/// What no other machine has, for MAC addresses: its id (machine-id(5)), or else its name.
fn machine() -> &'static str {
    static MACHINE: LazyLock<String> = LazyLock::new(|| {
        let read = |file| std::fs::read_to_string(file).ok().filter(|text| !text.trim().is_empty());
        let id = read("/etc/machine-id").or_else(|| read("/proc/sys/kernel/hostname"));
        id.unwrap_or_default().trim().to_owned()
    });
    &MACHINE
}
