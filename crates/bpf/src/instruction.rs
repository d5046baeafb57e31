// SPDX-License-Identifier: Apache-2.0
//! Instructions of the kernel's BPF machine (RFC 9669).

use std::os::fd::RawFd;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// Destination and source register, four bits each; their order follows the byte order.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. A function call takes arguments in `R1` to `R5`, returns `R0`, and keeps `R6` to `R9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Register {
    /// What functions and the program return.
    R0,
    /// First argument; when the program begins, its context.
    R1,
    /// Second argument.
    R2,
    /// Third argument.
    R3,
    /// Fourth argument.
    R4,
    /// Fifth argument.
    R5,
    /// Kept across calls, as are the next three.
    R6,
    /// Kept across calls.
    R7,
    /// Kept across calls.
    R8,
    /// Kept across calls.
    R9,
    /// The end of the stack of 512 bytes.
    Stack,
}

impl Register {
    /// The place in memory that is so many bytes behind the register's address.
    #[must_use]
    pub const fn at(self, offset: i16) -> Place {
        Place { register: self, offset }
    }

    /// A condition on the register.
    pub fn is(self, test: Test, operand: impl Into<Operand>) -> Condition {
        Condition { register: self, test, operand: operand.into() }
    }
}

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    register: Register,
    offset: i16,
}

/// A condition on a register and an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    register: Register,
    test: Test,
    operand: Operand,
}

/// The size of a value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// Four bytes.
    Word = 0x00,
    /// Two bytes.
    Half = 0x08,
    /// One byte.
    Byte = 0x10,
    /// Eight bytes.
    Double = 0x18,
}

/// How a register is compared with an operand, without signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Test {
    /// Both are equal.
    Equal = 0x10,
    /// The register is greater.
    Greater = 0x20,
    /// The register is greater, or both are equal.
    AtLeast = 0x30,
    /// They have a bit in common.
    HasBit = 0x40,
    /// They differ.
    NotEqual = 0x50,
}

/// The second operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// A number, which is extended to 64 bits with its sign.
    Number(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

/// Functions of the kernel, by their numbers in `enum bpf_func_id`.
pub mod function {
    /// `void *bpf_map_lookup_elem(map, key)`.
    pub const MAP_LOOKUP: i32 = 1;
    /// `u32 bpf_get_smp_processor_id()`.
    pub const CORE: i32 = 8;
    /// `long bpf_skb_store_bytes(skb, offset, from, len, flags)`.
    pub const STORE_BYTES: i32 = 9;
    /// `long bpf_l3_csum_replace(skb, offset, from, to, flags)`.
    pub const REPLACE_IP_CHECKSUM: i32 = 10;
    /// `long bpf_l4_csum_replace(skb, offset, from, to, flags)`.
    pub const REPLACE_CHECKSUM: i32 = 11;
    /// `long bpf_redirect(ifindex, flags)`.
    pub const REDIRECT: i32 = 23;
    /// `long bpf_skb_change_type(skb, type)`.
    pub const CHANGE_TYPE: i32 = 32;
    /// `long bpf_redirect_map(map, key, flags)`.
    pub const REDIRECT_MAP: i32 = 51;
    /// `long bpf_redirect_peer(ifindex, flags)` (Linux 5.10).
    pub const REDIRECT_PEER: i32 = 155;
    /// `u64 bpf_ktime_get_coarse_ns()` (Linux 5.11).
    pub const COARSE_TIME: i32 = 160;
}

const CLASS_LOAD_IMMEDIATE: u8 = 0x18;
const CLASS_LOAD: u8 = 0x61;
const CLASS_STORE: u8 = 0x63;
const CLASS_STORE_NUMBER: u8 = 0x62;
const CLASS_ATOMIC_ADD: u8 = 0xdb;
/// Big-endian values of a packet at a constant offset, and behind a register (`BPF_LD` with `BPF_ABS` and `BPF_IND`).
const PACKET_AT: u8 = 0x20;
const PACKET_BEHIND: u8 = 0x40;
const CLASS_JUMP: u8 = 0x05;
const CLASS_ALU: u8 = 0x07;
/// The source is a register (`BPF_X`).
const FROM_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source registers that mark the immediate as the descriptor of a map, or of a map whose first value is meant
/// (`BPF_PSEUDO_MAP_FD`, `BPF_PSEUDO_MAP_VALUE`).
const MAP_DESCRIPTOR: u8 = 1;
const MAP_VALUE: u8 = 2;

/// Operations of arithmetic instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Add = 0x00,
    Multiply = 0x20,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Xor = 0xa0,
    Move = 0xb0,
}

