// SPDX-License-Identifier: Apache-2.0
//! The 16-byte descriptor of a packet in a ring.
//!
//! ```text
//!  low word   0..31  buffer  31  lap (the ring's own)             32..48  offset    48..64  length
//!  high word  0..16  chain  16..24  hop  24..31  verdict  31  control  32..48  argument  48..56  worker  56..64  hash
//! ```
//!
//! A descriptor with the control bit carries a [`Message`](crate::Message) and no packet: the message number replaces
//! the verdict, and the message says what the other fields mean. The bit is next to the verdict because a reader splits
//! a burst into runs by that byte: no run mixes packets and messages, so one check of the bit covers a run.

/// An NF's verdict on a packet, in the descriptor that the NF returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum VerdictKind {
    /// Send the packet to its next hop, or after the last hop to its chain's output.
    Next = 0,
    /// Discard the packet.
    Drop = 1,
    /// Send the packet out of the port whose number is the argument.
    Port = 2,
    /// Hand the packet to the role whose number is the argument.
    Role = 3,
    /// Discard the packet and the later packets of its flow, until the flow has been idle for the argument, in seconds.
    DropFlow = 4,
    /// As [`VerdictKind::Next`], and later packets of the flow bypass this NF, until the flow has been idle for the
    /// argument, in seconds.
    SkipFlow = 5,
    /// The NF thread holds the packet, and sends it later.
    Hold = 6,
    /// As [`VerdictKind::Next`], and later packets of the flow go into the chain whose number is the argument.
    SteerChain = 7,
    /// As [`VerdictKind::Next`], and later packets of the flow go to the role whose number is the argument.
    SteerRole = 8,
    /// As [`VerdictKind::Next`], and later packets of the flow leave by the port whose number is the argument.
    SteerPort = 9,
    /// As [`VerdictKind::Next`], and later packets of the flow take the way on which no NF has steered them.
    SteerBack = 10,
}

impl VerdictKind {
    /// The verdict with this number.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Next),
            1 => Some(Self::Drop),
            2 => Some(Self::Port),
            3 => Some(Self::Role),
            4 => Some(Self::DropFlow),
            5 => Some(Self::SkipFlow),
            6 => Some(Self::Hold),
            7 => Some(Self::SteerChain),
            8 => Some(Self::SteerRole),
            9 => Some(Self::SteerPort),
            10 => Some(Self::SteerBack),
            _ => None,
        }
    }
}

/// Where a packet's bytes are: buffer, offset and length. The low word of its [`Descriptor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span(u64);

impl Span {
    /// `length` bytes at `offset` in `buffer`.
    #[inline(always)]
    #[must_use]
    pub const fn new(buffer: u32, offset: u16, length: u16) -> Self {
        Self((buffer as u64 & BUFFER) | (offset as u64) << 32 | (length as u64) << 48)
    }

    /// The bits that differ from the low word of a slot, without the lap bit.
    #[inline(always)]
    pub(crate) const fn differs_from(self, low: u64) -> u64 {
        (self.0 ^ low) & !LAP
    }

    /// Number of the buffer that holds the packet.
    #[inline(always)]
    #[must_use]
    pub const fn buffer(self) -> u32 {
        (self.0 & BUFFER) as u32
    }

    /// First byte of the packet, counted from the start of its buffer.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Length of the packet in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn length(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// One packet: where its bytes are (buffer, offset, length), its position in a chain (chain, hop, worker), and what to
/// do with it (verdict, argument).
///
/// Stored as the two words that go through the ring. Every field is a claim by its writer: the code that acts on a
/// field checks its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// Bit of the low word that belongs to the ring.
pub(crate) const LAP: u64 = 1 << 31;
/// Bit of the high word that marks a message.
pub(crate) const CONTROL: u64 = 1 << 31;
const BUFFER: u64 = LAP - 1;
/// Bits of the ingress port in the argument of a packet on the way to an NF.
const INGRESS_BITS: u32 = 13;
const INGRESS: u16 = (1 << INGRESS_BITS) - 1;

impl Descriptor {
    /// The largest buffer number that a descriptor can carry.
    pub const MAX_BUFFER: u32 = BUFFER as u32;

    /// A descriptor of `length` bytes at `offset` in `buffer`, not yet on a path.
    #[inline]
    #[must_use]
    pub const fn new(buffer: u32, offset: u16, length: u16) -> Self {
        Self::of(Span::new(buffer, offset, length))
    }

    /// A descriptor of the packet at `span`, not yet on a path.
    #[inline(always)]
    #[must_use]
    pub const fn of(span: Span) -> Self {
        Self { low: span.0, high: 0 }
    }

    /// Where the packet is.
    #[inline(always)]
    #[must_use]
    pub const fn span(self) -> Span {
        Span(self.low)
    }

    /// The same path and verdict for the packet at `span`.
    #[inline(always)]
    #[must_use]
    pub const fn with_packet(self, span: Span) -> Self {
        Self { low: span.0, high: self.high }
    }

    /// The same packet at `hop` of `chain`, to be returned to `worker`. On the way to an NF, `argument` is what
    /// [`Descriptor::arrival`] makes.
    #[inline]
    #[must_use]
    pub const fn on_path(self, chain: u16, hop: u8, argument: u16, worker: u8) -> Self {
        Self {
            low: self.low,
            high: chain as u64 | (hop as u64) << 16 | (argument as u64) << 32 | (worker as u64) << 48,
        }
    }

    /// Whether this is a message and carries no packet.
    #[inline(always)]
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.high & CONTROL != 0
    }

    /// Number of the buffer that holds the packet.
    #[inline]
    #[must_use]
    pub const fn buffer(self) -> u32 {
        self.span().buffer()
    }

