//! Virtual routers.

use serde::{Deserialize, Serialize};

/// A virtual router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterInfo {
    /// Its name.
    pub name: String,
    /// Its network namespace, the one for `ip netns exec`.
    pub namespace: String,
    /// Its interfaces, in the order of the configuration.
    pub interfaces: Vec<RouterInterfaceInfo>,
    /// IPv4 routes of its kernel (table `main`).
    pub routes_v4: u64,
    /// IPv6 routes.
    pub routes_v6: u64,
    /// Neighbours whose MAC address its kernel knows.
    pub neighbours: u64,
    /// Neighbours, and sets of gateways, that the engine forwards to.
    pub next_hops: u64,
    /// Packets that the engine forwarded.
    pub forwarded: u64,
    /// Packets that its kernel was given.
    pub punted: u64,
    /// Packets that its kernel sent.
    pub from_kernel: u64,
    /// Bytes of its table in the engine; two of them are there.
    pub table_bytes: u64,
    /// Whether its kernel forwards everything, as somebody gave it rules of policy routing (`ip rule`).
    pub has_rules: bool,
}

/// An interface of a virtual router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterInterfaceInfo {
    /// Its name in the namespace.
    pub name: String,
    /// The port that its packets come in and go out by.
    pub port: String,
    /// Their outer VLAN tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Its MAC address.
    pub mac: String,
    /// The addresses that the configuration gives it, with the lengths of their prefixes.
    pub addresses: Vec<String>,
    /// The port to the kernel of the namespace.
    pub punt_port: String,
    /// Packets that the kernel was given.
    pub punted: u64,
    /// Packets that the kernel sent.
    pub from_kernel: u64,
    /// Packets that no kernel was given, as there were more than `punt_rate`: of all interfaces on its port.
    pub over_quota: u64,
}

/// A virtual router and its routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterRoutes {
    /// The router.
    pub router: RouterInfo,
    /// Routes as the engine has them, by prefix.
    pub routes: Vec<RouteInfo>,
    /// How many more there are.
    pub more: u64,
}

/// A route as the engine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteInfo {
    /// Where to.
    pub prefix: String,
    /// What becomes of packets.
    pub action: RouteAction,
    /// Those that they go to; empty unless they are forwarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<RouteHop>,
}

/// What becomes of packets by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteAction {
    /// The engine forwards them, as soon as it knows where to; until then the kernel does.
    Forward,
    /// The kernel gets them.
    Punt,
    /// They are dropped.
    Blackhole,
}

/// Somebody that packets go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteHop {
    /// The interface; absent for one that has just gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The gateway's or neighbour's address.
    pub address: String,
    /// Its MAC address, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its share of the flows.
    pub weight: u16,
}
