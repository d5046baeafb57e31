// SPDX-License-Identifier: Apache-2.0
//! A client and a server, the frames between them, and a proxy.

use netvm_conntrack::{
    ByProxy, Config, ConnectionId, Connections, MAX_PROXY_FRAME, Packet, ProxiedPacket, ProxyTable, Rewrite,
    Tracked,
};
use netvm_wire::{ConnState, Headers, TcpFlags, checksum, parse};
use proptest::prelude::*;

use crate::rig::{Rig, between};

const TCP: usize = 20;

/// What an end says of itself in its SYN, and where its numbers begin.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub is_server: bool,
    pub is_v6: bool,
    pub sequence: u32,
    pub time: u32,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack: bool,
    pub has_times: bool,
}

/// Any end.
pub fn end(is_server: bool, is_v6: bool) -> impl Strategy<Value = End> {
    let options = (any::<Option<u16>>(), prop::option::of(0u8..=14), any::<bool>(), any::<bool>());
    (any::<u32>(), any::<u32>(), options).prop_map(move |(sequence, time, (mss, scale, sack, has_times))| {
        End { is_server, is_v6, sequence, time, mss, scale, sack, has_times }
    })
}

/// A segment, as its receiver reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub flags: TcpFlags,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub window: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub permits_sack: bool,
    pub times: Option<[u32; 2]>,
    pub sack: Vec<u32>,
    pub data: Vec<u8>,
}

impl Seen {
    pub fn plain(flags: TcpFlags, sequence: u32, acknowledgment: u32) -> Self {
        Self {
            flags,
            sequence,
            acknowledgment,
            window: 1000,
            mss: None,
            scale: None,
            permits_sack: false,
            times: None,
            sack: Vec::new(),
            data: Vec::new(),
        }
    }

    fn options(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // No order that the proxy has.
        bytes.extend(self.scale.iter().flat_map(|shift| [3, 3, *shift]));
        if let Some([own, echo]) = self.times {
            bytes.extend([8, 10]);
            bytes.extend(own.to_be_bytes());
            bytes.extend(echo.to_be_bytes());
        }
        bytes.extend(self.permits_sack.then_some([4, 2]).into_iter().flatten());
        if !self.sack.is_empty() {
            bytes.extend([5, 2 + 4 * self.sack.len() as u8]);
            bytes.extend(self.sack.iter().flat_map(|edge| edge.to_be_bytes()));
        }
        bytes.extend(self.mss.iter().flat_map(|mss| [2, 4, (mss >> 8) as u8, *mss as u8]));
        while bytes.len() % 4 != 0 {
            bytes.push(1);
        }
        bytes
    }

    /// The frame with which an end sends it.
    pub fn frame(&self, from: &End) -> Vec<u8> {
        let (client, server) =
            if from.is_v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let (builder, ports) = match from.is_server {
            true => (between(server, client), [80, 1000]),
            false => (between(client, server), [1000, 80]),
        };
        let payload = [self.options(), self.data.clone()].concat();
        let tcp = builder.tcp(ports[0], ports[1], self.flags).numbers(self.sequence, self.acknowledgment);
        let mut frame = tcp.payload(&payload).to_vec().unwrap();
        let at = parse(&frame).unwrap().l4_offset().unwrap();
        frame[at + 12] = ((TCP + self.options().len()) << 2) as u8;
        frame[at + 14..at + 16].copy_from_slice(&self.window.to_be_bytes());
        let headers = parse(&frame).unwrap();
        checksum::fill(&mut frame, &headers).unwrap();
        frame
    }

    /// What a frame says; its checksums must be right.
    pub fn of(frame: &[u8]) -> Self {
        let headers: Headers = parse(frame).unwrap();
        assert_eq!(checksum::verify(frame, &headers), Ok(()));
        let at = headers.l4_offset().unwrap();
        let tcp = &frame[at..headers.payload_end()];
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let length = usize::from(tcp[12] >> 4) * 4;
        let mut seen = Self::plain(headers.key().tcp_flags, number(4), number(8));
        seen.window = u16::from_be_bytes([tcp[14], tcp[15]]);
        seen.data = tcp[length..].to_vec();
        let mut at = TCP;
        while at < length && tcp[at] != 0 {
            let size = if tcp[at] == 1 { 1 } else { usize::from(tcp[at + 1]) };
            match tcp[at] {
                1 => {}
                2 => seen.mss = Some(u16::from_be_bytes([tcp[at + 2], tcp[at + 3]])),
                3 => seen.scale = Some(tcp[at + 2]),
                4 => seen.permits_sack = true,
                5 => seen.sack = (at + 2..at + size).step_by(4).map(number).collect(),
                8 => seen.times = Some([number(at + 2), number(at + 6)]),
                other => unreachable!("option {other}"),
            }
            at += size;
        }
        seen
    }
}

