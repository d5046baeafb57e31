// SPDX-License-Identifier: Apache-2.0
//! The interpreter.

use super::verify::{SCRATCH, op};
use super::{Instruction, Outcome};

/// A packet, of which a front is at hand.
#[derive(Clone, Copy)]
struct Front<'a> {
    bytes: &'a [u8],
    /// Bytes of the whole packet.
    length: u32,
    is_outbound: bool,
}

/// Where libpcap's `inbound` and `outbound` load the packet's type (`SKF_AD_OFF + SKF_AD_PKTTYPE` of Linux's filter.h),
/// and the type of those that go out (`PACKET_OUTGOING`).
const TYPE_AT: u32 = 0xffff_f004;
const OUTGOING: u32 = 4;

/// Why a load gave nothing: the packet ends there, or only its front.
type Loaded = Result<u32, Outcome>;

impl Front<'_> {
    #[inline(always)]
    fn load<const BYTES: usize>(self, base: u32, offset: u32) -> Loaded {
        let missing = Err(Outcome::Reject);
        let Some(at) = base.checked_add(offset) else { return missing };
        let Some(end) = at.checked_add(BYTES as u32) else { return missing };
        match self.bytes.get(at as usize..end as usize) {
            Some(bytes) => Ok(bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))),
            None if end <= self.length => Err(Outcome::Beyond),
            None => missing,
        }
    }

    /// A load from a fixed offset. The packet's type lies beyond all packets.
    #[inline(always)]
    fn load_at<const BYTES: usize>(self, offset: u32) -> Loaded {
        match self.load::<BYTES>(0, offset) {
            Err(Outcome::Reject) if offset == TYPE_AT => Ok(if self.is_outbound { OUTGOING } else { 0 }),
            loaded => loaded,
        }
    }
}

/// Runs a verified program.
pub(super) fn run(program: &[Instruction], bytes: &[u8], length: u32, is_outbound: bool) -> Outcome {
    match interpret(program, Front { bytes, length, is_outbound }) {
        Ok(0) => Outcome::Reject,
        Ok(_) => Outcome::Accept,
        Err(outcome) => outcome,
    }
}

/// The value that the program returns. Jumps go forward only, so this ends.
fn interpret(program: &[Instruction], packet: Front<'_>) -> Loaded {
    let (mut a, mut x, mut scratch) = (0u32, 0u32, [0u32; SCRATCH]);
    let mut at = 0;
    while let Some(&Instruction { code, jt, jf, k }) = program.get(at) {
        at += 1;
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            op::LD_W_ABS => a = packet.load_at::<4>(k)?,
            op::LD_H_ABS => a = packet.load_at::<2>(k)?,
            op::LD_B_ABS => a = packet.load_at::<1>(k)?,
            op::LD_W_IND => a = packet.load::<4>(x, k)?,
            op::LD_H_IND => a = packet.load::<2>(x, k)?,
            op::LD_B_IND => a = packet.load::<1>(x, k)?,
            op::LD_IMM => a = k,
            op::LD_MEM => a = scratch[k as usize % SCRATCH],
            op::LD_LEN => a = packet.length,
            op::LDX_IMM => x = k,
            op::LDX_MEM => x = scratch[k as usize % SCRATCH],
            op::LDX_LEN => x = packet.length,
            op::LDX_MSH => x = (packet.load::<1>(0, k)? & 0xf) << 2,
            op::ST => scratch[k as usize % SCRATCH] = a,
            op::STX => scratch[k as usize % SCRATCH] = x,
            op::JA => at += k as usize,
            op::JEQ_K => at += jump(a == k),
            op::JEQ_X => at += jump(a == x),
            op::JGT_K => at += jump(a > k),
            op::JGT_X => at += jump(a > x),
            op::JGE_K => at += jump(a >= k),
            op::JGE_X => at += jump(a >= x),
            op::JSET_K => at += jump(a & k != 0),
            op::JSET_X => at += jump(a & x != 0),
            op::RET_K => return Ok(k),
            op::RET_A => return Ok(a),
            op::TAX => x = a,
            op::TXA => a = x,
            op::NEG => a = a.wrapping_neg(),
            _ => {
                // The operand is the constant or the index register, by a bit of the operation.
                let operand = if code & 0x08 == 0 { k } else { x };
                a = arithmetic(code & !0x08, a, operand).ok_or(Outcome::Reject)?;
            }
        }
    }
    // Not reached: the last instruction returns.
    Ok(0)
}

/// An arithmetic operation; `None` for a division by 0, which ends the program.
#[inline(always)]
fn arithmetic(code: u16, a: u32, operand: u32) -> Option<u32> {
    match code {
        op::ADD_K => Some(a.wrapping_add(operand)),
        op::SUB_K => Some(a.wrapping_sub(operand)),
        op::MUL_K => Some(a.wrapping_mul(operand)),
        op::DIV_K => a.checked_div(operand),
        op::MOD_K => a.checked_rem(operand),
        op::AND_K => Some(a & operand),
        op::OR_K => Some(a | operand),
        op::XOR_K => Some(a ^ operand),
        op::LSH_K => Some(a.checked_shl(operand).unwrap_or(0)),
        op::RSH_K => Some(a.checked_shr(operand).unwrap_or(0)),
        _ => None,
    }
}
