// SPDX-License-Identifier: Apache-2.0
//! Sizes, quotas and time-outs.

/// How connections are tracked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most connections.
    pub sessions: u32,
    /// Most packets of which later fragments are expected at a time.
    pub fragments: u32,
    /// Most ends whose source is translated; 0: none is.
    pub mappings: u32,
    /// Most blocks of ports that addresses inside have; 0: no pool has blocks.
    pub blocks: u32,
    /// Most events of blocks that wait to be taken; 0: there are none.
    pub block_events: u32,
    /// The key by which addresses and ports of pools are chosen, for the same choice after a restart; keep it secret.
    /// `None`: a random one.
    pub mapping_key: Option<u64>,
    /// Most events that wait until they are taken; 0: none are noted.
    pub events: u32,
    /// A TCP segment in mid-stream begins a connection, as with Linux's `nf_conntrack_tcp_loose`.
    pub pick_up: bool,
    /// Quotas.
    pub quotas: Quotas,
    /// Time-outs.
    pub timeouts: Timeouts,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sessions: 65_536,
            fragments: 1024,
            mappings: 0,
            blocks: 0,
            block_events: 0,
            mapping_key: None,
            events: 0,
            pick_up: true,
            quotas: Quotas::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// Most connections; 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Of each source: an IPv4 address, or an IPv6 network of 64 bits.
    pub per_source: u32,
    /// Of each port that receives their first packets.
    pub per_port: u32,
    /// Of each zone.
    pub per_zone: u32,
    /// Of each source: those without an answer, or whose handshake is not complete.
    pub half_open_per_source: u32,
    /// Of each port, as `half_open_per_source`.
    pub half_open_per_port: u32,
}

/// Seconds without a packet after which a connection ends, by protocol and state. Names as in Linux
/// (`net.netfilter.nf_conntrack_*_timeout_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the states have the names of Linux")]
pub struct Timeouts {
    pub tcp_syn_sent: u32,
    pub tcp_syn_recv: u32,
    pub tcp_established: u32,
    pub tcp_fin_wait: u32,
    pub tcp_close_wait: u32,
    pub tcp_last_ack: u32,
    pub tcp_time_wait: u32,
    pub tcp_close: u32,
    pub udp: u32,
    pub udp_stream: u32,
    pub icmp: u32,
    pub sctp_closed: u32,
    pub sctp_cookie_wait: u32,
    pub sctp_cookie_echoed: u32,
    pub sctp_established: u32,
    pub sctp_shutdown_sent: u32,
    pub sctp_shutdown_recd: u32,
    pub sctp_shutdown_ack_sent: u32,
    pub sctp_heartbeat_sent: u32,
    pub generic: u32,
}

impl Default for Timeouts {
    /// Those of Linux; but established TCP connections end after two hours and four minutes, the least that RFC 5382
    /// section 5 permits, and not after five days.
    fn default() -> Self {
        Self {
            tcp_syn_sent: 120,
            tcp_syn_recv: 60,
            tcp_established: 7440,
            tcp_fin_wait: 120,
            tcp_close_wait: 60,
            tcp_last_ack: 30,
            tcp_time_wait: 120,
            tcp_close: 10,
            udp: 30,
            udp_stream: 120,
            icmp: 30,
            sctp_closed: 10,
            sctp_cookie_wait: 3,
            sctp_cookie_echoed: 3,
            sctp_established: 210,
            sctp_shutdown_sent: 3,
            sctp_shutdown_recd: 3,
            sctp_shutdown_ack_sent: 3,
            sctp_heartbeat_sent: 30,
            generic: 600,
        }
    }
}
