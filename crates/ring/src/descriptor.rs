//! The 16 bytes that stand for one packet in a ring.
//!
//! ```text
//!  low word   0..31  buffer      31  lap (the ring's own)     32..48  offset      48..64  length
//!  high word  0..16  chain     16..24  hop   24..31  verdict   31  control    32..48  argument    48..56  worker   56..64  hash
//! ```
//!
//! With the control bit a descriptor carries no packet but a [`Message`], whose number replaces the verdict; its low word means nothing.
//! The bit shares a byte with the verdict, and that byte delimits runs: no run mixes packets and messages, so a reader checks the bit once per
//! run.

/// The verdict of an NF on a packet, in the descriptor that it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum VerdictKind {
    /// The packet's next hop, or its chain's output when there is none.
    Next = 0,
    /// Discard the packet.
    Drop = 1,
    /// Send the packet out of the port whose number is the argument.
    Port = 2,
    /// Hand the packet to the role whose number is the argument.
    Role = 3,
    /// Discard the packet and what follows of its flow, until the flow has been idle for as many seconds as the argument says.
    DropFlow = 4,
    /// As [`VerdictKind::Next`], and what follows of its flow passes this NF by, until the flow has been idle for as many seconds as
    /// the argument says.
    SkipFlow = 5,
}

impl VerdictKind {
    /// The verdict with this number, or `None` if there is none.
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
            _ => None,
        }
    }
}

/// A control message from an NF thread to a worker, in a descriptor without a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Message {
    /// The worker forgets every per-flow verdict of the sending thread ([`VerdictKind::DropFlow`], [`VerdictKind::SkipFlow`]).
    WithdrawVerdicts = 0,
}

/// Where a packet's bytes are: in which buffer, from where, how many. The low word of its [`Descriptor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span(u64);

impl Span {
    /// `length` bytes at `offset` in `buffer`.
    #[inline(always)]
    #[must_use]
    pub const fn new(buffer: u32, offset: u16, length: u16) -> Self {
        Self((buffer as u64 & BUFFER) | (offset as u64) << 32 | (length as u64) << 48)
    }

    /// Bits in which the low word of a slot says something else.
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

/// One packet: where its bytes are (buffer, offset, length), where it is on its way (chain, hop, worker), and what is to
/// become of it (verdict, argument).
///
/// Kept as the two words that go through the ring. Every field is its writer's claim: the code that acts on it checks
/// the bounds.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// Bit of the low word that belongs to the ring.
pub(crate) const LAP: u64 = 1 << 31;
/// Bit of the high word: no packet, but a message.
const CONTROL: u64 = 1 << 31;
const BUFFER: u64 = LAP - 1;

impl Descriptor {
    /// The largest buffer number that a descriptor can carry.
    pub const MAX_BUFFER: u32 = BUFFER as u32;

    /// A descriptor of `length` bytes at `offset` in `buffer`, on its way to nowhere yet.
    #[inline]
    #[must_use]
    pub const fn new(buffer: u32, offset: u16, length: u16) -> Self {
        Self::of(Span::new(buffer, offset, length))
    }

    /// A descriptor of the packet that is there, on its way to nowhere yet.
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

    /// What this one says of a packet, of another one.
    #[inline(always)]
    #[must_use]
    pub const fn with_packet(self, span: Span) -> Self {
        Self { low: span.0, high: self.high }
    }

    /// The same packet at `hop` of `chain`, with `argument` (the ingress port on the way to an NF), answering to `worker`.
    #[inline]
    #[must_use]
    pub const fn on_path(self, chain: u16, hop: u8, argument: u16, worker: u8) -> Self {
        Self {
            low: self.low,
            high: chain as u64 | (hop as u64) << 16 | (argument as u64) << 32 | (worker as u64) << 48,
        }
    }

    /// A message to `worker`.
    #[inline]
    #[must_use]
    pub const fn control(message: Message, worker: u8) -> Self {
        let high = CONTROL | (message as u64) << 24 | (worker as u64) << 48;
        Self { low: 0, high }
    }

    /// [`Message::WithdrawVerdicts`] to `worker`.
    #[inline]
    #[must_use]
    pub const fn withdrawal(worker: u8) -> Self {
        Self::control(Message::WithdrawVerdicts, worker)
    }

    /// Whether this is a message and carries no packet.
    #[inline(always)]
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.high & CONTROL != 0
    }