/// Where a frame that the proxy sends goes.
#[derive(Debug)]
pub enum Sent {
    Client(Seen),
    Server(Seen),
}

/// The table of a proxy whose rules accept SYNs of proved clients only.
pub struct Proxy {
    pub rig: Rig,
}

impl Proxy {
    pub fn new() -> Self {
        let config = Config { sessions: 64, pick_up: false, ..Config::default() };
        let mut rig = Rig::new(&config);
        rig.table.allow_syn_proxy(ProxyTable::new(64).unwrap());
        rig.now = 5000;
        Self { rig }
    }

    /// Passes the frame of an end. Returns what is sent because of it; an answer comes first.
    pub fn pass(&mut self, frame: &[u8]) -> Vec<Sent> {
        let tracked = self.rig.look(frame);
        let (now, zone) = (self.rig.now, self.rig.zone);
        let key = *parse(frame).unwrap().key();
        let packet = Packet { key: &key, zone, front: frame, length: frame.len() };
        let mut out = [0; MAX_PROXY_FRAME];
        let towards = |is_client: bool, frame: &[u8]| match is_client {
            true => Sent::Client(Seen::of(frame)),
            false => Sent::Server(Seen::of(frame)),
        };
        match (tracked.proxy, tracked.state, tracked.connection) {
            (ByProxy::Proved, _, known) => {
                let (length, proved) = self.rig.table.syn_of(&packet, now, &mut out).unwrap();
                let id = known.unwrap_or_else(|| self.rig.confirm(&out[..length]).unwrap());
                self.rig.table.proxy(id, &proved);
                vec![towards(false, &out[..length])]
            }
            (ByProxy::Translates, ..) => self.translate(&tracked, frame),
            (_, ConnState::New, None) => {
                let answer = self.rig.table.cookie_for(&packet, now, &mut out);
                answer.map(|length| towards(true, &out[..length])).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn translate(&mut self, tracked: &Tracked, frame: &[u8]) -> Vec<Sent> {
        let (mut out, mut changed) = ([0; MAX_PROXY_FRAME], frame.to_vec());
        let key = *parse(frame).unwrap().key();
        let rewrite = Rewrite { front: &mut changed, length: frame.len(), is_partial: false };
        let mut packet = ProxiedPacket { key: &key, rewrite, answer: &mut out };
        let length = self.rig.table.translate_proxied(tracked, &mut packet, self.rig.now).unwrap();
        let mut sent = Vec::new();
        if length > 0 {
            sent.push(Sent::Server(Seen::of(&out[..length])));
        }
        let translated = Seen::of(&changed);
        sent.push(if tracked.is_reply { Sent::Client(translated) } else { Sent::Server(translated) });
        sent
    }

    /// Passes a frame whose checksums need not be right. Returns what becomes of it, if its connection is proxied.
    pub fn translate_any(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (key, tracked) = (*parse(frame).ok()?.key(), self.rig.look(frame));
        let (mut out, mut changed) = ([0; MAX_PROXY_FRAME], frame.to_vec());
        if tracked.proxy != ByProxy::Translates {
            return Some(changed);
        }
        let rewrite = Rewrite { front: &mut changed, length: frame.len(), is_partial: false };
        let mut packet = ProxiedPacket { key: &key, rewrite, answer: &mut out };
        let translated = self.rig.table.translate_proxied(&tracked, &mut packet, self.rig.now);
        translated.is_ok().then_some(changed)
    }

    /// The only frame that is sent, to the client.
    pub fn client_gets(&mut self, frame: &[u8]) -> Seen {
        match <[Sent; 1]>::try_from(self.pass(frame)) {
            Ok([Sent::Client(seen)]) => seen,
            other => unreachable!("{other:?}"),
        }
    }

    /// The only frame that is sent, to the server.
    pub fn server_gets(&mut self, frame: &[u8]) -> Seen {
        match <[Sent; 1]>::try_from(self.pass(frame)) {
            Ok([Sent::Server(seen)]) => seen,
            other => unreachable!("{other:?}"),
        }
    }

    /// Moves the only connection to another table.
    pub fn move_connection(&mut self) {
        let mut other = Self::new();
        other.rig.now = self.rig.now;
        let (id, _): (ConnectionId, _) = self.rig.table.page(0, 64, self.rig.now).next().unwrap();
        let connection = self.rig.table.take(id).unwrap();
        assert!(other.rig.table.adopt(&connection));
        *self = other;
    }

    pub fn table(&self) -> &Connections {
        &self.rig.table
    }
}
