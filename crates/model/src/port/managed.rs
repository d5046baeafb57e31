// SPDX-License-Identifier: Apache-2.0
//! Interfaces that netvmd creates and gives addresses: those of containers, and the host's own.

use std::net::IpAddr;
use std::path::PathBuf;

use netvm_wire::MacAddr;

use super::keys::{DaemonLoss, FastPath, Key, KeyValue};
use crate::derived::{derived_mac, machine, names_of};
use crate::router::InterfaceAddress;

/// The interface of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerConfig {
    /// The network namespace: a name of `ip netns`, the path of its file, or the ID of a process in it.
    pub namespace: String,
    /// Name of the interface there.
    pub interface: String,
    /// Its MAC address; `None`: derived from the machine, namespace and name, and so always the same.
    pub mac: Option<MacAddr>,
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Its default gateways, at most one of each address family.
    pub gateways: Vec<IpAddr>,
    /// Whether packets may leave to it with unfinished checksums and as long segments.
    pub offloads: bool,
    /// Whether it has a fast path in the kernel.
    pub fast_path: FastPath,
    /// What becomes of flows on this path without netvmd, between ports that say the same.
    pub on_daemon_loss: DaemonLoss,
}

impl Default for ContainerConfig {
    fn default() -> Self {
        Self {
            namespace: String::new(),
            interface: "eth0".to_owned(),
            mac: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            offloads: true,
            fast_path: FastPath::default(),
            on_daemon_loss: DaemonLoss::default(),
        }
    }
}

impl ContainerConfig {
    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        let help = "name the network namespace, such as `namespace = \"web\"` (see `ip netns`), or the ID of a process in \
                    it";
        vec![
            Key::required("namespace", help, KeyValue::Namespace(&mut self.namespace)),
            Key::new("interface", KeyValue::Interface(&mut self.interface)),
            Key::new("mac", KeyValue::Mac(&mut self.mac)),
            Key::new("addresses", KeyValue::Addressing(&mut self.addresses, &mut self.gateways)),
            Key::new("fast_path", KeyValue::FastPath(&mut self.fast_path, Some(&mut self.on_daemon_loss))),
        ]
    }

    /// The namespace's file.
    #[must_use]
    pub fn namespace_file(&self) -> PathBuf {
        let text = &self.namespace;
        if text.starts_with('/') {
            PathBuf::from(text)
        } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
            PathBuf::from(format!("/proc/{text}/ns/net"))
        } else {
            PathBuf::from("/run/netns").join(text)
        }
    }

    /// The names of interface and namespace, as users see them.
    #[must_use]
    pub fn name_with_namespace(&self) -> String {
        format!("{} in {}", self.interface, self.namespace)
    }

    /// The interface's MAC address.
    #[must_use]
    pub fn own_mac(&self) -> MacAddr {
        self.mac_on(machine())
    }

    /// The same on another machine. Containers of servers on one network may have the same names.
    fn mac_on(&self, machine: &str) -> MacAddr {
        let names = || machine.bytes().chain([0]).chain(names_of(&self.namespace, &self.interface));
        self.mac.unwrap_or_else(|| derived_mac(names()))
    }
}

/// The host's own interface on the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// Name of the interface.
    pub interface: String,
    /// Its MAC address; `None`: derived from the machine and the interface's name, and so always the same.
    pub mac: Option<MacAddr>,
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Default gateways of the host, at most one of each address family.
    pub gateways: Vec<IpAddr>,
    /// Whether it has a fast path in the kernel.
    pub fast_path: FastPath,
}

impl HostConfig {
    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        let help = "name the interface to create, such as `interface = \"lan0\"`";
        vec![
            Key::required("interface", help, KeyValue::Interface(&mut self.interface)),
            Key::new("mac", KeyValue::Mac(&mut self.mac)),
            Key::new("addresses", KeyValue::Addressing(&mut self.addresses, &mut self.gateways)),
            Key::new("fast_path", KeyValue::FastPath(&mut self.fast_path, None)),
        ]
    }

    /// The interface's MAC address. `machine`: what no other machine has, such as `/etc/machine-id`, as hosts with the
    /// same configuration may meet on one network.
    #[must_use]
    pub fn mac_on(&self, machine: &str) -> MacAddr {
        self.mac.unwrap_or_else(|| derived_mac(names_of(machine, &self.interface)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_one_name_on_two_machines_have_different_addresses() {
        let web = ContainerConfig { namespace: "web".to_owned(), ..ContainerConfig::default() };
        let on = |machine| web.mac_on(machine);
        assert_ne!(on("0123456789abcdef0123456789abcdef"), on("0123456789abcdef0123456789abcdee"));
        // The same each time.
        assert_eq!([web.own_mac(); 2], [on(machine()); 2]);
        let other = ContainerConfig { namespace: "db".to_owned(), ..web.clone() };
        assert_ne!(other.own_mac(), web.own_mac());
        let given = ContainerConfig { mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), ..web };
        assert_eq!(given.own_mac(), MacAddr([2, 0, 0, 0, 0, 1]));
    }
}
