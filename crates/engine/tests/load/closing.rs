// SPDX-License-Identifier: Apache-2.0
//! Ports that close while their devices take no more packets: each packet that they had is counted.

use std::net::Ipv4Addr;
use std::time::Duration;

use netvm_engine::{DropReason, Engine, GroupId, PortId};
use netvm_model::{EngineConfig, Forward, Host, PortKind, VhostDma, VhostMode};

use super::namespace::{Namespace, run};
use crate::support::hostile_guest::HostileGuest;
use crate::support::hostile_rig::{VERSION_1, is_up, socket, view};
use crate::support::{Rig, all_is_free, group, port, source};

const TIMEOUT: Duration = Duration::from_secs(60);
/// So many that the source still sends when the port closes.
const PACKETS: u64 = 10_000_000;

fn dropped(engine: &Engine, port: u16, why: DropReason) -> u64 {
    view(engine, port).drops.iter().find(|(reason, _)| *reason == why).map_or(0, |(_, count)| *count)
}

/// Sends by a port of this kind, once `fill` has made sure that its device takes no packets; closes the port meanwhile.
fn check<T>(kind: PortKind, fill: impl FnOnce(&mut Rig) -> T) {
    let mut ports = vec![port(0, "in", source(60, Some(PACKETS), false)), port(1, "out", kind)];
    for port in &mut ports {
        port.group = Some(GroupId(0));
    }
    let groups = vec![group(0, 8192, 2048)];
    let mut host = Host { groups, ports, ..Host::default() };
    let mut rig = Rig::new(&EngineConfig::default());
    let source = host.ports.remove(0);
    rig.engine.apply(&host).unwrap();
    let _full = fill(&mut rig);
    host.ports.insert(0, source);
    host.ports[0].policy.forward = Forward::Port(PortId(1));
    rig.engine.apply(&host).unwrap();
    let is_full = rig.until(TIMEOUT, |engine| dropped(engine, 1, DropReason::TxFull) > 0);
    assert!(is_full, "{}", rig.describe());
    rig.engine.reopen(&[PortId(1)]);
    assert!(view(&rig.engine, 0).rx_packets < PACKETS, "the source is too fast");
    let is_done = rig.until(TIMEOUT, |engine| view(engine, 0).rx_packets == PACKETS);
    assert!(is_done, "{}", rig.describe());
    let reasons = [DropReason::TxFull, DropReason::HandoffFull, DropReason::NoPeer, DropReason::PortDown];
    let counted = |engine: &Engine| {
        view(engine, 1).tx_packets + reasons.map(|why| dropped(engine, 1, why)).iter().sum::<u64>()
    };
    // Packets may wait in the port that was opened in its place, too.
    rig.engine.reopen(&[PortId(1)]);
    // The last burst may still be on its way.
    assert!(rig.until(Duration::from_secs(1), |engine| counted(engine) == PACKETS), "{}", rig.describe());
    assert!(dropped(&rig.engine, 1, DropReason::PortDown) > 0, "{}", rig.describe());
    rig.engine.apply(&Host { ports: Vec::new(), ..host }).unwrap();
    assert!(rig.until(TIMEOUT, all_is_free), "{}", rig.describe());
}

#[test]
fn packets_for_a_guest_that_takes_none_are_counted_when_its_port_closes() {
    let _alone = super::alone();
    let path = socket("closing");
    let kind = PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server, dma: VhostDma::Off };
    check(kind, |rig| {
        // Its rings have no buffers.
        let guest = HostileGuest::connect(&path, VERSION_1);
        assert!(rig.until(TIMEOUT, |engine| is_up(engine, 1)), "{}", rig.describe());
        guest
    });
}

#[test]
fn packets_for_an_interface_that_is_down_are_counted_when_its_port_closes() {
    let _alone = super::alone();
    let Some(namespace) = Namespace::new("closing", 1) else {
        println!("SKIP: `ip netns` does not work here");
        return;
    };
    assert!(namespace.plug(Ipv4Addr::new(10, 79, 0, 1)));
    let interface = namespace.outer.clone();
    check(PortKind::AfXdp { interface: interface.clone(), generic: false }, |_| {
        assert!(run(&format!("ip link set {interface} down")));
    });
}
