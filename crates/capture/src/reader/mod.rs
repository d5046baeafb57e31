// SPDX-License-Identifier: Apache-2.0
//! Reads captures of either format.

mod options;
mod pcap;
mod pcapng;
mod window;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use self::pcap::Pcap;
use self::pcapng::Pcapng;
use self::window::Window;
use crate::error::{OpenError, ReadError, ReadFault};
use crate::ethernet::Link;
use crate::format::{Format, Frame, Precision, Timestamp};

/// Reads the frames of a capture in order.
pub struct CaptureReader {
    path: PathBuf,
    window: Window,
    source: FormatReader,
    frames: u64,
    /// An error found while opening, to be reported after the frames before it.
    pending: Option<ReadError>,
    is_done: bool,
    /// The last frame, if its capture has no Ethernet headers.
    rewritten: Vec<u8>,
}

enum FormatReader {
    Pcap(Pcap),
    Pcapng(Box<Pcapng>),
}

/// A frame in the window.
struct Record {
    timestamp: Timestamp,
    orig_len: u32,
    data: Range<usize>,
    link: Link,
}

impl CaptureReader {
    /// Opens a file or a pipe.
    ///
    /// # Errors
    /// [`OpenError`] if the file cannot be opened or cannot become Ethernet frames.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        match File::open(path) {
            Ok(file) => Self::from_source(path, file),
            Err(source) => Err(OpenError::Io { path: path.to_owned(), source }),
        }
    }

    /// Reads from any source; errors call it `name`.
    ///
    /// # Errors
    /// Like [`CaptureReader::open`].
    pub fn from_source(name: &Path, source: impl Read + Send + 'static) -> Result<Self, OpenError> {
        let path = name.to_owned();
        let mut window = Window::new(Box::new(source));
        let format = match window.look(pcap::HEADER) {
            Ok(bytes) => detect(bytes).ok_or_else(|| not_a_capture(&path, bytes))?,
            Err(source) => return Err(OpenError::Io { path, source }),
        };
        let opened = match format {
            Format::Pcap => Pcap::new(&mut window).map(FormatReader::Pcap),
            Format::Pcapng => Pcapng::new(&mut window).map(|it| FormatReader::Pcapng(Box::new(it))),
        };
        let mut source = opened.map_err(|fault| open_error(&path, &window, fault))?;
        let mut pending = None;
        if let FormatReader::Pcapng(source) = &mut source {
            // The interfaces described before the first packet tell the link type and the resolution.
            match source.advance(&mut window) {
                Ok(_) => {}
                Err(fault @ ReadFault::LinkType { .. }) => return Err(open_error(&path, &window, fault)),
                Err(fault) => pending = Some(read_error(&path, 0, &window, fault)),
            }
        }
        Ok(Self { path, window, source, frames: 0, pending, is_done: false, rewritten: Vec::new() })
    }

    /// Format of the file.
    #[must_use]
    pub const fn format(&self) -> Format {
        match self.source {
            FormatReader::Pcap(_) => Format::Pcap,
            FormatReader::Pcapng(_) => Format::Pcapng,
        }
    }

    /// Timestamp resolution; in pcapng, of the interfaces described so far.
    #[must_use]
    pub fn precision(&self) -> Precision {
        match &self.source {
            FormatReader::Pcap(source) => source.precision(),
            FormatReader::Pcapng(source) => source.precision(),
        }
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of frames delivered.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Byte of the file at which the last frame's record, or the last fault, begins.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.window.begun_at()
    }

    /// Whether there are no more frames: after the end, and after an error that leaves no way to find the next frame.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the next frame; `None` at the end. After an error, the next call goes on after the bad record, unless
    /// [`CaptureReader::is_done`].
    ///
    /// # Errors
    /// [`ReadError`] if the file is damaged, truncated or unreadable. All good frames before that position have been
    /// delivered.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, ReadError> {
        if self.is_done {
            return Ok(None);
        }
        if let Some(error) = self.pending.take() {
            self.is_done = true;
            return Err(error);
        }
        let next = match &mut self.source {
            FormatReader::Pcap(source) => source.next(&mut self.window),
            FormatReader::Pcapng(source) => source.next(&mut self.window),
        };
        match next {
            Ok(Some(Record { timestamp, orig_len, data, link })) => {
                self.frames += 1;
                let data = self.window.bytes(data);
                if link == Link::Ethernet {
                    return Ok(Some(Frame { timestamp, orig_len, data }));
                }
                let orig_len = link.write(data, orig_len, &mut self.rewritten);
                Ok(Some(Frame { timestamp, orig_len, data: &self.rewritten }))
            }
            Ok(None) => {
                self.is_done = true;
                Ok(None)
            }
            Err(fault) => {
                self.is_done = !match &self.source {
                    FormatReader::Pcap(source) => source.resumes(),
                    FormatReader::Pcapng(source) => source.resumes(),
                };
                Err(read_error(&self.path, self.frames, &self.window, fault))
            }
        }
    }
}

impl fmt::Debug for CaptureReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CaptureReader");
        debug.field("path", &self.path).field("format", &self.format()).field("frames", &self.frames);
        debug.finish_non_exhaustive()
    }
}

fn read_error(path: &Path, frames: u64, window: &Window, fault: ReadFault) -> ReadError {
    ReadError { path: path.to_owned(), frames, offset: window.begun_at(), fault }
}

fn open_error(path: &Path, window: &Window, fault: ReadFault) -> OpenError {
    match fault {
        ReadFault::LinkType { interface, link } => {
            OpenError::LinkType { path: path.to_owned(), interface, link }
        }
        fault => read_error(path, 0, window, fault).into(),
    }
}

/// Detects the format by its first four bytes: the magic numbers of pcap, in both byte orders, for microseconds and
/// nanoseconds; or the block type of a pcapng section header.
fn detect(bytes: &[u8]) -> Option<Format> {
    match bytes.first_chunk()? {
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xd4, 0xc3, 0xb2, 0xa1] => Some(Format::Pcap),
        [0xa1, 0xb2, 0x3c, 0x4d] | [0x4d, 0x3c, 0xb2, 0xa1] => Some(Format::Pcap),
        [0x0a, 0x0d, 0x0d, 0x0a] => Some(Format::Pcapng),
        _ => None,
    }
}

fn not_a_capture(path: &Path, bytes: &[u8]) -> OpenError {
    let hint = match bytes {
        [] => return OpenError::Empty { path: path.to_owned() },
        [0x1f, 0x8b, ..] => ": it is compressed, decompress it with gzip -d",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ": it is compressed, decompress it with zstd -d",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ": it is compressed, decompress it with xz -d",
        [0xa1, 0xb2, 0xcd, 0x34, ..] | [0x34, 0xcd, 0xb2, 0xa1, ..] => {
            ": it is of the modified format of old Linux systems, convert it with editcap -F pcap"
        }
        [b's', b'n', b'o', b'o', b'p', ..] => ": it is a snoop file, convert it with editcap -F pcap",
        _ => "",
    };
    OpenError::NotACapture { path: path.to_owned(), hint }
}
