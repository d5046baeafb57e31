// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;

/// Cycles per second of the tests' clock: a nanosecond each.
const HZ: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const EF: u8 = 46;
const CODEL: CodelOptions = CodelOptions { target: 5 * MS, interval: 100 * MS };

fn queue(dscps: &[u8], service: Service) -> QueueOptions {
    let dscps = dscps.iter().map(|dscp| 1 << dscp).sum();
    QueueOptions { dscps, service, limit: 1000, codel: None }
}

fn shaper(rate: u64) -> Option<ShaperOptions> {
    Some(ShaperOptions { rate, burst: 20_000 * 8, clock_hz: HZ })
}

#[derive(Clone, Copy)]
struct Packet {
    id: u32,
    bytes: u32,
}

fn push(qos: &mut Qos<u32>, dscp: u8, packet: Packet, now: u64) -> bool {
    qos.push(qos.queue_of(dscp), packet.id, packet.bytes, now).is_ok()
}

#[test]
fn priority_goes_first_and_others_share_by_weight() {
    let queues =
        [queue(&[EF], Service::Priority), queue(&[8], Service::Weight(1)), queue(&[], Service::Weight(3))];
    let mut qos = Qos::new(None, &queues).unwrap();
    for n in 0..900 {
        assert!(
            push(&mut qos, 8, Packet { id: 1, bytes: 1000 }, n)
                && push(&mut qos, 0, Packet { id: 2, bytes: 1000 }, n)
        );
    }
    let mut bytes = [0u32; 3];
    for n in 0..600 {
        if n % 10 == 0 {
            assert!(push(&mut qos, EF, Packet { id: 0, bytes: 200 }, n));
        }
        let Some(Dequeued::Send(packet, queue)) = qos.pop(n) else { panic!("packets wait") };
        assert_eq!(packet as usize, queue);
        assert_eq!(queue == 0, n % 10 == 0, "a packet of priority goes at once, packet {n}");
        bytes[queue] += 1;
    }
    assert_eq!(bytes[0], 60);
    assert!((130..=140).contains(&bytes[1]), "a quarter of 540, not {}", bytes[1]);
}

#[test]
fn a_full_queue_takes_nothing_and_disturbs_no_other() {
    let mut few = queue(&[8], Service::Weight(1));
    few.limit = 2;
    let mut qos = Qos::new(None, &[few, queue(&[], Service::Weight(1))]).unwrap();
    assert!(
        push(&mut qos, 8, Packet { id: 1, bytes: 100 }, 0)
            && push(&mut qos, 8, Packet { id: 2, bytes: 100 }, 0)
    );
    assert_eq!(qos.push(0, 3, 100, 0), Err(3));
    assert!(push(&mut qos, 0, Packet { id: 4, bytes: 100 }, 0));
    assert_eq!((qos.backlog(0), qos.backlog(1), qos.waiting()), ((2, 200), (1, 100), 3));
}

#[test]
fn the_number_of_queues_is_bounded() {
    assert_eq!(Qos::<u32>::new(None, &[]).unwrap_err(), QosError::Queues(0));
    let many = [queue(&[], Service::Priority); MAX_QUEUES + 1];
    assert_eq!(Qos::<u32>::new(None, &many).unwrap_err(), QosError::Queues(MAX_QUEUES + 1));
}

/// Milliseconds of delay at the head after seconds at exactly the shaper's rate, behind a burst of 100 ms.
fn delay_after_burst(codel: Option<CodelOptions>) -> u64 {
    // 10,000 packets of 1,250 bytes per second are 100 Mbit/s.
    let options = QueueOptions { codel, limit: 5000, ..queue(&[], Service::Weight(1)) };
    let mut qos = Qos::new(shaper(100_000_000), &[options]).unwrap();
    for n in 0..1000 {
        assert!(push(&mut qos, 0, Packet { id: n, bytes: 1250 }, 0));
    }
    let mut arrived = vec![0; 1000];
    for n in 0..100_000u64 {
        let now = n * MS / 10;
        arrived.push(now);
        assert!(push(&mut qos, 0, Packet { id: arrived.len() as u32 - 1, bytes: 1250 }, now));
        let mut last = 0;
        while let Some(next) = qos.pop(now) {
            if let Dequeued::Send(packet, _) = next {
                last = (now - arrived[packet as usize]) / MS;
            }
        }
        if n == 99_999 {
            return last;
        }
    }
    unreachable!()
}

#[test]
fn codel_ends_a_standing_queue() {
    assert!(delay_after_burst(None) > 80, "without CoDel the burst stands for ever");
    assert!(delay_after_burst(Some(CODEL)) <= 6);
}

