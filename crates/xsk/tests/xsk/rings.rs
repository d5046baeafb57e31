// SPDX-License-Identifier: Apache-2.0
//! Rings under load: nothing is lost or leaks, queues share only the memory, and what does not fit is counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    Bench, FAR, NEAR, PacketSocket, Region, frame, isolated, readable, udp_frame, until, veth,
};
use netvm_xsk::{Interface, RingSizes, RxFrame, TxFrame, XskOptions};

#[test]
fn a_hundred_thousand_paced_frames_arrive_without_loss_or_leak() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(512, 2048), XskOptions::default());
        const TOTAL: u64 = 100_000;
        let mut frames = [RxFrame::default(); 64];
        let (mut sent, mut got) = (0u64, 0u64);
        let end = Instant::now() + Duration::from_secs(60);
        while got < TOTAL {
            // At most 128 in flight, as veth's own ring holds 256.
            while sent < TOTAL && sent - got < 128 {
                bench.wire.send(&frame(sent, 60 + (sent % 64) as usize));
                sent += 1;
            }
            let n = bench.xsk.rx(&mut frames);
            for received in &frames[..n] {
                assert_eq!(bench.region.read(*received), frame(got, 60 + (got % 64) as usize), "frame {got}");
                got += 1;
            }
            // Alternates between the same buffers and others, so that all of them are used.
            let buffers: Vec<u32> = frames[..n].iter().map(|f| f.buffer).collect();
            bench.free.splice(0..0, buffers);
            let give = bench.free.split_off(bench.free.len() - n);
            assert_eq!(bench.xsk.fill(&give), n);
            bench.xsk.kick().unwrap();
            assert_eq!(bench.free.len() + bench.xsk.held() as usize, 512);
            assert!(Instant::now() < end, "{got} of {sent} frames");
        }
        assert_eq!(bench.xsk.stats().unwrap().rx_dropped, 0);
        bench.close();
    });
}

#[test]
fn kicks_send_a_burst_of_any_length() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(512, 2048), XskOptions::default());
        let mut burst = Vec::new();
        for n in 0..200 {
            let buffer = bench.free.pop().unwrap();
            bench.region.write(buffer, 256, &frame(n, 80));
            burst.push(TxFrame { buffer, offset: 256, len: 80 });
        }
        assert!(!bench.xsk.has_to_send());
        assert_eq!(bench.xsk.tx(&burst), burst.len());
        assert!(bench.xsk.has_to_send());
        until(|| {
            bench.xsk.kick().unwrap();
            !bench.xsk.has_to_send()
        });
        for n in 0..200 {
            assert_eq!(bench.wire.receive(Duration::from_secs(1)), Some(frame(n, 80)));
        }
        while bench.complete() > 0 {}
        bench.close();
    });
}

#[test]
fn a_hundred_thousand_frames_are_sent_without_loss_or_leak() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(512, 2048), XskOptions::default());
        const TOTAL: u64 = 100_000;
        let (mut sent, mut got) = (0u64, 0u64);
        let end = Instant::now() + Duration::from_secs(60);
        while got < TOTAL {
            let mut burst = Vec::new();
            while sent + (burst.len() as u64) < TOTAL
                && burst.len() < 64
                && let Some(buffer) = bench.free.pop()
            {
                let bytes = frame(sent + burst.len() as u64, 80);
                bench.region.write(buffer, 256, &bytes);
                burst.push(TxFrame { buffer, offset: 256, len: 80 });
            }
            let taken = bench.xsk.tx(&burst);
            sent += taken as u64;
            bench.free.extend(burst[taken..].iter().rev().map(|f| f.buffer));
            bench.xsk.kick().unwrap();
            while bench.complete() > 0 {}
            while let Some(bytes) = bench.wire.receive(Duration::ZERO) {
                assert_eq!(bytes, frame(got, 80), "frame {got}");
                got += 1;
            }
            assert!(Instant::now() < end, "{got} of {sent} frames");
        }
        bench.close();
    });
}

#[test]
fn two_queues_share_only_the_memory() {
    isolated(|| {
        veth(2);
        let region = Region::new(512, 2048);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        assert_eq!(interface.queues(), 2);
        let wire = PacketSocket::new(FAR);
        let flows: Vec<Vec<u8>> = (0..128).map(udp_frame).collect();
        let expected = flows.len() * 20;
        let count = AtomicUsize::new(0);
        let mut per_queue = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2u32)
                .map(|queue| {
                    let mut xsk = interface.queue(queue, &region.umem()).unwrap();
                    let buffers: Vec<u32> = (queue * 256..queue * 256 + 256).collect();
                    assert_eq!(xsk.fill(&buffers), 256);
                    let (region, count) = (&region, &count);
                    scope.spawn(move || {
                        let mut seen = BTreeMap::<Vec<u8>, usize>::new();
                        let mut out = [RxFrame::default(); 32];
                        let end = Instant::now() + Duration::from_secs(10);
                        while count.load(Ordering::Relaxed) < expected && Instant::now() < end {
                            let n = xsk.rx(&mut out);
                            for received in &out[..n] {
                                assert_eq!(received.buffer / 256, queue, "a buffer of the other queue");
                                *seen.entry(region.read(*received)).or_default() += 1;
                                assert_eq!(xsk.fill(&[received.buffer]), 1);
                            }
                            count.fetch_add(n, Ordering::Relaxed);
                            xsk.kick().unwrap();
                            if n == 0 {
                                readable(&xsk, Duration::from_millis(5));
                            }
                        }
                        assert_eq!(xsk.close().unwrap(), buffers);
                        seen
                    })
                })
                .collect();
            for sent in 0..expected {
                wire.send(&flows[sent % flows.len()]);
                while sent - count.load(Ordering::Relaxed).min(sent) > 100 {
                    std::thread::yield_now();
                }
            }
            workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
        });
        let second = per_queue.pop().unwrap();
        let first = per_queue.pop().unwrap();
        assert!(!first.is_empty() && !second.is_empty(), "all flows on one queue");
        assert!(first.keys().all(|flow| !second.contains_key(flow)), "a flow on both queues");
        let total: Vec<_> = first.iter().chain(&second).collect();
        assert_eq!(total.len(), flows.len());
        assert!(total.iter().all(|(_, n)| **n == 20));
    });
}

