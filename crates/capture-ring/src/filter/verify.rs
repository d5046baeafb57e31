// SPDX-License-Identifier: Apache-2.0
//! The verifier: what makes a program safe to run for every packet.

use super::{Instruction, MAX_INSTRUCTIONS};

/// Words of scratch memory (`BPF_MEMWORDS`).
pub(super) const SCRATCH: usize = 16;

/// A program that is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It has no instructions, or too many.
    #[error("a filter has 1 to {MAX_INSTRUCTIONS} instructions, this one has {0}")]
    Length(usize),
    /// The last instruction does not return.
    #[error("the last instruction of the filter does not return")]
    NoReturn,
    /// An operation that classic BPF does not have.
    #[error("instruction {at} of the filter has the unknown operation {code:#06x}")]
    Unknown {
        /// Its number, from 0.
        at: usize,
        /// Its operation.
        code: u16,
    },
    /// A jump leaves the program.
    #[error("instruction {0} of the filter jumps out of it")]
    Jump(usize),
    /// Scratch memory is out of range.
    #[error("instruction {0} of the filter uses scratch memory that does not exist")]
    Scratch(usize),
    /// A division by the constant 0.
    #[error("instruction {0} of the filter divides by 0")]
    Division(usize),
    /// A shift by more bits than there are.
    #[error("instruction {0} of the filter shifts by 32 bits or more")]
    Shift(usize),
}

/// Operations, as numbers of `struct bpf_insn`.
pub(super) mod op {
    pub(in super::super) const LD_W_ABS: u16 = 0x20;
    pub(in super::super) const LD_H_ABS: u16 = 0x28;
    pub(in super::super) const LD_B_ABS: u16 = 0x30;
    pub(in super::super) const LD_W_IND: u16 = 0x40;
    pub(in super::super) const LD_H_IND: u16 = 0x48;
    pub(in super::super) const LD_B_IND: u16 = 0x50;
    pub(in super::super) const LD_IMM: u16 = 0x00;
    pub(in super::super) const LD_MEM: u16 = 0x60;
    pub(in super::super) const LD_LEN: u16 = 0x80;
    pub(in super::super) const LDX_IMM: u16 = 0x01;
    pub(in super::super) const LDX_MEM: u16 = 0x61;
    pub(in super::super) const LDX_LEN: u16 = 0x81;
    pub(in super::super) const LDX_MSH: u16 = 0xb1;
    pub(in super::super) const ST: u16 = 0x02;
    pub(in super::super) const STX: u16 = 0x03;
    pub(in super::super) const ADD_K: u16 = 0x04;
    pub(in super::super) const ADD_X: u16 = 0x0c;
    pub(in super::super) const SUB_K: u16 = 0x14;
    pub(in super::super) const SUB_X: u16 = 0x1c;
    pub(in super::super) const MUL_K: u16 = 0x24;
    pub(in super::super) const MUL_X: u16 = 0x2c;
    pub(in super::super) const DIV_K: u16 = 0x34;
    pub(in super::super) const DIV_X: u16 = 0x3c;
    pub(in super::super) const OR_K: u16 = 0x44;
    pub(in super::super) const OR_X: u16 = 0x4c;
    pub(in super::super) const AND_K: u16 = 0x54;
    pub(in super::super) const AND_X: u16 = 0x5c;
    pub(in super::super) const LSH_K: u16 = 0x64;
    pub(in super::super) const LSH_X: u16 = 0x6c;
    pub(in super::super) const RSH_K: u16 = 0x74;
    pub(in super::super) const RSH_X: u16 = 0x7c;
    pub(in super::super) const NEG: u16 = 0x84;
    pub(in super::super) const MOD_K: u16 = 0x94;
    pub(in super::super) const MOD_X: u16 = 0x9c;
    pub(in super::super) const XOR_K: u16 = 0xa4;
    pub(in super::super) const XOR_X: u16 = 0xac;
    pub(in super::super) const JA: u16 = 0x05;
    pub(in super::super) const JEQ_K: u16 = 0x15;
    pub(in super::super) const JEQ_X: u16 = 0x1d;
    pub(in super::super) const JGT_K: u16 = 0x25;
    pub(in super::super) const JGT_X: u16 = 0x2d;
    pub(in super::super) const JGE_K: u16 = 0x35;
    pub(in super::super) const JGE_X: u16 = 0x3d;
    pub(in super::super) const JSET_K: u16 = 0x45;
    pub(in super::super) const JSET_X: u16 = 0x4d;
    pub(in super::super) const RET_K: u16 = 0x06;
    pub(in super::super) const RET_A: u16 = 0x16;
    pub(in super::super) const TAX: u16 = 0x07;
    pub(in super::super) const TXA: u16 = 0x87;
}

use op::{
    ADD_K, ADD_X, AND_K, AND_X, DIV_K, DIV_X, JA, JEQ_K, JEQ_X, JGE_K, JGE_X, JGT_K, JGT_X, JSET_K, JSET_X,
    LD_B_ABS, LD_B_IND, LD_H_ABS, LD_H_IND, LD_IMM, LD_LEN, LD_MEM, LD_W_ABS, LD_W_IND, LDX_IMM, LDX_LEN,
    LDX_MEM, LDX_MSH, LSH_K, LSH_X, MOD_K, MOD_X, MUL_K, MUL_X, NEG, OR_K, OR_X, RET_A, RET_K, RSH_K, RSH_X,
    ST, STX, SUB_K, SUB_X, TAX, TXA, XOR_K, XOR_X,
};

/// Checks a program.
pub(super) fn verify(program: &[Instruction]) -> Result<(), FilterError> {
    let length = program.len();
    if length == 0 || length > MAX_INSTRUCTIONS {
        return Err(FilterError::Length(length));
    }
    for (at, instruction) in program.iter().enumerate() {
        let Instruction { code, jt, jf, k } = *instruction;
        let is_inside = |distance: u32| (at as u64 + 1 + u64::from(distance)) < length as u64;
        match code {
            LD_W_ABS | LD_H_ABS | LD_B_ABS | LD_W_IND | LD_H_IND | LD_B_IND | LD_IMM | LD_LEN | LDX_IMM
            | LDX_LEN | LDX_MSH | ADD_K | ADD_X | SUB_K | SUB_X | MUL_K | MUL_X | DIV_X | MOD_X | OR_K
            | OR_X | AND_K | AND_X | LSH_X | RSH_X | XOR_K | XOR_X | NEG | TAX | TXA | RET_K | RET_A => {}
            LD_MEM | LDX_MEM | ST | STX if k as usize >= SCRATCH => return Err(FilterError::Scratch(at)),
            LD_MEM | LDX_MEM | ST | STX => {}
            DIV_K | MOD_K if k == 0 => return Err(FilterError::Division(at)),
            DIV_K | MOD_K => {}
            LSH_K | RSH_K if k >= 32 => return Err(FilterError::Shift(at)),
            LSH_K | RSH_K => {}
            JA if !is_inside(k) => return Err(FilterError::Jump(at)),
            JA => {}
            JEQ_K | JEQ_X | JGT_K | JGT_X | JGE_K | JGE_X | JSET_K | JSET_X => {
                if !is_inside(jt.into()) || !is_inside(jf.into()) {
                    return Err(FilterError::Jump(at));
                }
            }
            _ => return Err(FilterError::Unknown { at, code }),
        }
    }
    match program.last().map(|last| last.code) {
        Some(RET_K | RET_A) => Ok(()),
        _ => Err(FilterError::NoReturn),
    }
}
