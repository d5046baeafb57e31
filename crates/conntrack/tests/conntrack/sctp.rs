// SPDX-License-Identifier: Apache-2.0
//! SCTP, by hand.

use netvm_conntrack::{Config, Refusal};
use netvm_wire::{ConnState, FrameBuilder, IpProto};

use super::rig::{CLIENT, Rig, SERVER, error_about, from};
use ConnState::{Established, Invalid, New, Related};

pub const DATA: u8 = 0;
pub const INIT: u8 = 1;
pub const INIT_ACK: u8 = 2;
pub const SACK: u8 = 3;
pub const HEARTBEAT: u8 = 4;
pub const HEARTBEAT_ACK: u8 = 5;
pub const ABORT: u8 = 6;
pub const SHUTDOWN: u8 = 7;
pub const SHUTDOWN_ACK: u8 = 8;
pub const ERROR: u8 = 9;
pub const COOKIE_ECHO: u8 = 10;
pub const COOKIE_ACK: u8 = 11;
pub const SHUTDOWN_COMPLETE: u8 = 14;

/// The flag of a tag that is the other direction's.
pub const REFLECTED: u8 = 1;

/// A chunk; INIT and INIT ACK offer a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub kind: u8,
    pub flags: u8,
    pub offers: u32,
}

pub const fn chunk(kind: u8) -> Chunk {
    Chunk { kind, flags: 0, offers: 0 }
}

pub const fn offer(kind: u8, offers: u32) -> Chunk {
    Chunk { kind, flags: 0, offers }
}

/// CRC-32C (RFC 9260 appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// A packet with its checksum.
pub fn sctp(builder: FrameBuilder<'_>, ports: [u16; 2], tag: u32, chunks: &[Chunk]) -> Vec<u8> {
    let mut packet = ports.map(u16::to_be_bytes).concat();
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    for chunk in chunks {
        packet.extend([chunk.kind, chunk.flags, 0, 20]);
        packet.extend(chunk.offers.to_be_bytes());
        packet.extend([0; 12]);
    }
    let sum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    builder.protocol(IpProto::SCTP).payload(&packet).to_vec().unwrap()
}

/// Tags of the client's packets, and of the server's.
const TAGS: [u32; 2] = [0xc11e_0001, 0x5e4e_0002];

fn frame(is_server: bool, tag: u32, chunks: &[Chunk]) -> Vec<u8> {
    sctp(from(is_server), if is_server { [36412, 1000] } else { [1000, 36412] }, tag, chunks)
}

/// From the client.
fn client(chunks: &[Chunk]) -> Vec<u8> {
    frame(false, TAGS[0], chunks)
}

fn server(chunks: &[Chunk]) -> Vec<u8> {
    frame(true, TAGS[1], chunks)
}

fn state(rig: &Rig) -> &'static str {
    rig.only().state().name()
}

fn established() -> Rig {
    let mut rig = Rig::new(&Config::default());
    assert_eq!(rig.pass(&frame(false, 0, &[offer(INIT, TAGS[1])])), New);
    assert_eq!((state(&rig), rig.only().left(rig.now)), ("closed", 100));
    let steps = [
        (server(&[offer(INIT_ACK, TAGS[0])]), "cookie-wait", 30),
        (client(&[chunk(COOKIE_ECHO), chunk(DATA)]), "cookie-echoed", 30),
        (server(&[chunk(COOKIE_ACK), chunk(SACK)]), "established", 2100),
    ];
    for (frame, after, left) in steps {
        assert_eq!(rig.pass(&frame), Established);
        assert_eq!((state(&rig), rig.only().left(rig.now)), (after, left));
        assert_eq!(rig.table.incomplete(), u32::from(after != "established"));
    }
    rig
}

#[test]
fn an_association_goes_through_its_states() {
    for (first, second, shutdown) in [(false, true, "shutdown-sent"), (true, false, "shutdown-recd")] {
        let mut rig = established();
        let by = |is_server: bool, kind| {
            if is_server { server(&[chunk(kind)]) } else { client(&[chunk(kind)]) }
        };
        assert_eq!(rig.pass(&by(first, DATA)), Established);
        for (frame, after) in [
            (by(first, SHUTDOWN), shutdown),
            (by(second, SHUTDOWN_ACK), "shutdown-ack-sent"),
            (by(first, SHUTDOWN_COMPLETE), "closed"),
        ] {
            assert_eq!(rig.pass(&frame), Established);
            assert_eq!(state(&rig), after);
        }
        assert_eq!((rig.table.incomplete(), rig.only().packets()), (1, if first { [3, 5] } else { [5, 3] }));
        rig.wait(11);
        assert_eq!(rig.look(&client(&[chunk(DATA)])).state, Invalid);
        assert_eq!(rig.pass(&frame(false, 0, &[offer(INIT, 9)])), New);
    }
}

#[test]
fn packets_without_the_tag_are_invalid() {
    let mut rig = established();
    for kind in [DATA, SACK, SHUTDOWN, COOKIE_ECHO, COOKIE_ACK, ABORT, SHUTDOWN_COMPLETE, ERROR, INIT_ACK] {
        for is_server in [false, true] {
            assert_eq!(rig.pass(&frame(is_server, 77, &[offer(kind, 1)])), Invalid, "{kind}");
        }
    }
    assert_eq!((state(&rig), rig.only().packets()), ("established", [2, 2]));
    // An end that knows no tag of its own reflects that of the packet.
    let reflected = Chunk { flags: REFLECTED, ..chunk(ABORT) };
    assert_eq!(rig.pass(&frame(true, TAGS[1], &[reflected])), Invalid);
    assert_eq!(rig.pass(&frame(true, TAGS[0], &[reflected])), Established);
    assert_eq!(state(&rig), "closed");
}

