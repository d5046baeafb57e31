// SPDX-License-Identifier: Apache-2.0
//! Shares in a simulated worker.

use super::*;

/// Packets that wait in a port's receive queue.
const DESCRIPTORS: u64 = 512;
/// Cycles of looking for packets.
const POLL: u64 = 100;
/// Cycles of a second.
const HERTZ: u64 = 1_000_000_000;

/// Packets that come in by a port.
#[derive(Clone, Copy)]
struct Load {
    /// Packets a second.
    offered: u64,
    /// Cycles for a packet.
    cost: u64,
    share: Share,
    router: Option<(RouterId, Share)>,
}

/// Packets a second of each port in a simulated worker: handled, and dropped at the port.
fn throughput(loads: &[Load], is_shared: bool) -> Vec<(u64, u64)> {
    let counters = WorkerCounters::new();
    let mut shares = Shares::default();
    if is_shared {
        // About to wrap.
        let near_end = u64::MAX - 1000;
        let virtual_clock = VirtualClock { now: near_end, furthest: near_end, ..VirtualClock::default() };
        let before = Shares { virtual_clock, ..Shares::default() };
        (shares.virtual_clock, shares.is_changed) = (virtual_clock, true);
        for (n, load) in (0..).zip(loads) {
            let owner = shares.owner(PortId(n), load.share, load.router, &before);
            shares.owners[owner].ports = virtual_clock;
            let own = if load.router.is_some() { load.share } else { Share::default() };
            let account = Account::new(own, near_end);
            shares.ports.push(PortAccount { port: PortId(n), owner, account });
        }
    }
    let (mut taken, mut lost) = (vec![0; loads.len()], vec![0; loads.len()]);
    let mut now = 0;
    while now < HERTZ {
        shares.begin_turn(now);
        for (n, load) in loads.iter().enumerate() {
            if shares.has_to_wait(n, &counters) {
                continue;
            }
            let come = u128::from(now) * u128::from(load.offered) / u128::from(HERTZ);
            let waiting = come as u64 - taken[n] - lost[n];
            lost[n] += waiting.saturating_sub(DESCRIPTORS);
            let burst = waiting.min(BURST as u64);
            taken[n] += burst;
            now += POLL + burst * load.cost;
            shares.charge(n, burst as usize, now, &counters);
        }
        now += POLL;
    }
    taken.into_iter().zip(lost).collect()
}

const fn load(kpps: u64, cost: u64, weight: u16, reserve: u8) -> Load {
    Load { offered: kpps * 1000, cost, share: Share { weight, reserve }, router: None }
}

const fn of_router(load: Load, id: u16, weight: u16, reserve: u8) -> Load {
    Load { router: Some((RouterId(id), Share { weight, reserve })), ..load }
}

fn is_about(found: u64, kpps: u64) -> bool {
    found.abs_diff(kpps * 1000) <= kpps * 40
}

#[test]
fn a_port_at_ten_times_its_share_takes_nothing_from_another() {
    // Rathore, Hidell and Sjödin, table 1: a core forwards 650,000 packets a second.
    const COST: u64 = HERTZ / 650_000;
    for offered in [300, 1000, 3500] {
        let all = throughput(&[load(offered, COST, 1, 0), load(300, COST, 1, 0)], true);
        assert!(is_about(all[0].0, offered.min(350)) && is_about(all[1].0, 300), "{offered}: {all:?}");
        assert_eq!(all[1].1, 0, "{offered}: {all:?}");
    }
    // Its packets cost ten times as much. Bursts in turn are not enough then.
    let loads = [load(350, 10 * COST, 1, 0), load(300, COST, 1, 0)];
    let (shared, in_turn) = (throughput(&loads, true), throughput(&loads, false));
    assert!(is_about(shared[0].0, 35) && is_about(shared[1].0, 300) && shared[1].1 == 0, "{shared:?}");
    assert!(in_turn[1].1 > 150_000, "{in_turn:?}");
    // A reserve holds for more than half of the worker.
    let loads = [load(5000, COST, 1, 0), load(500, COST, 1, 80)];
    let (shared, in_turn) = (throughput(&loads, true), throughput(&loads, false));
    assert!(is_about(shared[0].0, 150) && is_about(shared[1].0, 500) && shared[1].1 == 0, "{shared:?}");
    assert!(in_turn[1].1 > 100_000, "{in_turn:?}");
}

