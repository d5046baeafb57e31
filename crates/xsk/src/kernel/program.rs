//! The XDP program that redirects packets to the sockets, its map of sockets, and the link that attaches it to an
//! interface.
//!
//! ```text
//! core = bpf_get_smp_processor_id() + 1;
//! if (ctx->rx_queue_index < queues && cores[ctx->rx_queue_index] != core)
//!     cores[ctx->rx_queue_index] = core;
//! return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
//! ```
//!
//! A packet goes to the socket of its queue if the map has one, otherwise to the kernel's network stack. The program
//! also records the core that it ran on ([`CoreMap`]), which costs some ten cycles a packet. A BPF link attaches the
//! program: the kernel detaches it when the last descriptor of the link is closed, so a process leaves nothing behind
//! however it ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libc::c_int;

use crate::kernel::cores::CoreMap;
use crate::kernel::map::{MapShape, NAME, new_map};
use crate::kernel::sys;

// Commands of `enum bpf_cmd`.
const MAP_UPDATE_ELEM: c_int = 2;
const PROG_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;
const LINK_DETACH: c_int = 34;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
/// Attempts to load a program, as in libbpf: the kernel's verifier gives up with `EAGAIN` when a signal is pending.
const ATTEMPTS: u32 = 5;
/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;

/// `XDP_FLAGS_SKB_MODE` of `linux/if_link.h`: runs on skbs, with any driver.
pub(crate) const FLAG_GENERIC: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`: runs in the driver.
pub(crate) const FLAG_NATIVE: u32 = 1 << 2;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Destination and source register, four bits each; their order follows the byte order.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// An instruction without an offset and an immediate.
const fn instruction(code: u8, destination: u8, source: u8) -> Instruction {
    let registers =
        if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source };
    Instruction { code, registers, offset: 0, immediate: 0 }
}

impl Instruction {
    const fn offset(self, offset: i16) -> Self {
        Self { offset, ..self }
    }

    const fn immediate(self, immediate: i32) -> Self {
        Self { immediate, ..self }
    }
}

/// The program, for the maps with these descriptors and a number of queues.
fn instructions(sockets: RawFd, cores: RawFd, queues: u32) -> [Instruction; 18] {
    /// `BPF_LDX | BPF_MEM | BPF_W`.
    const LOAD_WORD: u8 = 0x61;
    /// `BPF_STX | BPF_MEM | BPF_W`.
    const STORE_WORD: u8 = 0x63;
    /// `BPF_LD | BPF_IMM | BPF_DW`: takes two slots.
    const LOAD_IMMEDIATE_64: u8 = 0x18;
    /// `BPF_ALU64` with `BPF_ADD`, `BPF_LSH` and `BPF_MOV`, of an immediate (`BPF_K`) or a register (`BPF_X`).
    const ADD_IMMEDIATE: u8 = 0x07;
    const ADD: u8 = 0x0f;
    const SHIFT_LEFT_IMMEDIATE: u8 = 0x67;
    const MOVE_IMMEDIATE: u8 = 0xb7;
    const MOVE: u8 = 0xbf;
    /// `BPF_JMP` with `BPF_JEQ | BPF_X`, `BPF_JGE | BPF_K`, `BPF_CALL` and `BPF_EXIT`.
    const JUMP_IF_EQUAL: u8 = 0x1d;
    const JUMP_IF_AT_LEAST_IMMEDIATE: u8 = 0x35;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// Source registers that mark the immediate as the descriptor of a map, or of a map whose first value is meant
    /// (`BPF_PSEUDO_MAP_FD`, `BPF_PSEUDO_MAP_VALUE`).
    const MAP_DESCRIPTOR: u8 = 1;
    const MAP_VALUE: u8 = 2;
    /// Offset of `rx_queue_index` in `struct xdp_md`.
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    /// `BPF_FUNC_get_smp_processor_id`, and `BPF_FUNC_redirect_map`: (map, key, action without a socket).
    const CORE: i32 = 8;
    const REDIRECT_MAP: i32 = 51;
    [
        instruction(LOAD_WORD, 6, 1).offset(RX_QUEUE_INDEX),
        instruction(CALL, 0, 0).immediate(CORE),
        instruction(ADD_IMMEDIATE, 0, 0).immediate(1),
        instruction(JUMP_IF_AT_LEAST_IMMEDIATE, 6, 0).offset(8).immediate(queues.cast_signed()),
        instruction(MOVE, 2, 6),
        instruction(SHIFT_LEFT_IMMEDIATE, 2, 0).immediate(2),
        instruction(LOAD_IMMEDIATE_64, 1, MAP_VALUE).immediate(cores),
        instruction(0, 0, 0),
        instruction(ADD, 1, 2),
        instruction(LOAD_WORD, 3, 1),
        instruction(JUMP_IF_EQUAL, 3, 0).offset(1),
        instruction(STORE_WORD, 1, 0),
        instruction(MOVE, 2, 6),
        instruction(LOAD_IMMEDIATE_64, 1, MAP_DESCRIPTOR).immediate(sockets),
        instruction(0, 0, 0),
        instruction(MOVE_IMMEDIATE, 3, 0).immediate(XDP_PASS),
        instruction(CALL, 0, 0).immediate(REDIRECT_MAP),
        instruction(EXIT, 0, 0),
    ]
}

/// The map from queue number to socket.
#[derive(Debug)]
pub(crate) struct SocketMap(OwnedFd);

impl SocketMap {
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        let shape = MapShape { kind: MAP_TYPE_XSKMAP, value_bytes: 4, entries: queues, flags: 0 };
        new_map(shape).map(Self)
    }

    /// Redirects packets of `queue` to `socket`. The kernel removes the entry when the socket is closed.
    pub(crate) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            map_fd: u32,
            pad: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let value = socket.as_raw_fd();
        let attributes = Attributes {
            map_fd: self.0.as_raw_fd().unsigned_abs(),
            pad: 0,
            key: (&raw const queue).addr() as u64,
            value: (&raw const value).addr() as u64,
            flags: 0,
        };
        // SAFETY: the attributes of BPF_MAP_UPDATE_ELEM without padding; key and value have the four bytes each that
        // the map was created with, and outlive the call.
        unsafe { sys::bpf(MAP_UPDATE_ELEM, &attributes) }.map(|_| ())
    }
}

/// The loaded program.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

impl Program {
    /// The program for an interface with `queues` queues.
    pub(crate) fn load(sockets: &SocketMap, cores: &CoreMap, queues: u32) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            prog_type: u32,
            insn_cnt: u32,
            insns: u64,
            license: u64,
            log_level: u32,
            log_size: u32,
            log_buf: u64,
            kern_version: u32,
            prog_flags: u32,
            name: [u8; 16],
            prog_ifindex: u32,
            expected_attach_type: u32,
        }
        let instructions = instructions(sockets.0.as_raw_fd(), cores.as_fd().as_raw_fd(), queues);
        let license = c"Apache-2.0";
        let attributes = Attributes {
            prog_type: PROG_TYPE_XDP,
            insn_cnt: instructions.len() as u32,
            insns: instructions.as_ptr().addr() as u64,
            license: license.as_ptr().addr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: 0,
            name: NAME,
            prog_ifindex: 0,
            expected_attach_type: ATTACH_XDP,
        };
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            // SAFETY: the attributes of BPF_PROG_LOAD without padding; instructions and license outlive the call, the
            // instruction count is right, the license ends in zero; the command returns a descriptor.
            match unsafe { sys::bpf_fd(PROG_LOAD, &attributes) } {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && left > 0 => {}
                outcome => return outcome.map(Self),
            }
        }
    }
}

/// An attached program. Dropping it detaches the program.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    /// Attaches to an interface in the calling thread's network namespace, with [`FLAG_NATIVE`] or [`FLAG_GENERIC`].
    pub(crate) fn attach(program: &Program, ifindex: u32, flags: u32) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            prog_fd: u32,
            target_ifindex: u32,
            attach_type: u32,
            flags: u32,
        }
        let attributes = Attributes {
            prog_fd: program.0.as_raw_fd().unsigned_abs(),
            target_ifindex: ifindex,
            attach_type: ATTACH_XDP,
            flags,
        };
        // SAFETY: the attributes of BPF_LINK_CREATE, without addresses or padding; it returns a descriptor.
        unsafe { sys::bpf_fd(LINK_CREATE, &attributes) }.map(Self)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let link = self.0.as_raw_fd().unsigned_abs();
        // Closing the descriptor is not enough, as a process forked meanwhile may have a copy of it.
        // SAFETY: the attributes of BPF_LINK_DETACH: the link's descriptor.
        let _ = unsafe { sys::bpf(LINK_DETACH, &link) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `clang -target bpf` assembles, and the marks of maps, which it leaves to the loader, with map
    /// descriptors 0x0a0b0c0d and 0x00010203 and four queues.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_encoded_as_clang_does() {
        let expected: [[u8; 8]; 18] = [
            [0x61, 0x16, 0x10, 0, 0, 0, 0, 0],
            [0x85, 0, 0, 0, 8, 0, 0, 0],
            [7, 0, 0, 0, 1, 0, 0, 0],
            [0x35, 6, 8, 0, 4, 0, 0, 0],
            [0xbf, 0x62, 0, 0, 0, 0, 0, 0],
            [0x67, 2, 0, 0, 2, 0, 0, 0],
            [0x18, 0x21, 0, 0, 3, 2, 1, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0x0f, 0x21, 0, 0, 0, 0, 0, 0],
            [0x61, 0x13, 0, 0, 0, 0, 0, 0],
            [0x1d, 3, 1, 0, 0, 0, 0, 0],
            [0x63, 1, 0, 0, 0, 0, 0, 0],
            [0xbf, 0x62, 0, 0, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xb7, 3, 0, 0, 2, 0, 0, 0],
            [0x85, 0, 0, 0, 0x33, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        let bytes = instructions(0x0a0b_0c0d, 0x0001_0203, 4).map(|i| {
            let [offset0, offset1] = i.offset.to_ne_bytes();
            let [imm0, imm1, imm2, imm3] = i.immediate.to_ne_bytes();
            [i.code, i.registers, offset0, offset1, imm0, imm1, imm2, imm3]
        });
        assert_eq!(bytes, expected);
        assert_eq!(size_of::<Instruction>(), 8);
    }
}