const fn new(code: u8, destination: u8, source: u8) -> Instruction {
    let registers =
        if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source };
    Instruction { code, registers, offset: 0, immediate: 0 }
}

impl Instruction {
    pub(crate) const fn with_offset(self, offset: i16) -> Self {
        Self { offset, ..self }
    }

    const fn immediate(self, immediate: i32) -> Self {
        Self { immediate, ..self }
    }

    pub(crate) fn arithmetic(operation: Operation, to: Register, operand: Operand) -> Self {
        let code = CLASS_ALU | operation as u8;
        match operand {
            Operand::Register(from) => new(code | FROM_REGISTER, to as u8, from as u8),
            Operand::Number(number) => new(code, to as u8, 0).immediate(number),
        }
    }

    pub(crate) fn load(size: Size, to: Register, from: Place) -> Self {
        new(CLASS_LOAD | size as u8, to as u8, from.register as u8).with_offset(from.offset)
    }

    pub(crate) fn store(size: Size, to: Place, value: Operand) -> Self {
        let Place { register: to, offset } = to;
        match value {
            Operand::Register(from) => {
                new(CLASS_STORE | size as u8, to as u8, from as u8).with_offset(offset)
            }
            Operand::Number(number) => {
                new(CLASS_STORE_NUMBER | size as u8, to as u8, 0).with_offset(offset).immediate(number)
            }
        }
    }

    pub(crate) fn atomic_add(to: Place, value: Register) -> Self {
        new(CLASS_ATOMIC_ADD, to.register as u8, value as u8).with_offset(to.offset)
    }

    pub(crate) fn jump_if(condition: Condition) -> Self {
        let Condition { register, test, operand } = condition;
        let code = CLASS_JUMP | test as u8;
        match operand {
            Operand::Register(other) => new(code | FROM_REGISTER, register as u8, other as u8),
            Operand::Number(number) => new(code, register as u8, 0).immediate(number),
        }
    }

    pub(crate) const fn jump() -> Self {
        new(CLASS_JUMP, 0, 0)
    }

    pub(crate) const fn call(function: i32) -> Self {
        new(CALL, 0, 0).immediate(function)
    }

    pub(crate) const fn exit() -> Self {
        new(EXIT, 0, 0)
    }

    #[cfg(test)]
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let [offset0, offset1] = self.offset.to_ne_bytes();
        let [imm0, imm1, imm2, imm3] = self.immediate.to_ne_bytes();
        [self.code, self.registers, offset0, offset1, imm0, imm1, imm2, imm3]
    }

    pub(crate) const fn load_packet(size: Size, offset: i32) -> Self {
        new(PACKET_AT | size as u8, 0, 0).immediate(offset)
    }

    pub(crate) const fn load_packet_behind(size: Size, from: Place) -> Self {
        new(PACKET_BEHIND | size as u8, 0, from.register as u8).immediate(from.offset as i32)
    }

    pub(crate) const fn load_number(to: Register, number: u64) -> [Self; 2] {
        let [low, high] = [number as u32, (number >> 32) as u32];
        [
            new(CLASS_LOAD_IMMEDIATE, to as u8, 0).immediate(low.cast_signed()),
            new(0, 0, 0).immediate(high.cast_signed()),
        ]
    }

    pub(crate) const fn load_map(to: Register, map: RawFd) -> [Self; 2] {
        [new(CLASS_LOAD_IMMEDIATE, to as u8, MAP_DESCRIPTOR).immediate(map), new(0, 0, 0)]
    }

    pub(crate) const fn load_map_value(to: Register, map: RawFd, offset: u32) -> [Self; 2] {
        [
            new(CLASS_LOAD_IMMEDIATE, to as u8, MAP_VALUE).immediate(map),
            new(0, 0, 0).immediate(offset.cast_signed()),
        ]
    }
}

const _: () = assert!(size_of::<Instruction>() == 8);
