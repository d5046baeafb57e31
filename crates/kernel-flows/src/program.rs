// SPDX-License-Identifier: Apache-2.0
//! The programs, which run when a packet comes from a container, and when one comes from netvm by a TAP device.
//!
//! Whatever the programs do not fully understand is a miss: it costs netvm's time, but no packet goes astray.

use std::os::fd::{AsFd, BorrowedFd};

use netvm_bpf::{Assembler, AssemblyError, Instruction, Label, Place, Register, Size, Test, function};

use crate::ends::PortEnds;
use crate::table::Table;
use crate::{flow, key, state};

use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Stack};
use Size::{Byte, Double, Half, Word};
use Test::{Equal, Greater, HasBit, NotEqual};

/// Offsets in `struct __sk_buff`.
mod skb {
    pub(super) const LENGTH: i16 = 0;
    pub(super) const VLAN_PRESENT: i16 = 20;
    pub(super) const DATA: i16 = 76;
    pub(super) const DATA_END: i16 = 80;
    pub(super) const SEGMENTS: i16 = 164;
    pub(super) const SEGMENT_SIZE: i16 = 176;
}

/// `PACKET_HOST`: for this machine.
const PACKET_HOST: i32 = 0;
/// EtherTypes as a program of this byte order reads them.
const IPV4: i32 = 0x0800_u16.to_be() as i32;
const IPV6: i32 = 0x86dd_u16.to_be() as i32;
/// More fragments, and the offset of a fragment, likewise.
const FRAGMENT: i32 = 0x3fff_u16.to_be() as i32;
/// Version 4 and a header of 20 bytes.
const PLAIN_IPV4: i32 = 0x45;
const TCP: i32 = 6;
const UDP: i32 = 17;
/// FIN, SYN and RST.
const OPENS_OR_CLOSES: i32 = 7;
/// Bytes of an Ethernet header, and behind the IP headers.
const ETHERNET: i16 = 14;
const BEHIND_IPV4: i16 = 34;
const BEHIND_IPV6: i16 = 54;
/// The third quarter of an IPv4-mapped address of IPv6, likewise.
const MAPPED: u64 = 0x0000_ffff_u32.to_be() as u64;
/// Bytes of headers.
const TCP_HEADER: i32 = 20;
const UDP_HEADER: i32 = 8;

/// The key on the stack.
const KEY: i16 = -(key::BYTES as i16);
/// Below it: flags of TCP, bytes of all headers, and the time.
const TCP_FLAGS: i16 = KEY - 8;
const HEADERS: i16 = KEY - 16;
const NOW: i16 = KEY - 24;
/// Bytes of the frame up to the end of the IP packet.
const END: i16 = KEY - 32;
/// The new TTL or hop limit; of IPv4 also the protocol and the checksum, as in the header.
const TTL: i16 = KEY - 40;
/// The slot of a port.
const TARGET: i16 = KEY - 48;
/// Where these are in a frame.
const TTL_V4: i16 = ETHERNET + 8;
const TTL_V6: i16 = ETHERNET + 7;
/// What a TTL that is one less adds to the sum of the header (RFC 1624 equation 3).
const ONE_HOP: i32 = 0xfeff;
/// `TCX_DROP`.
const DROP: i32 = 2;
/// Bytes of what changes, for a checksum.
const WORD: i32 = 4;
/// `BPF_F_PSEUDO_HDR`: the pseudo header has it, too.
const OF_PSEUDO_HEADER: i32 = 0x10;
/// `BPF_F_MARK_MANGLED_0`: UDP without a checksum stays so.
const NO_CHECKSUM_IS_ZERO: i32 = 0x20;
/// `BPF_F_RECOMPUTE_CSUM`: a checksum of the whole packet follows the change.
const FOLLOWED: i32 = 1;

const fn in_key(at: usize) -> Place {
    Stack.at(KEY + at as i16)
}

