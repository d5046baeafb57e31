// SPDX-License-Identifier: Apache-2.0
//! Ports of the kernel. With a queue for each of two workers, connections are spread over both, and every byte is
//! right. Many that are idle hold no buffers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use netvm_engine::Engine;
use netvm_model::{ContainerConfig, EngineConfig, Forward, Host, Idle, PortConfig, PortKind};
use netvm_policy::PortId;

use super::namespace::Namespace;
use crate::support::{Rig, port};

const SERVICE: u16 = 7778;
/// So many that all of them by one queue would be bad luck: once in 2^15.
const CONNECTIONS: u8 = 16;
const BYTES: usize = 1 << 20;

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, number)
}

fn bytes(connection: u8) -> Vec<u8> {
    (0..BYTES).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ connection).collect()
}

/// Sends different bytes on each of many connections at once, and checks what the other side got.
fn exchange(from: &Namespace, to: &Namespace) {
    let server = to.inside(|| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
        let receive = |mut stream: TcpStream| {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            assert!(received.split_first().is_some_and(|(connection, rest)| rest == bytes(*connection)));
        };
        let streams = (0..CONNECTIONS).map(|_| listener.accept().unwrap().0);
        let threads: Vec<_> = streams.map(|stream| std::thread::spawn(move || receive(stream))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let client = from.inside(|| {
        let send = |connection: u8| {
            let to = SocketAddr::from((address(2), SERVICE));
            let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok();
            // Until the server listens and the ports are up.
            let mut stream = netvm_testing::until_some("connected", connect);
            stream.write_all(&[&[connection], &bytes(connection)[..]].concat()).unwrap();
        };
        std::thread::scope(|scope| {
            (0..CONNECTIONS).for_each(|connection| drop(scope.spawn(move || send(connection))));
        });
    });
    client.join().unwrap();
    server.join().unwrap();
}

#[test]
fn connections_are_spread_over_the_workers_of_a_port() {
    let _alone = super::alone();
    if !rustix::process::geteuid().is_root() || std::thread::available_parallelism().unwrap().get() < 2 {
        println!("SKIP: root and two cores are needed");
        return;
    }
    let config = EngineConfig { cores: vec![0, 1], idle: Idle::Adaptive, ..EngineConfig::default() };
    let container = |number: u8, namespace: &Namespace| {
        let own = format!("{}/24", address(number)).parse().unwrap();
        PortKind::Container(ContainerConfig {
            namespace: namespace.name.clone(),
            addresses: vec![own],
            ..ContainerConfig::default()
        })
    };
    for is_container in [true, false] {
        let namespaces = [1, 2].map(|number| Namespace::new("queues", number));
        let [Some(client), Some(server)] = namespaces else {
            println!("SKIP: `ip netns` does not work here");
            return;
        };
        let ports: Vec<PortConfig> = (1u8..)
            .zip([&client, &server])
            .map(|(number, namespace)| {
                let kind = if is_container {
                    container(number, namespace)
                } else {
                    assert!(namespace.plug(address(number)));
                    PortKind::AfPacket { interface: namespace.outer.clone() }
                };
                let mut port = port(number.into(), &format!("p{number}"), kind);
                port.queues = 2;
                port.policy.forward = Forward::Port(PortId(3 - u16::from(number)));
                port
            })
            .collect();
        let mut rig = Rig::new(&config);
        rig.engine.apply(&Host { engine: config.clone(), ports, ..Host::default() }).unwrap();
        exchange(&client, &server);
        rig.engine.service();
        let received: Vec<[u64; 2]> = rig
            .engine
            .workers()
            .map(|worker| [1, 2].map(|port| worker.counters.ports[port].rx_packets.get()))
            .collect();
        println!("packets of both ports by worker: {received:?}");
        assert_eq!(received.len(), 2);
        assert!(received.iter().flatten().all(|packets| *packets > 20), "{received:?}");
        for view in rig.engine.ports() {
            assert!(view.driver.contains("TCP"), "{}", view.driver);
        }
    }
}

#[test]
fn idle_ports_of_containers_hold_no_buffers() {
    const PORTS: u8 = 24;
    const DATAGRAMS: u64 = 16;
    let _alone = super::alone();
    let Some(namespace) = Namespace::new("idle", 1) else {
        println!("SKIP: `ip netns` does not work here");
        return;
    };
    let config = EngineConfig { idle: Idle::Adaptive, ..EngineConfig::default() };
    let container = |number: u8| {
        let config = ContainerConfig {
            namespace: namespace.name.clone(),
            interface: format!("e{number}"),
            addresses: vec![format!("10.79.{number}.1/24").parse().unwrap()],
            ..ContainerConfig::default()
        };
        port(number.into(), &format!("p{number}"), PortKind::Container(config))
    };
    let ports = (1..=PORTS).map(container).collect();
    let mut rig = Rig::new(&config);
    rig.engine.apply(&Host { engine: config.clone(), ports, ..Host::default() }).unwrap();
    let sender = namespace.inside(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_broadcast(true).unwrap();
        for number in 1..=PORTS {
            // Broadcasts ask for no neighbour, and so wait for none.
            let send = |_| socket.send_to(b"hello", (Ipv4Addr::new(10, 79, number, 255), 9)).map(drop);
            (0..DATAGRAMS).try_for_each(send).unwrap();
        }
    });
    sender.join().unwrap();
    let received = |engine: &Engine| {
        let of = |port: u8| -> u64 {
            engine.workers().map(|worker| worker.counters.ports[usize::from(port)].rx_packets.get()).sum()
        };
        (1..=PORTS).all(|port| of(port) >= DATAGRAMS)
    };
    assert!(rig.until(Duration::from_secs(30), received), "not all datagrams arrive");
    let used = |engine: &Engine| -> u32 {
        engine
            .groups()
            .iter()
            .flat_map(|group| &group.memories)
            .map(|memory| memory.buffers - memory.free)
            .sum()
    };
    let is_free = rig.until(Duration::from_secs(10), |engine| used(engine) < u32::from(PORTS));
    assert!(is_free, "{} buffers are in use", used(&rig.engine));
}
