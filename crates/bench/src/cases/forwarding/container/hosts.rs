// SPDX-License-Identifier: Apache-2.0
//! Two network namespaces with an interface each, and how the kernel connects them, if it does.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Once;

use netvm_model::InterfaceAddress;
use netvm_wire::{IpNet, Ipv4Net, Ipv6Net, MacAddr};

use crate::error::BenchError;
use crate::measure::probe;
use crate::peers::ovs;

/// How the kernel connects the namespaces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Not at all: netvm's ports create the interfaces.
    None,
    /// Not at all: netvm's ports create the interfaces, each with an address of another network.
    Apart,
    /// Not by itself: a port creates the first interface, and the second is a veth pair, whose outer end is a port.
    Far,
    /// By veth pairs, whose outer ends are ports.
    Veth,
    /// By one veth pair.
    Pair,
    /// By macvlan interfaces in bridge mode on one interface.
    Macvlan,
    /// By veth pairs and the kernel's bridge.
    Bridge,
    /// By veth pairs and the kernel's routing.
    Router,
}

impl Link {
    /// The ends with a veth pair.
    const fn have_veth(self) -> [bool; 2] {
        match self {
            Self::None | Self::Apart | Self::Pair | Self::Macvlan => [false, false],
            Self::Far => [false, true],
            Self::Veth | Self::Bridge | Self::Router => [true, true],
        }
    }
}

/// A namespace.
pub struct End {
    /// Its name.
    pub namespace: String,
    /// The interface outside the namespace.
    pub port: String,
    /// Its address.
    pub address: InterfaceAddress,
}

impl End {
    /// The router in its network.
    pub const fn gateway(&self) -> IpAddr {
        match self.address.address {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                IpAddr::V4(Ipv4Addr::new(a, b, c, 254))
            }
            v6 @ IpAddr::V6(_) => v6,
        }
    }

    /// The host route of its address.
    pub fn prefix(&self) -> IpNet {
        match self.address.address {
            IpAddr::V4(address) => Ipv4Net::host(address).into(),
            IpAddr::V6(address) => Ipv6Net::host(address).into(),
        }
    }

    /// Adds a static neighbour entry.
    ///
    /// # Errors
    /// A command failed.
    pub fn add_neighbour(&self, neighbour: IpAddr, mac: MacAddr) -> Result<(), BenchError> {
        run(&format!("-n {} neighbour replace {neighbour} lladdr {mac} dev eth0", self.namespace))
    }
}

/// Both namespaces; removed on drop.
pub struct Hosts {
    ends: [End; 2],
    link: Link,
}

/// The interfaces outside the namespaces.
pub const PORTS: [&str; 2] = ["nvp1", "nvp2"];
const BRIDGE: &str = "nvbr";

/// TCP's congestion control of this network namespace.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// What the kernel lets namespaces choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Turns on the kernel's forwarding in this thread's network namespace.
///
/// # Errors
/// The kernel's.
pub fn forward() -> Result<(), BenchError> {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
        .map_err(BenchError::system("cannot turn on the kernel's forwarding"))
}

impl Hosts {
    /// Makes the namespaces and joins them.
    ///
    /// # Errors
    /// A command failed.
    pub fn new(link: Link, congestion: &str) -> Result<Self, BenchError> {
        let id = std::process::id();
        let ends = [1u8, 2].map(|n| {
            // Routers join two networks.
            let network = if matches!(link, Link::Router | Link::Apart) { n } else { 0 };
            End {
                namespace: format!("nvbench{id}-{n}"),
                port: PORTS[usize::from(n) - 1].to_owned(),
                address: InterfaceAddress { address: [10, 45, network, n].into(), length: 24 },
            }
        });
        let hosts = Self { ends, link };
        let bridge = link == Link::Bridge;
        if bridge {
            run(&format!("link add {BRIDGE} type bridge"))?;
            run(&format!("link set {BRIDGE} up"))?;
        }
        for (end, has_veth) in hosts.ends.iter().zip(link.have_veth()) {
            let End { namespace, port, address } = end;
            run(&format!("netns add {namespace}"))?;
            set_congestion(namespace, congestion);
            if !has_veth {
                continue;
            }
            run(&format!(
                "link add {port} numtxqueues 1 numrxqueues 1 type veth peer name eth0 netns {namespace} numtxqueues 1 numrxqueues 1"
            ))?;
            run(&format!("link set {port} up{}", if bridge { " master nvbr" } else { "" }))?;
            run(&format!("-n {namespace} address add {address} dev eth0"))?;
            run(&format!("-n {namespace} link set eth0 up"))?;
            if link == Link::Router {
                let gateway = end.gateway();
                run(&format!("address add {gateway}/24 dev {port}"))?;
                run(&format!("-n {namespace} route add default via {gateway}"))?;
            }
        }
        match link {
            Link::Pair => hosts.join_by_pair()?,
            Link::Macvlan => hosts.join_by_macvlan()?,
            _ => {}
        }
        Ok(hosts)
    }

