// SPDX-License-Identifier: Apache-2.0
//! Full rings, sources that wait, sleepers that are woken, and workers that come and go.

use netvm_notify::new_eventfd;

use super::*;
use crate::memory::Memory;

pub(crate) const PORT: PortId = PortId(7);

/// Rings of this size between two workers; the second one sends for [`PORT`].
pub(crate) fn two(slots: usize) -> [Handoff; 2] {
    let mut ends = mesh(2, slots);
    ends[0].set_owner(PORT, Some(WorkerId(1)));
    ends.try_into().unwrap()
}

/// Workers, each with all others as peers.
fn mesh(workers: u8, slots: usize) -> Vec<Handoff> {
    let mut ends = Vec::new();
    for _ in 0..workers {
        add(&mut ends, slots);
    }
    ends
}

/// Adds a worker.
fn add(ends: &mut Vec<Handoff>, slots: usize) {
    let sleeper = Sleeper::new(Arc::new(new_eventfd().unwrap()));
    let (mut new, id) = (Handoff::new(Arc::clone(&sleeper)), WorkerId(ends.len() as u8));
    for (n, other) in (0u8..).zip(ends.iter_mut()) {
        let own = Arc::clone(other.own.as_ref().unwrap());
        let [of_other, of_new] = Peer::pair_of([(WorkerId(n), &own), (id, &sleeper)], slots);
        other.add(of_other);
        new.add(of_new);
    }
    ends.push(new);
}

#[test]
fn workers_come_and_go_and_each_reaches_all_others() {
    let memory = Memory::for_tests(512, 0, 16);
    let mut ends = mesh(1, 8);
    let reach_each_other = |ends: &mut Vec<Handoff>| {
        let count = ends.len();
        for from in 0..count {
            assert_eq!(ends[from].peers(), count - 1);
            assert!(ends[from].tx_to(WorkerId(from as u8)).is_none());
            assert!(ends[from].tx_to(WorkerId(count as u8)).is_none());
            for to in (0..count).filter(|to| *to != from) {
                let mut batch = Batch::new();
                memory.pool.alloc_into(&mut batch, 2);
                let packet =
                    |mbuf| HandoffPacket { mbuf, memory: memory.id, port: PortId(from as u16), stamp: 0 };
                let mut received = batch.split_off(1);
                let handoff_tx = ends[from].tx_to(WorkerId(to as u8)).unwrap();
                assert_eq!(handoff_tx.to.index(), to);
                handoff_tx.push(&mut batch, |_| {}, packet);
                handoff_tx.push_received(&mut received, |_| {}, packet);
                // The number of the peer among the others.
                let peer = if from < to { from } else { from - 1 };
                let mut ports = Vec::new();
                assert_eq!(ends[to].take(peer, |packet| ports.push(packet.port)), 0);
                ends[to].take_received(peer, |packet| ports.push(packet.port));
                assert_eq!(ports, [PortId(from as u16); 2]);
            }
        }
    };
    for change in [1, 1, 1, -1, -1, 1, -1, -1] {
        if change > 0 {
            add(&mut ends, 8);
        } else {
            ends.pop();
            let gone = WorkerId(ends.len() as u8);
            for end in &mut ends {
                assert!(end.remove(gone).is_some() && end.remove(gone).is_none());
            }
        }
        reach_each_other(&mut ends);
    }
    assert_eq!(memory.pool.in_use(), 0);
}

fn push(handoff: &mut Handoff, memory: &Memory, count: usize) -> usize {
    let mut batch = Batch::new();
    memory.pool.alloc_into(&mut batch, count);
    let packet = |mbuf| HandoffPacket { mbuf, memory: memory.id, port: PORT, stamp: 0 };
    handoff.tx_for(PORT).unwrap().push(&mut batch, |_| {}, packet);
    batch.len()
}

fn take(handoff: &mut Handoff) -> (usize, usize) {
    let mut count = 0;
    let left = handoff.take(0, |_| count += 1);
    (count, left)
}

