// SPDX-License-Identifier: Apache-2.0
//! Hosts for tests: network namespaces, each with a veth pair to an interface that is a netvm port.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use rustix::thread::LinkNameSpaceType;

pub use netvm_testing::within;

/// The test that has made hosts of each name.
static OWNERS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// The name of a namespace. Tests of one program run side by side, so a name belongs to one test.
fn namespace(name: &str) -> String {
    if let Some(test) = std::thread::current().name() {
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = owners.entry(name.to_owned()).or_insert_with(|| test.to_owned());
        assert_eq!(owner, test, "two tests have hosts named {name}");
    }
    format!("nt{}{name}", std::process::id())
}

/// A host; removed on drop.
pub struct Host {
    name: String,
    addresses: Vec<String>,
}

impl Host {
    /// A host with these addresses (with prefix lengths) and default routes by `gateways`.
    pub fn new(name: &str, addresses: &[&str], gateways: &[&str]) -> Self {
        let host = Self {
            name: namespace(name),
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
        };
        run(&format!("ip netns add {}", host.name));
        host.ip("link set lo up");
        host.plug();
        for gateway in gateways {
            host.ip(&format!("route add default via {gateway}"));
        }
        host
    }

    /// A host without an interface: its port makes one.
    pub fn bare(name: &str) -> Self {
        let host = Self { name: namespace(name), addresses: Vec::new() };
        run(&format!("ip netns add {}", host.name));
        host
    }

    /// A host that is not there yet: neither its namespace nor an interface.
    pub fn absent(name: &str) -> Self {
        Self { name: namespace(name), addresses: Vec::new() }
    }

    /// Makes its network namespace.
    pub fn appear(&self) {
        run(&format!("ip netns add {}", self.name));
    }

    /// Ends its network namespace.
    pub fn vanish(&self) {
        run(&format!("ip netns delete {}", self.name));
    }

    /// Makes its network namespace, and its interface and that for the port.
    pub fn plug_in_new(&self) {
        self.appear();
        self.plug();
    }

    /// The name of its network namespace.
    pub fn namespace(&self) -> &str {
        &self.name
    }

    /// Ends its network namespace and begins a new one of the same name, as when a container is started again.
    pub fn restart(&self) {
        run(&format!("ip netns delete {}", self.name));
        run(&format!("ip netns add {}", self.name));
    }

    /// Makes its interface and that for the port.
    pub fn plug(&self) {
        let (name, port) = (&self.name, self.port());
        run(&format!(
            "ip link add {port} numtxqueues 1 numrxqueues 1 type veth peer name eth0 netns {name} numtxqueues 1 numrxqueues 1"
        ));
        // AF_XDP does not see VLAN tags that a veth carries beside the packet.
        run(&format!("ip netns exec {name} ethtool -K eth0 txvlan off"));
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{port}/disable_ipv6"), "1").unwrap();
        run(&format!("ip link set {port} up"));
        self.ip("link set eth0 up");
        for address in &self.addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            self.ip(&format!("address add {address} dev eth0{nodad}"));
        }
    }

    /// Removes both.
    pub fn unplug(&self) {
        run(&format!("ip link delete {}", self.port()));
    }

    /// The interface for the port.
    pub fn port(&self) -> String {
        format!("{}p", self.name)
    }

    /// The first address.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses[0].split('/').next().unwrap().parse().unwrap()
    }

    /// `ip` inside.
    pub fn ip(&self, words: &str) {
        run(&format!("ip -n {} {words}", self.name));
    }

    /// The output of `ip` inside.
    pub fn ip_output(&self, words: &str) -> String {
        run(&format!("ip -n {} {words}", self.name))
    }

    /// The output of `ip` inside; `None` if it fails.
    pub fn output_of_ip(&self, words: &str) -> Option<String> {
        let output = Command::new("ip").args(["-n", &self.name]).args(words.split(' ')).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Runs a program inside to its end.
    pub fn output(&self, words: &str) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(words.split(' ')).output().unwrap()
    }

    /// Runs `work` on a thread inside.
    pub fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), network).unwrap();
            work()
        })
    }

    /// Whether an address answers pings within some seconds; ports take a moment to come up.
    pub fn pings(&self, address: &str) -> bool {
        let program = if address.contains(':') { "ping6" } else { "ping" };
        let once = format!("busybox {program} -c 1 -W 1 {address}");
        within(Duration::from_secs(20), || self.output(&once).status.success())
    }

    /// Echoes UDP datagrams to an address until this host is dropped.
    pub fn echo(&self, address: Ipv4Addr, port: u16) {
        self.echo_at(address.into(), port);
    }

    /// The same to all addresses of both families.
    pub fn echo_any(&self, port: u16) {
        self.echo_at(IpAddr::from([0; 16]), port);
    }

    fn echo_at(&self, address: IpAddr, port: u16) {
        let (bound, is_bound) = std::sync::mpsc::channel();
        self.inside(move || {
            let socket = UdpSocket::bind((address, port)).unwrap();
            bound.send(()).unwrap();
            let mut datagram = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                // The sender may be unreachable by now.
                let _ = socket.send_to(&datagram[..length], from);
            }
        });
        is_bound.recv().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = succeeds(&format!("ip link delete {}", self.port()));
        let _ = succeeds(&format!("ip netns delete {}", self.name));
    }
}

/// A UDP socket whose reads time out after `timeout`.
pub fn asking(address: IpAddr, port: u16, timeout: Duration) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket.connect(SocketAddr::from((address, port))).unwrap();
    socket
}

/// Whether hosts can be made here; if not, prints that the test is skipped.
pub fn are_possible() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can create network namespaces");
        return false;
    }
    for tool in ["ip -V", "ethtool --version", "busybox true"] {
        if !succeeds(tool) {
            println!("SKIP: `{tool}` does not work here");
            return false;
        }
    }
    true
}

/// Whether a command succeeds.
pub fn succeeds(command: &str) -> bool {
    let mut words = command.split(' ');
    Command::new(words.next().unwrap()).args(words).output().is_ok_and(|output| output.status.success())
}

/// Runs a command.
pub fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
