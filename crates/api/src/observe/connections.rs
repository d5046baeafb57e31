//! Tracked connections.

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
}

/// A tracked connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionInfo {
    /// The worker that has it.
    pub worker: u8,
    /// The port that received its first packet.
    pub port: String,
    /// Its zone.
    pub zone: u16,
    /// Its protocol: a name, or a number.
    pub protocol: String,
    /// Address and port of the end that began it, as `192.0.2.1:1000` or `[2001:db8::1]:1000`; for ICMP the identifier
    /// is the port.
    pub source: String,
    /// Those of the other end.
    pub destination: String,
    /// The state of its protocol, such as `established`, `syn-sent`, `unreplied` or `replied`.
    pub state: String,
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

/// How many connections were ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlushedConnections {
    /// Their number.
    pub ended: u64,
}

/// Selects connections: those that fit everything that is given. The default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionQuery {
    /// The address of one of their ends, or a prefix of it.
    pub address: Option<String>,
    /// The TCP, UDP or SCTP port of one of their ends, or their ICMP identifier.
    pub l4_port: Option<u16>,
    /// Their protocol: `tcp`, `udp`, `icmp`, `icmpv6`, `sctp` or a number.
    pub protocol: Option<String>,
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
            text("address", self.address.as_deref()),
            number("l4_port", self.l4_port.map(usize::from)),
            text("protocol", self.protocol.as_deref()),
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
