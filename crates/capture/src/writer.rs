// SPDX-License-Identifier: Apache-2.0
//! Writes captures of either format.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::Endianness;
use pcap_file::pcap::{PcapHeader, PcapTsResolution, PcapWriteError, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::{PcapNgWriteError, PcapNgWriter};

use crate::MAX_FRAME;
use crate::error::{CreateError, WriteError};
use crate::format::{Format, Precision, Timestamp};
use crate::reader::CaptureReader;

/// Options for writing a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriterOptions {
    /// Format of the file.
    pub format: Format,
    /// Timestamp resolution; finer timestamps are rounded down.
    pub precision: Precision,
}

impl WriterOptions {
    /// Options for a copy of `input`: the format of the output's extension or else of the input, and a resolution that
    /// preserves every timestamp.
    #[must_use]
    pub fn for_output(output: &Path, input: &CaptureReader) -> Self {
        let format = Format::from_extension(output).unwrap_or(input.format());
        // A pcapng file may still describe interfaces with a finer resolution.
        let precision = match input.format() {
            Format::Pcap => input.precision(),
            Format::Pcapng => Precision::Nano,
        };
        Self { format, precision }
    }
}

/// Writes a capture of Ethernet frames, in little-endian byte order.
///
/// Dropping it without [`CaptureWriter::finish`] writes what it can and ignores errors.
pub struct CaptureWriter {
    path: PathBuf,
    sink: Sink,
}

enum Sink {
    Pcap(PcapWriter<BufWriter<File>>, Precision),
    Pcapng(PcapNgWriter<BufWriter<File>>),
}

/// Bytes buffered before each write.
const BUFFER: usize = 256 * 1024;

impl CaptureWriter {
    /// Creates or truncates a file.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create(path: &Path, options: WriterOptions) -> Result<Self, CreateError> {
        let failed = |source| CreateError { path: path.to_owned(), source };
        let file = BufWriter::with_capacity(BUFFER, File::create(path).map_err(failed)?);
        let sink = match options.format {
            Format::Pcap => pcap(file, options.precision).map_err(|error| failed(io::Error::other(error)))?,
            Format::Pcapng => {
                pcapng(file, options.precision).map_err(|error| failed(io::Error::other(error)))?
            }
        };
        Ok(Self { path: path.to_owned(), sink })
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a frame that had `orig_len` bytes on the wire, at least the length of `data`.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&mut self, timestamp: Timestamp, orig_len: u32, data: &[u8]) -> Result<(), WriteError> {
        let length = data.len();
        if length > MAX_FRAME {
            return Err(WriteError::TooLong { path: self.path.clone(), length });
        }
        let incl_len = length as u32;
        let orig_len = orig_len.max(incl_len);
        let data = Cow::Borrowed(data);
        match &mut self.sink {
            Sink::Pcap(writer, precision) => {
                let Ok(ts_sec) = u32::try_from(timestamp.seconds()) else {
                    return Err(WriteError::Timestamp { path: self.path.clone() });
                };
                let nanos = timestamp.subsec_nanos();
                let ts_frac = if *precision == Precision::Nano { nanos } else { nanos / 1000 };
                let written =
                    writer.write_raw_packet(&RawPcapPacket { ts_sec, ts_frac, incl_len, orig_len, data });
                written.map(drop).map_err(|error| pcap_error(&self.path, error))
            }
            Sink::Pcapng(writer) => {
                let timestamp = Duration::from_nanos(timestamp.as_nanos());
                let block = EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp,
                    original_len: orig_len,
                    data,
                    options: Vec::new(),
                };
                writer.write_pcapng_block(block).map(drop).map_err(|error| pcapng_error(&self.path, error))
            }
        }
    }

    /// Writes what is buffered, so that other programs see all frames.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn flush(&mut self) -> Result<(), WriteError> {
        match &mut self.sink {
            Sink::Pcap(writer, _) => writer.flush().map_err(|error| pcap_error(&self.path, error)),
            Sink::Pcapng(writer) => {
                writer.get_mut().flush().map_err(|source| WriteError::Io { path: self.path.clone(), source })
            }
        }
    }

    /// Flushes the buffer. On success all frames are in the file.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn finish(self) -> Result<(), WriteError> {
        let file = match self.sink {
            Sink::Pcap(writer, _) => writer.into_inner(),
            Sink::Pcapng(writer) => writer.into_inner(),
        };
        match file.into_inner() {
            Ok(_) => Ok(()),
            Err(error) => Err(WriteError::Io { path: self.path, source: error.into_error() }),
        }
    }
}

impl fmt::Debug for CaptureWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

fn pcap(file: BufWriter<File>, precision: Precision) -> Result<Sink, PcapWriteError> {
    let ts_resolution = match precision {
        Precision::Micro => PcapTsResolution::MicroSecond,
        Precision::Nano => PcapTsResolution::NanoSecond,
    };
    let header = PcapHeader {
        snaplen: MAX_FRAME as u32,
        datalink: DataLink::ETHERNET,
        ts_resolution,
        endianness: Endianness::Little,
        ..PcapHeader::default()
    };
    Ok(Sink::Pcap(PcapWriter::with_header(file, header)?, precision))
}

fn pcapng(file: BufWriter<File>, precision: Precision) -> Result<Sink, PcapNgWriteError> {
    let resolution = match precision {
        Precision::Micro => InterfaceTsResolution::MICRO,
        Precision::Nano => InterfaceTsResolution::NANO,
    };
    let mut writer = PcapNgWriter::with_endianness(file, Endianness::Little)?;
    let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, MAX_FRAME as u32);
    interface.options.push(InterfaceDescriptionOption::IfTsResol(resolution));
    writer.write_pcapng_block(interface)?;
    Ok(Sink::Pcapng(writer))
}

fn pcap_error(path: &Path, error: PcapWriteError) -> WriteError {
    let path = path.to_owned();
    match error {
        PcapWriteError::Io(source) | PcapWriteError::FieldWriteFailed(_, source) => {
            WriteError::Io { path, source }
        }
        PcapWriteError::Validation(error) => WriteError::Format { path, source: error.into() },
    }
}

fn pcapng_error(path: &Path, error: PcapNgWriteError) -> WriteError {
    let path = path.to_owned();
    match error {
        PcapNgWriteError::Io(source) => WriteError::Io { path, source },
        error => WriteError::Format { path, source: error.into() },
    }
}
