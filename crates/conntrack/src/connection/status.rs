// SPDX-License-Identifier: Apache-2.0
//! [`Status`]: what is known of a connection, in a byte.

use bitflags::bitflags;

use crate::protocol::Stage;

bitflags! {
    /// What is known of a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Status: u8 {
        /// The slot has one.
        const IN_USE = 1;
        /// It has had an answer.
        const ANSWERED = 2;
        /// Its reply tuple is not the original one reversed.
        const TRANSLATED = 4;
        /// What stands for its source is decided.
        const SETTLED = 8;
        /// It is [`Stage::Open`].
        const OPEN = 16;
        /// It is [`Stage::Closed`]; without this bit and `OPEN`, it is [`Stage::HalfOpen`].
        const CLOSED = 32;
        /// Its protocol remembers nothing.
        const STATELESS = 64;
    }
}

impl Status {
    /// With these bits, if this is so.
    pub(crate) const fn with(self, bits: Self, is_so: bool) -> Self {
        if is_so { self.union(bits) } else { self }
    }

    pub(crate) const fn stage(self) -> Stage {
        if self.contains(Self::OPEN) {
            Stage::Open
        } else if self.contains(Self::CLOSED) {
            Stage::Closed
        } else {
            Stage::HalfOpen
        }
    }

    /// At this stage.
    pub(crate) const fn at(self, stage: Stage) -> Self {
        let other = self.difference(Self::OPEN.union(Self::CLOSED));
        match stage {
            Stage::HalfOpen => other,
            Stage::Open => other.union(Self::OPEN),
            Stage::Closed => other.union(Self::CLOSED),
        }
    }
}
