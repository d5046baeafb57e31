// SPDX-License-Identifier: Apache-2.0
//! The placement's rules, one by one, and that it neither overlooks a worker nor depends on chance.

use std::time::{Duration, Instant};

use netvm_model::{Host, PortConfig, PortKind, QosConfig};

use super::balance::Balance;
use super::load::Loads;
use super::request::Request;
use super::*;
use crate::counters::WorkerCounters;

const fn request(port: u16, queues: u16) -> Request {
    let port = PortId(port);
    Request { port, queues, worker: None, node: None, one_node: false, with: None, counts: true }
}

fn pinned(port: u16, worker: u8) -> Request {
    Request { worker: Some(WorkerId(worker)), ..request(port, 1) }
}

fn on_node(port: u16, queues: u16, node: u32) -> Request {
    Request { node: Some(node), ..request(port, queues) }
}

/// Places ports in one round, without loads.
fn placed(nodes: &[u32], requests: &[Request]) -> Placement {
    let mut placement = Placement::new(nodes.to_vec());
    placement.place(requests, &Loads::default());
    placement
}

fn workers(placement: &Placement, port: u16) -> Vec<u8> {
    placement.workers_of(PortId(port)).iter().map(|worker| worker.0).collect()
}

fn all(placement: &Placement, ports: impl IntoIterator<Item = u16>) -> Vec<Vec<u8>> {
    ports.into_iter().map(|port| workers(placement, port)).collect()
}

#[test]
fn four_ports_of_one_queue_alternate_between_two_workers() {
    let placement = placed(&[0, 0], &[request(0, 1), request(1, 1), request(2, 1), request(3, 1)]);
    assert_eq!(all(&placement, 0..4), [[0], [1], [0], [1]]);
}

#[test]
fn sixteen_ports_use_eight_workers() {
    let requests: Vec<Request> = (0..16).map(|port| request(port, 1)).collect();
    let placement = placed(&[0; 8], &requests);
    for worker in 0..8 {
        assert_eq!(placement.queues(WorkerId(worker)), 2, "worker {worker}");
    }
}

#[test]
fn queues_of_a_port_are_on_as_many_workers_as_there_are() {
    let placement = placed(&[0, 0, 0], &[request(0, 1), request(1, 4), request(2, 1)]);
    assert_eq!(all(&placement, 0..3), [vec![0], vec![1, 2, 0, 1], vec![2]]);
}

#[test]
fn a_port_gets_the_worker_that_its_configuration_names_and_the_others_know() {
    let placement = placed(&[0, 0], &[request(0, 1), request(1, 1), pinned(2, 0), pinned(3, 0)]);
    assert_eq!(all(&placement, 0..4), [[1], [1], [0], [0]]);
}

#[test]
fn a_devices_node_decides_if_a_worker_is_there() {
    let requests = [on_node(0, 2, 1), on_node(1, 1, 1), on_node(2, 1, 7), request(3, 4)];
    let placement = placed(&[0, 0, 1, 1], &requests);
    assert_eq!(all(&placement, 0..4), [vec![2, 3], vec![2], vec![0], vec![1, 0, 3, 2]]);
}

#[test]
fn queues_that_share_a_memory_are_on_one_node() {
    let shared = Request { one_node: true, ..request(1, 4) };
    let placement = placed(&[0, 0, 1, 1], &[request(0, 1), shared]);
    let nodes: Vec<bool> = workers(&placement, 1).iter().map(|worker| *worker < 2).collect();
    assert!(nodes.iter().all(|on_first| *on_first == nodes[0]), "{nodes:?}");
}

#[test]
fn a_punt_port_follows_its_port_and_does_not_count() {
    let punt = |port, of| Request { with: Some(PortId(of)), counts: false, ..request(port, 1) };
    let placement = placed(&[0, 0], &[request(0, 1), punt(8, 0), request(1, 1), punt(9, 1), request(2, 1)]);
    assert_eq!(all(&placement, [0, 1, 2, 8, 9]), [[0], [1], [0], [0], [1]]);
    assert_eq!([0, 1].map(|worker| placement.queues(WorkerId(worker))), [2, 1]);
}