/// Loads the bounds of a packet whose `skb` is in R6 to R7 and R8, and goes elsewhere if it is shorter.
fn begin(program: &mut Assembler, least: i16, shorter: Label) {
    program.set(R6, R1).load(Word, R7, R6.at(skb::DATA)).load(Word, R8, R6.at(skb::DATA_END));
    require(program, R7, least.into(), shorter);
}

/// Goes elsewhere if the packet, which ends at R8, has fewer bytes behind a place.
fn require(program: &mut Assembler, from: Register, bytes: i32, shorter: Label) {
    program.set(R2, from).add(R2, bytes).jump_if(R2.is(Greater, R8), shorter);
}

/// `to` = the big-endian number of two bytes at a place. Uses R1.
fn load_number(program: &mut Assembler, to: Register, place: [Place; 2]) {
    program.load(Byte, to, place[0]).shift_left(to, 8).load(Byte, R1, place[1]).or(to, R1);
}

/// Runs for what the port of a slot receives from its container.
pub(crate) fn from_container(table: &Table, ends: &PortEnds) -> Result<Vec<Instruction>, AssemblyError> {
    let (mut program, state) = (Assembler::default(), table.state());
    let miss = program.label();
    begin(&mut program, BEHIND_IPV4 + UDP_HEADER as i16, miss);
    program.load(Word, R2, R6.at(skb::VLAN_PRESENT)).jump_if(R2.is(NotEqual, 0), miss);
    network_part(&mut program, ends.slot, miss);
    transport_part(&mut program, miss);
    program.call(function::COARSE_TIME).store(Double, Stack.at(NOW), R0);
    look_up(&mut program, table, ends.slot, miss);
    check_lease(&mut program, state, miss);
    check_flow(&mut program, table, miss);
    route(&mut program, miss);
    translate(&mut program);
    count(&mut program);
    // The container's kernel takes it for its own, whatever the MAC address of this end of the pair.
    program.set(R1, R6).set(R2, PACKET_HOST).call(function::CHANGE_TYPE);
    program.load(Word, R1, R9.at(flow::INTERFACE)).set(R2, 0).call(function::REDIRECT_PEER).exit();
    program.bind(miss);
    program.set(R1, ends.tap.cast_signed()).set(R2, 0).call(function::REDIRECT).exit();
    program.finish()
}

/// Ethernet and IP in the key. Returns with the transport header at R9 and the IP protocol in R3.
fn network_part(program: &mut Assembler, slot: u32, miss: Label) {
    let (ipv6, transport) = (program.label(), program.label());
    for at in (0..key::BYTES).step_by(8) {
        program.store(Double, in_key(at), 0);
    }
    program.store(Word, in_key(key::SLOT), slot.cast_signed());
    program.load(Double, R2, R7.at(0)).store(Double, in_key(key::MACS), R2);
    program.load(Word, R2, R7.at(8)).store(Word, in_key(key::MACS + 8), R2);
    program.load(Half, R2, R7.at(12)).store(Half, in_key(key::ETHERTYPE), R2);
    program.jump_if(R2.is(Equal, IPV6), ipv6);
    program.jump_if(R2.is(NotEqual, IPV4), miss);
    program.load(Byte, R2, R7.at(ETHERNET)).jump_if(R2.is(NotEqual, PLAIN_IPV4), miss);
    program.load(Half, R2, R7.at(ETHERNET + 6)).jump_if(R2.is(HasBit, FRAGMENT), miss);
    load_number(program, R5, [R7.at(ETHERNET + 2), R7.at(ETHERNET + 3)]);
    program.add(R5, i32::from(ETHERNET)).load(Byte, R3, R7.at(ETHERNET + 9));
    program.load(Word, R2, R7.at(ETHERNET + 12)).store(Word, in_key(key::SOURCE), R2);
    program.load(Word, R2, R7.at(ETHERNET + 16)).store(Word, in_key(key::DESTINATION), R2);
    program.set(R9, R7).add(R9, i32::from(BEHIND_IPV4)).set(R4, i32::from(BEHIND_IPV4)).jump(transport);
    program.bind(ipv6);
    require(program, R7, i32::from(BEHIND_IPV6) + UDP_HEADER, miss);
    program.load(Byte, R2, R7.at(ETHERNET)).shift_right(R2, 4).jump_if(R2.is(NotEqual, 6), miss);
    load_number(program, R5, [R7.at(ETHERNET + 4), R7.at(ETHERNET + 5)]);
    program.add(R5, i32::from(BEHIND_IPV6)).load(Byte, R3, R7.at(ETHERNET + 6));
    for address in [ETHERNET + 8, ETHERNET + 24] {
        not_mapped(program, address, miss);
    }
    // Source and destination one after the other, as in the key.
    for part in (0..32).step_by(8) {
        let to = in_key(key::SOURCE + part as usize);
        program.load(Double, R2, R7.at(ETHERNET + 8 + part)).store(Double, to, R2);
    }
    program.set(R9, R7).add(R9, i32::from(BEHIND_IPV6)).set(R4, i32::from(BEHIND_IPV6));
    program.bind(transport);
    // The IP packet is not longer than the frame.
    program.load(Word, R2, R6.at(skb::LENGTH)).jump_if(R5.is(Greater, R2), miss);
    program.store(Double, Stack.at(END), R5);
}

