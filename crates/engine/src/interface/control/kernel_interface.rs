// SPDX-License-Identifier: Apache-2.0
//! The network interfaces of ports, as sysfs shows them (`Documentation/ABI/testing/sysfs-class-net`).

use std::fs;
use std::path::Path;
use std::str::FromStr;

use netvm_model::{KindInfo, Resource};

/// The interface of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceView {
    /// Its name.
    pub name: String,
    /// Whether it still is the interface on which the port was opened.
    pub state: InterfaceState,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
}

/// Whether the interface of a port still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// It exists.
    Same,
    /// It is gone.
    Gone,
    /// Another interface has its name.
    Replaced,
}

/// The interface of a port that is open, in netvmd's network namespace.
#[derive(Debug)]
pub(crate) struct KernelInterface {
    name: String,
    /// Its index when the port was opened. The kernel does not reuse indexes.
    index: Option<u32>,
    /// Packets that it had not sent before.
    refused_before: u64,
}

impl KernelInterface {
    /// The interface that has this name now.
    pub(crate) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), index: number(name, "ifindex"), refused_before: refused(name) }
    }

    /// Whether it still has its name in this namespace.
    pub(crate) fn is_same(&self) -> bool {
        self.index == number(&self.name, "ifindex")
    }

    /// Whether it is the same, up, and has a carrier.
    pub(crate) fn has_link(&self) -> bool {
        // The file cannot be read while the interface is down.
        self.is_same() && number(&self.name, "carrier") == Some(1u8)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn view(&self) -> InterfaceView {
        view(&self.name, self.index)
    }

    /// Packets that it or its driver did not send, of all senders, since the port was opened.
    pub(crate) fn refused(&self) -> u64 {
        if self.is_same() { refused(&self.name).saturating_sub(self.refused_before) } else { 0 }
    }
}

/// The interface of a port of this kind that is closed.
pub(crate) fn closed_interface(kind: KindInfo<'_>) -> Option<InterfaceView> {
    if let Some(container) = kind.container() {
        let (name, state) = (container.name_with_namespace(), InterfaceState::Gone);
        return Some(InterfaceView { name, state, mtu: None });
    }
    kind.interface().map(|name| view(name, None))
}

/// The NUMA node of the hardware device behind a port, if Linux knows it.
pub(crate) fn device_node(kind: KindInfo<'_>) -> Option<u32> {
    kind.resources().find_map(|resource| match resource {
        Resource::PciDevice(address) => {
            let device = dpdk::Device::Pci { address: address.parse().ok()?, arguments: String::new() };
            device.numa_node().map(|node| node.0)
        }
        // -1: none.
        Resource::Interface(name, _) | Resource::Tap(name) => number(name, "device/numa_node"),
        _ => None,
    })
}

/// Whether a hardware device is behind an interface.
pub(crate) fn has_device(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).join("device").exists()
}

/// The MTU of an interface in bytes.
pub(crate) fn mtu(name: &str) -> Option<u32> {
    number(name, "mtu")
}

fn refused(name: &str) -> u64 {
    let count = |file| number::<u64>(name, file).unwrap_or(0);
    count("statistics/tx_dropped").saturating_add(count("statistics/tx_errors"))
}

/// What has a name now, beside the index of the interface that had it when the port was opened.
fn view(name: &str, opened: Option<u32>) -> InterfaceView {
    let state = match (number::<u32>(name, "ifindex"), opened) {
        (None, _) => InterfaceState::Gone,
        (now, then) if now == then => InterfaceState::Same,
        _ => InterfaceState::Replaced,
    };
    InterfaceView { name: name.to_owned(), state, mtu: mtu(name) }
}

fn number<T: FromStr>(name: &str, file: &str) -> Option<T> {
    fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?.trim().parse().ok()
}
