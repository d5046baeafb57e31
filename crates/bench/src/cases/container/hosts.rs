//! Two network namespaces with an interface each, and what the kernel joins them with, if anything.

use netvm_config::model::InterfaceAddress;

use crate::error::BenchError;
use crate::probe;

/// How the namespaces are joined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Not at all: ports make the interfaces.
    None,
    /// By veth pairs, whose outer ends are ports.
    Veth,
    /// By veth pairs and the kernel's bridge.
    Bridge,
    /// By veth pairs and the kernel's routing.
    Router,
}

/// A namespace.
pub struct End {
    /// Its name.
    pub namespace: String,
    /// The interface outside.
    pub port: String,
    /// Its address.
    pub address: InterfaceAddress,
}

/// Both namespaces; removed on drop.
pub struct Hosts([End; 2]);

const BRIDGE: &str = "nvbr";

/// Moves this thread, and threads that it starts later, into a network namespace of its own.
///
/// # Errors
/// This process lacks the privilege.
pub fn enter_private_network() -> Result<(), BenchError> {
    probe::leave_network()?;
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    Ok(())
}

impl Hosts {
    /// Makes the namespaces and joins them.
    ///
    /// # Errors
    /// A command failed.
    pub fn new(link: Link) -> Result<Self, BenchError> {
        let id = std::process::id();
        let ends = [1u8, 2].map(|n| {
            // Routers join two networks.
            let network = if link == Link::Router { n } else { 0 };
            End {
                namespace: format!("nvbench{id}-{n}"),
                port: format!("nvp{n}"),
                address: InterfaceAddress { address: [10, 45, network, n].into(), length: 24 },
            }
        });
        let hosts = Self(ends);
        let bridge = link == Link::Bridge;
        if bridge {
            run(&format!("link add {BRIDGE} type bridge"))?;
            run(&format!("link set {BRIDGE} up"))?;
        }
        for (n, End { namespace, port, address }) in hosts.0.iter().enumerate() {
            run(&format!("netns add {namespace}"))?;
            if link == Link::None {
                continue;
            }
            run(&format!(
                "link add {port} numtxqueues 1 numrxqueues 1 type veth peer name eth0 netns {namespace} numtxqueues 1 numrxqueues 1"
            ))?;
            run(&format!("link set {port} up{}", if bridge { " master nvbr" } else { "" }))?;
            run(&format!("-n {namespace} address add {address} dev eth0"))?;
            run(&format!("-n {namespace} link set eth0 up"))?;
            if link == Link::Router {
                let gateway = format!("10.45.{}.254", n + 1);
                run(&format!("address add {gateway}/24 dev {port}"))?;
                run(&format!("-n {namespace} route add default via {gateway}"))?;
            }
        }
        Ok(hosts)
    }

    /// Both.
    pub const fn all(&self) -> &[End; 2] {
        &self.0
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for End { namespace, port, .. } in &self.0 {
            let _ = run(&format!("link delete {port}"));
            let _ = run(&format!("netns delete {namespace}"));
        }
        let _ = run(&format!("link delete {BRIDGE}"));
    }
}

fn run(words: &str) -> Result<(), BenchError> {
    probe::ip(&words.split_whitespace().collect::<Vec<_>>())
}
