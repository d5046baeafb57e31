// SPDX-License-Identifier: Apache-2.0
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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netvm_bpf::{
    Assembler, AssemblyError, Instruction, LoadError, Map, MapKind, MapShape, Program, ProgramKind, Register,
    Size, Test, function,
};

use crate::kernel::cores::CoreMap;

/// Offset of `rx_queue_index` in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;
const XDP_PASS: i32 = 2;

/// The program, for these maps and a number of queues.
fn instructions(
    sockets: BorrowedFd<'_>,
    cores: BorrowedFd<'_>,
    queues: u32,
) -> Result<Vec<Instruction>, AssemblyError> {
    use Register::{R0, R1, R2, R3, R6};
    let mut program = Assembler::default();
    let redirect = program.label();
    program.load(Size::Word, R6, R1.at(RX_QUEUE_INDEX)).call(function::CORE).add(R0, 1);
    program.jump_if(R6.is(Test::AtLeast, queues.cast_signed()), redirect);
    program.set(R2, R6).shift_left(R2, 2).load_map_value(R1, cores, 0).add(R1, R2);
    program.load(Size::Word, R3, R1.at(0)).jump_if(R3.is(Test::Equal, R0), redirect);
    program.store(Size::Word, R1.at(0), R0);
    program.bind(redirect);
    program.set(R2, R6).load_map(R1, sockets).set(R3, XDP_PASS).call(function::REDIRECT_MAP).exit();
    program.finish()
}

/// The map from queue number to socket.
#[derive(Debug)]
pub(crate) struct SocketMap(Map);

impl SocketMap {
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        let shape = MapShape { kind: MapKind::Xsk, key_bytes: 4, value_bytes: 4, entries: queues, flags: 0 };
        Map::new(shape).map(Self)
    }

    /// Redirects packets of `queue` to `socket`. The kernel removes the entry when the socket is closed.
    pub(crate) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.0.set(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }
}

/// Loads the program for an interface with `queues` queues.
pub(crate) fn load(sockets: &SocketMap, cores: &CoreMap, queues: u32) -> Result<Program, LoadError> {
    Program::load(ProgramKind::Xdp, &instructions(sockets.0.as_fd(), cores.as_fd(), queues)?)
}
