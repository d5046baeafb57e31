//! Which queue of a TAP device a packet of the kernel goes to. In: addresses, protocol and ports. Out: the same queue
//! for all packets of a flow, in both directions.
//!
//! By itself, the kernel sends a flow to the queue by which the last packet of the other direction came
//! (`tun_flow_update`). So a flow would change its queue, and with it its worker, whenever another worker sends the
//! answers. A BPF program decides instead (`TUNSETSTEERINGEBPF`, Linux 4.16):
//!
//! ```text
//! mix = (addresses, folded and XORed) << 24 | (ports, XORed) << 8 | protocol
//! return ((mix ^ seed) * MULTIPLIER) >> 32        the kernel takes it modulo the number of queues
//! ```
//!
//! Fragments count without ports, so that all of a packet's fragments have one queue. Packets other than IP, with at
//! most one tag, go to the first queue. The seed is random: a sender that chooses its ports cannot choose the queue.

use std::ffi::c_long;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::ifreq::check;

/// `_IOR('T', 224, int)`.
const TUNSETSTEERINGEBPF: libc::Ioctl = 0x8004_54e0;
const PROG_LOAD: c_long = 5;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
/// Attempts to load a program, as in libbpf: the kernel's verifier gives up with `EAGAIN` when a signal is pending.
const ATTEMPTS: u32 = 5;
/// The golden ratio's fraction, which spreads its factor over the upper half (Knuth).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    /// Destination and source register, four bits each; their order follows the byte order.
    registers: u8,
    offset: i16,
    immediate: i32,
}

// Load a byte, half-word or word of the packet at a constant offset, or at that of a register, into register 0
// (`BPF_LD | BPF_ABS`, `BPF_LD | BPF_IND`). A packet that is too short ends the program with 0.
const HALF_AT: u8 = 0x28;
const BYTE_BEHIND: u8 = 0x50;
const HALF_BEHIND: u8 = 0x48;
const WORD_BEHIND: u8 = 0x40;
/// `BPF_LD | BPF_IMM | BPF_DW`: takes two slots.
const LOAD_IMMEDIATE_64: u8 = 0x18;
// `BPF_ALU64` with an immediate (`BPF_K`) or a register (`BPF_X`).
const ADD: u8 = 0x0f;
const ADD_IMMEDIATE: u8 = 0x07;
const MULTIPLY: u8 = 0x2f;
const OR: u8 = 0x4f;
const AND_IMMEDIATE: u8 = 0x57;
const SHIFT_LEFT_IMMEDIATE: u8 = 0x67;
const SHIFT_RIGHT_IMMEDIATE: u8 = 0x77;
const XOR: u8 = 0xaf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const MOVE: u8 = 0xbf;
// `BPF_JMP`.
const JUMP: u8 = 0x05;
const JUMP_IF: u8 = 0x15;
const JUMP_IF_NOT: u8 = 0x55;
const EXIT: u8 = 0x95;

const ETHERTYPE_AT: i32 = 12;
const IPV4: i32 = 0x0800;
const IPV6: i32 = 0x86dd;
const VLAN: i32 = 0x8100;

/// A program under construction. Jumps go forwards, to labels.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Network,
    V6,
    Transport,
    Ports,
    Mix,
    None,
}

// Registers that LD_ABS and LD_IND keep: the packet, the addresses, the rest, and the place of the next header.
const PACKET: u8 = 6;
const ADDRESSES: u8 = 7;
const OTHER_HEADERS: u8 = 8;
const PLACE: u8 = 9;

impl Assembler {
    fn add(&mut self, code: u8, (destination, source): (u8, u8), immediate: i32) {
        let registers = if cfg!(target_endian = "little") {
            source << 4 | destination
        } else {
            destination << 4 | source
        };
        self.code.push(Instruction { code, registers, offset: 0, immediate });
    }