/// Goes to `miss` if an address of IPv6 is one of IPv4 (RFC 4291 section 2.5.5.2), which no packet may have.
fn not_mapped(program: &mut Assembler, at: i16, miss: Label) {
    let fine = program.label();
    program.load(Double, R2, R7.at(at)).jump_if(R2.is(NotEqual, 0), fine);
    program.load(Word, R2, R7.at(at + 8)).set_number(R1, MAPPED).jump_if(R2.is(Equal, R1), miss);
    program.bind(fine);
}

/// Protocol and ports in the key, and what else is asked of the packet, on the stack. Uses R3, R4 and R9 of
/// `network_part`.
fn transport_part(program: &mut Assembler, miss: Label) {
    let (udp, done) = (program.label(), program.label());
    program.store(Byte, in_key(key::PROTOCOL), R3);
    program.load(Word, R2, R9.at(0)).store(Word, in_key(key::PORTS), R2);
    program.set(R5, 0).jump_if(R3.is(Equal, UDP), udp);
    program.jump_if(R3.is(NotEqual, TCP), miss);
    require(program, R9, TCP_HEADER, miss);
    // Its length is the upper half of byte 12, in words.
    program.load(Byte, R2, R9.at(12)).shift_right(R2, 4).shift_left(R2, 2).add(R4, R2);
    program.set(R1, TCP_HEADER).jump_if(R1.is(Greater, R2), miss);
    program.load(Byte, R5, R9.at(13)).jump(done);
    program.bind(udp);
    load_number(program, R2, [R9.at(4), R9.at(5)]);
    program.set(R1, UDP_HEADER).jump_if(R1.is(Greater, R2), miss);
    program.add(R2, R4).load(Double, R1, Stack.at(END)).jump_if(R2.is(Greater, R1), miss);
    program.add(R4, UDP_HEADER);
    program.bind(done);
    // Its headers are within the IP packet.
    program.load(Double, R1, Stack.at(END)).jump_if(R4.is(Greater, R1), miss);
    program.store(Double, Stack.at(TCP_FLAGS), R5).store(Double, Stack.at(HEADERS), R4);
}

/// Whether netvm lives, or the flow at R9 does not need it.
fn check_lease(program: &mut Assembler, state: BorrowedFd<'_>, miss: Label) {
    let holds = program.label();
    program.load_map_value(R1, state, state::LEASE).load(Double, R2, R1.at(0));
    program.load(Double, R1, Stack.at(NOW)).jump_if(R2.is(Test::AtLeast, R1), holds);
    program.load(Word, R1, R9.at(flow::FLAGS)).and(R1, flow::FLAG_CONTINUES).jump_if(R1.is(Equal, 0), miss);
    program.bind(holds);
}

