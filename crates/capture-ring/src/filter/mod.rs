// SPDX-License-Identifier: Apache-2.0
//! Filters in classic BPF, the machine that libpcap compiles its language to (McCanne and Jacobson, "The BSD Packet
//! Filter", 1993; Linux `Documentation/networking/filter.rst`).
//!
//! In comes a program that a client of the API sent. It is verified once: every jump goes forward and stays inside, the
//! last instruction returns, scratch memory is in range. So a run takes at most as many steps as there are
//! instructions, whatever the packet holds. Loads beyond the packet end the run, and the packet is rejected, as in
//! libpcap.

mod run;
mod verify;

use serde::{Deserialize, Serialize};

use crate::record::Direction;
pub use verify::FilterError;

/// Instructions that a filter can have, as in Linux and libpcap (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;

/// One instruction, as libpcap's `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to step over if a condition holds.
    pub jt: u8,
    /// Instructions to step over if not.
    pub jf: u8,
    /// A constant: a number, an offset or a distance.
    pub k: u32,
}

/// The result of a filter for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The filter matches it.
    Accept,
    /// It does not.
    Reject,
    /// It loads bytes of the packet that are behind the given front of it.
    Beyond,
}

/// A verified program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Box<[Instruction]>);

impl Filter {
    /// Verifies a program.
    ///
    /// # Errors
    /// [`FilterError`] names the instruction and what is wrong with it.
    pub fn new(program: &[Instruction]) -> Result<Self, FilterError> {
        verify::verify(program)?;
        Ok(Self(program.into()))
    }

    /// Number of its instructions.
    #[expect(clippy::len_without_is_empty, reason = "a program has at least one")]
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Runs it over the front of a packet of `length` bytes that is dropped.
    #[inline]
    #[must_use]
    pub fn run(&self, front: &[u8], length: u32) -> Outcome {
        self.run_passing(front, length, Direction::None)
    }

    /// Runs it over the front of a packet of `length` bytes. libpcap's `outbound` matches what leaves the engine, an NF
    /// or a router, also to its kernel; `inbound` matches all others.
    #[inline]
    #[must_use]
    pub fn run_passing(&self, front: &[u8], length: u32, direction: Direction) -> Outcome {
        let is_outbound = matches!(direction, Direction::Out | Direction::ToKernel);
        run::run(&self.0, front, length, is_outbound)
    }
}