#[test]
fn a_port_gets_the_worker_with_the_least_load_not_the_fewest_queues() {
    let mut placement = placed(&[0, 0], &[pinned(0, 0), pinned(1, 1), pinned(2, 1)]);
    placement.place(&[request(3, 1)], &Loads::given(&[800, 100], &[]));
    assert_eq!(workers(&placement, 3), [1]);
    // Less than a step apart, queues decide.
    placement.place(&[request(4, 1)], &Loads::given(&[180, 110], &[]));
    assert_eq!(workers(&placement, 4), [0]);
}

#[test]
fn ports_that_open_at_once_do_not_pile_up_on_the_idle_worker() {
    let mut placement = placed(&[0, 0], &[pinned(0, 0), pinned(1, 0)]);
    let loads = Loads::given(&[400, 0], &[(PortId(0), WorkerId(0), 200), (PortId(1), WorkerId(0), 200)]);
    let four: Vec<Request> = (2..6).map(|port| request(port, 1)).collect();
    placement.place(&four, &loads);
    // Each is expected to take 200, as the two others do.
    assert_eq!(all(&placement, 2..6), [[1], [1], [0], [1]]);
}

#[test]
fn a_port_that_opens_again_keeps_its_worker_unless_another_is_better() {
    let mut placement = placed(&[0, 0], &[request(0, 1), request(1, 1), request(2, 1), request(3, 1)]);
    // Its own load does not count against its worker.
    let loads = Loads::given(&[900, 300], &[(PortId(2), WorkerId(0), 800)]);
    placement.place(&[request(2, 1)], &loads);
    assert_eq!(workers(&placement, 2), [0]);
    for _ in 0..3 {
        let again: Vec<Request> = (0..4).map(|port| request(port, 1)).collect();
        placement.place(&again, &Loads::default());
        assert_eq!(all(&placement, 0..4), [[0], [1], [0], [1]]);
    }
    // Two ports are removed from worker 1.
    placement.retain(|port| port.0 % 2 == 0);
    placement.place(&[request(2, 1)], &Loads::default());
    assert_eq!(all(&placement, [0, 2]), [[0], [1]]);
}

#[test]
fn a_lone_port_that_opens_again_stays() {
    let mut placement = placed(&[0, 0], &[pinned(0, 1)]);
    placement.place(&[request(0, 1)], &Loads::given(&[0, 600], &[(PortId(0), WorkerId(1), 600)]));
    assert_eq!(workers(&placement, 0), [1]);
}

/// A generator of pseudo-random numbers (xorshift64).
struct Generator(u64);

