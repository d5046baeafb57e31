// SPDX-License-Identifier: Apache-2.0
//! A table, and frames for it.

use netvm_conntrack::{
    Config, Connection, ConnectionId, Connections, Origin, Packet, Refusal, SaveReader, SaveWriter,
    SavedConnection, Tracked, Zone,
};
use netvm_wire::{ConnState, FrameBuilder, IpProto, MacAddr, TcpFlags, parse};

/// Two hosts with private addresses.
pub fn between(from: &str, to: &str) -> FrameBuilder<'static> {
    FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ip(from.parse().unwrap(), to.parse().unwrap())
}

pub const CLIENT: &str = "10.0.0.1";
pub const SERVER: &str = "10.0.0.2";

/// From the client, or from the server.
pub fn from(is_server: bool) -> FrameBuilder<'static> {
    if is_server { between(SERVER, CLIENT) } else { between(CLIENT, SERVER) }
}

pub fn udp(is_server: bool) -> Vec<u8> {
    let (a, b) = if is_server { (53, 1000) } else { (1000, 53) };
    from(is_server).udp(a, b).payload(b"hello").to_vec().unwrap()
}

/// A TCP segment between port 1000 of the client and port 80 of the server.
#[derive(Clone, Copy)]
pub struct Segment {
    pub is_server: bool,
    pub flags: TcpFlags,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub window: u16,
    pub scale: Option<u8>,
    pub data: usize,
}

impl Segment {
    pub fn frame(&self) -> Vec<u8> {
        self.frame_at(1000)
    }

    /// With this port of the client.
    pub fn frame_at(&self, client: u16) -> Vec<u8> {
        const TCP: usize = 34;
        let (source, destination) = if self.is_server { (80, client) } else { (client, 80) };
        let mut payload: Vec<u8> = self.scale.map_or(Vec::new(), |shift| vec![3, 3, shift, 0]);
        payload.resize(payload.len() + self.data, 7);
        let tcp = from(self.is_server).tcp(source, destination, self.flags);
        let mut frame = tcp.numbers(self.sequence, self.acknowledgment).payload(&payload).to_vec().unwrap();
        frame[TCP + 14..TCP + 16].copy_from_slice(&self.window.to_be_bytes());
        if self.scale.is_some() {
            frame[TCP + 12] = 6 << 4;
        }
        frame
    }
}

/// A segment with a window of 1000 bytes.
pub fn segment(is_server: bool, flags: TcpFlags, sequence: u32, acknowledgment: u32) -> Segment {
    Segment { is_server, flags, sequence, acknowledgment, window: 1000, scale: None, data: 0 }
}

/// An ICMP error about the packet in `frame`.
pub fn error_about(frame: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(&frame[14..frame.len().min(14 + 28)]);
    between(from, to).protocol(IpProto::ICMP).payload(&message).to_vec().unwrap()
}

/// A table and its clock.
pub struct Rig {
    pub table: Connections,
    pub now: u32,
    pub zone: Zone,
    /// The port that receives packets.
    pub port: u16,
    /// The rule that accepts packets.
    pub rule: u32,
}

impl Rig {
    pub fn new(config: &Config) -> Self {
        Self { table: Connections::new(config).unwrap(), now: 0, zone: Zone(0), port: 0, rule: 0 }
    }

    /// Tracks a packet that rules drop.
    pub fn look(&mut self, frame: &[u8]) -> Tracked {
        let key = *parse(frame).unwrap().key();
        let mut tracked = [Tracked::default()];
        let front = &frame[..frame.len().min(256)];
        let packet = Packet { key: &key, zone: self.zone, front, length: frame.len() };
        self.table.track(&[packet], self.now, &mut tracked);
        tracked[0]
    }

    /// Begins a packet's connection.
    pub fn confirm(&mut self, frame: &[u8]) -> Result<ConnectionId, Refusal> {
        let key = *parse(frame).unwrap().key();
        let front = &frame[..frame.len().min(256)];
        let packet = Packet { key: &key, zone: self.zone, front, length: frame.len() };
        self.table.confirm(&packet, self.origin(), self.now)
    }

    /// Tracks a packet that rules accept whatever its state.
    pub fn pass(&mut self, frame: &[u8]) -> ConnState {
        let tracked = self.look(frame);
        if tracked.state == ConnState::New && tracked.connection.is_none() {
            let _ = self.confirm(frame);
        }
        tracked.state
    }

    pub fn origin(&self) -> Origin {
        Origin { port: self.port, rule: self.rule }
    }

    /// The only connection.
    pub fn only(&self) -> Connection {
        let mut all = self.table.page(0, self.table.capacity(), self.now);
        let (_, connection) = all.next().unwrap();
        assert!(all.next().is_none());
        *connection
    }

    /// All connections.
    pub fn saved(&self) -> Vec<SavedConnection> {
        let (half, all) = (self.table.capacity() / 2, self.table.capacity());
        self.table.save(0, half, self.now).chain(self.table.save(half, all, self.now)).collect()
    }

    /// Replaces the table by an empty one with another clock, and restores all connections from a file.
    pub fn restart(&mut self, config: &Config, now: u32) {
        let mut file = SaveWriter::new(Vec::new(), 7).unwrap();
        self.saved().chunks(3).for_each(|page| file.write(page).unwrap());
        let file = file.finish().unwrap();
        (self.table, self.now) = (Connections::new(config).unwrap(), now);
        let (mut reader, mut page) = (SaveReader::new(&*file).unwrap(), Vec::new());
        assert_eq!(reader.saved_at(), 7);
        while reader.read(&mut page).unwrap() {
            assert!(page.iter().all(|saved| self.table.restore(saved, now).is_ok()));
        }
    }

    pub fn wait(&mut self, seconds: u32) {
        self.now = self.now.wrapping_add(seconds * netvm_conntrack::TICKS_PER_SECOND);
    }
}
