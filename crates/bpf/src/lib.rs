// SPDX-License-Identifier: Apache-2.0
//! `bpf(2)`: programs written as instructions, their maps, and the links that attach them to interfaces.
//!
//! netvm's programs are short, so they need neither clang at build time nor an object file at run time. A BPF link
//! attaches a program to an interface: the kernel detaches it when the last descriptor of the link is closed, so a
//! process leaves nothing behind however it ends. This takes CAP_BPF and CAP_NET_ADMIN, which root has.

mod assembler;
mod instruction;
mod link;
mod map;
mod program;
mod sys;
mod words;

pub use assembler::{Assembler, AssemblyError, Label};
pub use instruction::{Condition, Instruction, Operand, Place, Register, Size, Test, function};
pub use link::{Attach, Link};
pub use map::{Map, MapKind, MapShape, Position};
pub use program::{LoadError, Program, ProgramKind};
pub use words::WordMap;
