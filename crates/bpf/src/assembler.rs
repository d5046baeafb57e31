// SPDX-License-Identifier: Apache-2.0
//! Writes programs: instructions one after another, and jumps forward to labels.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::instruction::{Condition, Instruction, Operand, Operation, Place, Register, Size};

/// A place in a program.
#[derive(Clone, Copy, Debug)]
pub struct Label(usize);

/// A jump leads nowhere, or too far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssemblyError;

impl fmt::Display for AssemblyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a jump of the BPF program has no target within 32,767 instructions")
    }
}

impl std::error::Error for AssemblyError {}

impl From<AssemblyError> for std::io::Error {
    fn from(error: AssemblyError) -> Self {
        Self::other(error)
    }
}

/// A program that is being written.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// Jumps, and their labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A label for [`Assembler::bind`].
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts a label before the next instruction.
    pub fn bind(&mut self, label: Label) {
        let here = self.instructions.len();
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(here);
        }
    }

    /// `to = operand`.
    pub fn set(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::Move, to, operand)
    }

    /// `to += operand`.
    pub fn add(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::Add, to, operand)
    }

    /// `to *= operand`.
    pub fn multiply(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::Multiply, to, operand)
    }

    /// `to &= operand`.
    pub fn and(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::And, to, operand)
    }

    /// `to |= operand`.
    pub fn or(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::Or, to, operand)
    }

    /// `to ^= operand`.
    pub fn xor(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::Xor, to, operand)
    }

    /// `to <<= operand`.
    pub fn shift_left(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::ShiftLeft, to, operand)
    }

    /// `to >>= operand`.
    pub fn shift_right(&mut self, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Operation::ShiftRight, to, operand)
    }

    /// `to = *place`, without sign.
    pub fn load(&mut self, size: Size, to: Register, place: Place) -> &mut Self {
        self.push(Instruction::load(size, to, place))
    }

    /// `*place = value`.
    pub fn store(&mut self, size: Size, place: Place, value: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::store(size, place, value.into()))
    }

    /// `*place += value` of eight bytes, at once.
    pub fn atomic_add(&mut self, place: Place, value: Register) -> &mut Self {
        self.push(Instruction::atomic_add(place, value))
    }

    /// `R0` = a big-endian value of the packet of `R6`, of a word at most; ends the program with 0 if the packet is too
    /// short. Keeps `R6` to `R9`.
    pub fn load_packet(&mut self, size: Size, offset: i32) -> &mut Self {
        self.push(Instruction::load_packet(size, offset))
    }

    /// The same, where the register of a place is an offset in the packet.
    pub fn load_packet_behind(&mut self, size: Size, place: Place) -> &mut Self {
        self.push(Instruction::load_packet_behind(size, place))
    }

    /// `to = number`.
    pub fn set_number(&mut self, to: Register, number: u64) -> &mut Self {
        self.instructions.extend(Instruction::load_number(to, number));
        self
    }

    /// `to` = the map, for a function.
    pub fn load_map(&mut self, to: Register, map: BorrowedFd<'_>) -> &mut Self {
        self.instructions.extend(Instruction::load_map(to, map.as_raw_fd()));
        self
    }

    /// `to` = the address of byte `offset` of the first value of an array.
    pub fn load_map_value(&mut self, to: Register, map: BorrowedFd<'_>, offset: u32) -> &mut Self {
        self.instructions.extend(Instruction::load_map_value(to, map.as_raw_fd(), offset));
        self
    }

    /// Goes to a label further down if the condition holds.
    pub fn jump_if(&mut self, condition: Condition, label: Label) -> &mut Self {
        self.jumps.push((self.instructions.len(), label));
        self.push(Instruction::jump_if(condition))
    }

    /// Goes to a label further down.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.jumps.push((self.instructions.len(), label));
        self.push(Instruction::jump())
    }

    /// Calls a function of the kernel.
    pub fn call(&mut self, function: i32) -> &mut Self {
        self.push(Instruction::call(function))
    }

    /// Ends the program, which returns `R0`.
    pub fn exit(&mut self) -> &mut Self {
        self.push(Instruction::exit())
    }

    /// The whole program.
    ///
    /// # Errors
    /// A jump has no target, or one that is too far.
    pub fn finish(mut self) -> Result<Vec<Instruction>, AssemblyError> {
        for (at, label) in self.jumps {
            let target = self.labels.get(label.0).copied().flatten().ok_or(AssemblyError)?;
            let distance = target.checked_sub(at + 1).ok_or(AssemblyError)?;
            let distance = i16::try_from(distance).map_err(|_| AssemblyError)?;
            let jump = self.instructions.get_mut(at).ok_or(AssemblyError)?;
            *jump = jump.with_offset(distance);
        }
        Ok(self.instructions)
    }

    fn arithmetic(&mut self, operation: Operation, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::arithmetic(operation, to, operand.into()))
    }

    fn push(&mut self, instruction: Instruction) -> &mut Self {
        self.instructions.push(instruction);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::{Test, function};

    #[test]
    fn a_jump_without_a_target_is_an_error() {
        let mut program = Assembler::default();
        let (nowhere, back) = (program.label(), program.label());
        program.bind(back);
        program.set(Register::R0, 0).jump(nowhere).exit();
        assert_eq!(program.finish(), Err(AssemblyError));
        let mut program = Assembler::default();
        let back = program.label();
        program.bind(back);
        program.set(Register::R0, 0).jump(back).exit();
        assert_eq!(program.finish(), Err(AssemblyError));
    }

    /// The bytes that `clang -target bpf` assembles; maps are marked, which clang leaves to the loader.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_encoded_as_clang_does() {
        use Register::{R0, R1, R2, R3, R6, Stack};
        let map = |fd: i32| {
            // SAFETY: it is not used, only its number.
            unsafe { BorrowedFd::borrow_raw(fd) }
        };
        let mut program = Assembler::default();
        let end = program.label();
        program.load(Size::Word, R6, R1.at(16)).call(function::CORE).add(R0, 1);
        program.jump_if(R6.is(Test::AtLeast, 4), end);
        program.set(R2, R6).shift_left(R2, 2).load_map_value(R1, map(0x0001_0203), 8).add(R1, R2);
        program.jump_if(R3.is(Test::Equal, R0), end);
        program.store(Size::Word, R1.at(0), R0).store(Size::Byte, Stack.at(-8), 7);
        program.load(Size::Double, R3, R1.at(8)).load(Size::Half, R3, R1.at(12)).load(
            Size::Byte,
            R3,
            R1.at(1),
        );
        program.multiply(R3, R2).and(R3, 15).or(R3, R2).shift_right(R3, 4).atomic_add(R1.at(24), R3);
        program.load_map(R1, map(0x0a0b_0c0d)).jump(end);
        program.bind(end);
        program.exit();
        let expected: [[u8; 8]; 24] = [
            [0x61, 0x16, 0x10, 0, 0, 0, 0, 0],
            [0x85, 0, 0, 0, 8, 0, 0, 0],
            [0x07, 0, 0, 0, 1, 0, 0, 0],
            [0x35, 6, 19, 0, 4, 0, 0, 0],
            [0xbf, 0x62, 0, 0, 0, 0, 0, 0],
            [0x67, 2, 0, 0, 2, 0, 0, 0],
            [0x18, 0x21, 0, 0, 3, 2, 1, 0],
            [0, 0, 0, 0, 8, 0, 0, 0],
            [0x0f, 0x21, 0, 0, 0, 0, 0, 0],
            [0x1d, 3, 13, 0, 0, 0, 0, 0],
            [0x63, 1, 0, 0, 0, 0, 0, 0],
            [0x72, 10, 0xf8, 0xff, 7, 0, 0, 0],
            [0x79, 0x13, 8, 0, 0, 0, 0, 0],
            [0x69, 0x13, 12, 0, 0, 0, 0, 0],
            [0x71, 0x13, 1, 0, 0, 0, 0, 0],
            [0x2f, 0x23, 0, 0, 0, 0, 0, 0],
            [0x57, 3, 0, 0, 15, 0, 0, 0],
            [0x4f, 0x23, 0, 0, 0, 0, 0, 0],
            [0x77, 3, 0, 0, 4, 0, 0, 0],
            [0xdb, 0x31, 24, 0, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0x05, 0, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        let bytes: Vec<[u8; 8]> = program.finish().unwrap().into_iter().map(Instruction::to_bytes).collect();
        assert_eq!(bytes, expected);
    }
}
