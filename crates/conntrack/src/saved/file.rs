// SPDX-License-Identifier: Apache-2.0
//! Files of saved connections, written and read in pages while tables go on. All numbers are little-endian:
//!
//! ```text
//!  header   magic "netvmcon", version u32, size of a record u32, time of saving u64 (seconds since 1970 UTC), CRC-32
//!  page     number of records u32, CRC-32, records                                             (any number of pages)
//!  end      0u32, CRC-32, number of all records u64
//! ```
//!
//! A CRC-32 (that of IEEE 802.3) covers the numbers and records of its part. So a page is known to be whole before its
//! connections are restored, and a file that was cut ends without its end.

use std::io::{self, ErrorKind, Read, Write};

use crc32fast::Hasher;
use thiserror::Error;

use super::record::SavedConnection;

const MAGIC: [u8; 8] = *b"netvmcon";
const VERSION: u32 = 1;
/// The header without its CRC-32.
const HEADER: usize = 24;
/// Records of a page, so that a reader knows how much memory it needs.
const MAX_PAGE: usize = 4096;

/// Why a file, or the rest of it, cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It has no connections.
    #[error("has no saved connections: it does not begin with \"netvmcon\"")]
    OtherFile,
    /// Another version of netvm has written it.
    #[error("has version {found}, and this netvm reads version {VERSION} only: save with the same version")]
    OtherVersion {
        /// The version that it has.
        found: u32,
    },
    /// It ends in the middle: the one who wrote it did not finish.
    #[error("was cut after {whole} connections: save again, or use what was loaded")]
    Cut {
        /// Connections before the page that is not whole.
        whole: u64,
    },
    /// Its checksums or records are wrong.
    #[error("is damaged after {whole} connections: save again, or use what was loaded")]
    Damaged {
        /// Connections before the page that is damaged.
        whole: u64,
    },
}

fn crc_of(parts: &[&[u8]]) -> [u8; 4] {
    let mut hasher = Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().to_le_bytes()
}

/// Writes a file.
#[derive(Debug)]
pub struct SaveWriter<W> {
    to: W,
    count: u64,
    page: Vec<u8>,
}

impl<W: Write> SaveWriter<W> {
    /// Begins a file of connections that are saved at this time, in seconds since 1970 UTC.
    ///
    /// # Errors
    /// Those of the writer, as for the other functions.
    pub fn new(mut to: W, saved_at: u64) -> io::Result<Self> {
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((SavedConnection::SIZE as u32).to_le_bytes());
        header.extend(saved_at.to_le_bytes());
        header.extend(crc_of(&[&header]));
        to.write_all(&header)?;
        Ok(Self { to, count: 0, page: Vec::new() })
    }

    /// Writes connections.
    ///
    /// # Errors
    /// As [`SaveWriter::new`].
    pub fn write(&mut self, connections: &[SavedConnection]) -> io::Result<()> {
        for page in connections.chunks(MAX_PAGE) {
            self.page.clear();
            page.iter().for_each(|it| self.page.extend(it.to_bytes()));
            let count = (page.len() as u32).to_le_bytes();
            self.to.write_all(&count)?;
            self.to.write_all(&crc_of(&[&count, &self.page]))?;
            self.to.write_all(&self.page)?;
            self.count += page.len() as u64;
        }
        Ok(())
    }

    /// Ends the file. Without its end it counts as cut.
    ///
    /// # Errors
    /// As [`SaveWriter::new`].
    pub fn finish(mut self) -> io::Result<W> {
        let (none, count) = (0u32.to_le_bytes(), self.count.to_le_bytes());
        self.to.write_all(&none)?;
        self.to.write_all(&crc_of(&[&none, &count]))?;
        self.to.write_all(&count)?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Reads a file.
#[derive(Debug)]
pub struct SaveReader<R> {
    from: R,
    saved_at: u64,
    count: u64,
    page: Vec<u8>,
}

impl<R: Read> SaveReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn new(mut from: R) -> Result<Self, LoadError> {
        let mut header = [0; HEADER + 4];
        let length = read_up_to(&mut from, &mut header)?;
        let magic = &header[..length.min(MAGIC.len())];
        if length == 0 || !MAGIC.starts_with(magic) {
            return Err(LoadError::OtherFile);
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| header[at + n]));
        let version = word(MAGIC.len());
        if length >= MAGIC.len() + 4 && version != VERSION {
            return Err(LoadError::OtherVersion { found: version });
        }
        if length < header.len() {
            return Err(LoadError::Cut { whole: 0 });
        }
        let (covered, crc) = header.split_at(HEADER);
        if crc != crc_of(&[covered]) || word(12) as usize != SavedConnection::SIZE {
            return Err(LoadError::Damaged { whole: 0 });
        }
        let saved_at = u64::from_le_bytes(std::array::from_fn(|n| header[16 + n]));
        Ok(Self { from, saved_at, count: 0, page: Vec::new() })
    }

    /// When the connections were saved, in seconds since 1970 UTC.
    pub const fn saved_at(&self) -> u64 {
        self.saved_at
    }

    /// Reads the next page into `connections`, at most a few thousand. Returns false at the end of the file.
    ///
    /// # Errors
    /// [`LoadError`]; `connections` is empty then.
    pub fn read(&mut self, connections: &mut Vec<SavedConnection>) -> Result<bool, LoadError> {
        connections.clear();
        let whole = self.count;
        let mut begin = [0; 8];
        self.read_whole(&mut begin)?;
        let (number, crc) = begin.split_at(4);
        let count = u32::from_le_bytes(std::array::from_fn(|n| number[n])) as usize;
        if count > MAX_PAGE {
            return Err(LoadError::Damaged { whole });
        }
        let size = if count == 0 { 8 } else { count * SavedConnection::SIZE };
        let mut page = std::mem::take(&mut self.page);
        page.resize(size, 0);
        let read = self.read_whole(&mut page);
        self.page = page;
        read?;
        if crc != crc_of(&[number, &self.page]) || count == 0 && self.page != whole.to_le_bytes() {
            return Err(LoadError::Damaged { whole });
        }
        if count == 0 {
            return Ok(false);
        }
        let (records, _) = self.page.as_chunks();
        connections.extend(records.iter().filter_map(SavedConnection::from_bytes));
        if connections.len() != count {
            connections.clear();
            return Err(LoadError::Damaged { whole });
        }
        self.count += count as u64;
        Ok(true)
    }

    fn read_whole(&mut self, bytes: &mut [u8]) -> Result<(), LoadError> {
        match read_up_to(&mut self.from, bytes)? {
            length if length == bytes.len() => Ok(()),
            _ => Err(LoadError::Cut { whole: self.count }),
        }
    }
}

/// Reads until the bytes are full or the file ends. Returns how many were read.
fn read_up_to(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match from.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
