// SPDX-License-Identifier: Apache-2.0
//! What a mapping promises, and what it refuses.

use super::*;
use rustix::fs::{FallocateFlags, fallocate};

#[test]
fn memory_is_shared_and_sealed_at_its_size() {
    let mine = Mapping::create("map-test", 1 << 21, Pages::HugeIfFree, Some(0)).unwrap();
    let other = Mapping::open("map-test", mine.as_fd().try_clone_to_owned().unwrap(), 1 << 21, true).unwrap();
    // SAFETY: both mappings live, and only this thread uses them.
    unsafe {
        mine.at::<u8>(12345).as_ptr().write_volatile(7);
        assert_eq!(other.at::<u8>(12345).as_ptr().read_volatile(), 7);
    }
    assert!(ftruncate(mine.as_fd(), 1).is_err(), "shrinking must fail");
    assert!(ftruncate(mine.as_fd(), 1 << 22).is_err(), "growing must fail");
    // With this seal no peer could map the memory for writing any more.
    assert!(fcntl_add_seals(mine.as_fd(), SealFlags::FUTURE_WRITE).is_err(), "further seals must fail");
}

#[test]
fn holes_that_a_peer_punches_are_found() {
    // 3 of 4 MiB are used.
    let bytes = 3 << 20;
    let punched = |at: u64| {
        let mine = Mapping::create("map-test", bytes, Pages::Normal, None).unwrap();
        assert!(mine.is_intact());
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(mine.as_fd(), flags, at, 4096).unwrap();
        mine
    };
    assert!(!punched(0).is_intact() && !punched(bytes - 4096).is_intact());
    // As many pages behind the used part do not hide a hole, and alone they are none.
    let mine = punched(8192);
    fallocate(mine.as_fd(), FallocateFlags::KEEP_SIZE, bytes, 1 << 20).unwrap();
    assert!(!mine.is_intact());
    let mine = Mapping::create("map-test", bytes, Pages::Normal, None).unwrap();
    fallocate(mine.as_fd(), FallocateFlags::KEEP_SIZE, bytes, 1 << 20).unwrap();
    assert!(mine.is_intact());
}

#[test]
fn empty_memory_gets_its_pages_later() {
    let mine = Mapping::create_empty("map-test", 3 << 20).unwrap();
    let blocks = || fstat(&mine).unwrap().st_blocks;
    assert_eq!(blocks(), 0);
    mine.populate("map-test").unwrap();
    assert!(blocks() >= (3 << 20) / BLOCK);
    assert!(ftruncate(mine.as_fd(), 1).is_err(), "shrinking must fail");
    let huge = Mapping::create_empty("map-test", 1 << 40).unwrap();
    assert!(matches!(huge.populate("map-test"), Err(MapError::Memory { .. })));
}

#[test]
fn memory_sealed_for_readers_cannot_be_mapped_writable() {
    let mine = Mapping::create_for_readers("map-test", 4096).unwrap();
    let fd = || mine.as_fd().try_clone_to_owned().unwrap();
    assert!(Mapping::open("map-test", fd(), 4096, false).is_ok());
    assert!(matches!(
        Mapping::open("map-test", fd(), 4096, true),
        Err(MapError::System { step: "mmap", .. })
    ));
}

#[test]
fn a_wrong_file_is_refused() {
    let small = Mapping::create("map-test", 4096, Pages::Normal, None).unwrap();
    let fd = small.as_fd().try_clone_to_owned().unwrap();
    assert!(matches!(Mapping::open("map-test", fd, 8192, true), Err(MapError::Size { actual: 4096, .. })));
    let fd = memfd_create("map-test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 4096).unwrap();
    assert!(matches!(Mapping::open("map-test", fd, 4096, true), Err(MapError::NotSealed { .. })));
}

#[test]
fn more_memory_than_available_is_refused_early() {
    let error = Mapping::create("map-test", 1 << 50, Pages::HugeIfFree, None).unwrap_err();
    assert!(matches!(error, MapError::Memory { .. }), "{error}");
}

#[test]
#[should_panic(expected = "of a mapping of 4096 bytes")]
fn an_offset_beyond_the_mapping_panics() {
    let mapping = Mapping::create("map-test", 4096, Pages::Normal, None).unwrap();
    let _ = mapping.at::<u64>(4092);
}
