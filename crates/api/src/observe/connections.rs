// SPDX-License-Identifier: Apache-2.0
//! Tracked connections.

use std::collections::BTreeMap;

use netvm_counters::{CONNECTIONS, shown};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::escape::encode;

netvm_counters::connections! { shown! {
    /// What was counted of tracked connections, over all workers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct ConnectionCounts: CONNECTIONS {} {
        /// Most connections that there can be.
        pub limit: u64,
    }
} }

/// Tracked connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionList {
    /// The counters.
    pub counts: ConnectionCounts,
    /// The connections, those with most bytes first.
    pub connections: Vec<ConnectionInfo>,
    /// For each port of the connections that has labels: these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub port_labels: BTreeMap<String, BTreeMap<String, String>>,
}

/// A tracked connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionInfo {
    /// Its number, as long as its worker has it.
    pub id: String,
    /// The worker that has it.
    pub worker: u8,
    /// The port that received its first packet.
    pub port: String,
    /// The rule that accepted it, by name or number; `None`: the port's default.
    #[serde(default)]
    pub rule: Option<String>,
    /// Its zone.
    pub zone: u16,
    /// Its protocol: a name, or a number.
    pub protocol: String,
    /// Address and port of the end that began it, as `192.0.2.1:1000` or `[2001:db8::1]:1000`; for ICMP the identifier
    /// is the port.
    pub source: String,
    /// Those of the other end.
    pub destination: String,
    /// What stands for `source` at the other end, if it is translated.
    #[serde(default)]
    pub translated_source: Option<String>,
    /// Where packets to `destination` go, if it is translated.
    #[serde(default)]
    pub translated_destination: Option<String>,
    /// The state of its protocol, such as `established`, `syn-sent`, `unreplied` or `replied`.
    pub state: String,
    /// It has had an answer.
    #[serde(default)]
    pub answered: bool,
    /// It stays when the table is full: it has had an answer, and its handshake is complete.
    #[serde(default)]
    pub assured: bool,
    /// The ends of TCP: the one that began it, and the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp: Vec<TcpEndInfo>,
    /// Packets from the end that began it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets from the other end.
    pub reply_packets: u64,
    /// Bytes of these packets.
    pub reply_bytes: u64,
    /// Seconds since its first packet.
    pub age_s: f64,
    /// Seconds until it ends if no packet comes.
    pub left_s: f64,
}

/// What one end of a TCP connection has sent and offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TcpEndInfo {
    /// The sequence number after the last one that it has sent.
    pub sent: u32,
    /// The last sequence number that it has acknowledged.
    pub acknowledged: u32,
    /// The largest window that it has offered, in bytes.
    pub window: u32,
    /// The shift of its windows; `None`: its SYN had none, or was not seen.
    pub scale: Option<u8>,
    /// It has sent FIN.
    pub fin: bool,
}

/// A connection that has begun or ended, for the log and those who watch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoggedConnection {
    /// When, in UTC, as in RFC 3339.
    pub time: String,
    /// The protocol: a name, or a number.
    pub protocol: String,
    /// The zone.
    pub zone: u16,
    /// The port that received the first packet.
    pub port: String,
    /// The rule that accepted it, by name or number; `None`: the port's default.
    pub rule: Option<String>,
    /// Address and port of the end that began it.
    pub source: String,
    /// Those of the other end.
    pub destination: String,
    /// What stands for `source` at the other end, if it is translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translated_source: Option<String>,
    /// Where packets to `destination` go, if it is translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translated_destination: Option<String>,
}

/// A connection that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClosedConnection {
    /// The connection.
    #[serde(flatten)]
    pub connection: LoggedConnection,
    /// When it began, in UTC, as in RFC 3339.
    pub begun: String,
    /// Why it ended: `expired`, `evicted`, `replaced`, `flushed` or `refused`.
    pub why: String,
    /// Packets from the end that began it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets from the other end.
    pub reply_packets: u64,
    /// Bytes of these packets.
    pub reply_bytes: u64,
}

