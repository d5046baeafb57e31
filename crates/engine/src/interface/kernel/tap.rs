//! TAP devices in netvmd's network namespace: plain ones, and the host's own interface on the switch, which has
//! addresses.

use std::sync::LazyLock;

use netvm_model::HostConfig;
use netvm_vnet::{LinkEvent, ManagedInterface, Watch, host, tap};

use super::device::SentOffloads;
use super::{accepts, addressing, devices, tap_options};
use crate::interface::control::{
    Control, InterfaceState, InterfaceView, KernelInterface, OpenProblem, Opened, Opening,
};

/// The control side.
struct Tap {
    interface: KernelInterface,
    /// Whether the TAP device still exists, in whatever network namespace.
    watch: Option<Watch>,
    /// Keeps the addresses and routes of the host's own interface.
    managed: Option<ManagedInterface>,
}

impl Tap {
    fn exists(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::exists)
    }
}

impl Control for Tap {
    fn link(&self) -> Option<bool> {
        Some(if self.interface.is_same() { self.interface.has_link() } else { self.exists() })
    }

    fn interface(&self) -> Option<InterfaceView> {
        if self.interface.is_same() {
            return Some(self.interface.view());
        }
        // Somebody has moved it to another namespace, or given it another name.
        let state = if self.exists() { InterfaceState::Same } else { InterfaceState::Gone };
        Some(InterfaceView { name: self.interface.name().to_owned(), state, mtu: None })
    }

    fn restore_addresses(&mut self, links: &[LinkEvent]) {
        super::restore(self.managed.as_mut(), links);
    }

    fn fault(&self) -> Option<String> {
        self.managed.as_ref()?.problem().map(str::to_owned)
    }
}

pub(in crate::interface) fn open(opening: &Opening<'_>, interface: &str) -> Result<Opened, OpenProblem> {
    let opened = tap::open(&tap_options(opening, interface))?;
    Ok(finish(opening, opened, interface, None))
}

pub(in crate::interface) fn open_host(
    opening: &Opening<'_>,
    config: &HostConfig,
) -> Result<Opened, OpenProblem> {
    let options = tap_options(opening, &config.interface);
    let addressing = addressing(&config.addresses, &config.gateways);
    let (opened, managed) = host::open(&options, config.mac_on(machine()).0, &addressing)?;
    Ok(finish(opening, opened, &config.interface, Some(managed)))
}

fn finish(
    opening: &Opening<'_>,
    opened: netvm_vnet::Opened,
    interface: &str,
    managed: Option<ManagedInterface>,
) -> Opened {
    let watch = opened.queues.first().map(netvm_vnet::Queue::watch);
    let sent = SentOffloads::new(accepts(opened.offloads));
    let (queues, driver) = devices(opening, opened, &sent, "TAP");
    Opened::new(queues, driver, Tap { interface: KernelInterface::of(interface), watch, managed })
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
