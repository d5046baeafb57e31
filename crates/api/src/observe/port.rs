//! Ports, with their counters.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortInfo {
    /// Its number.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its kind, as in the configuration.
    pub kind: String,
    /// The driver and its mode, such as `af_xdp native, zero-copy` or `DPDK net_null`.
    pub driver_mode: String,
    /// Whether the link is up.
    pub link: bool,
    /// Receive and transmit queues.
    pub queues: u16,
    /// The workers that have them, by number; empty: the port is closed.
    #[serde(default)]
    pub workers: Vec<PortWorkerInfo>,
    /// Longest frame in bytes without FCS and without the Ethernet header.
    pub mtu: u16,
    /// The trust group whose memory receives its packets; `None`: the engine's own memory.
    pub group: Option<String>,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of the packets received, without FCS.
    pub rx_bytes: u64,
    /// Packets that GRO joined to the packet before them, which `rx_packets` does not count; `None`: the port has no `gro`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_coalesced: Option<u64>,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes of the packets sent, without FCS.
    pub tx_bytes: u64,
    /// Packets that the device or the kernel dropped for lack of buffers, if it reports them; of a source with a rate,
    /// packets that were due and not sent in time. Since the port was opened.
    pub rx_dropped: u64,
    /// Packets that could not be sent.
    pub tx_dropped: u64,
    /// Packets that exceeded a rate limit of the port or of a rule for it; `None`: none did, and the port has no rate limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policed: Option<u64>,
    /// Packets whose source its `guard` does not list; `None`: it has no `guard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofed: Option<u64>,
    /// MAC addresses that moved to the port from another port.
    #[serde(default)]
    pub mac_moves: u64,
    /// Packets whose source address another port kept, because the address had moved there less than `mac_hold` ago.
    #[serde(default)]
    pub mac_moves_held: u64,
    /// What it gets of its worker; `None`: no port has `weight` or `reserve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareInfo>,
    /// The queues of its shaper (`qos`), in the order of the configuration; empty: it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tx_queues: Vec<TxQueueInfo>,
}

/// A worker that has queues of a port.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortWorkerInfo {
    /// Its number.
    pub worker: u8,
    /// The number of these queues.
    pub queues: u16,
    /// Share of the worker's last second that packets of these queues took, in percent.
    pub load_percent: f64,
}

/// A port's share of its worker. Counts are since the port was configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShareInfo {
    /// Its part, beside the weights of others, of what is not reserved.
    pub weight: u16,
    /// Percent of the worker that it has for itself.
    pub reserve: u8,
    /// The router whose share this is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterShareInfo>,
    /// Seconds that the worker spent on its packets.
    pub worker_s: f64,
    /// Turns of the worker's loop in which it had to wait, as it had used up its share.
    pub waited: u64,
}

/// A virtual router's share of its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RouterShareInfo {
    /// Its name.
    pub name: String,
    /// Its part, beside the weights of others, of what is not reserved.
    pub weight: u16,
    /// Percent of each worker that it has for itself.
    pub reserve: u8,
}

/// A queue of a port's shaper. Counts are since its `qos` was configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TxQueueInfo {
    /// Its name.
    pub name: String,
    /// Packets sent.
    pub packets: u64,
    /// Bytes of the packets sent.
    pub bytes: u64,
    /// Packets dropped because the queue was full.
    pub dropped_full: u64,
    /// Packets that CoDel dropped, because they had waited too long in a standing queue.
    pub dropped_codel: u64,
    /// Packets that wait now.
    pub waiting_packets: u64,
    /// Bytes of the packets that wait now.
    pub waiting_bytes: u64,
}