    fn jump(&mut self, code: u8, (register, value): (u8, i32), to: Label) {
        self.jumps.push((self.code.len(), to));
        self.add(code, (register, 0), value);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Loads a number of 64 bits into a register.
    fn number(&mut self, register: u8, number: u64) {
        self.add(LOAD_IMMEDIATE_64, (register, 0), number as u32 as i32);
        self.add(0, (0, 0), (number >> 32) as u32 as i32);
    }

    /// XORs words of the header at the place into the addresses.
    fn fold(&mut self, offsets: impl Iterator<Item = i32>) {
        for offset in offsets {
            self.add(WORD_BEHIND, (0, PLACE), offset);
            self.add(XOR, (ADDRESSES, 0), 0);
        }
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (from, to) in &self.jumps {
            let place = self.labels.iter().find(|(label, _)| label == to).map_or(*from, |(_, place)| *place);
            self.code[*from].offset = (place - from - 1) as i16;
        }
        self.code
    }
}

fn program(seed: u64) -> Vec<Instruction> {
    let mut a = Assembler::default();
    a.add(MOVE, (PACKET, 1), 0);
    a.add(MOVE_IMMEDIATE, (ADDRESSES, 0), 0);
    a.add(MOVE_IMMEDIATE, (PLACE, 0), ETHERTYPE_AT + 2);
    a.add(HALF_AT, (0, 0), ETHERTYPE_AT);
    a.jump(JUMP_IF_NOT, (0, VLAN), Label::Network);
    a.add(MOVE_IMMEDIATE, (PLACE, 0), ETHERTYPE_AT + 6);
    a.add(HALF_AT, (0, 0), ETHERTYPE_AT + 4);
    a.label(Label::Network);
    a.jump(JUMP_IF, (0, IPV6), Label::V6);
    a.jump(JUMP_IF_NOT, (0, IPV4), Label::None);
    a.fold([12, 16].into_iter());
    a.add(BYTE_BEHIND, (0, PLACE), 9);
    a.add(MOVE, (OTHER_HEADERS, 0), 0);
    // More fragments, or an offset.
    a.add(HALF_BEHIND, (0, PLACE), 6);
    a.add(AND_IMMEDIATE, (0, 0), 0x3fff);
    a.jump(JUMP_IF_NOT, (0, 0), Label::Mix);
    a.add(BYTE_BEHIND, (0, PLACE), 0);
    a.add(AND_IMMEDIATE, (0, 0), 15);
    a.add(SHIFT_LEFT_IMMEDIATE, (0, 0), 2);
    a.add(ADD, (PLACE, 0), 0);
    a.jump(JUMP, (0, 0), Label::Transport);
    a.label(Label::V6);
    a.fold((8..40).step_by(4));
    a.add(BYTE_BEHIND, (0, PLACE), 6);
    a.add(MOVE, (OTHER_HEADERS, 0), 0);
    a.add(ADD_IMMEDIATE, (PLACE, 0), 40);
    a.label(Label::Transport);
    a.jump(JUMP_IF, (OTHER_HEADERS, libc::IPPROTO_TCP), Label::Ports);
    a.jump(JUMP_IF, (OTHER_HEADERS, libc::IPPROTO_UDP), Label::Ports);
    a.jump(JUMP_IF_NOT, (OTHER_HEADERS, libc::IPPROTO_SCTP), Label::Mix);
    a.label(Label::Ports);
    a.add(WORD_BEHIND, (0, PLACE), 0);
    a.add(MOVE, (1, 0), 0);
    a.add(SHIFT_RIGHT_IMMEDIATE, (1, 0), 16);
    a.add(XOR, (0, 1), 0);
    a.add(AND_IMMEDIATE, (0, 0), 0xffff);
    a.add(SHIFT_LEFT_IMMEDIATE, (0, 0), 8);
    a.add(OR, (OTHER_HEADERS, 0), 0);
    a.label(Label::Mix);
    a.add(MOVE, (0, ADDRESSES), 0);
    a.add(SHIFT_LEFT_IMMEDIATE, (0, 0), 24);
    a.add(OR, (0, OTHER_HEADERS), 0);
    a.number(1, seed);
    a.add(XOR, (0, 1), 0);
    a.number(1, MULTIPLIER);
    a.add(MULTIPLY, (0, 1), 0);
    a.add(SHIFT_RIGHT_IMMEDIATE, (0, 0), 32);
    a.add(EXIT, (0, 0), 0);
    a.label(Label::None);
    a.add(MOVE_IMMEDIATE, (0, 0), 0);
    a.add(EXIT, (0, 0), 0);
    a.finish()
}

fn load() -> io::Result<OwnedFd> {
    static SEED: OnceLock<u64> = OnceLock::new();
    /// The attributes of `BPF_PROG_LOAD` that are needed.
    #[repr(C)]
    struct Attributes {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
    }
    let program = program(*SEED.get_or_init(|| RandomState::new().hash_one(0)));
    let license = c"Apache-2.0";
    let attributes = Attributes {
        prog_type: PROG_TYPE_SOCKET_FILTER,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
    };
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        // SAFETY: attributes of BPF_PROG_LOAD without padding, and their size; instructions and license outlive the
        // call, the instruction count is right, the license ends in zero.
        let fd = unsafe {
            libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const attributes, size_of::<Attributes>())
        };
        match check(fd as libc::c_int) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && left > 0 => {}
            // SAFETY: the descriptor is new, so it has no other owner.
            outcome => return outcome.map(|_| unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }),
        }
    }
}

/// Has a TAP device with several queues send all packets of a flow to one of them.
///
/// # Errors
/// The kernel has no such programs, or this process may not load them: flows then follow their answers.
pub(crate) fn by_flow(queue: BorrowedFd<'_>) -> io::Result<()> {
    let program = load()?;
    let number = program.as_raw_fd();
    // SAFETY: the kernel reads an int; it takes a reference to the program of its own.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETSTEERINGEBPF, &raw const number) })?;
    Ok(())
}