#[test]
fn ports_with_a_backlog_share_by_weight_and_reserve() {
    const COST: u64 = 1000;
    let rates = |loads: &[Load]| -> Vec<u64> {
        throughput(loads, true).into_iter().map(|(taken, _)| taken / 1000).collect()
    };
    let is_near = |found: &[u64], expected: &[u64]| {
        found.iter().zip(expected).all(|(one, other)| one.abs_diff(*other) <= 10 + other / 20)
    };
    let all = rates(&[load(9000, COST, 4, 0), load(9000, COST, 1, 0)]);
    assert!(is_near(&all, &[800, 200]), "{all:?}");
    // Half is reserved for the first, which has a weight beside; an idle one has no say.
    let all = rates(&[load(9000, COST, 1, 50), load(9000, COST, 1, 0), load(0, COST, 1, 40)]);
    assert!(is_near(&all, &[750, 250]), "{all:?}");
    // By time, not by packets; a light one gets all that it asks for.
    let all = rates(&[load(9000, 4 * COST, 1, 0), load(9000, COST, 1, 0), load(100, COST, 1, 0)]);
    assert!(is_near(&all, &[112, 450, 100]), "{all:?}");
    let all = rates(&[load(9000, COST, 1000, 0), load(9000, COST, 1, 0)]);
    assert!(all[0] > 950 && all[1] > 0, "{all:?}");
    // What is not used is not lost.
    let all = rates(&[load(9000, COST, 1, 0), load(10, COST, 1, 90)]);
    assert!(is_near(&all, &[970, 10]), "{all:?}");
}

#[test]
fn a_router_at_ten_times_its_share_takes_nothing_from_another_however_many_ports_it_has() {
    // As above, with routers: one has three ports, each of them overloaded, the other has one.
    const COST: u64 = HERTZ / 650_000;
    let rest = |weight, reserve| of_router(load(300, COST, 1, 0), 1, weight, reserve);
    let three = [(); 3].map(|()| of_router(load(1100, COST, 1, 0), 0, 1, 0));
    let loads = [three[0], three[1], three[2], rest(1, 0)];
    let all = throughput(&loads, true);
    let first: u64 = all[..3].iter().map(|(taken, _)| taken).sum();
    assert!(is_about(first, 350) && is_about(all[3].0, 300) && all[3].1 == 0, "{all:?}");
    assert!(all[..3].iter().all(|(taken, _)| is_about(*taken, 350 / 3)), "{all:?}");
    // With shares of ports only, three ports are three times one: the other router gets a quarter.
    let by_port = throughput(&loads.map(|load| Load { router: None, ..load }), true);
    assert!(is_about(by_port[3].0, 650 / 4), "{by_port:?}");
    // A reserve of the router, and weights among its ports.
    let heavy = of_router(load(1100, COST, 3, 0), 0, 1, 0);
    let loads = [heavy, three[1], of_router(load(500, COST, 1, 0), 1, 1, 80)];
    let all = throughput(&loads, true);
    assert!(is_about(all[2].0, 500) && all[2].1 == 0, "{all:?}");
    assert!(is_about(all[0].0, 150 * 3 / 4) && is_about(all[1].0, 150 / 4), "{all:?}");
}

#[test]
fn within_a_router_ports_share_what_it_has() {
    const COST: u64 = 1000;
    let rates = |loads: &[Load]| -> Vec<u64> {
        throughput(loads, true).into_iter().map(|(taken, _)| taken / 1000).collect()
    };
    let is_near = |found: &[u64], expected: &[u64]| {
        found.iter().zip(expected).all(|(one, other)| one.abs_diff(*other) <= 10 + other / 20)
    };
    let busy = |weight, reserve| load(9000, COST, weight, reserve);
    // Half of the worker is the router's; a port outside has the other. What is not used goes to the other port first.
    let mine = |load: Load| of_router(load, 7, 1, 30);
    let all = rates(&[mine(busy(1, 0)), mine(load(50, COST, 1, 0)), busy(1, 0)]);
    assert!(is_near(&all, &[600, 50, 350]), "{all:?}");
    // A port reserves a part of the worker within its router's reserve.
    let all = rates(&[mine(busy(1, 30)), mine(busy(1, 0)), busy(1, 0)]);
    assert!(is_near(&all, &[475, 175, 350]), "{all:?}");
    // An idle router leaves all to the others.
    let all = rates(&[mine(load(0, COST, 1, 0)), busy(3, 0), busy(1, 0)]);
    assert!(is_near(&all[1..], &[750, 250]), "{all:?}");
    // One at a time.
    let two = |id| of_router(busy(1, 0), id, 4, 0);
    let all = rates(&[two(1), two(1), two(2), busy(2, 0)]);
    assert!(is_near(&all, &[200, 200, 400, 200]), "{all:?}");
}
