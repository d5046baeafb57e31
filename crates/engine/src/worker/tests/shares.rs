//! Ports that share a worker: who is ahead waits, and its packets stay where they are.

use super::rig::{Rig, rules, udp};
use crate::ids::PortId;

/// Packets of a burst that a port with a backlog gives.
const BURST: usize = 64;
const TURNS: usize = 4000;

/// Turns with a backlog at `p0` and `p1`, which send to `p2`. Returns how many packets each gave.
fn taken(first: &str, second: &str) -> (Rig, [usize; 2]) {
    let to = |share: &str| format!("forward = {{ out = \"p2\" }}\n{share}");
    let mut rig = Rig::of(&rules(&[&to(first), &to(second), ""], &[]));
    let frame = udp(1, 2, 3);
    let mut taken = [0; 2];
    for _ in 0..TURNS {
        let waiting = |rig: &Rig, port: usize| rig.wires[port].lock().unwrap().to_engine.len();
        for port in 0..taken.len() {
            (waiting(&rig, port)..BURST).for_each(|_| rig.receive(port, &frame));
        }
        assert!(rig.turn() > 0, "one of them is served in each turn");
        taken.iter_mut().enumerate().for_each(|(port, taken)| *taken += BURST - waiting(&rig, port));
        rig.sent(2);
    }
    (rig, taken)
}

#[test]
fn a_port_that_has_had_its_share_waits_for_the_other() {
    let (rig, [heavy, light]) = taken("weight = 9", "");
    let ports = &rig.counters().ports;
    let (waited, cycles) = ([0, 1].map(|n| ports[n].waited.get()), [0, 1].map(|n| ports[n].cycles.get()));
    // By cycles, so an interruption of the test counts, too.
    assert!(
        heavy > 3 * light && light > 0,
        "{heavy} and {light} packets, waited {waited:?}, {cycles:?} cycles"
    );
    assert!(waited[1] > TURNS as u64 / 2 && cycles.iter().all(|cycles| *cycles > 0), "{waited:?} {cycles:?}");
    let (rig, [reserved, other]) = taken("reserve = 80", "");
    assert!(reserved > 3 * other && other > 0, "{reserved} and {other} packets");
    assert!(rig.counters().ports[1].waited.get() > TURNS as u64 / 2);
}

#[test]
fn without_shares_all_are_served_in_turn() {
    let (rig, [one, other]) = taken("", "");
    assert_eq!((one, other), (TURNS * BURST, TURNS * BURST));
    assert_eq!([0, 1].map(|n| rig.counters().ports[n].cycles.get()), [0, 0]);
}

#[test]
fn alone_a_port_never_waits_and_shares_follow_the_ports() {
    let mut rig =
        Rig::of(&rules(&["forward = { out = \"p2\" }\nreserve = 1", "forward = { out = \"p2\" }", ""], &[]));
    for n in 0..1000 {
        (0..BURST).for_each(|_| rig.receive(1, &udp(1, 2, 3)));
        assert_eq!(rig.turn(), 2 * BURST, "turn {n}: {BURST} received and sent");
    }
    assert_eq!(rig.counters().ports[1].waited.get(), 0);
    // The port with the reserve goes: nobody has a share.
    rig.worker.inputs.retain(|port| *port != PortId(0));
    let (worker, policy) = (&mut rig.worker.shares, rig.worker.snapshot.policy.clone());
    worker.follow(&rig.worker.inputs, &policy);
    assert!(!rig.worker.shares.are_in_use());
}
