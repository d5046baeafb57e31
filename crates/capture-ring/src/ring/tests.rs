// SPDX-License-Identifier: Apache-2.0
use std::collections::VecDeque;

use netvm_region::Pages;
use proptest::prelude::*;

use super::*;
use crate::record::{Direction, NONE_U16, Origin};

fn pair(bytes: u64) -> (Writer, Reader) {
    let writer = Writer::create(bytes).unwrap();
    let reader = Reader::open(writer.as_fd().try_clone_to_owned().unwrap()).unwrap();
    (writer, reader)
}

fn put(writer: &mut Writer, record: Record, packet: &[u8]) -> bool {
    // SAFETY: the packet is a slice.
    unsafe { writer.write(record, packet.as_ptr(), packet.len()) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Whatever the lengths, and whenever the reader reads: it gets what was written, in order, and what had no room is
    /// counted.
    #[test]
    fn records_come_out_as_they_went_in(steps in proptest::collection::vec((0usize..9000, any::<bool>()), 1..400)) {
        let (mut writer, mut reader) = pair(1 << 17);
        let mut expected = VecDeque::new();
        let (mut lost, mut accepted) = (0, 0);
        for (n, (length, reads)) in steps.into_iter().enumerate() {
            let packet = vec![n as u8; length];
            let record = Record { original: n as u32, origin: Origin::Port(3), ..Record::at(5, Direction::In) };
            accepted += 1;
            if put(&mut writer, record, &packet) {
                expected.push_back((record, packet));
            } else {
                lost += 1;
            }
            writer.publish(5);
            if reads {
                while let Some((record, packet)) = reader.peek() {
                    let (wanted, bytes) = expected.pop_front().unwrap();
                    prop_assert_eq!(record, wanted);
                    prop_assert_eq!(packet, &bytes[..]);
                    reader.advance();
                }
                prop_assert!(expected.is_empty());
                reader.release();
            }
        }
        prop_assert_eq!(reader.counts(5), Counts { seen: 0, accepted, lost, missed: 0 });
    }
}

#[test]
fn the_ring_of_a_later_worker_is_read_like_others_once_it_is_allocated() {
    let mut writer = Writer::create_spare(1 << 17).unwrap();
    let mut reader = Reader::open(writer.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert!(!reader.is_used() && reader.peek().is_none());
    writer.allocate().unwrap();
    let record = Record::at(0, Direction::Out);
    assert!(put(&mut writer, record, b"one"));
    writer.publish(0);
    assert!(reader.is_used());
    let (read, packet) = reader.peek().unwrap();
    assert_eq!((read, packet), (record, &b"one"[..]));
}

#[test]
fn a_hostile_reader_loses_its_own_records_only() {
    let (mut writer, reader) = pair(1 << 17);
    let record = Record::at(0, Direction::Out);
    for tail in [u64::MAX, 1, 1 << 40, u64::MAX / 2, 8, 0] {
        reader.word(TAIL).store(tail, Ordering::Release);
        for _ in 0..100 {
            put(&mut writer, record, &[7; 1500]);
        }
        writer.publish(0);
    }
    let counts = reader.counts(0);
    assert_eq!(counts.accepted, 600);
    assert!(counts.lost > 400, "{counts:?}");
}

#[test]
fn a_reader_gives_up_a_ring_that_makes_no_sense() {
    for size in [0u64, 8, 24, 33, 1 << 20, u64::from(u32::MAX)] {
        for captured in [0u64, 64, u64::from(u32::MAX)] {
            let (mut writer, mut reader) = pair(1 << 17);
            put(&mut writer, Record::at(0, Direction::In), &[1; 64]);
            writer.publish(0);
            writer.word(DATA).store(size | captured << 32, Ordering::Relaxed);
            assert_eq!(reader.peek(), None, "{size} {captured}");
            reader.advance();
            assert_eq!(reader.peek(), None, "{size} {captured}");
        }
    }
}

#[test]
fn memory_of_another_kind_is_refused() {
    let memory = Mapping::create("test", 1 << 20, Pages::Normal, None).unwrap();
    let fd = memory.as_fd().try_clone_to_owned().unwrap();
    assert!(matches!(Reader::open(fd), Err(RingError::Layout)));
    assert_eq!(Record::at(0, Direction::In).chain, NONE_U16);
}
