// SPDX-License-Identifier: Apache-2.0
//! Arbitrary control memory and next-hop tables, as an NF may receive them.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use netvm_region::{
    Control, ControlError, ControlHeader, GROUP_LAYOUT, Geometry, LAYOUT_VERSION, MAX_CHAINS, MAX_COUNTERS,
    MAX_HOPS, MAX_REGIONS, MAX_REPLICAS, ReadyMessage, RegionSpec, Table, TableError, TableReader,
};
use netvm_ring::{Descriptor, ring_bytes};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zerocopy::IntoBytes;

use crate::input::Input;

/// Offset of the ready message that a VM's guest writes.
const READY_MESSAGE_AT: usize = 2560;
const HEADER: usize = size_of::<ControlHeader>();
/// Larger memories are sparse, so they cost nothing until touched.
const MAX_BYTES: u64 = 1 << 28;

/// Opens control memory with a valid, damaged or random header, and uses every accessor.
pub fn control_header(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let noise = kind.is_multiple_of(4);
    let (mut header, bytes) = if noise { (vec![0; HEADER], 1 << 16) } else { valid_header(&mut input) };
    let bytes = if kind % 4 == 1 { bytes.saturating_sub(input.u64() % 8192) } else { bytes };
    if noise {
        let noise = input.bytes(HEADER);
        header[..noise.len()].copy_from_slice(noise);
    }
    while !input.is_empty() {
        let at = usize::from(input.u16()) % HEADER;
        header[at] = input.u8();
    }
    let fd = memory("fuzz-control", &header, bytes.min(MAX_BYTES));
    // A valid memory has a page for the ready message, which gets the input too.
    let _ =
        rustix::io::pwrite(&fd, &data[..data.len().min(4096 - READY_MESSAGE_AT)], READY_MESSAGE_AT as u64);
    match Control::open(fd) {
        Ok(control) => use_all(&control),
        Err(error @ (ControlError::Layout { .. } | ControlError::Unsound(_) | ControlError::Map(_))) => {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// A sealed memfd of `bytes` bytes that starts with `content`.
pub(crate) fn memory(name: &str, content: &[u8], bytes: u64) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd_create");
    ftruncate(&fd, bytes).expect("ftruncate");
    let content = &content[..content.len().min(usize::try_from(bytes).expect("64 bits"))];
    rustix::io::pwrite(&fd, content, 0).expect("pwrite");
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    fd
}

/// A header as the engine writes it, and the size of its memory.
fn valid_header(input: &mut Input<'_>) -> (Vec<u8>, u64) {
    let (threads, workers) = (1 + u16::from(input.u8() % 16), 1 + u16::from(input.u8() % 32));
    // Large rings only if there are few, for speed.
    let sizes = if threads * workers <= 2 { 16 } else { 5 };
    let (regions, capacity) = (1 + u16::from(input.u8() % 4), 2u32 << (input.u8() % sizes));
    let stride = (ring_bytes(capacity) as u64).next_multiple_of(128);
    let rings_at = (4096 + u64::from(threads) * 512).next_multiple_of(4096);
    let allocate = if sizes == 5 { u32::from(input.u8() % 64) } else { u32::from(input.u16()) };
    let pairs = u64::from(threads) * u64::from(workers);
    let stock_capacity = if allocate == 0 { 0 } else { allocate.max(2).next_power_of_two() };
    let stock_stride =
        if allocate == 0 { 0 } else { (ring_bytes(stock_capacity) as u64).next_multiple_of(128) };
    let end = rings_at + pairs * 2 * stride;
    let bytes = end.next_multiple_of(4096);
    let stock_at = if allocate == 0 { 0 } else { bytes };
    let all_bytes = bytes + (pairs * stock_stride).next_multiple_of(4096);
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
    let geometry = Geometry::new(RegionSpec::default()).expect("the default");
    for region in 0..MAX_REGIONS {
        let bytes = geometry.as_bytes();
        header.extend(bytes.iter().map(|byte| if region < usize::from(regions) { *byte } else { 0 }));
    }
    header.extend(stock_at.to_le_bytes());
    for number in [stock_stride as u32, stock_capacity, allocate, u32::from(input.u16())] {
        header.extend(number.to_le_bytes());
    }
    // No mailbox: an NF with a socket has none.
    header.extend(0u64.to_le_bytes());
    assert_eq!(header.len(), HEADER);
    (header, all_bytes)
}

fn use_all(control: &Control) {
    let header = *control.header();
    assert!((1..=16).contains(&header.threads) && (1..=32).contains(&header.workers));
    assert!(control.workers() <= header.workers);
    assert_eq!(control.region_of(u8::MAX), None);
    let mapped = control.mapping().len();
    for thread in 0..header.threads {
        let block = control.thread(thread);
        block.epoch.store(u64::MAX, Ordering::Relaxed);
        block.own.iter().chain(&block.standard).for_each(|counter| counter.store(1, Ordering::Relaxed));
        for worker in 0..header.workers {
            let pair = [control.ring_to_nf(thread, worker), control.ring_from_nf(thread, worker)];
            for ring in pair.into_iter().chain(control.ring_of_buffers(thread, worker)) {
                assert!(ring_bytes(ring.capacity()) <= mapped);
                // SAFETY: the only ends of this ring; `control` keeps it mapped.
                let (mut producer, mut consumer) = unsafe { (ring.producer(), ring.consumer()) };
                let sent = Descriptor::new(u32::from(thread), worker, 1);
                assert_eq!(producer.push(&[sent]), 1, "an empty ring has room");
                let mut out = [Descriptor::default(); 2];
                assert_eq!((consumer.pop(&mut out), out[0]), (1, sent), "rings overlap");
                // Fills the ring, so that the last slot is touched.
                producer.push(&vec![sent; ring.capacity() as usize]);
                assert_eq!(ring.occupancy(), ring.capacity());
            }
        }
    }
    // A guest may have written anything as its ready message.
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
    control.request_stop();
    assert_eq!(control.command(), netvm_region::Command::Stop);
    for nf_thread in &header.nf_threads[..usize::from(header.threads)] {
        assert!((1..netvm_region::MAX_NF_THREADS).contains(&usize::from(*nf_thread)));
    }
    for geometry in &header.geometries[..usize::from(header.regions)] {
        assert!(geometry.is_sound());
    }
}

/// Magic number of a table.
const MAGIC: &[u8; 8] = b"netvmTBL";
/// Offsets of the epoch and the table.
const EPOCH_AT: usize = 128;
const TABLE_AT: usize = 4096;
const BYTES: usize = (TABLE_AT + size_of::<Table>()).next_multiple_of(4096);

/// Reads an arbitrary table and looks up arbitrary keys.
pub fn table(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, epoch, seed) = (input.u8(), u64::from(input.u8()), input.u8());
    let mut content = vec![seed; BYTES];
    let (missing, foreign, newer) =
        (if kind % 8 == 0 { usize::from(kind) } else { 0 }, kind % 8 == 1, u64::from(kind % 8 == 2));
    if !foreign {
        content[..8].copy_from_slice(MAGIC);
        content[8..16].copy_from_slice(&(u64::from(GROUP_LAYOUT) + newer).to_le_bytes());
    }
    content[EPOCH_AT..EPOCH_AT + 8].copy_from_slice(&epoch.to_le_bytes());
    let questions: Vec<_> = (0..8).map(|_| (input.u16(), input.u8(), input.u16())).collect();
    while !input.is_empty() {
        let at = TABLE_AT + input.u32() as usize % size_of::<Table>();
        let bytes = input.u8();
        let bytes = input.bytes(usize::from(bytes));
        let end = (at + bytes.len()).min(BYTES);
        content[at..end].copy_from_slice(&bytes[..end - at]);
    }
    let mut reader = match TableReader::open(memory("fuzz-table", &content, (BYTES - missing) as u64)) {
        Ok(reader) => reader,
        Err(TableError::Map(_)) => return assert!(missing > 0, "a table of the right size was not mapped"),
        Err(TableError::NotATable) => return assert!(foreign),
        Err(TableError::Layout { .. }) => return assert!(newer > 0),
    };
    assert!(missing == 0 && !foreign && newer == 0, "a table of another layout was accepted");
    assert_eq!(reader.is_stale(), epoch != 0);
    // An odd epoch marks a write in progress.
    let whole = epoch != 0 && epoch % 2 == 0;
    assert_eq!(reader.refresh(), whole);
    assert_eq!(reader.epoch(), if whole { epoch } else { 0 });
    assert!(!reader.refresh());
    for (chain, hop, role) in questions {
        query(reader.table(), chain, hop, role);
        query(reader.table(), chain % MAX_CHAINS as u16, hop % MAX_HOPS as u8, role % 256);
    }
    for names in [&reader.table().ports[..], &reader.table().role_names[..]] {
        for name in names {
            let text = name.as_str();
            let (port, role) = (reader.table().port_number(text), reader.table().role_number(text));
            assert!(!text.is_empty() || (port, role) == (None, None), "an empty name has a number");
        }
    }
}

fn query(table: &Table, chain: u16, hop: u8, role: u16) {
    for destination in [table.hop(chain, hop), table.role(chain, hop, role)] {
        assert!(destination.replicas().len() <= MAX_REPLICAS);
        let _ = destination.balance();
    }
    if usize::from(chain) >= MAX_CHAINS || usize::from(hop) >= MAX_HOPS {
        assert!(table.hop(chain, hop).replicas().is_empty(), "a missing hop does not lead to the engine");
    }
    let (from, to) = (usize::from(chain) % table.rings.len(), usize::from(role) % table.rings.len());
    let _ = table.rings[from][to].get();
}
