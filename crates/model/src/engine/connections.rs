// SPDX-License-Identifier: Apache-2.0
//! Connection tracking: how many connections a worker holds, and for how long; what is logged of them.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::words::words;

/// Connection tracking of each worker. It costs nothing unless a port or a router tracks ([`crate::Host::tracks`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionsConfig {
    /// Most connections of a worker; the memory for them is set aside.
    pub limit: u32,
    /// Whether a TCP segment in mid-stream may begin a connection, as with Linux's `nf_conntrack_tcp_loose`.
    pub pick_up: bool,
    /// Most connections of a source: an IPv4 address, or an IPv6 network of 64 bits; 0: no limit.
    pub per_source: u32,
    /// Most connections that packets of a port begin; 0: no limit.
    pub per_port: u32,
    /// Most connections of a zone; 0: no limit.
    pub per_zone: u32,
    /// Most connections without an answer of a source; 0: no limit.
    pub half_open_per_source: u32,
    /// Most connections without an answer that packets of a port begin; 0: no limit.
    pub half_open_per_port: u32,
    /// Most ends whose source is translated; `None`: as many as connections. See [`crate::Host::mappings`].
    pub mappings: Option<u32>,
    /// Where connections and translations are logged.
    pub log: Option<ConnectionLog>,
    /// Seconds without a packet after which a connection ends.
    pub timeouts: ConnectionTimeouts,
}

/// The log of connections and translations: a file, a collector, or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionLog {
    /// The file to which JSON lines are appended.
    pub file: Option<PathBuf>,
    /// The IPFIX collector that gets the events of RFC 8158 over UDP.
    pub collector: Option<SocketAddr>,
    /// What is logged, at least one.
    pub what: Vec<LogSubject>,
}

impl Default for ConnectionLog {
    /// Translations, nowhere.
    fn default() -> Self {
        Self { file: None, collector: None, what: vec![LogSubject::Translations] }
    }
}

/// What a log of connections is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogSubject {
    /// The beginning and the end of each mapping, or of each block of ports.
    Translations,
    /// The beginning and the end of each connection.
    Connections,
}
words!(LogSubject: "translations" => Translations, "connections" => Connections);

impl Default for ConnectionsConfig {
    /// 65,536 connections.
    fn default() -> Self {
        Self {
            limit: 65_536,
            pick_up: true,
            per_source: 0,
            per_port: 0,
            per_zone: 0,
            half_open_per_source: 0,
            half_open_per_port: 0,
            mappings: None,
            log: None,
            timeouts: ConnectionTimeouts::default(),
        }
    }
}

macro_rules! timeouts {
    ($($name:ident = $seconds:literal: $doc:literal;)*) => {
        /// Seconds without a packet after which a connection ends, by protocol and state. Names and, but for
        /// `tcp_established`, defaults are those of Linux's `nf_conntrack_*_timeout*`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct ConnectionTimeouts {
            $(#[doc = $doc] pub $name: u32,)*
        }

        impl Default for ConnectionTimeouts {
            fn default() -> Self {
                Self { $($name: $seconds,)* }
            }
        }

        impl ConnectionTimeouts {
            /// Each time-out with its name.
            pub fn each(&mut self) -> impl Iterator<Item = (&'static str, &mut u32)> {
                [$((stringify!($name), &mut self.$name),)*].into_iter()
            }
        }
    };
}
timeouts! {
    tcp_syn_sent = 120: "TCP: a SYN without an answer.";
    tcp_syn_recv = 60: "TCP: a SYN and its answer.";
    tcp_established = 7440: "TCP: an open connection. Linux's 5 days are too long for a table of a fixed size; \
        RFC 5382 (REQ-5) asks for 2 hours and 4 minutes at least.";
    tcp_fin_wait = 120: "TCP: a FIN.";
    tcp_close_wait = 60: "TCP: a FIN and its acknowledgement.";
    tcp_last_ack = 30: "TCP: FINs of both ends.";
    tcp_time_wait = 120: "TCP: FINs of both ends, acknowledged.";
    tcp_close = 10: "TCP: a reset.";
    udp = 30: "UDP: packets of one direction.";
    udp_stream = 120: "UDP: packets of both directions, after the first answer.";
    icmp = 30: "ICMP and ICMPv6 queries.";
    sctp_closed = 10: "SCTP: an INIT without an answer, and after the end of an association.";
    sctp_cookie_wait = 3: "SCTP: an INIT and its acknowledgement.";
    sctp_cookie_echoed = 3: "SCTP: a COOKIE ECHO.";
    sctp_established = 210: "SCTP: an open association.";
    sctp_shutdown_sent = 3: "SCTP: a SHUTDOWN of the end that began the association.";
    sctp_shutdown_recd = 3: "SCTP: a SHUTDOWN of the other end.";
    sctp_shutdown_ack_sent = 3: "SCTP: a SHUTDOWN and its acknowledgement.";
    sctp_heartbeat_sent = 30: "SCTP: a HEARTBEAT on a path of which nothing else was seen.";
    generic = 600: "Other protocols.";
}
