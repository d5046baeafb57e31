// SPDX-License-Identifier: Apache-2.0
//! Routes that change, and workers that come and go, while packets are forwarded.

use std::time::{Duration, Instant};

use super::plan::*;
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, port, source};
use netvm_engine::{DropReason, Engine, InterfaceCounts, PortId};
use netvm_model::{EngineConfig, Host, PortConfig, PortKind, RouterId};
use netvm_router::{NextHopId, Update};
use netvm_wire::{IpNet, MacAddr};

/// The port of the router's third interface.
const DMZ: u16 = 4;

/// Packets that pass while workers come and go.
const NUMBERED: u32 = 100_000;

/// A router between a source on the LAN, which sends to 192.168.0.1 as fast as the engine takes it, and two sinks.
fn between_source_and_sinks() -> Host {
    let mut ports: Vec<PortConfig> = vec![port(LAN, "lan", source(60, None, false))];
    ports.extend([WAN, LAN_PUNT, WAN_PUNT, DMZ, 5].map(|id| port(id, &format!("p{id}"), PortKind::Sink)));
    let mut host = routed(ports, 0, 0);
    host.routers[0].interfaces[0].mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let mut third = host.routers[0].interfaces[1].clone();
    (third.name, third.port, third.punt) = ("dmz".to_owned(), PortId(DMZ), PortId(5));
    host.routers[0].interfaces.push(third);
    host
}

/// The same without the source.
fn quiet(host: &Host) -> Host {
    Host { ports: host.ports[1..].to_vec(), ..host.clone() }
}

/// Starts the router with its first route, then the source. Returns also how many buffers were free between.
fn start(host: &Host, first: Update) -> (Rig, Vec<u32>) {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&quiet(host)).unwrap();
    let routes = first.routes.len();
    rig.engine.update_router(RouterId(0), first).unwrap();
    assert!(rig.until(LIMIT, |engine| routes_in_use(engine) == routes), "{}", rig.describe());
    let free = rig.free_buffers();
    rig.engine.apply(host).unwrap();
    (rig, free)
}

fn routes_in_use(engine: &Engine) -> usize {
    engine.routers()[0].routes.0
}

/// Ends the traffic, checks that no packet was lost or punted, and returns how many left by the WAN and by the DMZ.
fn stop(rig: &mut Rig, host: &Host, free: &[u32]) -> [u64; 2] {
    rig.engine.apply(&quiet(host)).unwrap();
    let counters = rig.engine.workers().next().unwrap().counters;
    for reason in DropReason::ALL {
        let drops: u64 = counters.ports.iter().map(|port| port.drops.get(reason)).sum();
        assert_eq!(drops, 0, "{}", reason.name());
    }
    let sent = [WAN, DMZ].map(|port| counters.ports[usize::from(port)].tx_packets.get());
    let received = counters.ports[usize::from(LAN)].rx_packets.get();
    // What came before the interface had its route went to the kernel; none did.
    assert_eq!((received, rig.engine.routers()[0].punted), (sent[0] + sent[1], 0));
    let now = rig.free_buffers();
    assert!(now.as_slice() >= free, "{now:?} of {free:?}");
    sent
}

/// The route changes under full load: each packet leaves by the old or the new one, and none is lost.
#[test]
fn routes_change_under_load_without_a_loss() {
    let host = between_source_and_sinks();
    let to = |interface: u16, spare: u32| Update {
        next_hops: vec![(NextHopId(1), via(interface))],
        routes: vec![
            route("192.168.0.0/16", 1),
            (format!("172.16.{}.0/24", spare % 256).parse().unwrap(), Some(NextHopId(1))),
        ],
    };
    let (mut rig, free) = start(&host, to(1, 0));
    let mut last = 0;
    for n in 1..60 {
        rig.engine.update_router(RouterId(0), to([1, 2][n as usize % 2], n)).unwrap();
        let (out, before) = ([WAN, DMZ][n as usize % 2], rig.sent([WAN, DMZ][n as usize % 2]));
        assert!(
            rig.until(LIMIT, |engine| {
                engine.ports().iter().any(|port| port.id == PortId(out) && port.tx_packets > before + 32)
            }),
            "change {n}: {}",
            rig.describe()
        );
        last = rig.engine.routers()[0].routes.0;
    }
    assert!(last >= 59, "{last} routes");
    let sent = stop(&mut rig, &host, &free);
    assert!(sent.iter().all(|sent| *sent > 1000), "{sent:?}");
    // Without its routes everything goes to the kernel.
    let mut changed = host.clone();
    changed.routers[0].interfaces.swap(1, 2);
    rig.engine.apply(&quiet(&changed)).unwrap();
    assert_eq!(rig.engine.routers()[0].routes, (0, 0), "places changed");
    rig.engine.apply(&Host::default()).unwrap();
    assert!(rig.engine.update_router(RouterId(0), Update::default()).is_err());
}

/// Changes within a second, in updates as a routing daemon's netlink messages make them.
const CHANGES: u32 = 10_000;
const PER_UPDATE: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(10);

