// SPDX-License-Identifier: Apache-2.0
//! A router between two containers: the kernel routes what it has, and follows changes of routes and neighbours.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use netvm_api::{Flows, RouterInfo, path};

use super::table::{until_forwarded, until_settled};
use super::traffic::{Stream, hits};
use super::{port, soon};
use crate::common::download::{download, serve};
use crate::common::hosts::{Host, are_possible, run};
use crate::common::{Daemon, ENGINE};

const UDP: u16 = 7100;
/// Some are sent before the kernel knows a connection.
const BYTES: usize = 150_000_000;

fn config(hosts: &[Host; 2], router: &str) -> String {
    let mut text = ENGINE.to_owned();
    for (n, host) in (1..).zip(hosts) {
        text += &format!(
            "\n[[port]]\nname = \"c{n}\"\nkind = \"container\"\nnamespace = \"{}\"\nfast_path = true\n\
             addresses = [\"10.54.{n}.2/24\", \"fd54:{n}::2/64\"]\ngateways = [\"10.54.{n}.1\", \"fd54:{n}::1\"]\n\
             forward = {{ router = \"{router}\" }}\n",
            host.namespace()
        );
    }
    text += &format!("\n[[router]]\nname = \"{router}\"\n");
    for n in [1, 2] {
        text += &format!(
            "\n[[router.interface]]\nname = \"i{n}\"\nport = \"c{n}\"\n\
             addresses = [\"10.54.{n}.1/24\", \"fd54:{n}::1/64\"]\n"
        );
    }
    text
}

/// Packets that the router's interfaces have received and sent.
fn routed(daemon: &Daemon) -> [u64; 2] {
    let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
    let [received, sent] = &routers[0].interfaces[..] else { panic!("{routers:?}") };
    [received.rx_packets, sent.tx_packets]
}

#[test]
fn the_kernel_routes_between_containers_as_the_router_says() {
    if !are_possible() {
        return;
    }
    let hosts = ["ra1", "ra2"].map(Host::bare);
    let router = format!("kf{}", std::process::id());
    let namespace = format!("netvm-{router}");
    let mut daemon = Daemon::start(&config(&hosts, &router));
    assert!(hosts[0].pings("10.54.2.2") && hosts[0].pings("fd54:2::2"), "{}", daemon.log());
    let stream = Stream::start(&hosts, "10.54.2.2", UDP);
    until_forwarded(&daemon);
    let flows: Flows = daemon.get(path::FLOWS);
    assert!(flows.flows.iter().any(|flow| flow.by_kernel && flow.port == "c1"), "{flows:?}");
    serve(&hosts[1], 20_000_000);
    download(&hosts[0], "fd54:2::2".parse::<IpAddr>().unwrap(), 20_000_000);

    // A route that drops, and the one of before.
    run(&format!("ip -n {namespace} route add blackhole 10.54.2.2/32"));
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) == 0));
    assert_eq!(stream.arrive_within(Duration::from_millis(200)), 0);
    run(&format!("ip -n {namespace} route delete blackhole 10.54.2.2/32"));
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) > 0));
    until_forwarded(&daemon);

    // The target has another MAC address, which the router learns.
    hosts[1].ip("link set eth0 address 02:00:00:00:54:42");
    hosts[1].ip("route replace default via 10.54.2.1");
    run(&format!("ip -n {namespace} neighbor flush dev i2"));
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) > 0), "{}", daemon.log());
    until_forwarded(&daemon);

    // A shorter MTU behind the router: the sender is told, and cuts.
    run(&format!("ip -n {namespace} link set i2 mtu 600"));
    let receiver = hosts[1].inside(|| UdpSocket::bind(("10.54.2.2", 7101)).unwrap()).join().unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let sender = hosts[0].inside(|| UdpSocket::bind(("10.54.1.2", 0)).unwrap()).join().unwrap();
    assert!(soon(|| {
        let _ = sender.send_to(&[9; 1200], ("10.54.2.2", 7101));
        receiver.recv(&mut [0; 1500]).is_ok_and(|length| length == 1200)
    }));
    assert!(stream.arrive_within(Duration::from_millis(100)) > 0);

    // What the kernel has routed counts as the router's.
    drop(stream);
    until_settled(&daemon);
    let by_kernel = hits(&daemon, "c1");
    let [received, sent] = routed(&daemon);
    assert!(by_kernel > 300 && received >= by_kernel && sent >= by_kernel, "{by_kernel} {received} {sent}");
    assert!(port(&daemon, "c2").tx_packets >= by_kernel);
    daemon.purge();
}

#[test]
fn the_kernel_translates_open_connections() {
    if !are_possible() {
        return;
    }
    let hosts = ["rb1", "rb2"].map(Host::bare);
    let router = format!("kn{}", std::process::id());
    let config = config(&hosts, &router).replace("name = \"i2\"\n", "name = \"i2\"\nsnat = \"masquerade\"\n");
    let publish = "\n[[nat]]\nname = \"web\"\nfrom = \"c1\"\nmatch = { protocol = \"tcp\", destination = \"10.54.1.1\", \
                   destination_ports = 8080 }\ndnat = [\"10.54.2.2:80\"]\n";
    let mut daemon = Daemon::start(&(config + publish));
    assert!(hosts[0].pings("10.54.2.2"), "{}", daemon.log());
    for to in ["10.54.2.2:80", "10.54.1.1:8080"] {
        let before = ["c1", "c2"].map(|name| hits(&daemon, name));
        let listener = hosts[1].inside(|| TcpListener::bind("10.54.2.2:80").unwrap()).join().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, from) = listener.accept().unwrap();
            assert_eq!(from.ip(), "10.54.2.1".parse::<IpAddr>().unwrap(), "masqueraded");
            let mut received = vec![0; BYTES];
            stream.read_exact(&mut received).unwrap();
            assert!(received.iter().all(|byte| *byte == b'u'));
            stream.write_all(&vec![b'd'; BYTES]).unwrap();
        });
        let asking = hosts[0].inside(move || {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(&vec![b'u'; BYTES]).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            assert!(received.len() == BYTES && received.iter().all(|byte| *byte == b'd'));
        });
        asking.join().unwrap();
        serving.join().unwrap();
        until_settled(&daemon);
        let after = ["c1", "c2"].map(|name| hits(&daemon, name));
        println!("{to}: {before:?}, {after:?} packets by the kernel");
        assert!(after[0] > before[0] + 1000 && after[1] > before[1] + 1000, "{before:?} {after:?}");
    }
    daemon.purge();
}
