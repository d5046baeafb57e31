// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::RegionSpec;
use netvm_ring::Descriptor;

pub(super) fn admission() -> Admission {
    Admission {
        layout: LAYOUT_VERSION,
        quota: Quota { allocate: 100, hold: 3 },
        group: 3,
        role: 9,
        ring_capacity: 64,
        nf_threads: vec![1, 2],
        workers: 3,
        worker_regions: vec![0, 1, 0],
        geometries: vec![Geometry::new(RegionSpec::default()).unwrap(); 2],
        mailbox: false,
    }
}

fn opened(engine: &Control) -> Result<Control, ControlError> {
    Control::open(engine.as_fd().try_clone_to_owned().unwrap())
}

#[test]
fn every_thread_and_worker_has_its_own_rings() {
    let engine = Control::create("control-test", &admission(), None).unwrap();
    let nf = opened(&engine).unwrap();
    assert_eq!(engine.header(), nf.header());
    for thread in 0..2u16 {
        for worker in 0..3u16 {
            let number = u32::from(thread * 3 + worker);
            // SAFETY: one producer for each ring.
            let (mut to, mut from) = unsafe {
                (engine.ring_to_nf(thread, worker).producer(), nf.ring_from_nf(thread, worker).producer())
            };
            to.push(&[Descriptor::new(number, 0, 0)]);
            from.push(&[Descriptor::new(number + 100, 0, 0)]);
        }
    }
    for thread in 0..2u16 {
        for worker in 0..3u16 {
            let number = u32::from(thread * 3 + worker);
            // SAFETY: one consumer for each ring.
            let (mut to, mut from) = unsafe {
                (nf.ring_to_nf(thread, worker).consumer(), engine.ring_from_nf(thread, worker).consumer())
            };
            let mut out = [Descriptor::default(); 2];
            assert_eq!((to.pop(&mut out), out[0].buffer()), (1, number));
            assert_eq!((from.pop(&mut out), out[0].buffer()), (1, number + 100));
        }
    }
    nf.thread(1).own[31].store(5, Ordering::Relaxed);
    assert_eq!(engine.thread(1).own[31].load(Ordering::Relaxed), 5);
    engine.request_stop();
    assert_eq!(nf.command(), Command::Stop);
}

#[test]
fn the_nf_sees_workers_come_and_go() {
    let engine = Control::create("control-test", &admission(), None).unwrap();
    let nf = opened(&engine).unwrap();
    let regions = |control: &Control| [0, 1, 2, 3, 255].map(|worker| control.region_of(worker));
    assert_eq!((nf.workers(), regions(&nf)), (3, [Some(0), Some(1), Some(0), None, None]));
    engine.set_workers(&[1]);
    assert_eq!((nf.workers(), regions(&nf)), (1, [Some(1), None, None, None, None]));
    assert_eq!(nf.staying(), 1);
    engine.set_workers(&[1, 0]);
    engine.set_staying(1);
    assert_eq!((nf.workers(), nf.staying()), (2, 1));
    // There are rings for three.
    engine.set_workers(&[0; 4]);
    assert_eq!((nf.workers(), nf.region_of(3)), (3, None));
}

#[test]
fn each_thread_gets_empty_buffers_by_rings_of_its_own_in_the_newest_layout_only() {
    let engine = Control::create("control-test", &admission(), None).unwrap();
    let nf = opened(&engine).unwrap();
    assert_eq!((nf.quota(), nf.quota().most()), (Quota { allocate: 100, hold: 3 }, 103));
    let pairs = || (0..2u16).flat_map(|thread| (0..3u16).map(move |worker| (thread, worker)));
    for (thread, worker) in pairs() {
        let number = u32::from(thread * 3 + worker);
        // SAFETY: one producer for each ring.
        let mut producer = unsafe { engine.ring_of_buffers(thread, worker).unwrap().producer() };
        assert_eq!(producer.push(&[Descriptor::new(number, 0, 0); 200]), 128, "the next power of two");
    }
    for (thread, worker) in pairs() {
        let mut out = [Descriptor::default(); 200];
        // SAFETY: one consumer for each ring.
        let mut consumer = unsafe { nf.ring_of_buffers(thread, worker).unwrap().consumer() };
        assert_eq!((consumer.pop(&mut out), out[127].buffer()), (128, u32::from(thread * 3 + worker)));
        // SAFETY: the other rings are still empty.
        assert_eq!(unsafe { nf.ring_to_nf(thread, worker).consumer().available() }, 0);
    }
    // As an NF of layout 10 sees it: all is where it was, and it ignores what follows.
    let quota = |layout| admission().quota.of_layout(layout);
    assert_eq!((quota(10), quota(11)), (Quota::default(), admission().quota));
    let old = |quota| {
        Control::create("control-test", &Admission { layout: 10, quota, ..admission() }, None).unwrap()
    };
    let (without, with) = (old(quota(10)), old(quota(11)));
    let newer = size_of::<ControlHeader>() - 32;
    assert_eq!(without.header().as_bytes()[newer..], [0; 32]);
    assert_eq!(without.header().as_bytes()[..newer], with.header().as_bytes()[..newer]);
    assert_eq!(u64::try_from(without.mapping.len()).unwrap(), with.header().bytes);
    assert!(opened(&without).unwrap().ring_of_buffers(0, 0).is_none());
    assert!(opened(&with).unwrap().ring_of_buffers(1, 2).is_some(), "a newer one in a VM uses it");
}

#[test]
fn another_layout_is_refused_with_its_version() {
    let engine = Control::create("control-test", &admission(), None).unwrap();
    // SAFETY: the header's layout word; only this thread uses the memory.
    unsafe { engine.mapping.at::<u32>(8).write_volatile(LAYOUT_VERSION + 1) };
    let error = opened(&engine).unwrap_err();
    assert!(matches!(error, ControlError::Layout { found } if found == LAYOUT_VERSION + 1), "{error}");
}

#[test]
fn a_header_with_any_byte_changed_is_refused_or_harmless() {
    let engine = Control::create("control-test", &admission(), None).unwrap();
    let good = *engine.header();
    let mut refused = 0;
    for byte in 0..size_of::<ControlHeader>() {
        let mut bytes = good.as_bytes().to_vec();
        bytes[byte] ^= 0xff;
        let bad = ControlHeader::read_from_bytes(&bytes).unwrap();
        // SAFETY: the header; only this thread uses the memory.
        unsafe { engine.mapping.at::<ControlHeader>(0).write_volatile(bad) };
        match opened(&engine) {
            Err(_) => refused += 1,
            // Group and role are arbitrary numbers, and entries beyond the counts are ignored.
            Ok(control) => {
                let _ = control.ring_from_nf(good.threads - 1, good.workers - 1);
            }
        }
    }
    assert!(refused > 60, "{refused}");
}

#[test]
fn numbers_out_of_range_are_refused() {
    let wrong = [
        Admission { nf_threads: vec![1; 17], ..admission() },
        Admission { nf_threads: vec![], ..admission() },
        Admission { nf_threads: vec![0], ..admission() },
        Admission { worker_regions: vec![2], ..admission() },
        Admission { worker_regions: vec![], ..admission() },
        Admission { workers: 2, ..admission() },
        Admission { workers: 33, ..admission() },
        Admission { ring_capacity: 63, ..admission() },
    ];
    for wrong in wrong {
        assert!(Control::create("control-test", &wrong, None).is_err(), "{wrong:?}");
    }
}
