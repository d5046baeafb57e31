// SPDX-License-Identifier: Apache-2.0
//! TAP devices in netvmd's network namespace: plain ones, and the host's own interface on the switch, which has
//! addresses.

use std::sync::Arc;

use netvm_model::{HostConfig, machine};
use netvm_vnet::{LinkEvent, ManagedInterface, Watch, host, pair, tap};

use super::device::SentOffloads;
use super::fast::{Managed, follow};
use super::{accepts, addressing, devices, tap_options};
use crate::interface::control::{
    Control, InterfaceState, InterfaceView, KernelInterface, OpenProblem, Opened, Opening, PortMode, Queues,
};
use crate::kernel_flows::{FastEnd, FastPort};

/// The control side.
struct Tap {
    interface: KernelInterface,
    /// Whether the TAP device still exists, in whatever network namespace.
    watch: Option<Watch>,
    /// Keeps the addresses and routes of the host's own interface.
    managed: Option<ManagedInterface>,
    fast: Option<FastPort>,
    /// Why it has no fast path, although it is to have one.
    note: Option<String>,
}

impl Tap {
    fn exists(&self) -> bool {
        let has_tap = self.watch.as_ref().is_some_and(Watch::exists);
        has_tap && self.fast.as_ref().is_none_or(FastPort::exists)
    }

    /// Follows what the host does to its interface.
    fn follow(&self) {
        if let Some(managed) = &self.managed {
            follow(self.fast.as_ref(), managed);
        }
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

    fn follow_interface(&mut self, _interface: &InterfaceView) -> Option<String> {
        self.follow();
        None
    }

    fn fast_end(&self) -> Option<FastEnd> {
        self.fast.as_ref().map(FastPort::end)
    }

    fn notes(&self) -> Vec<String> {
        self.note.iter().cloned().collect()
    }

    fn restore_addresses(&mut self, links: &[LinkEvent]) {
        self.follow();
        super::restore(self.managed.as_mut(), links);
    }

    fn fault(&self) -> Option<String> {
        self.managed.as_ref()?.problem().map(str::to_owned)
    }
}

pub(in crate::interface) fn open(opening: &Opening<'_>, interface: &str) -> Result<Opened, OpenProblem> {
    let opened = tap::open(&tap_options(opening, interface))?;
    let watch = opened.queues.first().map(netvm_vnet::Queue::watch);
    let (queues, driver) = queues(opening, opened);
    let interface = KernelInterface::of(interface);
    Ok(Opened::new(queues, driver, Tap { interface, watch, managed: None, fast: None, note: None }))
}

pub(in crate::interface) fn open_host(
    opening: &Opening<'_>,
    config: &HostConfig,
) -> Result<Opened, OpenProblem> {
    let options = tap_options(opening, &config.interface);
    let addressing = addressing(&config.addresses, &config.gateways);
    let mac = config.mac_on(machine()).0;
    let paired = |namespace: &Arc<_>| {
        let (opened, interface, pair) = pair::open_here(&options, mac, &addressing, namespace)?;
        Ok((opened, interface, pair, None))
    };
    let plain = || host::open(&options, mac, &addressing);
    let managed = Managed::open(opening, config.fast_path, paired, plain)?;
    let note = managed.note(config.fast_path);
    let Managed { opened, interface: managed, fast, why_not, .. } = managed;
    let watch = opened.queues.first().map(netvm_vnet::Queue::watch);
    let (queues, mut driver) = queues(opening, opened);
    if let Some(fast) = &fast {
        driver.push_str(fast.text());
    }
    let interface = KernelInterface::of(&config.interface);
    let control = Tap { interface, watch, managed: Some(managed), fast, note };
    control.follow();
    Ok(Opened::new(queues, PortMode::of(driver, why_not), control))
}

fn queues(opening: &Opening<'_>, opened: netvm_vnet::Opened) -> (Queues, String) {
    let sent = SentOffloads::new(accepts(opened.offloads));
    devices(opening, opened, &sent, "TAP")
}