#[test]
fn codel_lets_a_burst_pass() {
    let mut options = queue(&[], Service::Weight(1));
    options.codel = Some(CODEL);
    let mut qos = Qos::new(shaper(100_000_000), &[options]).unwrap();
    for n in 0..500 {
        assert!(push(&mut qos, 0, Packet { id: n, bytes: 1250 }, 0));
    }
    let mut sent = 0;
    for now in (0..100 * MS).step_by(100_000) {
        while let Some(next) = qos.pop(now) {
            assert!(matches!(next, Dequeued::Send(..)), "50 ms of packets are no standing queue");
            sent += 1;
        }
    }
    assert_eq!(sent, 500);
}

#[derive(Clone, Debug)]
enum Step {
    Push { dscp: u8, bytes: u32 },
    Pop,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..64, 60u32..9000).prop_map(|(dscp, bytes)| Step::Push { dscp, bytes }),
        4 => Just(Step::Pop),
        1 => (0..20 * MS).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..400)
}

fn services() -> impl Strategy<Value = Vec<QueueOptions>> {
    let service = prop_oneof![Just(Service::Priority), (1u16..100).prop_map(Service::Weight)];
    let one =
        (any::<u64>(), service, 1usize..50, any::<bool>()).prop_map(|(dscps, service, limit, codel)| {
            QueueOptions { dscps, service, limit, codel: codel.then_some(CODEL) }
        });
    prop::collection::vec(one, 1..=MAX_QUEUES)
}

proptest! {
    /// Every packet leaves once, in the order of its queue; none overtakes a packet with priority; the rate
    /// is met.
    #[test]
    fn packets_are_neither_lost_nor_early(options in services(), steps in steps(), rate in 1_000_000u64..10_000_000_000) {
        let mut qos = Qos::new(shaper(rate), &options).unwrap();
        let mut model: Vec<VecDeque<(u32, u32)>> = options.iter().map(|_| VecDeque::new()).collect();
        let (mut now, mut id, mut sent_bits) = (0u64, 0u32, 0u64);
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Push { dscp, bytes } => {
                    let first = options.iter().position(|queue| queue.dscps >> dscp & 1 == 1);
                    let queue = qos.queue_of(dscp);
                    prop_assert_eq!(queue, first.unwrap_or(options.len() - 1));
                    let taken = qos.push(queue, id, bytes, now).is_ok();
                    prop_assert_eq!(taken, model[queue].len() < options[queue].limit);
                    if taken {
                        model[queue].push_back((id, bytes));
                    }
                    id += 1;
                }
                Step::Pop => {
                    let Some(next) = qos.pop(now) else { continue };
                    let (packet, queue, sent) = match next {
                        Dequeued::Send(packet, queue) => (packet, queue, true),
                        Dequeued::Drop(packet, queue) => (packet, queue, false),
                    };
                    let (expected, bytes) = model[queue].pop_front().unwrap();
                    prop_assert_eq!(packet, expected);
                    let urgent = |n: usize| options[n].service == Service::Priority && !model[n].is_empty();
                    let before = if options[queue].service == Service::Priority { queue } else { options.len() };
                    prop_assert!(!(0..before).any(urgent), "packets of priority wait");
                    prop_assert!(sent || options[queue].codel.is_some());
                    if sent {
                        sent_bits += u64::from(bytes) * 8;
                        let allowed = u128::from(rate) * u128::from(now) / u128::from(HZ) + 20_000 * 8 + 1;
                        prop_assert!(u128::from(sent_bits) <= allowed);
                    }
                }
            }
            let waiting: usize = model.iter().map(VecDeque::len).sum();
            prop_assert_eq!(qos.waiting(), waiting);
        }
        while qos.pop_any().is_some() {}
        prop_assert_eq!(qos.waiting(), 0);
    }

    /// A queue that always has packets gets its share of the bytes.
    #[test]
    fn weights_are_shares(weights in prop::collection::vec(1u16..20, 2..6), bytes in 60u32..1500) {
        let queues: Vec<_> = weights.iter().enumerate().map(|(n, weight)| queue(&[n as u8], Service::Weight(*weight))).collect();
        let mut qos = Qos::new(None, &queues).unwrap();
        let rounds = 40u64;
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut sent = vec![0u64; weights.len()];
        for now in 0..rounds * total * u64::from(QUANTUM) / u64::from(bytes) {
            for (n, weight) in weights.iter().enumerate() {
                while qos.backlog(n).0 < 3 * usize::from(*weight) {
                    prop_assert!(qos.push(n, 0, bytes, now).is_ok());
                }
            }
            let Some(Dequeued::Send(_, queue)) = qos.pop(now) else { panic!("packets wait") };
            sent[queue] += u64::from(bytes);
        }
        for (weight, sent) in weights.iter().zip(sent) {
            let share = rounds * u64::from(*weight) * u64::from(QUANTUM);
            let slack = 2 * u64::from(*weight) * u64::from(QUANTUM) + u64::from(bytes);
            prop_assert!(sent.abs_diff(share) <= slack, "{} of {} bytes", sent, share);
        }
    }
}
