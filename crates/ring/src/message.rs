// SPDX-License-Identifier: Apache-2.0
//! Control messages from an NF thread to a worker, in descriptors without a packet.
//!
//! ```text
//!  low word   0..31  buffer            high word  24..31  number    31  1    32..48  argument    48..56  worker
//! ```

use crate::descriptor::{CONTROL, Descriptor, Span};

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// The worker forgets every per-flow verdict of the sending thread ([`VerdictKind::DropFlow`],
    /// [`VerdictKind::SkipFlow`]).
    ///
    /// [`VerdictKind::DropFlow`]: crate::VerdictKind::DropFlow
    /// [`VerdictKind::SkipFlow`]: crate::VerdictKind::SkipFlow
    WithdrawVerdicts,
    /// The worker puts so many empty buffers into the thread's ring of empty buffers, as far as its quota allows.
    RequestBuffers(u16),
    /// The worker frees this buffer, which the thread keeps.
    Release(u32),
    /// The packet that the thread sends next in this buffer, which it keeps, counts as received by this port.
    Ingress {
        /// The buffer's number.
        buffer: u32,
        /// The port's number.
        port: u16,
    },
}

impl Message {
    /// Its number, buffer and argument.
    const fn fields(self) -> (u8, u32, u16) {
        match self {
            Self::WithdrawVerdicts => (0, 0, 0),
            Self::RequestBuffers(count) => (1, 0, count),
            Self::Release(buffer) => (2, buffer, 0),
            Self::Ingress { buffer, port } => (3, buffer, port),
        }
    }
}

impl Descriptor {
    /// A message to `worker`.
    #[inline]
    #[must_use]
    pub const fn control(message: Message, worker: u8) -> Self {
        let (number, buffer, argument) = message.fields();
        let high = CONTROL | (number as u64) << 24 | (argument as u64) << 32 | (worker as u64) << 48;
        Self { low: Self::of(Span::new(buffer, 0, 0)).low, high }
    }

    /// [`Message::WithdrawVerdicts`] to `worker`.
    #[inline]
    #[must_use]
    pub const fn withdrawal(worker: u8) -> Self {
        Self::control(Message::WithdrawVerdicts, worker)
    }

    /// The message; `None` for a packet or an unknown message number.
    #[inline]
    #[must_use]
    pub const fn message(self) -> Option<Message> {
        match (self.is_control(), self.verdict() & 0x7f) {
            (true, 0) => Some(Message::WithdrawVerdicts),
            (true, 1) => Some(Message::RequestBuffers(self.argument())),
            (true, 2) => Some(Message::Release(self.buffer())),
            (true, 3) => Some(Message::Ingress { buffer: self.buffer(), port: self.argument() }),
            _ => None,
        }
    }
}
