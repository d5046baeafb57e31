// SPDX-License-Identifier: Apache-2.0
//! A fixed-size window onto a stream.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

use crate::MAX_FRAME;

/// Longest record or block that the window holds whole. A pcapng block has a header and options besides its frame.
pub(super) const MAX_BLOCK: usize = 2 * MAX_FRAME;

/// Reads ahead into one buffer of [`MAX_BLOCK`] bytes.
pub(super) struct Window {
    source: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Stream position of `start`.
    position: u64,
    /// Stream position of the current header, record or block.
    mark: u64,
}

impl Window {
    pub(super) fn new(source: Box<dyn Read + Send>) -> Self {
        Self { source, buffer: vec![0; MAX_BLOCK].into(), start: 0, end: 0, position: 0, mark: 0 }
    }

    /// Marks the start of a header, record or block.
    pub(super) const fn begin(&mut self) {
        self.mark = self.position;
    }

    /// Stream position of the last mark.
    pub(super) const fn begun_at(&self) -> u64 {
        self.mark
    }

    /// At least the next `wanted` bytes, at most [`MAX_BLOCK`]; fewer only at the end of the stream.
    pub(super) fn look(&mut self, wanted: usize) -> io::Result<&[u8]> {
        if self.end - self.start < wanted && self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < wanted {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Consumes `count` bytes returned by [`Window::look`] and returns their range for [`Window::bytes`].
    pub(super) fn take(&mut self, count: usize) -> Range<usize> {
        let from = self.start;
        self.start = self.end.min(from + count);
        self.position += (self.start - from) as u64;
        from..self.start
    }

    /// Skips `count` bytes and returns how many of them the stream lacked.
    pub(super) fn skip(&mut self, mut count: u64) -> io::Result<u64> {
        while count > 0 {
            let step = usize::try_from(count).unwrap_or(MAX_BLOCK).min(MAX_BLOCK);
            let step = self.look(step.min(4096))?.len().min(step);
            if step == 0 {
                break;
            }
            self.take(step);
            count -= step as u64;
        }
        Ok(count)
    }

    /// Bytes consumed since the last look.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers a few bytes at a time, with interruptions.
    struct ShortReads(u64, u64);

    impl Read for ShortReads {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_multiple_of(5) && self.1 == 0 {
                self.1 = 1;
                return Err(ErrorKind::Interrupted.into());
            }
            self.1 = 0;
            let count = buffer.len().min(7).min((3_000_000 - self.0) as usize);
            for (n, byte) in (self.0..).zip(&mut buffer[..count]) {
                *byte = (n % 251) as u8;
            }
            self.0 += count as u64;
            Ok(count)
        }
    }

    #[test]
    fn bytes_arrive_in_order_for_any_access_pattern() {
        let mut window = Window::new(Box::new(ShortReads(0, 0)));
        let mut place = 0;
        for (step, skipped) in
            [(1, 0), (1000, 3), (MAX_BLOCK, MAX_BLOCK as u64 + 1), (0, 700_000), (MAX_BLOCK, 0)]
        {
            assert!(window.look(step).unwrap().len() >= step);
            let range = window.take(step);
            assert!(
                window
                    .bytes(range)
                    .iter()
                    .zip(place..)
                    .all(|(byte, n): (_, u64)| u64::from(*byte) == n % 251)
            );
            assert_eq!(window.skip(skipped).unwrap(), 0);
            place += step as u64 + skipped;
            assert_eq!(window.position, place);
        }
        assert_eq!(window.skip(u64::MAX).unwrap(), u64::MAX - (3_000_000 - place));
        assert!(window.look(1).unwrap().is_empty());
        assert_eq!(window.position, 3_000_000);
    }
}
