// SPDX-License-Identifier: Apache-2.0
//! Interfaces in other network namespaces, such as a container's: TAP devices, or ends of veth pairs with a fast path
//! in the kernel.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_model::{ContainerConfig, FastPath};
use netvm_vnet::{ContainerOptions, LinkEvent, ManagedInterface, TapOptions, Watch, container, pair};

use super::device::SentOffloads;
use super::fast::{Managed, follow};
use super::{accepts, addressing, devices, tap_options};
use crate::interface::control::{
    Control, InterfaceState, InterfaceView, OpenProblem, Opened, Opening, PortMode,
};
use crate::kept::{InterfaceStore, Kept};
use crate::kernel_flows::{FastEnd, FastPort};

/// Of flows that the kernel forwards without netvmd, in a port's driver.
const CONTINUES: &str = " (continues without netvmd)";

/// The control side.
struct Container {
    /// Names of interface and namespace.
    name: String,
    /// Whether the TAP device still exists.
    watch: Option<Watch>,
    /// Keeps its addresses and routes.
    managed: ManagedInterface,
    fast: Option<FastPort>,
    /// Why it has no fast path, although it is to have one.
    note: Option<String>,
    kept: Kept,
}

impl Container {
    fn exists(&self) -> bool {
        let has_tap = self.watch.as_ref().is_some_and(Watch::exists);
        has_tap && self.fast.as_ref().is_none_or(FastPort::exists)
    }
}

impl Control for Container {
    fn link(&self) -> Option<bool> {
        let is_up = self.managed.state().is_none_or(|state| state.is_up);
        Some(is_up && self.exists() && !self.managed.is_left())
    }

    fn interface(&self) -> Option<InterfaceView> {
        let state = match self.exists() {
            false => InterfaceState::Gone,
            // The container has ended, and a new namespace has the same name.
            true if self.managed.is_left() => InterfaceState::Replaced,
            true => InterfaceState::Same,
        };
        let mtu = self.managed.state().and_then(|state| state.mtu);
        Some(InterfaceView { name: self.name.clone(), state, mtu })
    }

    fn follow_interface(&mut self, _interface: &InterfaceView) -> Option<String> {
        follow(self.fast.as_ref(), &self.managed);
        None
    }

    fn restore_addresses(&mut self, links: &[LinkEvent]) {
        if links.iter().any(|link| self.managed.is(link.namespace, link.index)) {
            follow(self.fast.as_ref(), &self.managed);
        }
        super::restore(Some(&mut self.managed), links);
    }

    fn fault(&self) -> Option<String> {
        self.managed.problem().map(str::to_owned)
    }

    fn fast_end(&self) -> Option<FastEnd> {
        self.fast.as_ref().map(FastPort::end)
    }

    fn notes(&self) -> Vec<String> {
        self.note.iter().cloned().collect()
    }

    fn keep_again(&mut self, store: &InterfaceStore) {
        self.kept.keep_again(store);
    }

    fn close(mut self: Box<Self>) -> Option<String> {
        self.kept.end();
        None
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if self.kept.is_kept()
            && let Some(fast) = &mut self.fast
        {
            fast.leave();
        }
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
    let record = format!("{options:?}, fast path {:?}, {:?}", config.fast_path, config.on_daemon_loss);
    let continues = opening.config.continues();
    let (mut kept, left) = opening.store.open(config.name_with_namespace(), record, continues);
    let (mut pair_left, mut tap_left) = match left {
        Some(left) if left.links.is_some() => (Some(left), None),
        left => (None, left),
    };
    if config.fast_path != FastPath::Off
        && let Some(left) = tap_left.take()
    {
        // It may have a fast path now.
        left.remove();
    }
    let paired = |namespace: &Arc<_>| {
        if let Some(left) = pair_left.take() {
            let copy = left.queues.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>();
            let adopted = copy.ok().and_then(|queues| pair::adopt(&options, namespace, queues));
            if let Some((opened, interface, pair)) = adopted {
                return Ok((opened, interface, pair, left.links));
            }
            left.remove();
        }
        let (opened, interface, pair) = pair::open(&options, namespace)?;
        Ok((opened, interface, pair, None))
    };
    let mut is_adopted = false;
    let plain = || {
        let adopted = tap_left.take().and_then(|left| container::adopt(&options, left.queues));
        is_adopted = adopted.is_some();
        adopted.map_or_else(|| container::open(&options), Ok)
    };
    let managed = Managed::open(opening, config.fast_path, paired, plain)?;
    let note = managed.note(config.fast_path);
    is_adopted |= managed.is_adopted;
    let Managed { opened, interface: managed, fast, why_not, .. } = managed;
    let watch = opened.queues.first().map(netvm_vnet::Queue::watch);
    let links = fast.as_ref().and_then(FastPort::links);
    kept.keep(&opened.queues, links.as_ref().map_or(&[], |links| links), is_adopted);
    if is_adopted {
        opening.store.note_adopted();
    }
    let sent = SentOffloads::new(accepts(opened.offloads));
    let (queues, mut driver) = devices(opening, opened, &sent, "TAP");
    if let Some(fast) = &fast {
        driver.push_str(fast.text());
        // Filters of clsact cannot be kept.
        driver.push_str(if continues && fast.links().is_some() { CONTINUES } else { "" });
    }
    follow(fast.as_ref(), &managed);
    let control = Container { name: config.name_with_namespace(), watch, managed, fast, note, kept };
    Ok(Opened::new(queues, PortMode::of(driver, why_not), control))
}
