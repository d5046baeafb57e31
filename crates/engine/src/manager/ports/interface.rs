//! The network interfaces of ports, as sysfs shows them (`Documentation/ABI/testing/sysfs-class-net`).

use std::fs;
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

/// The index of an interface, which the kernel does not reuse.
pub(super) fn index(name: &str) -> Option<u32> {
    number(name, "ifindex")
}

/// Whether a hardware device is behind an interface.
pub(super) fn has_device(name: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(name).join("device").exists()
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

/// Whether an interface is up and has a carrier.
pub(super) fn has_carrier(name: &str) -> bool {
    // The file cannot be read while the interface is down.
    number(name, "carrier") == Some(1u8)
}

/// Its MTU in bytes.
pub(super) fn mtu(name: &str) -> Option<u32> {
    number(name, "mtu")
}

/// Packets that the interface or its driver did not send, of all senders.
pub(super) fn refused(name: &str) -> u64 {
    let count = |file| number::<u64>(name, file).unwrap_or(0);
    count("statistics/tx_dropped").saturating_add(count("statistics/tx_errors"))
}

pub(super) fn view(name: &str, opened: Option<u32>) -> InterfaceView {
    let state = match (index(name), opened) {
        (None, _) => InterfaceState::Gone,
        (now, then) if now == then => InterfaceState::Same,
        _ => InterfaceState::Replaced,
    };
    InterfaceView { name: name.to_owned(), state, mtu: mtu(name) }
}

fn number<T: FromStr>(name: &str, file: &str) -> Option<T> {
    fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?.trim().parse().ok()
}