/// Prefixes beside the one that the source sends to: every second shares its /16, some its last node of the table.
fn beside(n: u32) -> IpNet {
    let (high, low) = (n / 2 % 200, n / 400);
    let text = if n.is_multiple_of(2) {
        format!("20.{high}.{low}.0/24")
    } else {
        format!("192.168.{high}.{}/32", 2 + low)
    };
    text.parse().unwrap()
}

/// 10,000 routes come within a second and go within the next, under full load. The source's own route stays, so that
/// all packets leave by it.
#[test]
fn packets_keep_to_their_route_while_thousands_beside_it_change() {
    let host = between_source_and_sinks();
    let first = Update {
        next_hops: vec![(NextHopId(1), via(1)), (NextHopId(2), via(2))],
        routes: vec![route("192.168.0.0/16", 1)],
    };
    let (mut rig, free) = start(&host, first);
    let (begin, mut most_waiting) = (Instant::now(), 0);
    for to in [Some(NextHopId(2)), None] {
        let start = Instant::now();
        let in_use = |done: u32| 1 + if to.is_some() { done } else { CHANGES - done } as usize;
        for n in 0..CHANGES / PER_UPDATE {
            assert!(rig.until(LIMIT, |_| start.elapsed() >= n * INTERVAL));
            // A builder that keeps up has most changes in use when the next ones come.
            most_waiting = most_waiting.max(in_use(n * PER_UPDATE).abs_diff(routes_in_use(&rig.engine)));
            let changed = n * PER_UPDATE..(n + 1) * PER_UPDATE;
            let routes = changed.map(|n| (beside(n), to)).collect();
            rig.engine.update_router(RouterId(0), Update { routes, ..Update::default() }).unwrap();
        }
        let all = in_use(CHANGES);
        assert!(rig.until(LIMIT, |engine| routes_in_use(engine) == all), "{}", rig.describe());
    }
    let took = begin.elapsed();
    let [sent, astray] = stop(&mut rig, &host, &free);
    let rate = f64::from(2 * CHANGES) / took.as_secs_f64();
    println!(
        "{rate:.0} route changes a second, at most {most_waiting} waiting, beside {:.0} packets a second",
        sent as f64 / took.as_secs_f64()
    );
    assert_eq!(astray, 0, "packets left by the interface of other routes");
    // Half of the rate, and half a second, for a debug build beside other load.
    assert!(rate > 5000.0 && most_waiting < 5000, "{rate:.0}, {most_waiting}");
    assert!(sent > 100_000, "{sent}");
}

/// Lets a router forward while workers come and go. Returns the number of changes before all packets had passed.
fn change_cores(frames: &[Vec<u8>]) -> usize {
    let mut rig = Rig::new(&EngineConfig { cores: vec![0], ..EngineConfig::default() });
    let scratch = Scratch::new();
    let mut host = host(&scratch, frames, 0, 0);
    let free = start_routed(&mut rig, &host, &routes());
    let (mut changes, packets) = (0, u64::from(NUMBERED));
    while rig.sent(WAN) < packets && changes < 200 {
        host.engine.cores = [&[0, 1][..], &[1], &[1, 0], &[0]][changes % 4].to_vec();
        rig.engine.apply(&host).unwrap();
        changes += 1;
    }
    finish(&mut rig);
    let ports = rig.engine.ports();
    assert!(ports.iter().all(|port| port.drops.is_empty()), "{}", rig.describe());
    let router = rig.engine.routers()[0];
    assert_eq!((router.forwarded, router.punted), (packets, 0), "{}", rig.describe());
    let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
    let of = |punt: u16| ports.iter().find(|port| port.id == PortId(punt)).unwrap().router_interface;
    let lan = InterfaceCounts { rx_packets: packets, rx_bytes: bytes, ..InterfaceCounts::default() };
    let wan = InterfaceCounts { tx_packets: packets, tx_bytes: bytes, ..InterfaceCounts::default() };
    assert_eq!((of(LAN_PUNT), of(WAN_PUNT)), (lan, wan));
    // Closing the ports gives back what they hold.
    let (ports, routers) = Default::default();
    rig.engine.apply(&Host { ports, routers, ..host }).unwrap();
    assert!(rig.free_buffers().iter().zip(&free).all(|(now, before)| now >= before), "{}", rig.describe());
    let sent = scratch.sent(WAN);
    assert_eq!(sent.len(), frames.len());
    let number = |frame: &[u8]| u32::from_be_bytes(*frame.last_chunk().unwrap());
    let first = sent.iter().zip(0..).find(|(frame, n)| number(frame) != *n);
    assert!(first.is_none(), "{changes} changes: {first:?} is out of order");
    changes
}

#[test]
fn routed_packets_keep_their_order_and_counts_when_workers_come_and_go() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return println!("SKIP: two workers need two cores");
    }
    let frames: Vec<Vec<u8>> = (0..NUMBERED).map(|n| datagram(false, n)).collect();
    let mut rounds = (0..20).scan(0, |changes, _| {
        *changes += change_cores(&frames);
        Some(*changes)
    });
    assert!(rounds.any(|changes| changes > 7));
}
