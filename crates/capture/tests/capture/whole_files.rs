// SPDX-License-Identifier: Apache-2.0
//! Captures of ordinary and broken traffic in every form, which our writer did not write: each is read, or refused for
//! the right reason; the parser agrees with etherparse on every frame; a copy has the same content.

#[path = "../../../wire/tests/common/mod.rs"]
mod against_etherparse;

use std::collections::BTreeMap;
use std::path::PathBuf;

use against_etherparse::{Difference, Outcome};
use netvm_capture::{CaptureReader, CaptureWriter, Format, OpenError, Precision, ReadFault, WriterOptions};
use netvm_wire::{Malformed, checksum, parse, parse_prefix};
use tempfile::TempDir;

/// The captures, in a folder.
fn captures() -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let paths = netvm_workload::captures::write(folder.path()).unwrap();
    (folder, paths)
}

/// The link type in a pcap header, parsed independently; `None` for pcapng.
fn link_of(bytes: &[u8]) -> Option<u16> {
    match bytes[..4] {
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => {
            Some(u16::from_le_bytes([bytes[20], bytes[21]]))
        }
        [0xa1, 0xb2, _, _] => Some(u16::from_be_bytes([bytes[22], bytes[23]])),
        _ => None,
    }
}

/// Link types that can be read.
const READABLE: [u16; 8] = [1, 12, 14, 101, 113, 228, 229, 276];

#[test]
fn captures_are_read_or_refused_for_a_reason() {
    let (_folder, paths) = captures();
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap();
        let mut reader = match CaptureReader::open(&path) {
            Ok(reader) => reader,
            Err(error @ OpenError::LinkType { link, .. }) => {
                println!("{name}: refused: {error}");
                assert!(!READABLE.contains(&link.0));
                assert!(link_of(&bytes).is_none_or(|number| number == link.0));
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(link_of(&bytes).is_none_or(|number| READABLE.contains(&number)), "{name}");
        let mut octets = 0;
        let error = loop {
            match reader.next_frame() {
                Ok(Some(frame)) => octets += frame.data.len(),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        println!(
            "{name}: {:?} {:?}, {} frames, {octets} bytes",
            reader.format(),
            reader.precision(),
            reader.frames()
        );
        if let Some(error) = error {
            println!("{name}: {error}");
            assert!(matches!(error.fault, ReadFault::Truncated { .. }), "{error}");
        }
        assert!(reader.frames() > 0);
    }
}

#[test]
fn parsing_agrees_with_etherparse() {
    let mut outcomes: BTreeMap<Outcome, u64> = BTreeMap::new();
    let (mut frames, mut cut) = (0u64, 0u64);
    let (_folder, paths) = captures();
    for path in paths {
        let Ok(mut reader) = CaptureReader::open(&path) else { continue };
        while let Ok(Some(frame)) = reader.next_frame() {
            let number = frames;
            frames += 1;
            let outcome = against_etherparse::compare(frame.data);
            let outcome =
                outcome.unwrap_or_else(|error| panic!("{} frame {number}: {error}", path.display()));
            *outcomes.entry(outcome).or_default() += 1;
            let whole = parse(frame.data);
            let prefix = parse_prefix(frame.data, frame.orig_len as usize);
            if frame.orig_len as usize == frame.data.len() {
                assert_eq!(whole, prefix);
                if let Ok(headers) = whole {
                    // The result does not matter: captures contain offloaded checksums.
                    let _ = checksum::verify(frame.data, &headers);
                    let mut copy = frame.data.to_vec();
                    checksum::fill(&mut copy, &headers).unwrap();
                    assert_eq!(
                        checksum::verify(&copy, &headers),
                        Ok(()),
                        "{} frame {number}",
                        path.display()
                    );
                }
            } else {
                cut += 1;
                assert!(whole.is_err() || whole == prefix || prefix.is_ok());
            }
        }
    }
    for (outcome, count) in &outcomes {
        println!("{count:7} {outcome:?}");
    }
    println!("{frames:7} frames, {cut} of them truncated by the capture");
    if frames > 0 {
        let same = outcomes.get(&Outcome::Same).copied().unwrap_or_default();
        assert!(same * 10 > frames * 7, "only {same} of {frames} frames are read the same by both");
        let differing = |outcome: &Outcome| {
            matches!(outcome, Outcome::Differs(Difference::Stricter(Malformed::LlcLength)))
        };
        assert!(outcomes.keys().filter(|outcome| differing(outcome)).count() <= 1);
    }
}

#[test]
fn copies_have_the_same_content() {
    let directory = tempfile::tempdir().unwrap();
    let (_folder, paths) = captures();
    for path in paths {
        let Ok(probe) = CaptureReader::open(&path) else { continue };
        for format in [Format::Pcap, Format::Pcapng] {
            let copy = directory.path().join(format!("copy.{format}"));
            let options = WriterOptions::for_output(&copy, &probe);
            assert_eq!(options.format, format);
            let mut writer = CaptureWriter::create(&copy, options).unwrap();
            let mut reader = CaptureReader::open(&path).unwrap();
            while let Ok(Some(frame)) = reader.next_frame() {
                writer.write(frame.timestamp, frame.orig_len, frame.data).unwrap();
            }
            writer.finish().unwrap();

            let (mut before, mut after) =
                (CaptureReader::open(&path).unwrap(), CaptureReader::open(&copy).unwrap());
            while let Ok(Some(frame)) = before.next_frame() {
                assert_eq!(after.next_frame().unwrap().unwrap(), frame, "{} as {format}", path.display());
            }
            assert!(after.next_frame().unwrap().is_none());
            assert!(after.precision() >= before.precision() || after.precision() == Precision::Nano);
        }
    }
}
