//! Arbitrary capture files.

use std::io::{Cursor, Read};
use std::path::Path;

use netvm_capture::{CaptureReader, Timestamp};

use crate::input::Input;

/// Reads a capture at once, and again in pieces as a pipe may deliver them.
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

/// The time stamp, length on the wire and bytes of a frame.
type Seen = (Timestamp, u32, Vec<u8>);

/// The frames, and what the reader said in the end; or why it did not open.
fn read(length: usize, source: impl Read + Send + 'static) -> Result<(Vec<Seen>, Option<String>), String> {
    let mut reader =
        CaptureReader::from_source(Path::new("fuzz"), source).map_err(|error| error.to_string())?;
    let (mut frames, mut bytes) = (Vec::new(), 0);
    let end = loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                bytes += frame.data.len();
                assert!(bytes <= length, "more bytes in frames than in the file");
                assert!(frame.orig_len as usize >= frame.data.len());
                frames.push((frame.timestamp, frame.orig_len, frame.data.to_vec()));
            }
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    assert!(matches!(reader.next_frame(), Ok(None)), "there is nothing behind the end");
    assert_eq!(reader.frames(), frames.len() as u64);
    Ok((frames, end))
}