    /// The message, or `None` for a packet and for a message that does not exist.
    #[inline]
    #[must_use]
    pub const fn message(self) -> Option<Message> {
        match (self.is_control(), self.verdict() & 0x7f) {
            (true, 0) => Some(Message::WithdrawVerdicts),
            _ => None,
        }
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

    /// Position in the chain of the NF that has, or had, the packet; from 0.
    #[inline]
    #[must_use]
    pub const fn hop(self) -> u8 {
        (self.high >> 16) as u8
    }

    /// The verdict's number: see [`VerdictKind::from_raw`]. Above 127 in a message, which no verdict is.
    #[inline]
    #[must_use]
    pub const fn verdict(self) -> u8 {
        (self.high >> 24) as u8
    }

    /// Ingress port on the way to an NF; port or role on the way back.
    #[inline]
    #[must_use]
    pub const fn argument(self) -> u16 {
        (self.high >> 32) as u16
    }

    /// The engine worker that handed the packet out and wants it back.
    #[inline]
    #[must_use]
    pub const fn worker(self) -> u8 {
        (self.high >> 48) as u8
    }

    /// Eight bits of the flow's hash, by which replicas are chosen.
    #[inline]
    #[must_use]
    pub const fn hash(self) -> u8 {
        (self.high >> 56) as u8
    }

    /// The same packet with its bytes at another place of the buffer.
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

    /// The same packet with a verdict number as a hostile peer might write it.
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

    /// What the descriptors of packets at the same place of a chain have in common that answer to the same worker.
    #[inline(always)]
    #[must_use]
    pub const fn place_bits(self) -> CommonBits {
        CommonBits { bits: self.high, mask: 0x00ff_0000_00ff_ffff }
    }

    /// What the descriptors of packets with the same verdict at the same place of a chain have in common: chain, hop, verdict
    /// and, but for [`VerdictKind::Next`], argument. (The argument of "next" is the ingress port by the NF's word.)
    #[inline(always)]
    #[must_use]
    pub const fn verdict_bits(self) -> CommonBits {
        let argument = if self.verdict() == VerdictKind::Next as u8 { 0 } else { 0xffff_0000_0000 };
        // Equal values of these 32 bits mean the same verdict, so the same bits matter.
        CommonBits { bits: self.high, mask: 0xffff_ffff | argument }
    }

    /// The descriptor as the two words of a slot.
    #[inline]
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        [self.low, self.high]
    }

    /// The descriptor in two words, of which the ring's own bit is cleared.
    #[inline]
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self { low: words[0] & !LAP, high: words[1] }
    }
}

/// Bits that descriptors may have in common.
#[derive(Clone, Copy, Debug)]
pub struct CommonBits {
    bits: u64,
    mask: u64,
}

impl CommonBits {
    /// Whether a descriptor has them.
    #[inline(always)]
    #[must_use]
    pub const fn are_of(self, descriptor: Descriptor) -> bool {
        self.differs_from(descriptor.high) == 0
    }

    /// Those of the bits that a high word does not have.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_field_keeps_its_value(
            buffer in 0..=Descriptor::MAX_BUFFER, offset: u16, length: u16, chain: u16, hop: u8, argument: u16,
            worker: u8, hash: u8, port: u16, span: (u16, u16), raw: u8,
        ) {
            let d = Descriptor::new(buffer, offset, length).on_path(chain, hop, argument, worker).with_hash(hash);
            prop_assert_eq!((d.buffer(), d.offset(), d.length()), (buffer, offset, length));
            prop_assert_eq!((d.chain(), d.hop(), d.argument()), (chain, hop, argument));
            prop_assert_eq!((d.worker(), d.hash(), d.verdict()), (worker, hash, VerdictKind::Next as u8));
            let sent = d.with_verdict(VerdictKind::Port, port).with_span(span.0, span.1).with_hop(hop.wrapping_add(1));
            prop_assert_eq!((sent.verdict(), sent.argument()), (VerdictKind::Port as u8, port));
            prop_assert_eq!((sent.buffer(), sent.offset(), sent.length()), (buffer, span.0, span.1));
            prop_assert_eq!((sent.chain(), sent.hop()), (chain, hop.wrapping_add(1)));
            prop_assert_eq!((sent.worker(), sent.hash()), (worker, hash));
            prop_assert_eq!(sent.with_raw_verdict(raw).verdict(), raw);
            prop_assert_eq!(Descriptor::from_words(sent.to_words()), sent);
        }

        #[test]
        fn a_verdict_number_is_a_verdict_or_none(raw: u8) {
            match VerdictKind::from_raw(raw) {
                Some(verdict) => prop_assert_eq!(verdict as u8, raw),
                None => prop_assert!(raw > VerdictKind::SkipFlow as u8),
            }
        }

        #[test]
        fn a_message_is_no_packet(worker: u8, packet: u64, raw: u8) {
            let message = Descriptor::withdrawal(worker);
            prop_assert_eq!((message.message(), message.worker()), (Some(Message::WithdrawVerdicts), worker));
            prop_assert_eq!((message.is_control(), VerdictKind::from_raw(message.verdict())), (true, None));
            prop_assert!(!message.with_verdict(VerdictKind::Next, 0).is_control());
            let hostile = Descriptor::from_words([packet, 0]).with_raw_verdict(raw);
            prop_assert_eq!(hostile.is_control(), raw > 127);
            prop_assert_eq!(hostile.message().is_some(), raw == 128);
            prop_assert!(!(hostile.is_control() && VerdictKind::from_raw(raw).is_some()));
        }
    }
}