    /// First byte of the packet, counted from the start of its buffer.
    #[inline]
    #[must_use]
    pub const fn offset(self) -> u16 {
        self.span().offset()
    }

    /// Length of the packet in bytes.
    #[inline]
    #[must_use]
    pub const fn length(self) -> u16 {
        self.span().length()
    }

    /// Number of the chain.
    #[inline]
    #[must_use]
    pub const fn chain(self) -> u16 {
        self.high as u16
    }

    /// Position in the chain, from 0, of the NF that the packet goes to or comes from.
    #[inline]
    #[must_use]
    pub const fn hop(self) -> u8 {
        (self.high >> 16) as u8
    }

    /// The verdict's number: see [`VerdictKind::from_raw`]. Above 127 in a message, so never that of a verdict.
    #[inline]
    #[must_use]
    pub const fn verdict(self) -> u8 {
        (self.high >> 24) as u8
    }

    /// [`Descriptor::arrival`] on the way to an NF; port or role on the way back.
    #[inline]
    #[must_use]
    pub const fn argument(self) -> u16 {
        (self.high >> 32) as u16
    }

    /// The argument of a packet on the way to an NF: its ingress port, less than 8192, and the number of the state of
    /// its connection, less than 8.
    #[inline(always)]
    #[must_use]
    pub const fn arrival(port: u16, state: u8) -> u16 {
        port & INGRESS | (state as u16) << INGRESS_BITS
    }

    /// The ingress port of a packet on the way to an NF.
    #[inline]
    #[must_use]
    pub const fn ingress(self) -> u16 {
        self.argument() & INGRESS
    }

    /// The number of the state of its connection.
    #[inline]
    #[must_use]
    pub const fn state(self) -> u8 {
        (self.argument() >> INGRESS_BITS) as u8
    }

    /// The worker that handed out the packet; the NF must return it there.
    #[inline]
    #[must_use]
    pub const fn worker(self) -> u8 {
        (self.high >> 48) as u8
    }

    /// Eight bits of the flow's hash, which select a replica.
    #[inline]
    #[must_use]
    pub const fn hash(self) -> u8 {
        (self.high >> 56) as u8
    }

    /// The same buffer with the packet at another offset and length.
    #[inline]
    #[must_use]
    pub const fn with_span(self, offset: u16, length: u16) -> Self {
        Self {
            low: (self.low & u32::MAX as u64) | (offset as u64) << 32 | (length as u64) << 48,
            high: self.high,
        }
    }

    /// The same packet with this verdict.
    #[inline]
    #[must_use]
    pub const fn with_verdict(self, verdict: VerdictKind, argument: u16) -> Self {
        let high = (self.high & !0x0000_ffff_ff00_0000) | (verdict as u64) << 24 | (argument as u64) << 32;
        Self { low: self.low, high }
    }

    /// The same packet with any verdict number, as a hostile peer may write it.
    #[inline]
    #[must_use]
    pub const fn with_raw_verdict(self, verdict: u8) -> Self {
        Self { low: self.low, high: (self.high & !0xff00_0000) | (verdict as u64) << 24 }
    }

    /// The same packet at another hop of its chain.
    #[inline]
    #[must_use]
    pub const fn with_hop(self, hop: u8) -> Self {
        Self { low: self.low, high: (self.high & !0x00ff_0000) | (hop as u64) << 16 }
    }

    /// The same packet with this hash.
    #[inline]
    #[must_use]
    pub const fn with_hash(self, hash: u8) -> Self {
        Self { low: self.low, high: (self.high & !(0xff << 56)) | (hash as u64) << 56 }
    }

    /// The key of packets at the same hop of a chain that belong to the same worker.
    #[inline(always)]
    #[must_use]
    pub const fn path_key(self) -> MaskedKey {
        MaskedKey { bits: self.high, mask: 0x00ff_0000_00ff_ffff }
    }

    /// The key of packets with the same verdict at the same hop of a chain: chain, hop, verdict and, except for
    /// [`VerdictKind::Next`], argument. (The argument of "next" is the ingress port as the NF claims it.)
    #[inline(always)]
    #[must_use]
    pub const fn verdict_key(self) -> MaskedKey {
        let argument = if self.verdict() == VerdictKind::Next as u8 { 0 } else { 0xffff_0000_0000 };
        // The lower 32 bits contain the verdict, so descriptors that match in them use the same mask.
        MaskedKey { bits: self.high, mask: 0xffff_ffff | argument }
    }

    /// The descriptor as the two words of a slot.
    #[inline]
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        [self.low, self.high]
    }

    /// The descriptor in the two words of a slot, without the lap bit.
    #[inline]
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self { low: words[0] & !LAP, high: words[1] }
    }
}

/// Selected bits of a descriptor's high word, to compare others with.
#[derive(Clone, Copy, Debug)]
pub struct MaskedKey {
    bits: u64,
    mask: u64,
}

impl MaskedKey {
    /// Whether `descriptor` has the same value in the masked bits.
    #[inline(always)]
    #[must_use]
    pub const fn matches(self, descriptor: Descriptor) -> bool {
        self.differs_from(descriptor.high) == 0
    }

    /// The masked bits in which a high word differs.
    #[inline(always)]
    pub(crate) const fn differs_from(self, high: u64) -> u64 {
        (self.bits ^ high) & self.mask
    }
}

impl core::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Descriptor")
            .field("buffer", &self.buffer())
            .field("offset", &self.offset())
            .field("length", &self.length())
            .field("chain", &self.chain())
            .field("hop", &self.hop())
            .field("verdict", &VerdictKind::from_raw(self.verdict()))
            .field("argument", &self.argument())
            .field("worker", &self.worker())
            .field("hash", &self.hash())
            .finish()
    }
}
