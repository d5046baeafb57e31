//! What can go wrong, in words that name the file and the place in it.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use pcap_file::pcapng::{ContentValidationError, PcapNgParseError};
use thiserror::Error;

use crate::MAX_FRAME;
use crate::link_type::LinkType;

/// Why a capture was not opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The operating system says no.
    #[error("cannot open {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// It has no bytes.
    #[error("{} is empty: not a pcap or pcapng file", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It begins with nothing that a capture begins with.
    #[error("{} is not a pcap or pcapng file{hint}", path.display())]
    NotACapture {
        /// The file.
        path: PathBuf,
        /// What it looks like instead, as the end of a sentence; empty if that is not known.
        hint: &'static str,
    },
    /// Its packets do not begin with an Ethernet header.
    #[error(
        "cannot read {}: {} is {link}, only {} is understood",
        path.display(), link_of(*interface), LinkType::ETHERNET
    )]
    NotEthernet {
        /// The file.
        path: PathBuf,
        /// The number of the interface; `None` in pcap, which has no interfaces.
        interface: Option<u32>,
        /// What it is instead.
        link: LinkType,
    },
    /// It begins as a capture does, and then goes wrong.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Why reading a capture ended early: what is wrong, and where.
#[derive(Debug, Error)]
#[error("{}: at byte {offset}, after {frames} whole frames: {fault}", path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Frames before that place: all of them were delivered.
    pub frames: u64,
    /// Where the header, record or block that is wrong begins.
    pub offset: u64,
    /// What is wrong.
    #[source]
    pub fault: ReadFault,
}

/// What is wrong with a place in a capture.
#[derive(Debug, Error)]
pub enum ReadFault {
    /// The operating system says no.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// The file ends within a header, record or block.
    #[error("the file is cut here: {missing} bytes of what begins here are missing")]
    Truncated {
        /// Bytes that are missing.
        missing: u64,
    },
    /// A record or block claims more bytes than any that makes sense.
    #[error("{length} bytes are claimed where at most {limit} can be: the file is damaged")]
    TooLong {
        /// Bytes that it claims.
        length: usize,
        /// Bytes that it may have.
        limit: usize,
    },
    /// A section describes more interfaces than any that makes sense.
    #[error("more than {0} interfaces are described: the file is damaged")]
    Interfaces(usize),
    /// The packets do not begin with an Ethernet header.
    #[error("{} is {link}, only {} is understood", link_of(*interface), LinkType::ETHERNET)]
    NotEthernet {
        /// The number of the interface in its section; `None` in pcap, which has no interfaces.
        interface: Option<u32>,
        /// What it is instead.
        link: LinkType,
    },
    /// A version that nobody has defined.
    #[error("version {0}.{1} of the format is not known")]
    Version(u16, u16),
    /// A packet of an interface that was not described before it.
    #[error("a packet of interface {0}, which is not described")]
    UnknownInterface(u32),
    /// A packet has more bytes than the block that holds it.
    #[error("a packet of {claimed} bytes in a block with room for {room}")]
    PacketLength {
        /// Bytes that it claims.
        claimed: usize,
        /// Bytes that the block has.
        room: usize,
    },
    /// A time stamp that is before 1970 or after 2554.
    #[error("the time stamp is out of range")]
    Timestamp,
    /// A pcapng block is not as it should be.
    #[error("{}", chain(.0))]
    Format(#[from] PcapNgParseError),
    /// The content of a pcapng block is not as it should be.
    #[error("{}", chain(.0))]
    Content(#[from] ContentValidationError),
}

/// Why a capture was not created.
#[derive(Debug, Error)]
#[error("cannot create {}: {source}", path.display())]
pub struct CreateError {
    /// The file.
    pub path: PathBuf,
    /// What the operating system says.
    pub source: io::Error,
}

/// Why a frame, or the end of a capture, was not written. What the file holds then is not known.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The operating system says no: the disk is full, say.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// The frame is longer than [`MAX_FRAME`]; nothing of it was written.
    #[error("cannot write {}: a frame of {length} bytes is too long, at most {MAX_FRAME}", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Bytes of the frame.
        length: usize,
    },
    /// The time does not fit the 32 bits of seconds of pcap; nothing was written. pcapng has room.
    #[error("cannot write {}: pcap has no room for a time after the year 2106: write pcapng", path.display())]
    Timestamp {
        /// The file.
        path: PathBuf,
    },
    /// The frame could not be put into the format.
    #[error("cannot write {}: {}", path.display(), chain(.source.as_ref()))]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The words for a link type that is not ours.
fn link_of(interface: Option<u32>) -> String {
    interface.map_or_else(
        || "its link type".to_owned(),
        |number| format!("the link type of its interface {number}"),
    )
}

/// An error with all that caused it, in one line.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}
