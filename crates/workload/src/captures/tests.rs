// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeMap;
use std::path::Path;

use netvm_capture::{CaptureReader, OpenError, ReadFault};
use netvm_wire::parse_prefix;

use super::*;

/// Frames, each with its original length.
type Frames = Vec<(u32, Vec<u8>)>;

/// The frames of a file, and the error that ends it.
fn read(capture: &Capture) -> Result<(Frames, Option<ReadFault>), OpenError> {
    let mut reader =
        CaptureReader::from_source(Path::new(capture.name), io::Cursor::new(capture.bytes.clone()))?;
    let mut frames = Vec::new();
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => frames.push((frame.orig_len, frame.data.to_vec())),
            Ok(None) => return Ok((frames, None)),
            Err(error) => return Ok((frames, Some(error.fault))),
        }
    }
}

#[test]
fn files_are_read_or_refused_as_their_names_say() {
    let captures = all();
    assert!(captures.len() > 30 && captures.windows(2).all(|pair| pair[0].name < pair[1].name));
    for capture in &captures {
        match read(capture) {
            Err(OpenError::LinkType { .. }) => assert!(capture.is_refused(), "{}", capture.name),
            Err(error) => panic!("{}: {error}", capture.name),
            Ok((frames, end)) => {
                assert!(!capture.is_refused() && !frames.is_empty(), "{}", capture.name);
                let is_cut_off = matches!(end, Some(ReadFault::Truncated { .. }));
                assert_eq!(is_cut_off, capture.name.starts_with("cut-off"), "{}: {end:?}", capture.name);
                let is_cut = frames.iter().any(|(original, data)| *original as usize > data.len());
                assert_eq!(is_cut, capture.name.starts_with("snaplen"), "{}", capture.name);
            }
        }
    }
}

/// As many kinds of faults and of traffic as the public captures that tests had before: a parser that gets one wrong
/// is found.
#[test]
fn frames_are_of_every_kind() {
    let (mut faults, mut protocols) = (BTreeMap::<String, u32>::new(), BTreeMap::<(u16, u8), u32>::new());
    let (mut count, mut malformed) = (0, 0);
    for capture in all() {
        for (original, data) in read(&capture).into_iter().flat_map(|(frames, _)| frames) {
            count += 1;
            match parse_prefix(&data, original as usize) {
                Ok(headers) => {
                    *protocols.entry((headers.key().ether_type.0, headers.key().protocol.0)).or_default() +=
                        1;
                }
                Err(fault) => {
                    malformed += 1;
                    *faults.entry(format!("{fault:?}")).or_default() += 1;
                }
            }
        }
    }
    println!("{count} frames, {malformed} malformed\n{faults:?}\n{protocols:?}");
    assert!(count > 5000 && malformed > 300 && malformed * 4 < count, "{malformed} of {count}");
    assert!(faults.len() >= 20, "{faults:?}");
    assert!(protocols.len() >= 40, "{protocols:?}");
}

#[test]
fn files_are_the_same_each_time() {
    let pairs = all().into_iter().zip(all());
    pairs.for_each(|(one, other)| assert!(one.bytes == other.bytes, "{}", one.name));
    assert!(some_frames(40).len() > 300);
}
