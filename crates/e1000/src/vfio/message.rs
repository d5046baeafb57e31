// SPDX-License-Identifier: Apache-2.0
//! Messages: a header of 16 bytes and a body, in the byte order of this machine.
//!
//! ```text
//!  0      2         4      8       12            16
//!  │ id   │ command │ size │ flags │ error number │ body: size - 16 bytes
//! ```

/// Bytes of a header.
pub(crate) const HEADER: usize = 16;
/// Most data that one message transfers to or from a region.
pub(crate) const MAX_DATA: usize = 4096;
/// Most bytes of a body: those of a write, or the client's capabilities.
pub(crate) const MAX_BODY: usize = MAX_DATA + 64;

const REPLY: u32 = 1;
const TYPE: u32 = 0xf;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Commands.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
}

/// A header that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u16,
    pub(crate) command: u16,
    /// Bytes of the body.
    pub(crate) body: usize,
    /// The client waits for a reply.
    pub(crate) wants_reply: bool,
}

/// A header that no request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRequest;

impl Header {
    /// That of a message with these first bytes; `None` if they are too few.
    pub(crate) fn of(bytes: &[u8]) -> Result<Option<Self>, NoRequest> {
        bytes.first_chunk::<HEADER>().map(|header| Self::read(header).ok_or(NoRequest)).transpose()
    }

    /// `None` for a reply, or a size that no request has: the connection cannot go on.
    pub(crate) fn read(bytes: &[u8; HEADER]) -> Option<Self> {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let (size, flags) = (word(bytes, 4)?, word(bytes, 8)?);
        let body = (size as usize).checked_sub(HEADER).filter(|body| *body <= MAX_BODY)?;
        let wants_reply = flags & NO_REPLY == 0;
        (flags & TYPE == 0).then_some(Self { id: half(0), command: half(2), body, wants_reply })
    }

    /// The reply's header and body.
    pub(crate) fn reply(&self, body: &[u8]) -> Vec<u8> {
        self.answer(REPLY, 0, body)
    }

    /// A reply that says why the request failed: an error number.
    pub(crate) fn error(&self, number: u32) -> Vec<u8> {
        self.answer(REPLY | ERROR, number, &[])
    }

    fn answer(&self, flags: u32, error: u32, body: &[u8]) -> Vec<u8> {
        let size = (HEADER + body.len()) as u32;
        let mut bytes = Vec::with_capacity(size as usize);
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.command.to_ne_bytes());
        for word in [size, flags, error] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }
}

/// A request that was answered.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) body: Vec<u8>,
    /// Pass the file of the mapped pages.
    pub(crate) passes_pages: bool,
}

impl From<Vec<u8>> for Reply {
    fn from(body: Vec<u8>) -> Self {
        Self { body, passes_pages: false }
    }
}

/// The 32-bit word at a position of a body.
pub(crate) fn word(body: &[u8], at: usize) -> Option<u32> {
    body.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The 64-bit word at a position of a body.
pub(crate) fn long(body: &[u8], at: usize) -> Option<u64> {
    body.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}
