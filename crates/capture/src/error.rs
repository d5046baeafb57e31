// SPDX-License-Identifier: Apache-2.0
//! Errors that name the file and the position in it.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use pcap_file::pcapng::{ContentValidationError, PcapNgParseError};
use thiserror::Error;

use crate::MAX_FRAME;
use crate::link_type::LinkType;

/// Link types that can be read.
const SUPPORTED: &str = "Ethernet, Linux cooked and raw IP";

/// Why a capture cannot be opened.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum OpenError {
    /// An I/O error.
    #[error("cannot open {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The file is empty.
    #[error("{} is empty: not a pcap or pcapng file", path.display())]
    Empty { path: PathBuf },
    /// The file has no pcap or pcapng magic number.
    #[error("{} is not a pcap or pcapng file{hint}", path.display())]
    NotACapture {
        path: PathBuf,
        /// What the file looks like instead, as the end of a sentence; empty if unknown.
        hint: &'static str,
    },
    /// The packets cannot become Ethernet frames.
    #[error(
        "cannot read {}: {} is {link}, only {SUPPORTED} are supported",
        path.display(), link_of(*interface)
    )]
    LinkType {
        path: PathBuf,
        /// The interface number; `None` in pcap.
        interface: Option<u32>,
        link: LinkType,
    },
    /// The start of the file is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Why reading stopped, and where.
#[derive(Debug, Error)]
#[error("{}: at byte {offset}, after {frames} complete frames: {fault}", path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Frames before that position, all of which were delivered.
    pub frames: u64,
    /// Start of the bad header, record or block.
    pub offset: u64,
    /// The cause.
    #[source]
    pub fault: ReadFault,
}

/// Cause of a [`ReadError`].
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum ReadFault {
    /// An I/O error.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// The file ends within a header, record or block.
    #[error("the file is truncated: {missing} bytes are missing")]
    Truncated { missing: u64 },
    /// A record or block has an implausible length.
    #[error("a length of {length} bytes exceeds the limit of {limit}: the file is damaged")]
    TooLong { length: usize, limit: usize },
    /// A section has implausibly many interfaces.
    #[error("more than {0} interfaces: the file is damaged")]
    Interfaces(usize),
    /// The packets cannot become Ethernet frames.
    #[error("{} is {link}, only {SUPPORTED} are supported", link_of(*interface))]
    LinkType {
        /// The interface number in its section; `None` in pcap.
        interface: Option<u32>,
        link: LinkType,
    },
    /// The format version is unknown.
    #[error("unknown format version {0}.{1}")]
    Version(u16, u16),
    /// A packet precedes the description of its interface.
    #[error("a packet refers to interface {0}, which has no description")]
    UnknownInterface(u32),
    /// A packet is longer than its block.
    #[error("a packet of {claimed} bytes exceeds the {room} bytes of its block")]
    PacketLength {
        claimed: usize,
        /// Bytes in the block.
        room: usize,
    },
    /// The timestamp is before 1970 or after 2554.
    #[error("the timestamp is out of range")]
    Timestamp,
    /// A pcapng block is malformed.
    #[error("{}", error_chain(.0))]
    Format(#[from] PcapNgParseError),
    /// The content of a pcapng block is malformed.
    #[error("{}", error_chain(.0))]
    Content(#[from] ContentValidationError),
}

/// Why a capture cannot be created.
#[derive(Debug, Error)]
#[error("cannot create {}: {source}", path.display())]
pub struct CreateError {
    /// The file.
    pub path: PathBuf,
    /// The system error.
    pub source: io::Error,
}

/// Why a frame, or the end of a capture, was not written. The content of the file is undefined then.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum WriteError {
    /// An I/O error, such as a full disk.
    #[error("cannot write {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The frame is longer than [`MAX_FRAME`]; nothing was written.
    #[error("cannot write {}: a frame of {length} bytes exceeds the limit of {MAX_FRAME}", path.display())]
    TooLong { path: PathBuf, length: usize },
    /// The timestamp exceeds pcap's 32 bits of seconds; nothing was written. pcapng has more bits.
    #[error("cannot write {}: pcap cannot hold a time after the year 2106: write pcapng", path.display())]
    Timestamp { path: PathBuf },
    /// The frame cannot be encoded.
    #[error("cannot write {}: {}", path.display(), error_chain(.source.as_ref()))]
    Format { path: PathBuf, source: Box<dyn Error + Send + Sync> },
}

/// Names the link type of an interface or file.
fn link_of(interface: Option<u32>) -> String {
    interface.map_or_else(
        || "its link type".to_owned(),
        |number| format!("the link type of its interface {number}"),
    )
}

/// An error and its causes in one line.
fn error_chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}
