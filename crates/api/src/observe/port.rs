// SPDX-License-Identifier: Apache-2.0
//! Ports, with their counters.

use std::collections::BTreeMap;

use netvm_counters::{PORT, QUEUE, SHARE, shown};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

netvm_counters::port! { shown! {
    /// One port.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct PortInfo: PORT {
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
        /// Receive and transmit queues; 0: it has no device, and packets pass it without waiting.
        pub queues: u16,
        /// The workers that have them, by number; empty: the port is closed, or has no queues.
        #[serde(default)]
        pub workers: Vec<PortWorkerInfo>,
        /// Longest frame in bytes without FCS and without the Ethernet header.
        pub mtu: u16,
        /// The trust group whose memory receives its packets; `None`: the engine's own memory.
        pub group: Option<String>,
    } {
        /// Who has added it beside the configuration file; `None`: it is in the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub owner: Option<String>,
        /// Its labels, by which rules may name it.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub labels: BTreeMap<String, String>,
        /// What it gets of its worker; `None`: no port has `weight` or `reserve`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub share: Option<ShareInfo>,
        /// What carries its packets, if it is a bond.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub bond: Option<BondInfo>,
        /// The queues of its shaper (`qos`), in the order of the configuration; empty: it has none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub tx_queues: Vec<TxQueueInfo>,
        /// Its tunnels to other servers; `None`: it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tunnel: Option<TunnelInfo>,
    }
} }

/// The tunnels of a port (VXLAN).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TunnelInfo {
    /// The number of the network.
    pub vni: u32,
    /// The virtual router that reaches the other servers.
    pub router: String,
    /// The address of this server's tunnel end point (VTEP).
    pub local: String,
    /// The VTEPs of the other servers.
    pub remote: Vec<String>,
}

/// A bond.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BondInfo {
    /// The system at the other end, if LACP has found one: its MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<String>,
    /// Its members, in the order of the configuration.
    pub members: Vec<BondMemberInfo>,
}

/// A member of a bond.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BondMemberInfo {
    /// The port.
    pub port: String,
    /// Whether its link is up.
    pub link: bool,
    /// Whether the bond sends packets by it.
    pub sends: bool,
    /// Whether the bond receives its packets.
    pub receives: bool,
    /// The system at its other end, if LACP has found one: its MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<String>,
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

netvm_counters::share! { shown! {
    /// A port's share of its worker. Counts are since the port was configured.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct ShareInfo: SHARE {
        /// Its part, beside the weights of others, of what is not reserved.
        pub weight: u16,
        /// Percent of the worker that it has for itself.
        pub reserve: u8,
        /// The router whose share this is a part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub router: Option<RouterShareInfo>,
    } {}
} }

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

netvm_counters::queue! { shown! {
    /// A queue of a port's shaper. Counts are since its `qos` was configured.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct TxQueueInfo: QUEUE {
        /// Its name.
        pub name: String,
    } {}
} }