/// A block of ports that an address inside has, or had.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortBlock {
    /// When, in UTC, as in RFC 3339.
    pub time: String,
    /// The zone.
    pub zone: u16,
    /// The address inside.
    pub inside: String,
    /// The address that stands for it.
    pub outside: String,
    /// The first port.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
}

/// What happened to a connection, or to ports of NAT: a line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ConnectionEvent {
    /// It began.
    Opened(LoggedConnection),
    /// Another end stands for its source, since its first packet left.
    Translated(LoggedConnection),
    /// It ended.
    Closed(ClosedConnection),
    /// An address inside got a block of ports (`blocks` of a NAT rule).
    BlockAssigned(PortBlock),
    /// It has the block no longer.
    BlockReleased(PortBlock),
    /// NAT had no port for a new connection. Each worker tells of the first one in a tenth of a second.
    PortsExhausted {
        /// When, in UTC, as in RFC 3339.
        time: String,
        /// The protocol: a name, or a number.
        protocol: String,
        /// The zone.
        zone: u16,
        /// The source for which no port was free.
        inside: String,
    },
    /// This client reads too slowly: events are missing here.
    Lost {
        /// How many.
        events: u64,
    },
}

/// How many connections were ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlushedConnections {
    /// Their number.
    pub ended: u64,
}

/// What became of connections that were to be restored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoredConnections {
    /// Connections that go on.
    pub restored: u64,
    /// Those whose time was over.
    pub expired: u64,
    /// Those of ports that do not exist any more.
    pub of_unknown_ports: u64,
    /// Some of these ports.
    pub unknown_ports: Vec<String>,
    /// Those without room in a table.
    pub no_room: u64,
    /// Those beyond a quota.
    pub over_quota: u64,
    /// Those of which an end, or what stands for it, has a connection already.
    pub taken: u64,
    /// Why the rest of the file was not read.
    pub problem: Option<String>,
}

/// Selects connections: those that fit everything that is given. The default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionQuery {
    /// The number of one connection.
    pub id: Option<String>,
    /// The address of one of their ends, or a prefix of it.
    pub address: Option<String>,
    /// The TCP, UDP or SCTP port of one of their ends, or their ICMP identifier.
    pub l4_port: Option<u16>,
    /// Their protocol: `tcp`, `udp`, `icmp`, `icmpv6`, `sctp` or a number.
    pub protocol: Option<String>,
    /// The state of their protocol, such as `established`, `syn-sent` or `replied`.
    pub state: Option<String>,
    /// The port that received their first packet.
    pub port: Option<String>,
    /// Their zone.
    pub zone: Option<u16>,
    /// Most connections to list; at most, and by default, [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS). Not for ending
    /// them.
    pub limit: Option<usize>,
}

impl ConnectionQuery {
    /// As the query of a URL.
    pub(crate) fn query(&self) -> String {
        let text = |name: &str, value: Option<&str>| Some(format!("{name}={}", encode(value?, "/:")));
        let number = |name: &str, value: Option<usize>| Some(format!("{name}={}", value?));
        let all = [
            text("id", self.id.as_deref()),
            text("address", self.address.as_deref()),
            number("l4_port", self.l4_port.map(usize::from)),
            text("protocol", self.protocol.as_deref()),
            text("state", self.state.as_deref()),
            text("port", self.port.as_deref()),
            number("zone", self.zone.map(usize::from)),
            number("limit", self.limit),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join("&")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_what_is_given_with_names_escaped() {
        assert_eq!(ConnectionQuery::default().query(), "");
        let query = ConnectionQuery {
            address: Some("2001:db8::/32".to_owned()),
            l4_port: Some(443),
            port: Some("a b&c".to_owned()),
            limit: Some(7),
            ..ConnectionQuery::default()
        };
        assert_eq!(query.query(), "address=2001:db8::/32&l4_port=443&port=a%20b%26c&limit=7");
    }
}
