//! Two hosts: network namespaces, each joined by a veth pair to an interface in the root namespace. That interface has no
//! address; netvm takes it as a port.

use std::path::Path;
use std::time::Duration;

use crate::failure::Failure;
use crate::names::{Names, Side};
use crate::process::run;

/// The interface in each namespace.
pub const INSIDE: &str = "eth0";
/// What is switched off at the end inside, as a veth hands packets over unfinished otherwise: without a checksum, longer
/// than the MTU, or with the VLAN tag beside the packet.
const OFFLOADS: &str = "tx off tso off gso off txvlan off";

/// The hosts; removed when dropped.
#[derive(Debug)]
pub struct Hosts(Names);

impl Hosts {
    /// Makes them.
    ///
    /// # Errors
    /// [`Failure::Command`]; what was made until then is removed.
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
        let inside = |command: &str| run(&format!("ip netns exec {namespace} {command}"));
        // IPv6 would send on its own, and make the counts hard to follow. A kernel without IPv6 refuses, rightly.
        for link in [
            format!("ip link set {near} addrgenmode none"),
            format!("ip -n {namespace} link set {INSIDE} addrgenmode none"),
        ] {
            let _ = run(&link);
        }
        inside(&format!("ethtool -K {INSIDE} {OFFLOADS}"))?;
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

impl Drop for Hosts {
    fn drop(&mut self) {
        remove(self.0);
    }
}

/// Removes the namespaces and interfaces of a run, and whatever runs in them.
pub fn remove(names: Names) {
    for side in Side::BOTH {
        let namespace = names.namespace(side);
        if named(&namespace).exists() {
            // The demo's own processes are gone by now; a shell that somebody opened there would keep it alive.
            for pid in run(&format!("ip netns pids {namespace}")).unwrap_or_default().lines() {
                let _ = run(&format!("kill -KILL {pid}"));
            }
            let _ = run(&format!("ip netns delete {namespace}"));
        }
        // It takes its other end with it. The kernel removes a namespace later than it says, so this is not left to it.
        let near = names.interface(side);
        if interface(&near).exists() {
            let _ = run(&format!("ip link delete {near}"));
        }
    }
    // A device that is being removed shows for a moment.
    for _ in 0..50 {
        if Side::BOTH.iter().all(|side| !interface(&names.interface(*side)).exists()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where `ip netns` keeps a namespace.
pub fn named(namespace: &str) -> std::path::PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// Where the kernel shows an interface of the root namespace.
pub fn interface(name: &str) -> std::path::PathBuf {
    Path::new("/sys/class/net").join(name)
}
