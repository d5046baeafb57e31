//! TAP devices in other network namespaces, such as a container's.

use netvm_model::ContainerConfig;
use netvm_vnet::{ContainerOptions, LinkEvent, ManagedInterface, TapOptions, Watch, container};

use super::device::SentOffloads;
use super::{accepts, addressing, devices, tap_options};
use crate::interface::control::{Control, InterfaceState, InterfaceView, OpenProblem, Opened, Opening};

/// The control side.
struct Container {
    /// Names of interface and namespace.
    name: String,
    /// Whether the TAP device still exists.
    watch: Option<Watch>,
    /// Keeps its addresses and routes.
    managed: ManagedInterface,
}

impl Container {
    fn exists(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::exists)
    }
}

impl Control for Container {
    fn link(&self) -> Option<bool> {
        let is_up = self.managed.state_elsewhere().is_none_or(|(is_up, _)| is_up);
        Some(is_up && self.exists() && !self.managed.is_left())
    }

    fn interface(&self) -> Option<InterfaceView> {
        let state = match self.exists() {
            false => InterfaceState::Gone,
            // The container has ended, and a new namespace has the same name.
            true if self.managed.is_left() => InterfaceState::Replaced,
            true => InterfaceState::Same,
        };
        let mtu = self.managed.state_elsewhere().and_then(|(_, mtu)| mtu);
        Some(InterfaceView { name: self.name.clone(), state, mtu })
    }

    fn restore_addresses(&mut self, links: &[LinkEvent]) {
        super::restore(Some(&mut self.managed), links);
    }

    fn fault(&self) -> Option<String> {
        self.managed.problem().map(str::to_owned)
    }
}

pub(in crate::interface) fn open(
    opening: &Opening<'_>,
    config: &ContainerConfig,
) -> Result<Opened, OpenProblem> {
    let options = ContainerOptions {
        tap: TapOptions { offloads: config.offloads, ..tap_options(opening, &config.interface) },
        namespace: config.namespace_file(),
        mac: config.own_mac().0,
        addressing: addressing(&config.addresses, &config.gateways),
    };
    let (opened, managed) = container::open(&options)?;
    let watch = opened.queues.first().map(netvm_vnet::Queue::watch);
    let sent = SentOffloads::new(accepts(opened.offloads));
    let (queues, driver) = devices(opening, opened, &sent, "TAP");
    let name = config.name_with_namespace();
    Ok(Opened::new(queues, driver, Container { name, watch, managed }))
}
