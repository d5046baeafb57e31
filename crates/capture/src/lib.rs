//! Captures of Ethernet frames: pcap and pcapng.
//!
//! [`CaptureReader`] reads either, in either byte order and with any resolution of time stamps down to nanoseconds, as a
//! stream: it needs the same memory for a file of any length, and no length that a file claims makes it allocate.
//! [`CaptureWriter`] writes either, so that no time stamp and no original length of what was read is lost.
//!
//! Only Ethernet (link type 1) is read: the packet path knows no other frames. A frame check sequence that a capture
//! includes is delivered as part of the frame.
//!
//! ```no_run
//! use netvm_capture::{CaptureReader, CaptureWriter, WriterOptions};
//! use std::path::Path;
//!
//! let mut reader = CaptureReader::open(Path::new("in.pcap"))?;
//! let output = Path::new("out.pcapng");
//! let mut writer = CaptureWriter::create(output, WriterOptions::for_output(output, &reader))?;
//! while let Some(frame) = reader.next_frame()? {
//!     writer.write(frame.timestamp, frame.orig_len, frame.data)?;
//! }
//! writer.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod format;
mod link_type;
mod reader;
mod writer;

pub use error::{CreateError, OpenError, ReadError, ReadFault, WriteError};
pub use format::{Format, Frame, Precision, Timestamp};
pub use link_type::LinkType;
pub use reader::CaptureReader;
pub use writer::{CaptureWriter, WriterOptions};

/// Most bytes that a frame can have: 256 KiB, as in libpcap. A record that claims more is an error.
pub const MAX_FRAME: usize = 256 * 1024;
