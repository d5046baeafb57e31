// SPDX-License-Identifier: Apache-2.0
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

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use netvm_bpf::Register::{R0, R1, R6, R7, R8, R9};
use netvm_bpf::Size::{Byte, Half, Word};
use netvm_bpf::Test::{Equal, HasBit, NotEqual};
use netvm_bpf::{Assembler, AssemblyError, Instruction, Program, ProgramKind, Register};

use crate::ifreq::check;

/// `_IOR('T', 224, int)`.
const TUNSETSTEERINGEBPF: libc::Ioctl = 0x8004_54e0;
/// The golden ratio's fraction, which spreads its factor over the upper half (Knuth).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

const ETHERTYPE_AT: i32 = 12;
const IPV4: i32 = 0x0800;
const IPV6: i32 = 0x86dd;
const VLAN: i32 = 0x8100;
/// More fragments, or an offset.
const FRAGMENT: i32 = 0x3fff;

// Registers that loads from the packet keep: the packet, the addresses, the rest, and the place of the next header.
const PACKET: Register = R6;
const ADDRESSES: Register = R7;
const OTHER_HEADERS: Register = R8;
const PLACE: Register = R9;

/// XORs words of the header at the place into the addresses.
fn fold(program: &mut Assembler, offsets: impl Iterator<Item = i16>) {
    for offset in offsets {
        program.load_packet_behind(Word, PLACE.at(offset)).xor(ADDRESSES, R0);
    }
}

fn program(seed: u64) -> Result<Vec<Instruction>, AssemblyError> {
    let mut program = Assembler::default();
    let [network, ipv6, transport, ports, mix, none] = [(); 6].map(|()| program.label());
    program.set(PACKET, R1).set(ADDRESSES, 0).set(PLACE, ETHERTYPE_AT + 2);
    program.load_packet(Half, ETHERTYPE_AT).jump_if(R0.is(NotEqual, VLAN), network);
    program.set(PLACE, ETHERTYPE_AT + 6).load_packet(Half, ETHERTYPE_AT + 4);
    program.bind(network);
    program.jump_if(R0.is(Equal, IPV6), ipv6).jump_if(R0.is(NotEqual, IPV4), none);
    fold(&mut program, [12, 16].into_iter());
    program.load_packet_behind(Byte, PLACE.at(9)).set(OTHER_HEADERS, R0);
    program.load_packet_behind(Half, PLACE.at(6)).jump_if(R0.is(HasBit, FRAGMENT), mix);
    program
        .load_packet_behind(Byte, PLACE.at(0))
        .and(R0, 15)
        .shift_left(R0, 2)
        .add(PLACE, R0)
        .jump(transport);
    program.bind(ipv6);
    fold(&mut program, (8..40).step_by(4));
    program.load_packet_behind(Byte, PLACE.at(6)).set(OTHER_HEADERS, R0).add(PLACE, 40);
    program.bind(transport);
    program.jump_if(OTHER_HEADERS.is(Equal, libc::IPPROTO_TCP), ports);
    program.jump_if(OTHER_HEADERS.is(Equal, libc::IPPROTO_UDP), ports);
    program.jump_if(OTHER_HEADERS.is(NotEqual, libc::IPPROTO_SCTP), mix);
    program.bind(ports);
    program.load_packet_behind(Word, PLACE.at(0)).set(R1, R0).shift_right(R1, 16).xor(R0, R1);
    program.and(R0, 0xffff).shift_left(R0, 8).or(OTHER_HEADERS, R0);
    program.bind(mix);
    program.set(R0, ADDRESSES).shift_left(R0, 24).or(R0, OTHER_HEADERS);
    program.set_number(R1, seed).xor(R0, R1).set_number(R1, MULTIPLIER).multiply(R0, R1);
    program.shift_right(R0, 32).exit();
    program.bind(none);
    program.set(R0, 0).exit();
    program.finish()
}

/// Has a TAP device with several queues send all packets of a flow to one of them.
///
/// # Errors
/// The kernel has no such programs, or this process may not load them: flows then follow their answers.
pub(crate) fn by_flow(queue: BorrowedFd<'_>) -> io::Result<()> {
    static SEED: OnceLock<u64> = OnceLock::new();
    let program = program(*SEED.get_or_init(|| RandomState::new().hash_one(0)))?;
    let program = Program::load(ProgramKind::SocketFilter, &program).map_err(|error| error.source)?;
    let number = program.as_fd().as_raw_fd();
    // SAFETY: the kernel reads an int; it takes a reference to the program of its own.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETSTEERINGEBPF, &raw const number) })?;
    Ok(())
}
