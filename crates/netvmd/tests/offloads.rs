//! TCP between namespaces at once, by every kind of port on an interface of the kernel, with nothing else set.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::net::IpAddr;
use std::time::Duration;

use common::Daemon;
use common::download::{download, serve};
use common::hosts::{Host, are_possible, within};
use netvm_api::{PortInfo, path};

const ENGINE: &str = "[engine]\nidle = \"adaptive\"\nhuge_pages = false\n";
/// More than windows and queues hold at once.
const BYTES: u64 = 30_000_000;

/// Two hosts with addresses of one network.
fn hosts(name: &str) -> [Host; 2] {
    [1, 2].map(|n| {
        let addresses = [format!("10.44.0.{n}/24"), format!("fd44::{n}/64")];
        Host::new(&format!("{name}{n}"), &addresses.each_ref().map(String::as_str), &[])
    })
}

fn port(name: &str, kind: &str, host: &Host, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\ninterface = \"{}\"\nforward = {{ normal = true }}\n{more}\n",
        host.port()
    )
}

/// Downloads both ways, over IPv4 and IPv6.
fn exchange(hosts: &[Host; 2]) {
    assert!(hosts[0].pings("10.44.0.2"));
    for (to, from, addresses) in [(0, 1, ["10.44.0.2", "fd44::2"]), (1, 0, ["10.44.0.1", "fd44::1"])] {
        for address in addresses {
            serve(&hosts[from], BYTES);
            let took = download(&hosts[to], address.parse::<IpAddr>().unwrap(), BYTES);
            println!("{address}: {:.1} Gbit/s", BYTES as f64 * 8e-9 / took.as_secs_f64());
        }
    }
}

fn container(n: u8, host: &Host) -> String {
    format!(
        "[[port]]\nname = \"c{n}\"\nkind = \"container\"\nnamespace = \"{}\"\nforward = {{ normal = true }}\n\
         addresses = [\"10.44.0.{n}/24\", \"fd44::{n}/64\"]\ngateways = [\"10.44.0.254\"]\n",
        host.namespace()
    )
}

fn ports(daemon: &Daemon) -> Vec<PortInfo> {
    daemon.get(path::PORTS)
}

#[test]
fn tcp_works_at_once_by_each_kind_of_port_and_between_them() {
    if !are_possible() {
        return;
    }
    let kinds = ["af_packet", "af_xdp"];
    for (n, (a, b)) in kinds.iter().flat_map(|a| kinds.iter().map(move |b| (*a, *b))).enumerate() {
        println!("{a} and {b}");
        let hosts = hosts(&format!("k{n}"));
        let config = [port("a", a, &hosts[0], ""), port("b", b, &hosts[1], "")].concat();
        let daemon = Daemon::start(&(ENGINE.to_owned() + &config));
        exchange(&hosts);
        let segments = |port: &PortInfo| port.driver_mode.contains("TCP and UDP segments");
        let ports = ports(&daemon);
        assert_eq!(ports.iter().map(segments).collect::<Vec<_>>(), [a, b].map(|kind| kind == "af_packet"));
        assert!(ports.iter().all(|port| port.rx_dropped < 1000), "{ports:?}");
    }
}

#[test]
fn af_xdp_says_at_once_what_generic_mode_cannot_do() {
    if !are_possible() {
        return;
    }
    let hosts = hosts("g");
    let daemon = Daemon::start(&(ENGINE.to_owned() + &port("a", "af_xdp", &hosts[0], "generic = true")));
    let ports = ports(&daemon);
    let said = &ports[0].driver_mode;
    assert!(said.contains("af_packet"), "{said}");
}

#[test]
fn containers_have_their_interface_whatever_starts_again() {
    if !are_possible() {
        return;
    }
    let hosts = ["c1", "c2"].map(Host::bare);
    let config = ENGINE.to_owned() + &container(1, &hosts[0]) + &container(2, &hosts[1]);
    let mut daemon = Daemon::start(&config);
    exchange(&hosts);
    let mac = hosts[0].ip_output("-o link show eth0");
    assert!(hosts[0].ip_output("route show default").contains("via 10.44.0.254 dev eth0"));
    let neighbours = hosts[1].ip_output("neighbour show 10.44.0.1");

    // The container starts again.
    hosts[0].restart();
    assert!(hosts[0].pings("10.44.0.2"));
    exchange(&hosts);

    // netvmd is killed, and starts again.
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let daemon = Daemon::start_in(std::sync::Arc::clone(&daemon.folder), &config);
    exchange(&hosts);
    let address = |text: &str| {
        text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).map(str::to_owned)
    };
    let now = hosts[0].ip_output("-o link show eth0");
    assert_eq!((address(&now).is_some(), address(&mac)), (true, address(&now)), "the same MAC address");
    assert!(neighbours.contains(&address(&now).unwrap()), "{neighbours}");

    // A port is removed, and its interface with it; one is added while the other's packets flow.
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &(ENGINE.to_owned() + &container(2, &hosts[1])));
    let is_gone = || !hosts[0].ip_output("-o link show").contains("eth0");
    assert!(within(Duration::from_secs(5), is_gone));
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &config);
    exchange(&hosts);

    // An address changes: the port is closed, and makes the interface again.
    let changed = config.replace("10.44.0.1/24", "10.44.0.3/24");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &changed);
    assert!(hosts[0].ip_output("-o address show eth0").contains("10.44.0.3/24"));
    assert!(hosts[0].pings("10.44.0.2"));
}