    fn join_by_pair(&self) -> Result<(), BenchError> {
        let [a, b] = &self.ends;
        let [one, other] =
            [a, b].map(|end| format!("eth0 netns {} numtxqueues 1 numrxqueues 1", end.namespace));
        run(&format!("link add {one} type veth peer name {other}"))?;
        self.bring_up()
    }

    /// The interface below is an end of a veth pair.
    fn join_by_macvlan(&self) -> Result<(), BenchError> {
        let [lower, other] = PORTS;
        run(&format!("link add {lower} type veth peer name {other}"))?;
        for end in &self.ends {
            let to = &end.namespace;
            run(&format!("link add link {lower} name eth0 netns {to} type macvlan mode bridge"))?;
        }
        run(&format!("link set {other} up"))?;
        run(&format!("link set {lower} up"))?;
        self.bring_up()
    }

    fn bring_up(&self) -> Result<(), BenchError> {
        for End { namespace, address, .. } in &self.ends {
            run(&format!("-n {namespace} address add {address} dev eth0"))?;
            run(&format!("-n {namespace} link set eth0 up"))?;
        }
        Ok(())
    }

    /// Both namespaces.
    pub const fn all(&self) -> &[End; 2] {
        &self.ends
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (End { namespace, port, .. }, has_veth) in self.ends.iter().zip(self.link.have_veth()) {
            if has_veth {
                let _ = run(&format!("link delete {port}"));
            }
            let _ = run(&format!("netns delete {namespace}"));
        }
        match self.link {
            Link::Bridge => drop(run(&format!("link delete {BRIDGE}"))),
            Link::Macvlan => drop(run(&format!("link delete {}", PORTS[0]))),
            _ => {}
        }
    }
}

/// Sets TCP's congestion control for all sockets of a namespace. A socket that begins with BBR keeps BBR's pacing when
/// a program chooses another. Where the kernel refuses it (outside the first namespace it takes only those that
/// `tcp_allowed_congestion_control` lists), the namespace keeps its default, and standard error says so once.
fn set_congestion(namespace: &str, congestion: &str) {
    static REPORTED: Once = Once::new();
    let script = format!("echo {congestion} >{CONGESTION}");
    if let Err(error) = probe::ip(&["netns", "exec", namespace, "sh", "-c", &script]) {
        // A new namespace takes the default of the first one.
        let [default, allowed] =
            [CONGESTION, ALLOWED].map(|path| std::fs::read_to_string(path).unwrap_or_default());
        REPORTED.call_once(|| {
            eprintln!(
                "warning: the kernel refuses TCP's congestion control {congestion} in a network namespace ({error}): all \
                 cases have its default, {}; to allow it: \
                 sysctl -w net.ipv4.tcp_allowed_congestion_control='{} {congestion}'",
                default.trim(),
                allowed.trim()
            );
        });
    }
}

/// Enters a network namespace; with peers, a sandbox for Open vSwitch, whose folder it returns.
///
/// # Errors
/// As for [`ovs::sandbox`].
pub fn enter(skips_peers: bool) -> Result<Option<PathBuf>, BenchError> {
    let sandbox = ovs::sandbox(skips_peers)?;
    if sandbox.is_none() {
        probe::leave_network()?;
    }
    Ok(sandbox)
}

/// Runs `ip`.
///
/// # Errors
/// It failed.
pub fn run(words: &str) -> Result<(), BenchError> {
    probe::ip(&words.split_whitespace().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a kernel does that takes a congestion control in the first namespace only.
    #[test]
    fn a_congestion_control_that_the_kernel_refuses_is_no_error() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: network namespaces take root");
            return;
        }
        let hosts = Hosts::new(Link::None, "no-such-control").unwrap();
        for end in hosts.all() {
            run(&format!("-n {} link set lo up", end.namespace)).unwrap();
        }
    }
}
