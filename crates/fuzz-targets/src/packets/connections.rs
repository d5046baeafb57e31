// SPDX-License-Identifier: Apache-2.0
//! Packets that are tracked and translated, in any order.

use netvm_conntrack::{
    Allocation, Config, ConnectionId, Connections, Filtering, Half, Origin, Packet, Pool, Rewrite,
    SavedConnection, Target, Translation, Zone,
};
use netvm_wire::{Address, ConnState, FlowKey, IpNet, PortRange, checksum, parse};

use crate::input::Input;

const SESSIONS: u32 = 8;

/// Tracks packets in a small table, begins translated connections, rewrites packets of connections, and goes on with
/// saved connections in another table.
pub fn connections(data: &[u8]) {
    let mut input = Input::new(data);
    let pick_up = input.u8().is_multiple_of(2);
    let config = Config {
        sessions: SESSIONS,
        mappings: SESSIONS,
        blocks: 4,
        fragments: 4,
        pick_up,
        ..Config::default()
    };
    let mut table = Connections::new(&config).expect("a small table");
    let mut now = u32::MAX - 1000;
    while !input.is_empty() {
        let step = input.u8();
        now = now.wrapping_add(u32::from(input.u8()) << (step % 8));
        let length = usize::from(input.u8());
        let frame = input.bytes(length);
        let front = &frame[..frame.len().min(if step & 8 == 0 { 256 } else { 64 })];
        let Ok(key) = FlowKey::of_frame(front, frame.len()) else { continue };
        let packet = Packet { key: &key, zone: Zone(u16::from(step >> 7)), front, length: frame.len() };
        if let Some((connection, is_reply)) = pass(&mut table, &packet, now, step) {
            check_rewrite(&table, connection, is_reply, frame);
        }
        if step % 16 == 15 {
            load_damaged(&table, &config, now, [input.u8(), input.u8()]);
            table = restart(&table, &config, now);
        }
        table.expire(now, u32::from(step & 1));
        let live = table.page(0, table.capacity(), now).count() as u32;
        assert!(live <= table.len() && table.len() <= SESSIONS && table.incomplete() <= table.len());
    }
}

/// Another table with the saved connections of this one.
fn restart(table: &Connections, config: &Config, now: u32) -> Connections {
    let mut other = Connections::new(config).expect("a small table");
    for saved in table.save(0, SESSIONS, now) {
        let read = SavedConnection::from_bytes(&saved.to_bytes()).expect("it was written");
        other.restore(&read, now).expect("it had room");
    }
    other
}

/// Restores connections from damaged records, and ends them.
fn load_damaged(table: &Connections, config: &Config, now: u32, [at, change]: [u8; 2]) {
    let mut other = Connections::new(config).expect("a small table");
    for saved in table.save(0, SESSIONS, now) {
        let mut record = saved.to_bytes();
        record[usize::from(at) % SavedConnection::SIZE] ^= change;
        if let Some(read) = SavedConnection::from_bytes(&record) {
            assert_eq!(read.to_bytes(), record);
            let _ = other.restore(&read, now);
        }
    }
    other.end_slots(0, SESSIONS);
    assert!(other.is_empty() && other.incomplete() == 0);
}

/// Tracks a packet, which may begin a connection. Returns its connection and direction.
fn pass(table: &mut Connections, packet: &Packet<'_>, now: u32, step: u8) -> Option<(ConnectionId, bool)> {
    let mut tracked = [Default::default()];
    table.track(&[*packet], now, &mut tracked);
    let [tracked] = tracked;
    assert!(packet.key.is_ip() || tracked.state == ConnState::Untracked);
    if let Some(connection) = tracked.connection {
        assert!(table.get(connection).is_some());
        assert!(!tracked.is_reply || tracked.state != ConnState::New);
        return Some((connection, tracked.is_reply));
    }
    if tracked.state != ConnState::New || step & 0x60 == 0x60 {
        return None;
    }
    let is_v4 = packet.key.source.is_v4();
    let last = if is_v4 { 0xffff_cb00_7101 } else { 0x2001_0db8 << 96 };
    let [first, last] = [last, last + 1].map(Address::from_v6_bits);
    let allocation = match packet.key.source.words()[1] & 3 {
        0 => Allocation::Any,
        1 => Allocation::Deterministic { inside: IpNet::new([10, 0, 0, 0].into(), 30).expect("a prefix") },
        order => Allocation::Blocks { size: order as u16 - 1, most: 2 },
    };
    let filtering = if is_v4 { Filtering::EndpointIndependent } else { Filtering::AddressAndPort };
    let pools =
        [Pool { allocation, filtering, ..Pool::new(first, last, PortRange::new(4, 7).expect("in order")) }];
    let target = Target { address: first, port: Some(80) };
    let translation = Translation {
        sources: if step & 0x20 == 0 { &[] } else { &pools },
        destination: if step & 0x40 == 0 { table.targets().of(packet, false) } else { Some(target) },
    };
    let begun = table.confirm_translated(packet, Origin::default(), now, translation);
    begun.ok().map(|connection| (connection, false))
}

/// Whatever a packet is, its rewritten form has the same layers, and correct checksums stay correct.
fn check_rewrite(table: &Connections, connection: ConnectionId, is_reply: bool, frame: &[u8]) {
    let connection = table.get(connection).expect("it lives");
    let Ok(before) = parse(frame) else { return };
    let (mut copy, length) = (frame.to_vec(), frame.len());
    for half in [Half::Destination, Half::Source] {
        let mut packet = Rewrite { front: &mut copy, length, is_partial: false };
        if connection.rewrite(half, is_reply, &mut packet).is_err() {
            return;
        }
    }
    let after = parse(&copy).expect("a rewritten packet is as well-formed as before");
    assert_eq!((before.l4_offset(), before.transport()), (after.l4_offset(), after.transport()));
    if checksum::verify(frame, &before).is_ok() {
        assert_eq!(checksum::verify(&copy, &after), Ok(()));
    }
}
