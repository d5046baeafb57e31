// SPDX-License-Identifier: Apache-2.0
//! The engine's flow monitor.

use netvm_counters::{MONITOR, shown};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

netvm_counters::monitor! { shown! {
    /// What the engine's flow monitor has counted, over all workers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct FlowMonitorInfo: MONITOR {} {
        /// The collector is away.
        pub is_collector_away: bool,
    }
} }

/// The addresses and names with the most bytes, in the records so far and in the flows that run. Without a flow monitor
/// those of the live connections, where ports track.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopTalkers {
    /// The monitor's counters.
    pub monitor: FlowMonitorInfo,
    /// There is no flow monitor: the bytes are those of so many live connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Addresses, the heaviest first.
    pub addresses: Vec<AddressBytes>,
    /// Names that DNS messages and TLS handshakes had, the one with the most bytes in its flows first.
    pub names: Vec<NameBytes>,
}

/// An address and its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressBytes {
    /// The address.
    pub address: String,
    /// Bytes sent and received, or at most `error` more.
    pub bytes: u64,
    /// By how much `bytes` is too high at most.
    pub error: u64,
}

/// A name and the bytes of its flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NameBytes {
    /// The name.
    pub name: String,
    /// `dns`: what a DNS message asks for; `tls`: the server name of a TLS handshake.
    pub kind: String,
    /// Bytes of its flows, or at most `error` more.
    pub bytes: u64,
    /// By how much `bytes` is too high at most.
    pub error: u64,
}

/// The query of [`/v1/flows/top`](crate::path::TOP_TALKERS).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct TopQuery {
    /// Most addresses and most names.
    pub count: usize,
}

impl Default for TopQuery {
    fn default() -> Self {
        Self { count: 10 }
    }
}