/// Looks the key up as far as the mask of the port goes. Returns with the flow at R9, and the port's epoch in R7.
fn look_up(program: &mut Assembler, table: &Table, slot: u32, miss: Label) {
    program.load_map_value(R1, table.state(), state::port(slot)).load(Word, R7, R1.at(0));
    program.jump_if(R7.is(Equal, 0), miss);
    for at in (key::MACS..key::BYTES).step_by(8) {
        let mask = R1.at((state::MASK + at - key::MACS) as i16);
        program.load(Double, R3, mask).load(Double, R2, in_key(at)).and(R2, R3).store(Double, in_key(at), R2);
    }
    program.load_map(R1, table.flows().as_fd()).set(R2, Stack).add(R2, i32::from(KEY));
    program.call(function::MAP_LOOKUP).jump_if(R0.is(Equal, 0), miss).set(R9, R0);
}

/// Whether the flow at R9 still holds, and holds for this packet.
fn check_flow(program: &mut Assembler, table: &Table, miss: Label) {
    let (untracked, whole, fits) = (program.label(), program.label(), program.label());
    program.load(Word, R1, R9.at(flow::EPOCH)).jump_if(R1.is(NotEqual, R7), miss);
    program.load(Word, R2, R9.at(flow::SLOT));
    program.jump_if(R2.is(Test::AtLeast, table.size().ports.cast_signed()), miss);
    program.shift_left(R2, state::PORT_BYTES_SHIFT).load_map_value(R3, table.state(), state::port(0));
    program.add(R3, R2).load(Word, R4, R3.at(0)).load(Word, R5, R9.at(flow::OTHER_EPOCH));
    program.jump_if(R4.is(NotEqual, R5), miss);
    program.load(Word, R1, R9.at(flow::FLAGS)).and(R1, flow::FLAG_TRACKED);
    program.jump_if(R1.is(Equal, 0), untracked);
    program.load(Double, R1, Stack.at(TCP_FLAGS)).jump_if(R1.is(HasBit, OPENS_OR_CLOSES), miss);
    program.bind(untracked);
    program.load(Word, R2, R9.at(flow::MAX_FRAME));
    program.load(Word, R1, R6.at(skb::SEGMENT_SIZE)).jump_if(R1.is(Equal, 0), whole);
    program.load(Double, R3, Stack.at(HEADERS)).add(R1, R3).jump(fits);
    program.bind(whole);
    program.load(Word, R1, R6.at(skb::LENGTH));
    program.bind(fits);
    program.jump_if(R1.is(Greater, R2), miss);
    program.load(Word, R2, R9.at(flow::SLOT));
    exists(program, table, miss);
}

/// Goes elsewhere if the end of the port whose slot is in R2 has gone. Uses the stack below the time, and keeps R6 to
/// R9.
fn exists(program: &mut Assembler, table: &Table, gone: Label) {
    program.store(Word, Stack.at(TARGET), R2);
    program.load_map(R1, table.ends().as_fd()).set(R2, Stack).add(R2, i32::from(TARGET));
    program.call(function::MAP_LOOKUP).jump_if(R0.is(Equal, 0), gone);
}

