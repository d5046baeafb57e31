// SPDX-License-Identifier: Apache-2.0
//! Two hosts: network namespaces, each with a veth pair to an interface in the root namespace, which has no address and
//! is a netvm port.

use std::path::Path;
use std::time::Duration;

use crate::failure::Failure;
use crate::host::names::{Names, Side};
use crate::host::process::run;

/// The interface in each namespace.
pub const INSIDE: &str = "eth0";
/// The interface in each namespace that leads to the kernel's bridge.
const TO_BRIDGE: &str = "kernel0";

/// The hosts; removed on drop.
#[derive(Debug)]
pub struct Hosts(Names);

impl Hosts {
    /// Creates them.
    ///
    /// # Errors
    /// [`Failure::Command`]; nothing remains.
    pub fn make(names: Names) -> Result<Self, Failure> {
        let hosts = Self(names);
        for side in Side::BOTH {
            hosts.make_side(side)?;
        }
        Ok(hosts)
    }

    fn make_side(&self, side: Side) -> Result<(), Failure> {
        let (namespace, near) = (self.0.namespace(side), self.0.interface(side));
        run(&format!("ip netns add {namespace}"))?;
        run(&format!(
            "ip link add {near} numtxqueues 1 numrxqueues 1 type veth \
             peer name {INSIDE} netns {namespace} address {} numtxqueues 1 numrxqueues 1",
            side.mac()
        ))?;
        // IPv6's own packets would obscure the counters. Fails on a kernel without IPv6.
        for link in [
            format!("ip link set {near} addrgenmode none"),
            format!("ip -n {namespace} link set {INSIDE} addrgenmode none"),
        ] {
            let _ = run(&link);
        }
        run(&format!("ip link set {near} up"))?;
        for command in [
            "link set lo up".to_owned(),
            format!("link set {INSIDE} up"),
            format!("address add {}/24 dev {INSIDE}", side.address()),
            format!("route add default via {}", side.gateway()),
        ] {
            run(&format!("ip -n {namespace} {command}"))?;
        }
        Ok(())
    }
}

/// The kernel's bridge between the hosts, to compare with; removed on drop.
#[derive(Debug)]
pub struct Bridge(Names);

impl Bridge {
    /// Creates it in a namespace of its own.
    ///
    /// # Errors
    /// [`Failure::Command`]; nothing remains.
    pub fn make(names: Names) -> Result<Self, Failure> {
        let bridge = Self(names);
        let own = names.bridge();
        run(&format!("ip netns add {own}"))?;
        run(&format!("ip -n {own} link add bridge0 up type bridge"))?;
        for side in Side::BOTH {
            let (host, end) = (names.namespace(side), side.name());
            run(&format!("ip -n {own} link add {end} type veth peer name {TO_BRIDGE} netns {host}"))?;
            run(&format!("ip -n {own} link set {end} up master bridge0"))?;
            run(&format!("ip -n {host} address add {}/24 dev {TO_BRIDGE}", side.bridge_address()))?;
            run(&format!("ip -n {host} link set {TO_BRIDGE} up"))?;
        }
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        remove_namespace(&self.0.bridge());
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        remove(self.0);
    }
}

/// Removes the namespaces and interfaces of a run, and kills processes in them.
pub fn remove(names: Names) {
    names.namespaces().iter().for_each(|namespace| remove_namespace(namespace));
    for side in Side::BOTH {
        // Removes both ends. Explicitly, because the kernel removes a namespace's interfaces some time after the
        // namespace.
        let near = names.interface(side);
        if interface(&near).exists() {
            let _ = run(&format!("ip link delete {near}"));
        }
    }
    // A removed device stays visible for a moment.
    for _ in 0..50 {
        if Side::BOTH.iter().all(|side| !interface(&names.interface(*side)).exists()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn remove_namespace(namespace: &str) {
    if named(namespace).exists() {
        // The demo's processes have ended; a user's shell inside would keep the namespace alive.
        for pid in run(&format!("ip netns pids {namespace}")).unwrap_or_default().lines() {
            let _ = run(&format!("kill -KILL {pid}"));
        }
        let _ = run(&format!("ip netns delete {namespace}"));
    }
}

/// The file of a namespace of `ip netns`.
pub fn named(namespace: &str) -> std::path::PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// The sysfs folder of an interface in the root namespace.
pub fn interface(name: &str) -> std::path::PathBuf {
    Path::new("/sys/class/net").join(name)
}
