// SPDX-License-Identifier: Apache-2.0
//! What tracking reads of SCTP packets.

/// Types of chunks (RFC 9260 section 3.2).
pub(super) mod kind {
    pub(in super::super) const DATA: u8 = 0;
    pub(in super::super) const INIT: u8 = 1;
    pub(in super::super) const INIT_ACK: u8 = 2;
    pub(in super::super) const HEARTBEAT: u8 = 4;
    pub(in super::super) const HEARTBEAT_ACK: u8 = 5;
    pub(in super::super) const ABORT: u8 = 6;
    pub(in super::super) const SHUTDOWN: u8 = 7;
    pub(in super::super) const SHUTDOWN_ACK: u8 = 8;
    pub(in super::super) const ERROR: u8 = 9;
    pub(in super::super) const COOKIE_ECHO: u8 = 10;
    pub(in super::super) const COOKIE_ACK: u8 = 11;
    pub(in super::super) const SHUTDOWN_COMPLETE: u8 = 14;
}

/// Chunks whose tags have rules of their own.
pub(super) const WITH_RULES: u16 = 1 << kind::INIT
    | 1 << kind::SHUTDOWN_COMPLETE
    | 1 << kind::COOKIE_ECHO
    | 1 << kind::ABORT
    | 1 << kind::SHUTDOWN_ACK
    | 1 << kind::HEARTBEAT
    | 1 << kind::HEARTBEAT_ACK;

/// The tag is that of the other direction.
pub(super) const REFLECTED: u8 = 1;

pub(super) struct Chunk<'a> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    value: &'a [u8],
}

/// An SCTP packet.
#[derive(Clone, Copy)]
pub(crate) struct SctpPacket<'a> {
    pub(super) tag: u32,
    /// From the first chunk on, as far as the bytes are at hand.
    chunks: &'a [u8],
    /// Types of its chunks below 16, by bit.
    pub(super) kinds: u16,
}

impl<'a> SctpPacket<'a> {
    /// Reads a packet, from its common header on; `None` if no end sends such chunks together.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let ([_, _, _, _, tag @ .., _, _, _, _], chunks) = bytes.split_first_chunk::<12>()?;
        let mut packet = Self { tag: u32::from_be_bytes(*tag), chunks, kinds: 0 };
        let mut is_alone = false;
        for (n, chunk) in packet.chunks().enumerate() {
            is_alone |= matches!(chunk.kind, kind::INIT | kind::INIT_ACK | kind::SHUTDOWN_COMPLETE);
            let is_first = matches!(chunk.kind, kind::COOKIE_ECHO | kind::COOKIE_ACK);
            if n > 0 && (is_alone || is_first) {
                return None;
            }
            packet.kinds |= 1u16.checked_shl(chunk.kind.into()).unwrap_or(0);
        }
        packet.chunks().next().is_some().then_some(packet)
    }

    /// The chunks up to one that has no length.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Chunk<'a>> + use<'a> {
        let mut rest = self.chunks;
        std::iter::from_fn(move || {
            let [kind, flags, length @ ..] = *rest.first_chunk::<4>()?;
            let length = usize::from(u16::from_be_bytes(length));
            let value = rest.get(4..length.min(rest.len()))?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some(Chunk { kind, flags, value })
        })
    }

    pub(super) const fn has(&self, kind: u8) -> bool {
        self.kinds & 1 << kind != 0
    }
}

impl Chunk<'_> {
    /// The tag that an INIT or INIT ACK chunk offers; it is not 0 (RFC 9260 sections 3.3.2 and 3.3.3).
    pub(super) fn offers(&self) -> Option<u32> {
        self.value.first_chunk().map(|tag| u32::from_be_bytes(*tag)).filter(|tag| *tag != 0)
    }
}
