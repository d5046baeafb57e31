// SPDX-License-Identifier: Apache-2.0
//! Arbitrary capture files; and a client's filter program, with the packets that it is run for.

use std::io::{Cursor, Read};
use std::path::Path;

use netvm_capture::{CaptureReader, Timestamp};
use netvm_capture_ring::{Filter, Instruction, MAX_INSTRUCTIONS, Outcome};

use crate::input::Input;

/// Reads a program and a packet. A program that is verified runs to its end for every packet, and a front of the packet
/// decides as the whole does, or asks for more.
pub fn capture_filter(data: &[u8]) {
    let mut input = Input::new(data);
    let count = usize::from(input.u8() % 64);
    let program: Vec<Instruction> = (0..count)
        .map(|_| Instruction { code: input.u16(), jt: input.u8(), jf: input.u8(), k: input.u32() })
        .collect();
    let Ok(filter) = Filter::new(&program) else { return };
    assert!(!program.is_empty() && program.len() <= MAX_INSTRUCTIONS);
    let packet = input.rest();
    let length = packet.len() as u32;
    let whole = filter.run(packet, length);
    assert_ne!(whole, Outcome::Beyond, "nothing is beyond a whole packet");
    for front in [0, 1, packet.len() / 2, packet.len().saturating_sub(1)].map(|front| front.min(packet.len()))
    {
        let outcome = filter.run(&packet[..front], length);
        assert!(outcome == whole || outcome == Outcome::Beyond, "{front} bytes: {outcome:?}, all: {whole:?}");
    }
}

/// Reads a capture at once, and again in pieces as a pipe delivers it.
pub fn capture_read(data: &[u8]) {
    let mut input = Input::new(data);
    let piece = 1 + usize::from(input.u8());
    let file = input.rest();
    let at_once = read(file.len(), Cursor::new(file.to_vec()));
    let in_pieces = read(file.len(), Pieces { rest: Cursor::new(file.to_vec()), piece });
    assert_eq!(at_once, in_pieces);
}

struct Pieces {
    rest: Cursor<Vec<u8>>,
    piece: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(self.piece);
        self.rest.read(&mut buffer[..length])
    }
}

/// Timestamp, length on the wire and bytes of a frame.
type CapturedFrame = (Timestamp, u32, Vec<u8>);

/// The frames and the error that ended reading, or the error that prevented opening.
fn read(
    length: usize,
    source: impl Read + Send + 'static,
) -> Result<(Vec<CapturedFrame>, Option<String>), String> {
    let mut reader =
        CaptureReader::from_source(Path::new("fuzz"), source).map_err(|error| error.to_string())?;
    let (mut frames, mut bytes) = (Vec::new(), 0);
    let end = loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                bytes += frame.data.len();
                assert!(bytes <= length, "the frames have more bytes than the file");
                assert!(frame.orig_len as usize >= frame.data.len());
                frames.push((frame.timestamp, frame.orig_len, frame.data.to_vec()));
            }
            Ok(None) => break None,
            Err(error) => {
                if reader.is_done() {
                    break Some(error.to_string());
                }
            }
        }
    };
    assert!(matches!(reader.next_frame(), Ok(None)), "a frame follows the end");
    assert_eq!(reader.frames(), frames.len() as u64);
    Ok((frames, end))
}
