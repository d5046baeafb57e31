// SPDX-License-Identifier: Apache-2.0
//! What the two sides send: connections as hosts have them, and segments that no host would send.

use netvm_wire::{FrameBuilder, IpProto, TcpFlags, checksum};

use super::router::mac;

/// Random numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % u64::from(limit)) as u32
    }
}

/// A segment of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub from: usize,
    flags: TcpFlags,
    sequence: u32,
    acknowledgment: u32,
    data: u16,
}

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const FIN: TcpFlags = TcpFlags::FIN;
const RST: TcpFlags = TcpFlags::RST;

/// The segments of one connection as hosts send them, and what each end sends next.
pub struct Conversation {
    pub segments: Vec<Segment>,
    next: [u32; 2],
}

impl Conversation {
    fn say(&mut self, from: usize, flags: TcpFlags, data: u16) {
        let (sequence, acknowledgment) = (self.next[from], self.next[1 - from]);
        let acknowledgment = if flags.contains(ACK) { acknowledgment } else { 0 };
        self.segments.push(Segment { from, flags, sequence, acknowledgment, data });
        let control = u32::from(flags.contains(SYN)) + u32::from(flags.contains(FIN));
        self.next[from] = sequence.wrapping_add(u32::from(data) + control);
    }

    /// A connection that opens, carries data in both directions with retransmissions, and closes in one of the ways.
    pub fn random(random: &mut Random) -> Self {
        let next = [random.below(u32::MAX), random.below(u32::MAX)];
        let mut it = Self { segments: Vec::new(), next };
        it.say(0, SYN, 0);
        if random.below(8) == 0 {
            it.say_again(random);
        }
        it.say(1, SYN | ACK, 0);
        it.say(0, ACK, 0);
        for _ in 0..random.below(10) {
            it.say(random.below(2) as usize, ACK, [0, 1, 100, 1400][random.below(4) as usize]);
            if random.below(4) == 0 {
                it.say_again(random);
            }
        }
        let first = random.below(2) as usize;
        match random.below(4) {
            0 => it.say(first, RST, 0),
            1 => it.say(first, RST | ACK, 0),
            _ => {
                it.say(first, FIN | ACK, 0);
                if random.below(2) == 0 {
                    it.say(1 - first, ACK, random.below(200) as u16);
                }
                it.say(1 - first, FIN | ACK, 0);
                it.say(first, ACK, 0);
                if random.below(2) == 0 {
                    it.say_again(random);
                }
            }
        }
        it
    }

    /// Sends one of the last segments again.
    fn say_again(&mut self, random: &mut Random) {
        let back = 1 + random.below(self.segments.len().min(3) as u32) as usize;
        let again = self.segments[self.segments.len() - back];
        // Not one of the handshake after data.
        if !again.flags.contains(SYN) || self.segments.len() < 3 {
            self.segments.push(again);
        }
    }
}

/// A segment that no host would send there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    FarAhead,
    FarBehind,
    OtherSyn,
    AcknowledgesTooMuch,
    SynFin,
    WithoutFlags,
    ResetFarAhead,
}

pub fn odd(random: &mut Random, of: &Conversation, at: usize) -> (Segment, Odd) {
    let before = of.segments[at];
    let (ahead, behind) = (before.sequence.wrapping_add(1 << 24), before.sequence.wrapping_sub(1 << 24));
    let is_syn = before.flags.contains(SYN);
    match random.below(6) {
        0 | 1 if is_syn => (Segment { sequence: ahead, ..before }, Odd::OtherSyn),
        0 if before.flags.contains(RST) => (Segment { sequence: ahead, ..before }, Odd::ResetFarAhead),
        0 => (Segment { sequence: ahead, ..before }, Odd::FarAhead),
        1 => (Segment { sequence: behind, ..before }, Odd::FarBehind),
        2 => {
            let acknowledgment = before.acknowledgment.wrapping_add(1 << 24);
            (Segment { acknowledgment, flags: ACK, ..before }, Odd::AcknowledgesTooMuch)
        }
        3 => (Segment { flags: SYN | FIN, ..before }, Odd::SynFin),
        4 => (Segment { flags: TcpFlags::empty(), ..before }, Odd::WithoutFlags),
        _ => (Segment { flags: RST, sequence: ahead, ..before }, Odd::ResetFarAhead),
    }
}

pub fn frame_of(segment: &Segment, port: u16, identification: u16) -> Vec<u8> {
    let ports = if segment.from == 0 { [port, 80] } else { [80, port] };
    let mut frame = segment.frame(between(segment.from), ports);
    seal(&mut frame, identification);
    frame
}

impl Segment {
    /// Its frame between these ports.
    pub fn frame(&self, between: FrameBuilder<'_>, ports: [u16; 2]) -> Vec<u8> {
        let payload = vec![7; usize::from(self.data)];
        let tcp = between.tcp(ports[0], ports[1], self.flags).numbers(self.sequence, self.acknowledgment);
        tcp.payload(&payload).to_vec().unwrap()
    }
}

/// A frame from the first host of a side to that of the other.
pub fn between(from: usize) -> FrameBuilder<'static> {
    let address = |side: usize| [10, 0, side as u8, 1].into();
    FrameBuilder::new(mac(from, false), mac(from, true)).ip(address(from), address(1 - from))
}

/// An ICMP error to the sender of a frame.
pub fn error_about(frame: &[u8], from: usize, identification: u16) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(&frame[14..frame.len().min(14 + 20 + 20)]);
    let sum = checksum::internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut error = between(from).protocol(IpProto::ICMP).payload(&message).to_vec().unwrap();
    seal(&mut error, identification);
    error
}

/// Gives a frame its identification.
pub fn seal(frame: &mut [u8], identification: u16) {
    frame[18..20].copy_from_slice(&identification.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum::internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}