/// Gives a packet of a routed flow at R9 its next MAC addresses and TTL. Misses: a TTL that ends here, a header with a
/// wrong checksum.
fn route(program: &mut Assembler, miss: Label) {
    let (done, ipv6, read) = (program.label(), program.label(), program.label());
    program.load(Word, R1, R9.at(flow::FLAGS)).and(R1, flow::FLAG_ROUTED).jump_if(R1.is(Equal, 0), done);
    program.load(Word, R3, R6.at(skb::DATA)).load(Word, R4, R6.at(skb::DATA_END));
    program.set(R2, R3).add(R2, i32::from(BEHIND_IPV4)).jump_if(R2.is(Greater, R4), miss);
    program.load(Half, R1, in_key(key::ETHERTYPE)).jump_if(R1.is(Equal, IPV6), ipv6);
    program.set(R5, 0);
    for half in (ETHERNET..BEHIND_IPV4).step_by(2) {
        program.load(Half, R1, R3.at(half)).add(R5, R1);
    }
    for _ in 0..2 {
        program.set(R1, R5).shift_right(R1, 16).and(R5, 0xffff).add(R5, R1);
    }
    program.jump_if(R5.is(NotEqual, 0xffff), miss);
    program.load(Word, R1, R3.at(TTL_V4)).store(Word, Stack.at(TTL), R1).load(Byte, R7, R3.at(TTL_V4));
    load_number(program, R8, [Stack.at(TTL + 2), Stack.at(TTL + 3)]);
    program.xor(R8, 0xffff).add(R8, ONE_HOP).set(R1, R8).shift_right(R1, 16).and(R8, 0xffff).add(R8, R1);
    program.xor(R8, 0xffff).store(Byte, Stack.at(TTL + 3), R8);
    program.shift_right(R8, 8).store(Byte, Stack.at(TTL + 2), R8);
    program.set(R8, 4).jump(read);
    program.bind(ipv6);
    program.load(Byte, R7, R3.at(TTL_V6)).set(R8, 1);
    program.bind(read);
    program.set(R1, 2).jump_if(R1.is(Greater, R7), miss);
    program.add(R7, -1).store(Byte, Stack.at(TTL), R7);
    program.set(R3, R9).add(R3, i32::from(flow::MACS)).set(R4, flow::MAC_BYTES).set(R5, 0);
    program.set(R1, R6).set(R2, 0).call(function::STORE_BYTES).jump_if(R0.is(NotEqual, 0), miss);
    program.set(R3, Stack).add(R3, i32::from(TTL)).set(R5, FOLLOWED).set(R1, R6);
    // R8: how many bytes, which tell both headers apart. The kernel wants to see a constant.
    let (last, both) = (program.label(), program.label());
    program.jump_if(R8.is(Equal, 1), last).set(R2, i32::from(TTL_V4)).set(R4, 4).jump(both);
    program.bind(last);
    program.set(R2, i32::from(TTL_V6)).set(R4, 1);
    program.bind(both);
    program.call(function::STORE_BYTES).jump_if(R0.is(Equal, 0), done);
    // It cannot be, as the first store has made the header writable.
    program.set(R0, DROP).exit();
    program.bind(done);
}

