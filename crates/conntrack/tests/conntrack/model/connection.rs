// SPDX-License-Identifier: Apache-2.0
//! A connection of the model.

use netvm_conntrack::{Config, TICKS_PER_SECOND};
use netvm_wire::{ConnState, TcpFlags};

/// A segment with numbers that do not wrap.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub by_server: bool,
    pub flags: TcpFlags,
    pub sequence: i64,
    pub acknowledgment: i64,
    pub window: u16,
    pub scale: Option<u8>,
    pub data: i64,
}

impl Seen {
    pub fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }

    pub fn end(&self) -> i64 {
        let flag = |flag| i64::from(self.has(flag));
        self.sequence + self.data + flag(TcpFlags::SYN) + flag(TcpFlags::FIN)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protocol {
    Tcp,
    Udp,
    /// By whether the server has sent the request.
    Echo(bool),
}

#[derive(Clone, Debug)]
pub struct Conn {
    pub protocol: Protocol,
    pub zone: u16,
    pub began_by_server: bool,
    pub is_answered: bool,
    pub created: u32,
    pub deadline: u32,
    /// All valid segments, in order.
    pub segments: Vec<Seen>,
    pub state: &'static str,
    pub is_liberal: bool,
}

impl Conn {
    pub fn of(&self, server: bool) -> impl DoubleEndedIterator<Item = &Seen> + Clone {
        self.segments.iter().filter(move |it| it.by_server == server)
    }

    /// The segments of an end that count: from its last SYN on.
    pub fn counting(&self, server: bool) -> Vec<Seen> {
        let all: Vec<_> = self.of(server).copied().collect();
        let first = all.iter().rposition(|it| it.has(TcpFlags::SYN)).unwrap_or(0);
        all[first..].to_vec()
    }

    pub fn is_known(&self, server: bool) -> bool {
        self.of(server).next().is_some()
    }

    pub fn end(&self, server: bool) -> i64 {
        self.counting(server).iter().map(Seen::end).max().unwrap_or(0)
    }

    pub fn acknowledged(&self, server: bool) -> Option<i64> {
        self.of(server).filter(|it| it.has(TcpFlags::ACK)).map(|it| it.acknowledgment).max()
    }

    pub fn fin(&self, server: bool) -> Option<i64> {
        self.of(server).rev().find(|it| it.has(TcpFlags::FIN)).map(Seen::end)
    }

    pub fn syn(&self, server: bool) -> Option<i64> {
        self.of(server).rev().find(|it| it.has(TcpFlags::SYN)).map(|it| it.sequence + 1)
    }

    /// The largest window that an end has offered, each scaled as the options said when it came.
    pub fn windows(&self, server: bool) -> Vec<(Seen, i64)> {
        let mut windows = Vec::new();
        for (n, it) in self.segments.iter().enumerate().filter(|(_, it)| it.by_server == server) {
            let scale = |server: bool| {
                let syns = self.segments[..n].iter().rev();
                syns.clone()
                    .find(|it| it.by_server == server && it.has(TcpFlags::SYN))
                    .and_then(|it| it.scale)
            };
            let shift = match (scale(server), scale(!server)) {
                (Some(own), Some(_)) if !it.has(TcpFlags::SYN) => own.min(14),
                _ => 0,
            };
            windows.push((*it, (i64::from(it.window) << shift).max(1)));
        }
        windows
    }

    pub fn window(&self, server: bool) -> i64 {
        self.windows(server).iter().map(|(_, window)| *window).max().unwrap_or(0)
    }

    /// The sequence number up to which an end may send.
    pub fn offered(&self, server: bool) -> i64 {
        let acknowledging = self.windows(!server).into_iter().filter(|(it, _)| it.has(TcpFlags::ACK));
        let offered = acknowledging.map(|(it, window)| it.acknowledgment + window).max();
        // The window of the other end's SYN, before it has acknowledged anything.
        let by_syn = (0..self.segments.len()).rev().find_map(|at| {
            let before = Self { segments: self.segments[..at].to_vec(), ..self.clone() };
            let it = &self.segments[at];
            let restarts = it.by_server == server && (it.has(TcpFlags::SYN) || !before.is_known(server));
            let offers = restarts && before.acknowledged(!server).is_none();
            offers.then(|| it.end() + before.window(!server))
        });
        offered.max(by_syn).unwrap()
    }

    pub fn in_window(&self, it: &Seen) -> bool {
        let (own, other) = (it.by_server, !it.by_server);
        if self.is_liberal || !self.is_known(own) || !self.is_known(other) {
            return true;
        }
        let data = it.sequence <= self.offered(own) && it.end() >= self.end(own) - self.window(other);
        let back = self.window(own).max(66_000);
        let acknowledges = (self.end(other) - back..=self.end(other)).contains(&it.acknowledgment);
        data && (acknowledges || !it.has(TcpFlags::ACK))
    }

    /// The state that a segment gives its packet, after it has changed the connection.
    pub fn handle(&mut self, it: &Seen) -> Option<bool> {
        let (own, other) = (it.by_server, !it.by_server);
        let is_reply = own != self.began_by_server;
        let kind = kind(it.flags)?;
        let answers = self.is_known(other)
            && self.syn(other).is_some_and(|syn| (syn..=self.end(other)).contains(&it.acknowledgment));
        let opens = ["syn-sent", "syn-recv"].contains(&self.state);
        let permitted = match kind {
            "ack" | "fin" if self.state == "syn-sent" => false,
            "synack" if opens => answers,
            "rst" if self.state == "syn-sent" && is_reply => it.has(TcpFlags::ACK) && answers,
            "rst" if self.state == "syn-sent" => it.sequence == self.end(own),
            "rst" => self.is_liberal || self.acknowledged(other).is_none_or(|last| it.sequence >= last),
            _ => true,
        };
        if !permitted {
            return None;
        }
        let is_syn = kind.starts_with("syn");
        if is_syn && !opens || kind == "syn" && self.state == "syn-recv" {
            return Some(false);
        }
        if !is_syn && !self.in_window(it) {
            return None;
        }
        let is_end = self.is_known(own) && it.sequence == self.end(own);
        let exact = is_end || self.acknowledged(other).is_none_or(|last| it.sequence == last);
        if kind == "rst" && self.state == "established" && !exact {
            return Some(false);
        }
        self.segments.push(*it);
        let both_fin = self.fin(own).is_some() && self.fin(other).is_some();
        let acks_fin = self.fin(other).is_some_and(|fin| it.acknowledgment >= fin);
        self.state = match (self.state, kind) {
            (_, "rst") => "close",
            ("time-wait" | "close", _) => self.state,
            ("syn-sent", "synack") => "syn-recv",
            ("syn-recv", "ack") if !is_reply => "established",
            ("last-ack", "ack") if acks_fin => "time-wait",
            (_, "fin") if both_fin => "last-ack",
            ("close-wait", "fin") => "close-wait",
            (_, "fin") => "fin-wait",
            ("fin-wait", "ack") if acks_fin => "close-wait",
            (state, _) => state,
        };
        Some(true)
    }

    pub fn seconds(&self, config: &Config, now: u32) -> u32 {
        let times = &config.timeouts;
        let tcp = match self.state {
            "syn-sent" => times.tcp_syn_sent,
            "syn-recv" => times.tcp_syn_recv,
            "established" => times.tcp_established,
            "fin-wait" => times.tcp_fin_wait,
            "close-wait" => times.tcp_close_wait,
            "last-ack" => times.tcp_last_ack,
            "time-wait" => times.tcp_time_wait,
            _ => times.tcp_close,
        };
        match self.protocol {
            Protocol::Tcp if self.is_answered => tcp,
            Protocol::Tcp => tcp.min(300),
            Protocol::Udp if self.is_answered && now - self.created > 2 * TICKS_PER_SECOND => {
                times.udp_stream
            }
            Protocol::Udp => times.udp,
            Protocol::Echo(_) => times.icmp,
        }
    }
}

pub fn kind(flags: TcpFlags) -> Option<&'static str> {
    let (syn, ack, fin, rst) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN, TcpFlags::RST);
    let flags = flags & (syn | ack | fin | rst);
    let kinds = [
        (syn, "syn"),
        (syn | ack, "synack"),
        (fin | ack, "fin"),
        (ack, "ack"),
        (rst, "rst"),
        (rst | ack, "rst"),
    ];
    kinds.into_iter().find(|(it, _)| *it == flags).map(|(_, kind)| kind)
}

/// The state of a packet that belongs to a connection.
pub fn answered(connection: &Conn, by_server: bool) -> ConnState {
    let is_answer = connection.began_by_server != by_server;
    if connection.is_answered || is_answer { ConnState::Established } else { ConnState::New }
}