impl Generator {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn any_ports_are_spread_evenly_and_the_same_way_each_time() {
    let mut random = Generator(48);
    for _ in 0..500 {
        let count = 1 + random.below(8) as usize;
        let ports = 1 + random.below(40) as u16;
        let requests: Vec<Request> =
            (0..ports).map(|port| request(port, 1 + random.below(4) as u16)).collect();
        let placement = placed(&vec![0; count], &requests);
        let queues: Vec<usize> = (0..count as u8).map(|worker| placement.queues(WorkerId(worker))).collect();
        let (least, most) = (*queues.iter().min().unwrap(), *queues.iter().max().unwrap());
        assert!(most - least <= 1, "{queues:?} of {requests:?}");
        let again = placed(&vec![0; count], &requests);
        assert_eq!(placement.by_port, again.by_port);
        for request in &requests {
            assert_eq!(placement.workers_of(request.port).len(), usize::from(request.queues));
        }
    }
}

#[test]
fn sinks_and_ports_without_a_device_ask_for_no_worker_but_a_shaper_does() {
    let port = |n: u16, kind| PortConfig::new(PortId(n), format!("p{n}"), kind);
    let host = Host { ports: vec![port(0, PortKind::Sink)], ..Host::default() };
    assert_eq!(Request::of(&host, &host.ports[0]), None);
    let chosen = PortConfig { worker: Some(1), ..port(0, PortKind::Sink) };
    assert_eq!(Request::of(&host, &chosen).and_then(|request| request.worker), Some(WorkerId(1)));
    let mut patch = port(1, PortKind::Patch { peer: PortId(2) });
    assert_eq!(Request::of(&host, &patch), None);
    patch.policy.qos = Some(QosConfig::default());
    assert_eq!(Request::of(&host, &patch).map(|request| request.queues), Some(1));
    // This interface has no device.
    let veth = port(3, PortKind::AfPacket { interface: "lo".to_owned() });
    assert_eq!(Request::of(&host, &veth).and_then(|request| request.node), None);
}

#[test]
fn loads_divide_a_workers_busy_time_among_its_ports() {
    let placement = placed(&[0, 0], &[pinned(0, 0), pinned(1, 0), pinned(2, 1)]);
    let counters = [WorkerCounters::new(), WorkerCounters::new()];
    let mut loads = Loads::default();
    let start = Instant::now();
    loads.measure(&placement, counters.iter(), start);
    counters[0].busy_cycles.add(1 << 62);
    counters[0].ports[0].timed_cycles.add(300);
    counters[0].ports[1].timed_cycles.add(100);
    loads.measure(&placement, counters.iter(), start + Duration::from_millis(10));
    assert_eq!(loads.of_worker(WorkerId(0)), 0, "it measures once a second");
    loads.measure(&placement, counters.iter(), start + Duration::from_secs(1));
    assert_eq!([0, 1].map(|worker| loads.of_worker(WorkerId(worker))), [1000, 0]);
    assert_eq!([0, 1].map(|port| loads.of_port(PortId(port), WorkerId(0))), [750, 250]);
    assert_eq!(loads.of_port(PortId(2), WorkerId(1)), 0);
}

/// Seconds that pass until the balance proposes a move.
fn first_move(
    balance: &mut Balance,
    placement: &Placement,
    loads: &Loads,
    movable: &[PortId],
) -> (u8, Option<Move>) {
    for second in 1..10 {
        if let Some(found) = balance.next(placement, loads, movable) {
            return (second, Some(found));
        }
    }
    (10, None)
}

#[test]
fn a_queue_moves_from_a_worker_that_stays_overloaded_to_the_one_with_most_time() {
    let mut placement = placed(&[0, 0, 0], &[pinned(0, 0), pinned(1, 0), pinned(2, 1), pinned(3, 2)]);
    let (first, second) = ((PortId(0), WorkerId(0), 600), (PortId(1), WorkerId(0), 380));
    let loads = Loads::given(&[980, 500, 200], &[first, second]);
    let all = [PortId(0), PortId(1), PortId(2), PortId(3)];
    let expected = Move { port: PortId(1), from: WorkerId(0), to: WorkerId(2) };
    let found = first_move(&mut Balance::default(), &placement, &loads, &all);
    assert_eq!(found, (3, Some(expected)), "600 and 580 afterwards; with port 0, 380 and 800");
    placement.moved(expected);
    assert_eq!(workers(&placement, 1), [2]);

    // Not without a gain, not to another node, and not if the configuration names the worker.
    let one_port = Loads::given(&[980, 500, 200], &[(PortId(0), WorkerId(0), 980)]);
    assert_eq!(first_move(&mut Balance::default(), &placement, &one_port, &all).1, None);
    let far = placed(&[0, 1, 1], &[pinned(0, 0), pinned(1, 0)]);
    assert_eq!(first_move(&mut Balance::default(), &far, &loads, &all).1, None);
    assert_eq!(first_move(&mut Balance::default(), &placement, &loads, &[]).1, None);
}

#[test]
fn a_short_peak_moves_nothing_and_moves_keep_their_distance() {
    let placement = placed(&[0, 0], &[pinned(0, 0), pinned(1, 0)]);
    let busy = Loads::given(&[990, 0], &[(PortId(0), WorkerId(0), 500), (PortId(1), WorkerId(0), 490)]);
    let steady = Loads::given(&[890, 0], &[(PortId(0), WorkerId(0), 450), (PortId(1), WorkerId(0), 440)]);
    let movable = [PortId(0), PortId(1)];
    let mut balance = Balance::default();
    for _ in 0..5 {
        assert_eq!(balance.next(&placement, &busy, &movable), None);
        assert_eq!(balance.next(&placement, &busy, &movable), None);
        assert_eq!(balance.next(&placement, &steady, &movable), None);
    }
    assert!(first_move(&mut balance, &placement, &busy, &movable).1.is_some());
    balance.tried();
    assert_eq!(
        first_move(&mut balance, &placement, &busy, &movable).1,
        None,
        "the last move is not long ago"
    );
}

#[test]
fn new_workers_get_their_part_of_the_queues_and_no_more_moves_than_that() {
    let requests: Vec<Request> = (0..6).map(|port| request(port, 1)).collect();
    let mut placement = placed(&[0, 0], &requests);
    let movable: Vec<PortId> = (0..6).map(PortId).collect();
    placement.add(0);
    let moves = placement.spread(2..3, &Loads::default(), &movable);
    assert_eq!(moves.len(), 2);
    moves.iter().for_each(|moved| placement.moved(*moved));
    assert_eq!([0, 1, 2].map(|worker| placement.queues(WorkerId(worker))), [2, 2, 2]);
    assert_eq!(placement.spread(2..3, &Loads::default(), &movable), []);
    // Several at once; one of them on a node without queues.
    let mut placement = placed(&[0], &requests);
    [0, 1, 0].into_iter().for_each(|node| placement.add(node));
    let moves = placement.spread(1..4, &Loads::default(), &movable);
    moves.iter().for_each(|moved| placement.moved(*moved));
    assert_eq!([0, 1, 2, 3].map(|worker| placement.queues(WorkerId(worker))), [2, 2, 0, 2]);
    // A lone queue stays.
    let mut placement = placed(&[0], &requests[..1]);
    placement.add(0);
    assert_eq!(placement.spread(1..2, &Loads::default(), &movable), []);
}

#[test]
fn a_new_worker_gets_the_queue_that_halves_the_difference() {
    let mut placement = placed(&[0], &[request(0, 1), request(1, 1), request(2, 2)]);
    let on = |port, load| (PortId(port), WorkerId(0), load);
    let loads = Loads::given(&[900], &[on(0, 700), on(1, 20), on(2, 800)]);
    placement.add(0);
    let movable = [0, 1, 2].map(PortId);
    let moves = placement.spread(1..2, &loads, &movable);
    let ports: Vec<u16> = moves.iter().map(|moved| moved.port.0).collect();
    assert_eq!(ports, [2, 0], "a queue of port 2 has 400");
    assert!(placement.spread(1..2, &loads, &movable[..0]).is_empty());
}

#[test]
fn queues_of_a_worker_that_is_to_end_go_to_the_others_and_followers_to_their_leaders() {
    let punt = |port, of| Request { with: Some(PortId(of)), counts: false, ..request(port, 1) };
    let requests = [punt(8, 1), request(0, 1), request(1, 1), request(2, 1), request(3, 2), request(4, 1)];
    let mut placement = placed(&[0, 0, 0], &requests);
    let before = all(&placement, [0, 1, 2, 3, 4, 8]);
    assert_eq!(before, [vec![0], vec![1], vec![2], vec![0, 1], vec![2], vec![1]]);
    placement.truncate(1);
    let mut moved = Vec::new();
    while let Some(next) = placement.next_off(&requests, &Loads::default(), &[0, 0, 0]) {
        placement.moved(next);
        moved.push(next.port.0);
    }
    assert_eq!(moved, [1, 2, 3, 4, 8], "the follower comes last");
    assert!((0..5).chain([8]).all(|port| workers(&placement, port).iter().all(|worker| *worker == 0)));
    // Only to workers with the same memory, also if others have less to do.
    let mut placement = placed(&[0, 1, 0], &[pinned(0, 0), pinned(1, 0), pinned(2, 2)]);
    placement.truncate(2);
    let next = placement.next_off(&[request(2, 1)], &Loads::default(), &[0, 1, 0]);
    assert_eq!(next, Some(Move { port: PortId(2), from: WorkerId(2), to: WorkerId(0) }));
}
