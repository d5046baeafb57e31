// SPDX-License-Identifier: Apache-2.0
//! FRR's EVPN as the control plane of tunnels: netvm beside the kernel's bridge and `vxlan` devices.

mod fabric;
mod four;
mod l2;
mod page;
mod peer;
mod scale;
mod speaker;
mod v6;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use netvm_api::{PortInfo, path};

use super::common::Daemon;
use super::common::hosts::{Host, succeeds};
use super::frr::Daemons;
use super::site::ENGINE;

/// BGP and the first addresses take a few seconds, on a loaded machine more.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server with netvmd: a router whose namespace has FRR, a VNI, and containers.
struct Server {
    router: String,
    /// The address of its VTEP.
    vtep: &'static str,
    wan: String,
    /// Further tables of the configuration.
    more: String,
    /// Names of containers' namespaces, and further keys of their ports.
    containers: Vec<(String, String)>,
}

impl Server {
    /// `mark` is a name of its own; `wan`: the interface between the servers.
    fn new(mark: &str, vtep: &'static str, wan: String) -> Self {
        let router = format!("{mark}{}", std::process::id());
        Self { router, vtep, wan, more: String::new(), containers: Vec::new() }
    }

    fn namespace(&self) -> String {
        format!("netvm-{}", self.router)
    }

    /// Adds a container with an address in VNI 100.
    fn container(&mut self, host: &Host, address: &str, more: &str) {
        let keys = format!("addresses = [\"{address}\"]\n{more}");
        self.containers.push((host.namespace().to_owned(), keys));
    }

    fn config(&self) -> String {
        let Self { router, vtep, wan, more, containers } = self;
        let prefix = prefix_of(vtep);
        let mut text = format!(
            "{}\n[[port]]\nname = \"wan\"\nkind = \"af_packet\"\ninterface = \"{wan}\"\n\
             forward = {{ router = \"{router}\" }}\n\
             [[port]]\nname = \"overlay\"\nkind = \"vxlan\"\nvni = 100\ncontrol = \"evpn\"\nrouter = \"{router}\"\n\
             local = \"{vtep}\"\nforward = {{ normal = true }}\n\
             [[router]]\nname = \"{router}\"\n\
             [[router.interface]]\nname = \"wan\"\nport = \"wan\"\naddresses = [\"{vtep}/{prefix}\"]\n{more}",
            &*ENGINE
        );
        for (n, (namespace, keys)) in containers.iter().enumerate() {
            write!(
                text,
                "[[port]]\nname = \"c{n}\"\nkind = \"container\"\nnamespace = \"{namespace}\"\nmtu = 1450\n{keys}\n\
                 forward = {{ normal = true }}\n"
            )
            .unwrap();
        }
        text
    }

    /// FRR in the router's namespace.
    fn start_frr(&self, peers: &[&str]) -> Daemons {
        Daemons::frr(&self.namespace(), &[("bgpd", bgp(self.vtep, peers))])
    }
}

impl Drop for Server {
    /// Cleans up after a failed test whose netvmd was killed.
    fn drop(&mut self) {
        let namespace = self.namespace();
        if Path::new("/run/netns").join(&namespace).exists() {
            let _ = succeeds(&format!("ip netns delete {namespace}"));
        }
    }
}

/// Bits of the prefix of the network between servers.
fn prefix_of(vtep: &str) -> u8 {
    if vtep.contains(':') { 64 } else { 24 }
}

/// BGP with EVPN and these peers.
fn bgp(own: &str, peers: &[&str]) -> String {
    let mut text =
        format!("router bgp 65000\n bgp router-id {own}\n no bgp default ipv4-unicast\n timers bgp 3 9\n");
    for peer in peers {
        write!(text, " neighbor {peer} remote-as 65000\n neighbor {peer} timers connect 1\n").unwrap();
    }
    text += " address-family l2vpn evpn\n  advertise-all-vni\n";
    peers.iter().for_each(|peer| writeln!(text, "  neighbor {peer} activate").unwrap());
    text + " exit-address-family\n"
}

fn port(daemon: &Daemon, name: &str) -> PortInfo {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    ports.into_iter().find(|port| port.name == name).unwrap()
}
