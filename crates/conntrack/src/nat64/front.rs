// SPDX-License-Identifier: Apache-2.0
//! [`Front`]: where new first bytes are written.

use super::Untranslatable;

/// The new first bytes of a packet.
#[derive(Clone, Debug)]
pub struct Front {
    bytes: [u8; Self::ROOM],
    length: usize,
}

impl Front {
    /// Most bytes: those of a packet's headers, and for an ICMP error those of the packet that it is about; with
    /// extensions (RFC 4884), also the begin of that packet's data.
    pub const ROOM: usize = 384;

    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; Self::ROOM], length: 0 }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Begins anew.
    pub(super) const fn clear(&mut self) {
        self.length = 0;
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Untranslatable> {
        self.zeroes(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Adds bytes that are zero.
    pub(super) fn zeroes(&mut self, count: usize) -> Result<&mut [u8], Untranslatable> {
        let start = self.length;
        let added = self.bytes.get_mut(start..start + count).ok_or(Untranslatable::TooLong)?;
        added.fill(0);
        self.length += count;
        Ok(added)
    }

    /// Sets two bytes.
    pub(super) fn set(&mut self, at: usize, word: u16) {
        if let Some(place) = self.bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }
}

impl Default for Front {
    fn default() -> Self {
        Self::new()
    }
}
