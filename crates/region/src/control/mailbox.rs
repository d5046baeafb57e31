// SPDX-License-Identifier: Apache-2.0
//! A mailbox in control memory: messages between netvmd and an NF in a VM, which has no socket. Not for packets. In and
//! out: messages as bytes, in order. Nobody waits: a message for which there is no room is not sent.
//!
//! ```text
//!      0  head of what netvmd sends      64  its tail
//!    128  head of what the NF sends     192  its tail
//!    256  netvmd's messages, as a ring of 32 KiB
//!  33024  the NF's messages, likewise
//!         a message: length (4 bytes), then so many bytes; both go on at the beginning of the ring
//! ```
//!
//! Heads and tails count bytes, and wrap at 2^32: the sender writes its head, the receiver its tail. Either side keeps
//! its own counts, and reads only the other's, which it checks. So a side that writes anything loses its own messages.
//!
//! The mailbox is behind all else in control memory, and the header says so behind all else: an NF that does not know
//! it finds everything where it was.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::{Control, ControlError, ControlHeader};

/// Bytes of a ring.
const RING: u32 = 32 * 1024;
/// Where the rings begin.
const RINGS_AT: u64 = 256;
/// From the counts of one ring to those of the other, and from a head to its tail.
const COUNTS: u64 = 128;
const TAIL: u64 = 64;
/// Bytes of a length.
const LENGTH: u32 = 4;
/// Bytes of a mailbox.
const BYTES: u64 = (RINGS_AT + 2 * RING as u64).next_multiple_of(4096);

/// The longest message.
pub const MAX_MAIL: usize = 16 * 1024;

/// A side of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// netvmd.
    Engine,
    /// The NF.
    Nf,
}

/// The other side has written a count or a length that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox in its control memory holds impossible counts or lengths")]
pub struct BrokenMailbox;

/// One side's counts of a mailbox.
#[derive(Debug)]
pub struct Mailbox {
    side: Side,
    /// Bytes that this side has sent.
    sent: u32,
    /// Bytes that it has received.
    received: u32,
}

impl Mailbox {
    /// A side of the mailbox in this memory, which no one else uses as this side; `None` if the memory has none.
    #[must_use]
    pub fn of(control: &Control, side: Side) -> Option<Self> {
        (control.header().mailbox != 0).then_some(Self { side, sent: 0, received: 0 })
    }

    /// Sends a message. Returns whether there was room for it.
    pub fn send(&mut self, control: &Control, message: &[u8]) -> bool {
        let memory = Ring::of(control, self.side == Side::Engine);
        let used = self.sent.wrapping_sub(memory.tail().load(Ordering::Acquire));
        let Ok(length) = u32::try_from(message.len()) else { return false };
        // If the receiver's count is impossible, there is no room.
        if message.len() > MAX_MAIL || RING.checked_sub(used).is_none_or(|room| room < LENGTH + length) {
            return false;
        }
        let bytes = length.to_ne_bytes().into_iter().chain(message.iter().copied());
        for (at, byte) in (0..LENGTH + length).zip(bytes) {
            memory.byte(self.sent.wrapping_add(at)).store(byte, Ordering::Relaxed);
        }
        self.sent = self.sent.wrapping_add(LENGTH + length);
        memory.head().store(self.sent, Ordering::Release);
        true
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// [`BrokenMailbox`]: what the other side has sent so far is lost.
    pub fn receive(&mut self, control: &Control) -> Result<Option<Vec<u8>>, BrokenMailbox> {
        let memory = Ring::of(control, self.side == Side::Nf);
        let head = memory.head().load(Ordering::Acquire);
        let there = head.wrapping_sub(self.received);
        if there == 0 {
            return Ok(None);
        }
        let byte = |at: u32| memory.byte(self.received.wrapping_add(at)).load(Ordering::Relaxed);
        let length = u32::from_ne_bytes([0, 1, 2, 3].map(byte));
        let is_sound = (LENGTH..=RING).contains(&there) && length <= there - LENGTH;
        let message = (is_sound && length as usize <= MAX_MAIL)
            .then(|| (LENGTH..LENGTH + length).map(byte).collect::<Vec<u8>>());
        self.received = match &message {
            Some(_) => self.received.wrapping_add(LENGTH + length),
            None => head,
        };
        memory.tail().store(self.received, Ordering::Release);
        message.map(Some).ok_or(BrokenMailbox)
    }
}

/// The memory of one ring.
#[derive(Clone, Copy)]
struct Ring<'a> {
    control: &'a Control,
    counts: u64,
    bytes: u64,
}

impl<'a> Ring<'a> {
    fn of(control: &'a Control, is_of_engine: bool) -> Self {
        let (start, number) = (control.header().mailbox_at(), u64::from(!is_of_engine));
        let counts = start + number * COUNTS;
        Self { control, counts, bytes: start + RINGS_AT + number * u64::from(RING) }
    }

