// SPDX-License-Identifier: Apache-2.0
//! A port scans with tuples that never repeat; TCP connections between two other ports are set up as fast as without
//! it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::namespace::{Namespace, run};
use crate::support::{Rig, port};
use netvm_model::{EngineConfig, FlowCacheConfig, Forward, Host, Idle, PortConfig, PortKind, SourceConfig};
use netvm_policy::{Action, Actions, Match, PortId, Rule, RuleId, RuleParts};
use netvm_wire::{IpNet, PortRange};

/// Rules that match none of the packets.
const RULES: u32 = 1000;
/// Times that both are measured in turn, without and with an attack, and connections each time.
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 60;
const SERVICE: u16 = 7777;
/// The byte that ends the server.
const END: u8 = b'q';

/// A network namespace with one interface.
struct Guest {
    namespace: Namespace,
    address: Ipv4Addr,
}

impl Guest {
    fn new(number: u8) -> Option<Self> {
        let namespace = Namespace::new("attack", number)?;
        let address = Ipv4Addr::new(10, 77, 0, number);
        let done = namespace.plug(address)
            // What is left to the device would never be filled in.
            && run(&format!("ip netns exec {} ethtool -K eth0 tx off", namespace.name));
        done.then_some(Self { namespace, address })
    }
}

/// Answers one byte with itself, a connection after the other.
fn serve(guest: &Guest) {
    guest.namespace.enter();
    let listener = TcpListener::bind(SocketAddr::from((guest.address, SERVICE))).unwrap();
    for stream in listener.incoming() {
        let (mut stream, mut byte) = (stream.unwrap(), [0]);
        if stream.read_exact(&mut byte).is_ok() {
            let _ = stream.write_all(&byte);
        }
        if byte[0] == END {
            return;
        }
    }
}

/// Sets up a connection and gets a byte back; how long that took.
fn connect(server: SocketAddr, byte: u8) -> std::io::Result<Duration> {
    let started = Instant::now();
    let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&[byte])?;
    stream.read_exact(&mut [0])?;
    Ok(started.elapsed())
}

fn rules() -> Vec<Rule> {
    let rule = |n| {
        Rule::from(RuleParts {
            id: RuleId(n),
            name: String::new(),
            matches: Match {
                source: vec![IpNet::new(Ipv4Addr::from_bits(0xac10_0000 | n).into(), 32).unwrap()],
                destination_ports: vec![PortRange::new((n % 500) as u16, (n % 500 + n % 7) as u16).unwrap()],
                ..Match::default()
            },
            actions: Actions { terminal: Some(Action::Drop), ..Actions::default() },
        })
    };
    (0..RULES).map(rule).collect()
}

/// A port whose packets go out of another.
fn towards(to: u16, port: PortConfig) -> PortConfig {
    let mut port = port;
    port.policy.forward = Forward::Port(PortId(to));
    port
}

fn host(config: &EngineConfig, guests: &[Guest; 2], attacked: bool) -> Host {
    let veth = |guest: &Guest| PortKind::AfPacket { interface: guest.namespace.outer.clone() };
    let scan = SourceConfig { flows: u32::MAX, ..SourceConfig::default() };
    let mut ports = vec![
        port(1, "sink", PortKind::Sink),
        towards(3, port(2, "client", veth(&guests[0]))),
        towards(2, port(3, "server", veth(&guests[1]))),
    ];
    if attacked {
        ports.push(towards(1, port(0, "scan", PortKind::Source(scan))));
    }
    Host { engine: config.clone(), ports, rules: rules(), ..Host::default() }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn connections_are_set_up_while_another_port_scans() {
    let _alone = super::alone();
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: network namespaces need root");
        return;
    }
    let (Some(client), Some(server)) = (Guest::new(1), Guest::new(2)) else {
        println!("SKIP: `ip netns`, veth and `ethtool` are needed and do not work here");
        return;
    };
    let guests = [client, server];
    // A worker that slept while no attack runs would make the comparison easier.
    let flow_cache = FlowCacheConfig { entries: 1024, ..FlowCacheConfig::default() };
    let config = EngineConfig { idle: Idle::Poll, flow_cache, ..EngineConfig::default() };
    let mut rig = Rig::new(&config);
    rig.engine.apply(&host(&config, &guests, false)).unwrap();
    let address = SocketAddr::from((guests[1].address, SERVICE));
    let mut times = [Vec::new(), Vec::new()];
    let mut scanned = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&guests[1]));
        let measure = |count: usize| {
            let visit = || {
                guests[0].namespace.enter();
                (0..count).map(|_| connect(address, b'x')).collect::<Result<Vec<_>, _>>()
            };
            std::thread::scope(|scope| scope.spawn(visit).join().unwrap()).unwrap()
        };
        // Until the server listens and both know each other's address.
        let warm_up = || {
            guests[0].namespace.enter();
            netvm_testing::until("the server answers", || connect(address, b'x').is_ok());
        };
        std::thread::scope(|scope| scope.spawn(warm_up).join().unwrap());
        for _ in 0..ROUNDS {
            for attacked in [false, true] {
                rig.engine.apply(&host(&config, &guests, attacked)).unwrap();
                let before = rig.sent(1);
                times[usize::from(attacked)].extend(measure(CONNECTIONS));
                scanned += rig.sent(1) - before;
            }
        }
        let end = || {
            guests[0].namespace.enter();
            connect(address, END).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(end).join().unwrap());
    });
    let [mut idle, mut attacked] = times;
    let spent: Duration = attacked.iter().sum();
    let (idle_median, attacked_median) = (median(&mut idle), median(&mut attacked));
    println!(
        "{} connections each: median {idle_median:.1?}, and {attacked_median:.1?} while {:.2} Mpps of new flows come; \
         longest {:.1?} and {:.1?}",
        idle.len(),
        scanned as f64 / spent.as_secs_f64() / 1e6,
        idle.last().unwrap(),
        attacked.last().unwrap()
    );
    assert!(scanned > 100_000, "{scanned}");
    for view in rig.engine.ports().iter().filter(|view| view.id != PortId(0)) {
        assert!(view.drops.is_empty(), "{}", rig.describe());
    }
    assert!(attacked_median <= idle_median * 2, "{idle_median:?}, attacked {attacked_median:?}");
}