#[test]
fn only_some_chunks_begin_a_connection() {
    for kind in 0..16 {
        let mut rig = Rig::new(&Config::default());
        let packet = frame(false, if kind == INIT { 0 } else { 5 }, &[offer(kind, 7)]);
        let begins = [INIT, HEARTBEAT, HEARTBEAT_ACK, SHUTDOWN_ACK].contains(&kind);
        assert_eq!(rig.pass(&packet), if begins { New } else { Invalid }, "{kind}");
        assert_eq!(rig.table.len(), u32::from(begins));
    }
    let mut rig = Rig::new(&Config::default());
    for bad in [
        frame(false, 5, &[offer(INIT, 7)]),
        frame(false, 0, &[offer(INIT, 0)]),
        frame(false, 0, &[offer(INIT, 7), chunk(DATA)]),
        frame(false, 5, &[chunk(HEARTBEAT), chunk(DATA)]),
        frame(false, 5, &[chunk(DATA), chunk(COOKIE_ECHO)]),
        frame(false, 5, &[]),
    ] {
        assert_eq!((rig.pass(&bad), rig.confirm(&bad)), (Invalid, Err(Refusal::NotNew)));
    }
}

#[test]
fn a_guessed_init_does_not_disturb_an_association_and_a_restart_goes_on() {
    let mut rig = established();
    for is_server in [false, true] {
        assert_eq!(rig.pass(&frame(is_server, 0, &[offer(INIT, 0xbad)])), Established);
    }
    assert_eq!(
        (rig.pass(&client(&[chunk(DATA)])), rig.pass(&server(&[chunk(SACK)]))),
        (Established, Established)
    );
    // The client has restarted.
    let new = [0x111, 0x222];
    rig.pass(&frame(false, 0, &[offer(INIT, new[1])]));
    assert_eq!(rig.pass(&frame(true, 0xbad, &[offer(INIT_ACK, 1)])), Invalid);
    assert_eq!(rig.pass(&frame(true, new[1], &[offer(INIT_ACK, new[0])])), Established);
    assert_eq!(rig.pass(&server(&[chunk(DATA)])), Established, "not yet");
    assert_eq!(rig.pass(&frame(false, new[0], &[chunk(COOKIE_ECHO)])), Established);
    assert_eq!(rig.pass(&server(&[chunk(DATA)])), Invalid, "of the association before");
    assert_eq!(rig.pass(&frame(true, new[1], &[chunk(COOKIE_ACK)])), Established);
    assert_eq!(rig.pass(&frame(false, new[0], &[chunk(DATA)])), Established);
    assert_eq!(state(&rig), "established");
}

#[test]
fn a_repeated_init_does_not_lengthen_a_life() {
    let mut rig = Rig::new(&Config::default());
    for _ in 0..2 {
        assert_eq!(rig.pass(&frame(false, 0, &[offer(INIT, 5)])), New);
        rig.wait(4);
    }
    assert_eq!((rig.only().left(rig.now), rig.only().packets()), (20, [2, 0]));
}

#[test]
fn another_path_begins_with_a_heartbeat() {
    let mut rig = Rig::new(&Config::default());
    assert_eq!(rig.pass(&client(&[chunk(HEARTBEAT)])), New);
    assert_eq!((state(&rig), rig.only().left(rig.now)), ("heartbeat-sent", 300));
    assert_eq!(rig.pass(&server(&[chunk(SHUTDOWN)])), Invalid, "its tag is not known yet");
    assert_eq!(rig.pass(&server(&[chunk(HEARTBEAT_ACK)])), Established);
    assert_eq!((state(&rig), rig.table.incomplete()), ("established", 0));
    assert_eq!(
        (rig.pass(&client(&[chunk(DATA)])), rig.pass(&frame(true, 9, &[chunk(DATA)]))),
        (Established, Invalid)
    );
    // An end has restarted: the other answers its heartbeat.
    assert_eq!(rig.pass(&frame(false, 0x111, &[chunk(HEARTBEAT)])), Established);
    assert_eq!(rig.pass(&frame(false, 0x222, &[chunk(HEARTBEAT_ACK)])), Invalid);
    assert_eq!(rig.pass(&frame(true, 0x333, &[chunk(HEARTBEAT_ACK)])), Established);
    assert_eq!(rig.pass(&frame(true, 0x333, &[chunk(DATA)])), Established);
}

#[test]
fn an_error_is_related_if_its_tag_is() {
    let mut rig = established();
    for (frame, expected) in [
        (client(&[chunk(DATA)]), Related),
        (frame(false, 0, &[offer(INIT, 5)]), Related),
        (frame(false, TAGS[1], &[chunk(DATA)]), Invalid),
    ] {
        assert_eq!(rig.look(&error_about(&frame, SERVER, CLIENT)).state, expected);
    }
}

#[test]
fn a_restored_association_goes_on() {
    let mut rig = established();
    rig.pass(&frame(false, 0, &[offer(INIT, 0x222)]));
    rig.restart(&Config::default(), 3);
    assert_eq!((state(&rig), rig.only().left(3)), ("established", 2100));
    assert_eq!(rig.pass(&server(&[chunk(DATA)])), Established);
    assert_eq!(rig.pass(&frame(true, 0x222, &[offer(INIT_ACK, 0x111)])), Established);
    assert_eq!(rig.pass(&frame(true, 9, &[chunk(DATA)])), Invalid);
}