    fn head(self) -> &'a AtomicU32 {
        self.count(self.counts)
    }

    fn tail(self) -> &'a AtomicU32 {
        self.count(self.counts + TAIL)
    }

    fn count(self, at: u64) -> &'a AtomicU32 {
        // SAFETY: only a header with a mailbox leads here, which `Control` has checked against the size of its mapping;
        // the counts are below `RINGS_AT`, aligned, and used only as atomics.
        unsafe { self.control.mapping().at::<AtomicU32>(at).as_ref() }
    }

    /// The byte for a count.
    fn byte(self, count: u32) -> &'a AtomicU8 {
        // SAFETY: as above; the place is within the ring.
        unsafe { self.control.mapping().at::<AtomicU8>(self.bytes + u64::from(count % RING)).as_ref() }
    }
}

impl ControlHeader {
    /// Bytes of a mailbox, or 0.
    pub(super) const fn mailbox_bytes(&self) -> u64 {
        if self.mailbox == 0 { 0 } else { BYTES }
    }

    /// Where the mailbox is.
    fn mailbox_at(&self) -> u64 {
        self.stock_end()
    }

    pub(super) const fn check_mailbox(&self) -> Result<(), ControlError> {
        if self.mailbox > 1 { Err(ControlError::Unsound("mailbox")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::super::tests::admission;
    use super::super::{Admission, Control};
    use super::*;

    /// The memory as netvmd and as the NF have it.
    fn pair() -> [(Control, Mailbox); 2] {
        let engine = Control::create("mailbox", &Admission { mailbox: true, ..admission() }, None).unwrap();
        let nf = Control::open(engine.as_fd().try_clone_to_owned().unwrap()).unwrap();
        [(engine, Side::Engine), (nf, Side::Nf)].map(|(control, side)| {
            let mailbox = Mailbox::of(&control, side).unwrap();
            (control, mailbox)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn messages_arrive_in_order_in_both_directions(
            steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..MAX_MAIL), 1..200)
        ) {
            let mut sides = pair();
            let mut expected = [const { std::collections::VecDeque::new() }; 2];
            for (n, (by_nf, sends, length)) in steps.into_iter().enumerate() {
                let (control, mailbox) = &mut sides[usize::from(by_nf)];
                if sends {
                    let message = vec![n as u8; length];
                    let used: usize = expected[usize::from(by_nf)].iter().map(|sent: &Vec<u8>| sent.len() + 4).sum();
                    let has_room = used + 4 + length <= RING as usize;
                    prop_assert_eq!(mailbox.send(control, &message), has_room);
                    expected[usize::from(by_nf)].extend(has_room.then_some(message));
                } else {
                    prop_assert_eq!(mailbox.receive(control), Ok(expected[usize::from(!by_nf)].pop_front()));
                }
            }
        }

        /// Whatever the other side writes: this one stays within the memory, and gets what is sent after that.
        #[test]
        fn a_hostile_side_loses_its_own_messages(
            writes in proptest::collection::vec((0..RINGS_AT / 4, any::<u32>()), 0..20),
            garbage in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let [(control, mut mailbox), (_, mut other)] = pair();
            let own = Ring::of(&control, true);
            prop_assert!(mailbox.send(&control, b"before"));
            let theirs = Ring::of(&control, false);
            (0..).zip(&garbage).for_each(|(at, byte)| theirs.byte(at).store(*byte, Ordering::Relaxed));
            for (at, value) in writes {
                own.count(control.header().mailbox_at() + 4 * at).store(value, Ordering::Relaxed);
                // A message, none, or an error.
                let _ = mailbox.receive(&control);
                mailbox.send(&control, b"something");
            }
            prop_assert!(!mailbox.send(&control, &[0; MAX_MAIL + 1]));
            while mailbox.receive(&control) != Ok(None) {}
            other.sent = mailbox.received;
            theirs.head().store(other.sent, Ordering::Relaxed);
            theirs.tail().store(other.sent, Ordering::Relaxed);
            prop_assert!(other.send(&control, b"after"));
            prop_assert_eq!(mailbox.receive(&control), Ok(Some(b"after".to_vec())));
        }
    }

    #[test]
    fn counts_wrap_and_memory_without_a_mailbox_has_none() {
        let [(engine, mut one), (nf, mut two)] = pair();
        for count in [&mut one.sent, &mut two.received] {
            *count = u32::MAX - 5;
        }
        Ring::of(&engine, true).tail().store(u32::MAX - 5, Ordering::Relaxed);
        for n in 0..100u8 {
            assert!(one.send(&engine, &vec![n; 5000]));
            assert_eq!(two.receive(&nf), Ok(Some(vec![n; 5000])));
        }
        let without = Control::create("mailbox", &admission(), None).unwrap();
        assert!(Mailbox::of(&without, Side::Engine).is_none());
        assert_eq!(without.header().all_bytes() + BYTES, engine.header().all_bytes());
    }
}
