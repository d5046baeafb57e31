// SPDX-License-Identifier: Apache-2.0
//! Docker's requests, as libnetwork's `drivers/remote/api` has them. What this driver does not need is left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `CreateNetwork`, `DeleteNetwork`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NetworkRequest {
    #[serde(rename = "NetworkID")]
    pub network: String,
    #[serde(rename = "Options")]
    pub options: BTreeMap<String, Value>,
    #[serde(rename = "IPv4Data")]
    pub v4: Option<Vec<Pool>>,
    #[serde(rename = "IPv6Data")]
    pub v6: Option<Vec<Pool>>,
}

/// The addresses of a network.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// With the length of its prefix; empty if there is none.
    #[serde(rename = "Gateway")]
    pub gateway: String,
}

/// Requests about an endpoint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointRequest {
    #[serde(rename = "NetworkID")]
    pub network: String,
    #[serde(rename = "EndpointID")]
    pub endpoint: String,
    /// The file of the container's network namespace, which may not exist yet.
    #[serde(rename = "SandboxKey")]
    pub sandbox: String,
    #[serde(rename = "Options")]
    pub options: Option<BTreeMap<String, Value>>,
    #[serde(rename = "Interface")]
    pub interface: Option<Addresses>,
}

/// What Docker's IPAM has given to an endpoint; empty: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Addresses {
    #[serde(rename = "Address")]
    pub v4: String,
    #[serde(rename = "AddressIPv6")]
    pub v6: String,
    #[serde(rename = "MacAddress")]
    pub mac: String,
}

/// A published port.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PortMapping {
    /// The number of the protocol.
    #[serde(rename = "Proto")]
    pub protocol: u8,
    #[serde(rename = "Port")]
    pub port: u16,
    #[serde(rename = "HostIP")]
    pub host_ip: String,
    #[serde(rename = "HostPort")]
    pub host_port: u16,
}
