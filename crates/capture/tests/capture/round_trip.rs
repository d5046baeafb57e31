// SPDX-License-Identifier: Apache-2.0
//! Reads back what this crate and other tools write, in every format.

use std::io::Cursor;
use std::path::Path;

use crate::common::{Blocks, Sample, pcap, pcapng, read, samples};
use netvm_capture::{
    CaptureReader, CaptureWriter, Format, MAX_FRAME, Precision, Timestamp, WriteError, WriterOptions,
};
use pcap_file::{DataLink, Endianness};
use proptest::prelude::*;

const ORDERS: [Endianness; 2] = [Endianness::Big, Endianness::Little];

fn in_micros(samples: &[Sample]) -> Vec<Sample> {
    let rounded = |time: Timestamp| Timestamp(time.0 / 1000 * 1000);
    samples.iter().map(|sample| Sample { timestamp: rounded(sample.timestamp), ..sample.clone() }).collect()
}

fn write(path: &Path, options: WriterOptions, samples: &[Sample]) {
    let mut writer = CaptureWriter::create(path, options).unwrap();
    for sample in samples {
        writer.write(sample.timestamp, sample.orig_len, &sample.data).unwrap();
    }
    writer.finish().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn written_files_are_read_back(samples in samples(30)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("capture");
        for format in [Format::Pcap, Format::Pcapng] {
            for precision in [Precision::Micro, Precision::Nano] {
                write(&path, WriterOptions { format, precision }, &samples);
                let expected = if precision == Precision::Nano { samples.clone() } else { in_micros(&samples) };
                let (found, error) = read(std::fs::read(&path).unwrap()).unwrap();
                prop_assert!(error.is_none(), "{error:?}");
                prop_assert_eq!(found, expected);
                let reader = CaptureReader::open(&path).unwrap();
                prop_assert_eq!((reader.format(), reader.precision()), (format, precision));
            }
        }
    }

    #[test]
    fn files_of_other_writers_are_read(samples in samples(30)) {
        for order in ORDERS {
            let found = |bytes| {
                let (found, error) = read(bytes).unwrap();
                assert!(error.is_none(), "{error:?}");
                found
            };
            prop_assert_eq!(found(pcap(&samples, order, true, DataLink::ETHERNET)), samples.clone());
            prop_assert_eq!(found(pcap(&samples, order, false, DataLink::ETHERNET)), in_micros(&samples));
            prop_assert_eq!(found(pcapng(&samples, order)), samples.clone());
        }
    }

    /// A copy with the suggested options changes no timestamp.
    #[test]
    fn copies_lose_nothing(samples in samples(10), order in prop::sample::select(&ORDERS), nano: bool, ng: bool) {
        let directory = tempfile::tempdir().unwrap();
        let source = if ng { pcapng(&samples, order) } else { pcap(&samples, order, nano, DataLink::ETHERNET) };
        let (before, _) = read(source.clone()).unwrap();
        for name in ["copy", "copy.pcap", "copy.pcapng"] {
            let path = directory.path().join(name);
            let reader = CaptureReader::from_source(Path::new("source"), Cursor::new(source.clone())).unwrap();
            let options = WriterOptions::for_output(&path, &reader);
            prop_assert_eq!(options.format, Format::from_extension(&path).unwrap_or(reader.format()));
            write(&path, options, &before);
            prop_assert_eq!(&read(std::fs::read(&path).unwrap()).unwrap().0, &before);
        }
    }
}

