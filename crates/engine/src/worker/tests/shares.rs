// SPDX-License-Identifier: Apache-2.0
//! Ports that share a worker: a port that is ahead waits, and its packets stay in its queue; few packets do not wait
//! for the polls of other ports.

use netvm_model::Host;

use super::rig::{Rig, rules, udp};
use crate::ids::PortId;

/// Packets of a burst that a port with a backlog gives.
const BURST: usize = 64;
const TURNS: usize = 4000;

/// Repeats a check until it succeeds: shares are of cycles, and on a busy machine interruptions of the test count, too.
fn undisturbed(attempt: impl Fn() -> Result<(), String>) {
    const ATTEMPTS: usize = 20;
    let failures: Vec<String> = (0..ATTEMPTS).map_while(|_| attempt().err()).collect();
    assert!(failures.len() < ATTEMPTS, "{failures:#?}");
}

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
    undisturbed(|| {
        let (rig, [heavy, light]) = taken("weight = 9", "");
        let ports = &rig.counters().ports;
        let (waited, cycles) = ([0, 1].map(|n| ports[n].waited.get()), [0, 1].map(|n| ports[n].cycles.get()));
        assert!(light > 0 && cycles.iter().all(|cycles| *cycles > 0), "{light} packets, {cycles:?} cycles");
        let is_right = heavy > 3 * light && waited[1] > TURNS as u64 / 2;
        let describe = || format!("{heavy} and {light} packets, waited {waited:?}, {cycles:?} cycles");
        is_right.then_some(()).ok_or_else(describe)
    });
    undisturbed(|| {
        let (rig, [reserved, other]) = taken("reserve = 80", "");
        assert!(other > 0);
        let waited = rig.counters().ports[1].waited.get();
        let is_right = reserved > 3 * other && waited > TURNS as u64 / 2;
        is_right.then_some(()).ok_or_else(|| format!("{reserved} and {other} packets, waited {waited}"))
    });
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
    // The port with the reserve is removed: no port has a share.
    rig.worker.inputs.remove(PortId(0));
    let (worker, policy) = (&mut rig.worker.shares, rig.worker.snapshot.policy.clone());
    worker.follow(rig.worker.inputs.ports(), &policy);
    assert!(!rig.worker.shares.are_in_use());
}

#[test]
fn a_router_is_served_as_one_and_divides_its_share_among_its_ports() {
    // Three ports of one router against one of another; `p4` takes what all send.
    let router = |name: &str, ports: &[usize]| {
        let interface = |port: &usize| format!("{{ name = \"i{port}\", port = \"p{port}\" }}");
        let interfaces: Vec<String> = ports.iter().map(interface).collect();
        let interfaces = interfaces.join(", ");
        format!("[[router]]\nname = \"{name}\"\nweight = 2\ninterface = [{interfaces}]\n")
    };
    let port =
        |n: usize| format!("[[port]]\nname = \"p{n}\"\nkind = \"sink\"\nforward = {{ out = \"p4\" }}\n");
    let ports: String = (0..5).map(port).collect();
    let text = format!("{ports}{}{}", router("many", &[0, 1, 2]), router("one", &[3]));
    let host = netvm_config::parse("shares", &text).unwrap().host;
    undisturbed(|| {
        let taken = taken_of_four(&host);
        let many: usize = taken[..3].iter().sum();
        let is_right = many < 2 * taken[3]
            && taken[3] < 2 * many
            && taken[..3].iter().all(|port| port * 6 > many && *port < many * 2 / 3);
        is_right.then_some(()).ok_or_else(|| format!("{taken:?}"))
    });
    // Without any share in the configuration, workers do not divide their time.
    let mut alone = host;
    alone.routers.iter_mut().for_each(|router| router.weight = 1);
    assert!(!Rig::of(&alone).worker.shares.are_in_use());
}

/// Turns with a backlog at four ports, which send to a fifth. Returns how many packets each gave.
fn taken_of_four(host: &Host) -> [usize; 4] {
    let mut rig = Rig::of(host);
    let mut taken = [0; 4];
    for _ in 0..TURNS {
        let waiting = |rig: &Rig, port: usize| rig.wires[port].lock().unwrap().to_engine.len();
        for port in 0..taken.len() {
            (waiting(&rig, port)..BURST).for_each(|_| rig.receive(port, &udp(1, 2, 3)));
        }
        rig.turn();
        taken.iter_mut().enumerate().for_each(|(port, taken)| *taken += BURST - waiting(&rig, port));
        rig.sent(4);
    }
    taken
}

#[test]
fn few_packets_are_sent_before_the_next_port_is_polled() {
    let mut rig = Rig::of(&rules(&["forward = { out = \"p1\" }", ""], &[]));
    let mut sent_at_poll = |packets: usize| {
        (0..packets).for_each(|_| rig.receive(0, &udp(1, 2, 3)));
        assert_eq!(rig.turn(), 2 * packets);
        assert_eq!(rig.sent(1).len(), packets);
        rig.wires[1].lock().unwrap().sent_at_poll
    };
    assert_eq!([1, 16, 17, 64].map(&mut sent_at_poll), [1, 16, 0, 0], "many are sent together, at the end");
    // For a port without room, packets wait as many turns as ever.
    rig.wires[1].lock().unwrap().is_full = true;
    rig.receive(0, &udp(1, 2, 3));
    assert_eq!(rig.turn(), 1);
    rig.wires[1].lock().unwrap().is_full = false;
    rig.receive(0, &udp(1, 2, 3));
    assert_eq!(rig.turn(), 3);
    assert_eq!((rig.sent(1).len(), rig.wires[1].lock().unwrap().sent_at_poll), (2, 0));
}