/// Gives a packet of a translated flow at R9 its next addresses and ports, and follows with its checksums; that of the
/// transport covers only the addresses if the kernel is still to compute it.
fn translate(program: &mut Assembler) {
    let (done, udp, both, dropped) = (program.label(), program.label(), program.label(), program.label());
    program.load(Word, R1, R9.at(flow::FLAGS)).and(R1, flow::FLAG_TRANSLATED).jump_if(R1.is(Equal, 0), done);
    // R7: where the checksum of the transport is. R8: how it changes.
    program.load(Byte, R1, in_key(key::PROTOCOL)).jump_if(R1.is(Equal, UDP), udp);
    program.set(R7, i32::from(BEHIND_IPV4) + 16).set(R8, WORD).jump(both);
    program.bind(udp);
    program.set(R7, i32::from(BEHIND_IPV4) + 6).set(R8, WORD | NO_CHECKSUM_IS_ZERO);
    program.bind(both);
    for (n, at) in [(0, key::SOURCE), (4, key::DESTINATION)] {
        let to = flow::ADDRESSES + n;
        program.set(R1, R6).set(R2, R7).load(Word, R3, in_key(at)).load(Word, R4, R9.at(to));
        program.set(R5, R8).or(R5, OF_PSEUDO_HEADER).call(function::REPLACE_CHECKSUM);
        program.jump_if(R0.is(NotEqual, 0), dropped);
        program.set(R1, R6).set(R2, i32::from(ETHERNET) + 10).load(Word, R3, in_key(at));
        program.load(Word, R4, R9.at(to)).set(R5, WORD).call(function::REPLACE_IP_CHECKSUM);
        program.jump_if(R0.is(NotEqual, 0), dropped);
        program.set(R3, R9).add(R3, i32::from(to)).set(R1, R6).set(R2, i32::from(ETHERNET + 12 + n));
        program.set(R4, WORD).set(R5, 0).call(function::STORE_BYTES).jump_if(R0.is(NotEqual, 0), dropped);
    }
    program.set(R1, R6).set(R2, R7).load(Word, R3, in_key(key::PORTS)).load(Word, R4, R9.at(flow::PORTS));
    program.set(R5, R8).call(function::REPLACE_CHECKSUM).jump_if(R0.is(NotEqual, 0), dropped);
    program.set(R3, R9).add(R3, i32::from(flow::PORTS)).set(R1, R6).set(R2, i32::from(BEHIND_IPV4));
    program.set(R4, WORD).set(R5, 0).call(function::STORE_BYTES).jump_if(R0.is(Equal, 0), done);
    // It cannot be, as all of it is within the packet.
    program.bind(dropped);
    program.set(R0, DROP).exit();
    program.bind(done);
}

/// Counts the packet for the flow at R9, segments one by one.
fn count(program: &mut Assembler) {
    let one = program.label();
    program.load(Word, R1, R6.at(skb::LENGTH)).load(Word, R2, R6.at(skb::SEGMENTS));
    program.jump_if(R2.is(Greater, 1), one);
    program.set(R2, 1);
    program.bind(one);
    program.atomic_add(R9.at(flow::PACKETS), R2);
    program.add(R2, -1).load(Double, R3, Stack.at(HEADERS)).multiply(R2, R3).add(R1, R2);
    program.atomic_add(R9.at(flow::OCTETS), R1);
    program.load(Double, R1, Stack.at(NOW)).store(Double, R9.at(flow::LAST), R1);
}

/// The first six bytes of eight.
const MAC_BYTES: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// Runs for what netvm sends to the container of a port by its TAP device. The container gets a frame for its own MAC
/// address at once. Others take the way through the pair, on which its kernel sees for whom they are. If its
/// interface has gone, they are counted: the kernel would drop them without a word.
pub(crate) fn to_container(table: &Table, ends: &PortEnds) -> Result<Vec<Instruction>, AssemblyError> {
    let mut program = Assembler::default();
    let (others, lost) = (program.label(), program.label());
    program.set(R6, R1).set(R2, ends.slot.cast_signed());
    exists(&mut program, table, lost);
    program.set(R1, R6);
    begin(&mut program, ETHERNET, others);
    program.load(Double, R2, R7.at(0)).set_number(R3, MAC_BYTES).and(R2, R3);
    program.load_map_value(R1, table.state(), state::port(ends.slot) + state::MAC as u32);
    program.load(Double, R3, R1.at(0)).jump_if(R2.is(NotEqual, R3), others);
    program.set(R1, R6).set(R2, PACKET_HOST).call(function::CHANGE_TYPE);
    program.set(R1, ends.veth.cast_signed()).set(R2, 0).call(function::REDIRECT_PEER).exit();
    program.bind(others);
    program.set(R1, ends.veth.cast_signed()).set(R2, 0).call(function::REDIRECT).exit();
    program.bind(lost);
    let count = state::undelivered(table.size().ports, ends.slot);
    program.load_map_value(R1, table.state(), count).set(R2, 1).atomic_add(R1.at(0), R2);
    program.set(R0, DROP).exit();
    program.finish()
}
