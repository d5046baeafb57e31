// SPDX-License-Identifier: Apache-2.0
//! Reads and writes captures of Ethernet frames: pcap and pcapng.
//!
//! [`CaptureReader`] streams either format, in either byte order and with any timestamp resolution down to nanoseconds.
//! It uses the same memory for a file of any length, and no length field in a file makes it allocate. [`CaptureWriter`]
//! writes either format and preserves every timestamp and original length.
//!
//! Frames are Ethernet frames, as the packet path knows no others: Linux cooked captures (`-i any`) and raw IP get an
//! Ethernet header, other link types are refused. A frame check sequence in a capture is delivered as part of the
//! frame.
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

pub mod blocks;
mod error;
mod ethernet;
mod format;
mod link_type;
mod reader;
mod writer;

pub use error::{CreateError, OpenError, ReadError, ReadFault, WriteError};
pub use format::{Format, Frame, Precision, Timestamp};
pub use link_type::LinkType;
pub use reader::CaptureReader;
pub use writer::{CaptureWriter, WriterOptions};

/// Longest frame: 256 KiB, as in libpcap. A longer record is an error.
pub const MAX_FRAME: usize = 256 * 1024;
