//! Arbitrary control memory, as an NF may be passed it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use netvm_region::{
    Control, ControlError, ControlHeader, Geometry, LAYOUT_VERSION, MAX_COUNTERS, MAX_REGIONS, ReadyMessage,
    RegionSpec,
};
use netvm_ring::{Descriptor, ring_bytes};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zerocopy::IntoBytes;

use crate::input::Input;

/// Where the guest of a VM says who it is.
const GREETING_AT: usize = 2560;
const HEADER: usize = size_of::<ControlHeader>();
/// Longer memories are made of holes; they cost nothing until they are touched.
const MOST_BYTES: u64 = 1 << 28;

/// Opens control memory with a header that is sound, spoiled in places, or noise, and uses every accessor.
pub fn control_header(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let noise = kind.is_multiple_of(4);
    let (mut header, bytes) = if noise { (vec![0; HEADER], 1 << 16) } else { sound(&mut input) };
    let bytes = if kind % 4 == 1 { bytes.saturating_sub(input.u64() % 8192) } else { bytes };
    if noise {
        let noise = input.bytes(HEADER);
        header[..noise.len()].copy_from_slice(noise);
    }
    while !input.is_empty() {
        let at = usize::from(input.u16()) % HEADER;
        header[at] = input.u8();
    }
    let fd = memory("fuzz-control", &header, bytes.min(MOST_BYTES));
    // A sound memory has a page for what is said in it; there, the input says it too.
    let _ = rustix::io::pwrite(&fd, &data[..data.len().min(4096 - GREETING_AT)], GREETING_AT as u64);
    match Control::open(fd) {
        Ok(control) => use_all(&control),
        Err(error @ (ControlError::Layout { .. } | ControlError::Unsound(_) | ControlError::Map(_))) => {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// A sealed memfd of this size that begins with `content`.
pub(crate) fn memory(name: &str, content: &[u8], bytes: u64) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd_create");
    ftruncate(&fd, bytes).expect("ftruncate");
    let content = &content[..content.len().min(usize::try_from(bytes).expect("64 bits"))];
    rustix::io::pwrite(&fd, content, 0).expect("pwrite");
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    fd
}

/// A header that the engine could have written, and the size that its memory has.
fn sound(input: &mut Input<'_>) -> (Vec<u8>, u64) {
    let (threads, workers) = (1 + u16::from(input.u8() % 16), 1 + u16::from(input.u8() % 32));
    // Large rings only where there are few, to be quick.
    let sizes = if threads * workers <= 2 { 16 } else { 5 };
    let (regions, capacity) = (1 + u16::from(input.u8() % 4), 2u32 << (input.u8() % sizes));
    let stride = (ring_bytes(capacity) as u64).next_multiple_of(128);
    let rings_at = (4096 + u64::from(threads) * 512).next_multiple_of(4096);
    let bytes = (rings_at + u64::from(threads) * u64::from(workers) * 2 * stride).next_multiple_of(4096);
    let mut header = b"netvmCTL".to_vec();
    header.extend(LAYOUT_VERSION.to_le_bytes());
    header.extend(input.u32().to_le_bytes());
    header.extend(bytes.to_le_bytes());
    header.extend(rings_at.to_le_bytes());
    header.extend((stride as u32).to_le_bytes());
    header.extend(capacity.to_le_bytes());
    for number in [input.u16(), threads, workers, regions] {
        header.extend(number.to_le_bytes());
    }
    header.extend((0..16).map(|nf_thread| if nf_thread < threads { nf_thread as u8 + 1 } else { 0 }));
    header.extend((0..32u16).map(|worker| if worker < workers { (worker % regions) as u8 } else { 0 }));
    let geometry = Geometry::new(RegionSpec::default()).expect("the default");
    for region in 0..MAX_REGIONS {
        let bytes = geometry.as_bytes();
        header.extend(bytes.iter().map(|byte| if region < usize::from(regions) { *byte } else { 0 }));
    }
    assert_eq!(header.len(), HEADER);
    (header, bytes)
}

fn use_all(control: &Control) {
    let header = *control.header();
    assert!((1..=16).contains(&header.threads) && (1..=32).contains(&header.workers));
    let mapped = control.mapping().len();
    for thread in 0..header.threads {
        let block = control.thread(thread);
        block.epoch.store(u64::MAX, Ordering::Relaxed);
        block.own.iter().chain(&block.standard).for_each(|counter| counter.store(1, Ordering::Relaxed));
        for worker in 0..header.workers {
            for ring in [control.ring_to_nf(thread, worker), control.ring_from_nf(thread, worker)] {
                assert!(ring_bytes(ring.capacity()) <= mapped);
                // SAFETY: the only ends of this ring; `control` keeps it mapped meanwhile.
                let (mut producer, mut consumer) = unsafe { (ring.producer(), ring.consumer()) };
                let sent = Descriptor::new(u32::from(thread), worker, 1);
                assert_eq!(producer.push(&[sent]), 1, "an empty ring has room");
                let mut out = [Descriptor::default(); 2];
                assert_eq!((consumer.pop(&mut out), out[0]), (1, sent), "rings overlap");
                // Fills it, so that the last slot is touched.
                producer.push(&vec![sent; ring.capacity() as usize]);
                assert_eq!(ring.occupancy(), ring.capacity());
            }
        }
    }
    // A guest may have written anything where it says who it is.
    match control.ready_message() {
        None => {}
        Some(ReadyMessage::Ready { name, counters }) => {
            assert!(counters.len() <= MAX_COUNTERS);
            for text in counters.iter().chain([&name]) {
                assert!(text.chars().count() <= 256 && !text.contains(char::is_control), "{text:?}");
            }
        }
        Some(ReadyMessage::Failed { reason }) => {
            assert!(reason.chars().count() <= 256 && !reason.contains(char::is_control), "{reason:?}");
        }
    }
    assert_eq!(control.command(), netvm_region::Command::Run);
    control.tell_stop();
    assert_eq!(control.command(), netvm_region::Command::Stop);
    for nf_thread in &header.nf_threads[..usize::from(header.threads)] {
        assert!((1..netvm_region::MAX_STATIONS).contains(&usize::from(*nf_thread)));
    }
    for geometry in &header.geometries[..usize::from(header.regions)] {
        assert!(geometry.is_sound());
    }
}