#[test]
fn an_idle_worker_sleeps_on_the_descriptor() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(64, 2048), XskOptions::default());
        assert!(!readable(&bench.xsk, Duration::from_millis(50)), "nothing was sent");
        let wire = PacketSocket::new(FAR);
        let woken = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                wire.send(&frame(7, 99));
            });
            readable(&bench.xsk, Duration::from_secs(5))
        });
        assert!(woken);
        assert_eq!(bench.receive(1), [frame(7, 99)]);
        assert!(!readable(&bench.xsk, Duration::ZERO));
        bench.close();
    });
}

#[test]
fn the_kernel_counts_drops_for_lack_of_buffers() {
    isolated(|| {
        let rings = RingSizes { fill: 16, rx: 8, tx: 8, completion: 8 };
        let mut bench = Bench::new(Region::new(64, 2048), XskOptions { rings, ..XskOptions::default() });
        assert_eq!(bench.xsk.held(), 16, "as many as the fill ring has room for");
        assert_eq!(bench.xsk.fill_free(), 0);
        for n in 0..40 {
            bench.wire.send(&frame(n, 60));
        }
        // An rx ring of 8 takes 8 of 40 frames.
        until(|| bench.xsk.stats().unwrap().rx_ring_full == 32);

        let mut out = [RxFrame::default(); 64];
        let got = bench.xsk.rx(&mut out);
        assert_eq!(got, 8);
        assert_eq!(bench.region.read(out[0]), frame(0, 60));
        bench.free.extend(out[..got].iter().map(|f| f.buffer));
        for n in 0..8 {
            bench.wire.send(&frame(n, 60));
        }
        let mut more = 0;
        until(|| {
            let n = bench.xsk.rx(&mut out[more..8]);
            more += n;
            more == 8
        });
        bench.free.extend(out[..8].iter().map(|f| f.buffer));
        for n in 0..5 {
            bench.wire.send(&frame(n, 60));
        }
        // No buffers are left.
        until(|| bench.xsk.stats().unwrap().rx_dropped == 5);
        // `close` below needs the counter dropped first.
        let drops = bench.xsk.drop_counter().unwrap();
        let full = bench.xsk.stats().unwrap().rx_ring_full;
        assert_eq!(std::thread::spawn(move || drops.get().unwrap()).join().unwrap(), full + 5);
        assert_eq!(bench.xsk.stats().unwrap().fill_empty, 5);
        assert_eq!(bench.xsk.held(), 0);

        assert_eq!(bench.xsk.fill(&bench.free[..4]), 4);
        bench.free.drain(..4);
        bench.wire.send(&frame(77, 200));
        assert_eq!(bench.receive(1), [frame(77, 200)], "reception resumes with free buffers");
        bench.close();
    });
}

#[test]
fn the_unsent_tail_stays_with_the_caller() {
    isolated(|| {
        let rings = RingSizes { fill: 16, rx: 16, tx: 32, completion: 64 };
        let mut bench = Bench::new(Region::new(256, 2048), XskOptions { rings, ..XskOptions::default() });
        let frames: Vec<TxFrame> =
            bench.free.iter().map(|&buffer| TxFrame { buffer, offset: 0, len: 60 }).collect();
        for one in &frames {
            bench.region.write(one.buffer, 0, &frame(u64::from(one.buffer), 60));
        }
        assert_eq!(bench.xsk.tx(&frames), 32);
        assert_eq!(bench.xsk.tx(&frames[32..]), 0, "the ring is full until the kernel is woken");
        assert_eq!(bench.xsk.in_flight(), 32);
        bench.free.retain(|buffer| !frames[..32].iter().any(|f| f.buffer == *buffer));
        bench.xsk.kick().unwrap();
        for one in &frames[..32] {
            let got = bench.wire.receive(Duration::from_secs(1));
            assert_eq!(got, Some(frame(u64::from(one.buffer), 60)));
        }
        let mut one = [0];
        assert_eq!(bench.xsk.completed(&mut one), 1, "no more than requested");
        bench.free.push(one[0]);
        assert_eq!(bench.complete(), 31);
        assert_eq!(bench.complete(), 0);
        bench.close();
    });
}