#[test]
fn every_pcapng_resolution_is_read() {
    // Resolution, offset in seconds, count, nanoseconds.
    let cases: [(Option<u8>, i64, u64, u64); 9] = [
        (None, 0, 1_500_000, 1_500_000_000),
        (Some(0), 0, 7, 7_000_000_000),
        (Some(3), 0, 1_234, 1_234_000_000),
        (Some(6), 0, u64::from(u32::MAX) + 1, 4_294_967_296_000),
        (Some(9), 0, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (Some(0x80 | 10), 0, 3 << 10 | 1 << 9, 3_500_000_000),
        (Some(0x80 | 29), 0, 1 << 29 | 1, 1_000_000_001),
        (Some(9), 1_000, 5, 1_000_000_000_005),
        (Some(6), -1, 1_000_001, 1_000),
    ];
    for order in ORDERS {
        for (resolution, offset, count, nanos) in cases {
            let seconds = if order.is_big() { offset.to_be_bytes() } else { offset.to_le_bytes() };
            let resolution = resolution.map(|value| [value]);
            let mut options: Vec<(u16, &[u8])> = vec![(14, &seconds)];
            options.extend(resolution.iter().map(|value| (9, &value[..])));
            let mut blocks = Blocks::new(order);
            blocks.interface(1, 0, &options).packet(0, count, 60, &[1; 60]);
            let (found, error) = read(blocks.bytes).unwrap();
            assert!(error.is_none(), "{error:?}");
            assert_eq!(found[0].timestamp, Timestamp(nanos), "{resolution:?} {offset} {count}");
        }
    }
}

#[test]
fn each_interface_has_its_own_resolution() {
    let mut blocks = Blocks::new(Endianness::Big);
    blocks.interface(1, 0, &[(9, &[9])]).ethernet();
    blocks.packet(1, 3, 60, &[1; 60]).packet(0, 3, 60, &[2; 61]);
    let reader = CaptureReader::from_source(Path::new("test"), Cursor::new(blocks.bytes.clone())).unwrap();
    assert_eq!(reader.precision(), Precision::Nano);
    // A new section, in the other byte order.
    blocks.section(Endianness::Little).ethernet().packet(0, 4, 60, &[3; 62]);
    let (found, error) = read(blocks.bytes).unwrap();
    assert!(error.is_none(), "{error:?}");
    let times: Vec<_> = found.iter().map(|sample| (sample.timestamp.0, sample.data.len())).collect();
    assert_eq!(times, [(3000, 60), (3, 61), (4000, 62)]);
}

#[test]
fn other_blocks_of_any_length_are_skipped() {
    let mut blocks = Blocks::new(Endianness::Little);
    blocks.block(10, &[7; 5]).ethernet().block(0xbad, &vec![9; 3_000_000]).packet(0, 1, 64, &[1; 64]);
    blocks.block(5, &[0; 12]).packet(0, 2, 64, &[2; 64]).block(0x8000_0001, &[]);
    let (found, error) = read(blocks.bytes).unwrap();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(found.iter().map(|sample| sample.data[0]).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn older_packet_blocks_are_read() {
    let mut blocks = Blocks::new(Endianness::Big);
    blocks.interface(1, 64, &[]).packet(0, 5, 60, &[1; 60]);
    // A simple packet block without a time: 100 bytes on the wire, truncated to the snap length.
    blocks.block(3, &[&100u32.to_be_bytes()[..], &[2; 64]].concat());
    // The obsolete packet block: interface 0, 7 drops.
    let fixed = [[0, 0, 0, 7], [0, 0, 0, 0], [0, 0, 0, 9], [0, 0, 0, 3], [0, 0, 0, 4]].concat();
    blocks.block(2, &[&fixed[..], &[3; 3]].concat());
    let (found, error) = read(blocks.bytes).unwrap();
    assert!(error.is_none(), "{error:?}");
    let of =
        |nanos, orig_len, data: &[u8]| Sample { timestamp: Timestamp(nanos), orig_len, data: data.to_vec() };
    assert_eq!(found, [of(5000, 60, &[1; 60]), of(5000, 100, &[2; 64]), of(9000, 4, &[3; 3])]);
}

#[test]
fn slightly_wrong_lengths_and_fractions_are_corrected() {
    let mut bytes = pcap(&[], Endianness::Little, false, DataLink::ETHERNET);
    let record: [u32; 4] = [10, 1_000_001, 5, 3];
    bytes.extend(record.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend([1; 5]);
    let (found, error) = read(bytes).unwrap();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(found, [Sample { timestamp: Timestamp(11_000_001_000), orig_len: 5, data: vec![1; 5] }]);
}

#[test]
fn the_frame_length_limit_is_exact() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("capture");
    for format in [Format::Pcap, Format::Pcapng] {
        let mut writer =
            CaptureWriter::create(&path, WriterOptions { format, ..Default::default() }).unwrap();
        writer.write(Timestamp(1), 0, &vec![5; MAX_FRAME]).unwrap();
        let error = writer.write(Timestamp(1), 0, &vec![5; MAX_FRAME + 1]).unwrap_err();
        assert!(matches!(error, WriteError::TooLong { length, .. } if length == MAX_FRAME + 1));
        writer.finish().unwrap();
        let (found, error) = read(std::fs::read(&path).unwrap()).unwrap();
        assert!(error.is_none(), "{error:?}");
        assert_eq!(
            found,
            [Sample { timestamp: Timestamp(1), orig_len: MAX_FRAME as u32, data: vec![5; MAX_FRAME] }]
        );
    }
}

#[test]
fn times_beyond_pcap_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("capture");
    let late = Timestamp(u64::MAX);
    let mut writer = CaptureWriter::create(&path, WriterOptions::default()).unwrap();
    assert!(matches!(writer.write(late, 1, &[1]), Err(WriteError::Timestamp { .. })));
    let options = WriterOptions { format: Format::Pcapng, ..Default::default() };
    let mut writer = CaptureWriter::create(&path, options).unwrap();
    writer.write(late, 1, &[1]).unwrap();
    writer.finish().unwrap();
    assert_eq!(read(std::fs::read(&path).unwrap()).unwrap().0[0].timestamp, late);
}

#[test]
fn a_full_disk_is_an_error() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        println!("SKIP: no /dev/full on this machine");
        return;
    }
    for format in [Format::Pcap, Format::Pcapng] {
        // Reported when the buffer is flushed,
        let mut writer = CaptureWriter::create(full, WriterOptions { format, ..Default::default() }).unwrap();
        writer.write(Timestamp(0), 60, &[0; 60]).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.starts_with("cannot write /dev/full: No space left on device"), "{error}");
        // or earlier.
        let mut writer = CaptureWriter::create(full, WriterOptions { format, ..Default::default() }).unwrap();
        let failed =
            (0..100_000).find_map(|_| writer.write(Timestamp(0), 60, &[0; 60]).err()).unwrap().to_string();
        assert!(failed.starts_with("cannot write /dev/full: No space left on device"), "{failed}");
    }
}

#[test]
fn creation_errors_name_the_file() {
    let error =
        CaptureWriter::create(Path::new("/nonexistent/x.pcap"), WriterOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("cannot create /nonexistent/x.pcap: No such file"), "{error}");
}
