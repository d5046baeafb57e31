use std::io::Read;
use std::sync::Barrier;
use std::time::Duration;

use super::super::messages::connection::tests::{ALONE, open_to_programs, pair};
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
    assert_eq!(send_pair(0, 3), 0);
    assert_eq!([0, 1, 2, 3].map(|n| send_pair(0b1, n)), [0; 4]);
    assert_eq!([0, 1, 2, 3].map(|n| send_pair(0b101, n)), [0, 2, 0, 2]);
}

#[test]
fn a_paused_device_is_unused_until_all_messages_are_handled() {
    const DEVICE: i32 = 3;
    let path = CString::new("/kept").unwrap();
    let guests = Guests::register(path, VhostMode::Client, 1, None).unwrap().unwrap();
    let (pending_calls, rcu_slot) = (Arc::<PendingCalls>::default(), &guests.rcu_slots[0]);
    lock(&guests.relayed).push((DEVICE, Arc::clone(&pending_calls)));
    guests.change(DEVICE, |devices, place| devices[place].ready = true);
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
            guests.pause_device(DEVICE, &pending_calls);
            is_done.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!is_done.load(Ordering::Relaxed));
        leave.store(true, Ordering::Relaxed);
    });
    // A second message, before the first is handled.
    guests.pause_device(DEVICE, &pending_calls);
    for is_open in [false, true] {
        assert!(rcu_slot.is_paused() && rcu_slot.read(true, |_, _| ()).is_none());
        guests.change(DEVICE, |devices, place| devices[place].messages -= 1);
        assert_eq!(rcu_slot.read(true, |_, _| ()).is_some(), is_open);
    }
    // Of a closed connection.
    guests.pause_device(DEVICE, &Arc::default());
    assert!(rcu_slot.read(true, |_, _| ()).is_some());
    guests.unregister();
}

#[test]
fn a_connection_beyond_the_limit_is_closed() {
    let _alone = ALONE.lock();
    let path = CString::new("/many").unwrap();
    let guests = Guests::register(path, VhostMode::Client, 1, None).unwrap().unwrap();
    let mut connections = Vec::new();
    for number in 0..=MOST_RELAYS {
        let (_, library, guest) = pair("many");
        open_to_programs(&library);
        assert_eq!(guests.relay(number as i32), number < MOST_RELAYS);
        connections.push((library, guest));
    }
    let (mut library, mut guest) = connections.pop().unwrap();
    assert_eq!((library.read(&mut [0]).unwrap(), guest.read(&mut [0]).unwrap()), (0, 0));
    guests.unregister();
}