fn is_signalled(handoff: &Handoff) -> bool {
    let eventfd = &handoff.own.as_ref().unwrap().eventfd;
    rustix::io::read(eventfd, &mut [0; 8]).is_ok()
}

#[test]
fn a_full_ring_leaves_the_rest_and_a_burst_is_taken_at_a_time() {
    let memory = Memory::for_tests(512, 0, 16);
    let [mut from, mut to] = two(100);
    assert_eq!(push(&mut from, &memory, 64), 0);
    assert_eq!(push(&mut from, &memory, 64), 28);
    assert_eq!(push(&mut from, &memory, 1), 1);
    assert_eq!(take(&mut to), (64, 36));
    assert_eq!(push(&mut from, &memory, 64), 0);
    assert_eq!([take(&mut to), take(&mut to), take(&mut to)], [(64, 36), (36, 0), (0, 0)]);
    assert!(from.tx_for(PortId(1)).is_none(), "no worker sends for it");
    assert_eq!(memory.pool.in_use(), 0);
}

#[test]
fn sources_wait_while_a_quarter_of_the_ring_is_in_use() {
    let memory = Memory::for_tests(4096, 0, 16);
    let [mut from, mut to] = two(SLOTS);
    for _ in 0..WAIT_ABOVE / BURST {
        assert!(!from.is_filling());
        push(&mut from, &memory, BURST);
    }
    assert!(!from.is_filling());
    push(&mut from, &memory, 1);
    assert!(from.is_filling() && !to.is_filling());
    take(&mut to);
    assert!(!from.is_filling());
}

#[test]
fn a_sleeper_is_woken_once_and_does_not_sleep_on_packets() {
    let memory = Memory::for_tests(512, 0, 16);
    let [mut from, mut to] = two(100);
    // Awake: no system call.
    push(&mut from, &memory, 3);
    assert!(from.has_pushed());
    assert_eq!(from.wake_sleepers(), 0);
    assert!(!from.has_pushed() && !to.prepare_wait());
    to.end_wait();
    assert_eq!(take(&mut to), (3, 0));

    assert!(to.prepare_wait());
    push(&mut from, &memory, 3);
    push(&mut from, &memory, 3);
    assert_eq!(from.wake_sleepers(), 1);
    push(&mut from, &memory, 3);
    assert_eq!(from.wake_sleepers(), 0, "it is on its way");
    assert!(is_signalled(&to) && !is_signalled(&to));
    to.end_wait();
    take(&mut to);
}

#[test]
fn the_only_worker_sleeps() {
    let only = mesh(1, SLOTS).remove(0);
    assert!(only.prepare_wait() && only.peers() == 0 && !only.has_pushed() && !only.is_filling());
}

/// The announcement and the packets of two threads: however they meet, no sleeper with packets stays asleep.
#[test]
fn no_wake_up_is_lost() {
    const PACKETS: usize = 20_000;
    let memory = Memory::for_tests(512, 0, 16);
    let [mut from, mut to] = two(100);
    let sleeper = Arc::clone(to.own.as_ref().unwrap());
    let taken = std::thread::spawn(move || {
        let mut taken = 0;
        while taken < PACKETS {
            taken += take(&mut to).0;
            if to.prepare_wait() && taken < PACKETS {
                let mut fds = [rustix::event::PollFd::new(&sleeper.eventfd, rustix::event::PollFlags::IN)];
                let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
                assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "asleep with packets");
                let _ = rustix::io::read(&sleeper.eventfd, &mut [0; 8]);
            }
            to.end_wait();
        }
    });
    let mut pushed = 0;
    while pushed < PACKETS {
        let wanted = 1 + pushed % 3;
        pushed += wanted - push(&mut from, &memory, wanted);
        netvm_ring::full_fence();
        from.wake_sleepers();
    }
    taken.join().unwrap();
}
