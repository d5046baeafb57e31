// SPDX-License-Identifier: Apache-2.0
use std::sync::Barrier;
use std::time::Duration;

use super::*;

#[test]
fn every_pair_is_served_by_one_queue() {
    for queues in [1, 3, 64] {
        let shares: Vec<u64> = (0..queues).map(|n| share(n, queues.into())).collect();
        assert_eq!(shares.iter().fold(0, |all, share| all | share), u64::MAX);
        assert_eq!(shares.iter().map(|share| share.count_ones()).sum::<u32>(), 64);
    }
}

#[test]
fn a_queue_sends_to_an_enabled_pair() {
    assert_eq!(send_pair(0, 3), MAX_PAIRS);
    assert_eq!([0, 1, 2, 3].map(|n| send_pair(0b1, n)), [0; 4]);
    assert_eq!([0, 1, 2, 3].map(|n| send_pair(0b101, n)), [0, 2, 0, 2]);
}

#[test]
fn a_paused_device_is_unused_until_it_is_published_again() {
    const DEVICE: i32 = 3;
    let guests = Guests::register(PathBuf::from("/kept"), VhostMode::Client, 1, None).unwrap().unwrap();
    let rcu_slot = &guests.rcu_slots[0];
    let publish = || {
        let ready = Publication { is_ready: true, ..Publication::default() };
        guests.publish(DEVICE, ready);
    };
    // It has not been ready yet.
    assert!(!guests.pause(DEVICE));
    publish();
    let (is_inside, is_done, leave) = (Barrier::new(2), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stay = |active: ActiveDevice, _| {
                is_inside.wait();
                while !leave.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                active.device
            };
            assert_eq!(rcu_slot.read(true, stay), Some(DEVICE));
        });
        is_inside.wait();
        scope.spawn(|| {
            assert!(guests.pause(DEVICE));
            is_done.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!is_done.load(Ordering::Relaxed));
        leave.store(true, Ordering::Relaxed);
    });
    assert!(rcu_slot.is_paused() && rcu_slot.read(true, |_, _| ()).is_none());
    publish();
    assert!(rcu_slot.read(true, |_, _| ()).is_some());
    guests.remove(DEVICE);
    assert!(!rcu_slot.is_paused() && rcu_slot.read(true, |_, _| ()).is_none());
    guests.unregister();
}

#[test]
fn the_newest_ready_guest_is_active() {
    let guests = Guests::register(PathBuf::from("/newest"), VhostMode::Server, 1, None).unwrap().unwrap();
    let publish =
        |number, is_ready| guests.publish(number, Publication { is_ready, ..Publication::default() });
    let active = || guests.rcu_slots[0].read(true, |active, _| active.device);
    publish(1, true);
    publish(2, false);
    assert_eq!(active(), Some(1));
    publish(2, true);
    assert_eq!(active(), Some(2));
    // A message of the older one.
    assert!(guests.pause(1));
    assert_eq!(active(), Some(2));
    publish(1, true);
    assert_eq!(active(), Some(2));
    // Its driver stops, and starts again.
    publish(1, false);
    publish(1, true);
    assert_eq!(active(), Some(1));
    guests.cut_off(1);
    assert_eq!(active(), None);
    assert!(guests.status().truncated || guests.status().connected);
    guests.remove(1);
    assert_eq!(active(), Some(2));
    guests.remove(2);
    guests.unregister();
}
