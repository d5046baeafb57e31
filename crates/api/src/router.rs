// SPDX-License-Identifier: Apache-2.0
//! Virtual routers.

use netvm_counters::{INTERFACE, PUNT, ROUTER, TARGET, shown};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::escape::encode;

netvm_counters::router! { shown! {
    /// A virtual router.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct RouterInfo: ROUTER {
        /// Its name.
        pub name: String,
        /// Its network namespace, for `ip netns exec`.
        pub namespace: String,
        /// Its interfaces, in the order of the configuration.
        pub interfaces: Vec<RouterInterfaceInfo>,
        /// IPv4 routes of its kernel (table `main`).
        pub routes_v4: u64,
        /// IPv6 routes.
        pub routes_v6: u64,
        /// Neighbours with a known MAC address.
        pub neighbours: u64,
        /// Next hops of the engine: neighbours, and sets of gateways.
        pub next_hops: u64,
    } {
        /// Bytes of its table in the engine, which has two of them.
        pub table_bytes: u64,
        /// Whether its kernel forwards all packets of a family, as the policy routing rules (`ip rule`) of that family
        /// are not the default ones.
        pub has_rules: bool,
        /// Whether its namespace has chains of type `nat`, which apply only to what its kernel forwards.
        #[serde(default)]
        pub has_nat: bool,
        /// Whether its kernel forwards packets of some routes, as the engine has no next hop, or no room in its table,
        /// for them.
        #[serde(default)]
        pub is_full: bool,
    }
} }

netvm_counters::interface! { shown! {
    /// An interface of a virtual router.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct RouterInterfaceInfo: INTERFACE {
        /// Its name in the namespace.
        pub name: String,
        /// The port of its packets.
        pub port: String,
        /// Their outer VLAN tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub vlan: Option<u16>,
        /// Its MAC address.
        pub mac: String,
        /// The addresses that it has in the namespace, by the configuration or from elsewhere, such as by DHCP, with
        /// the lengths of their prefixes; without link-local ones.
        pub addresses: Vec<String>,
    } {
        /// Its punt port.
        pub punt_port: String,
        /// Packets punted to the kernel.
        pub punted: u64,
        /// Packets from the kernel.
        pub from_kernel: u64,
        /// Packets that were not punted because of `punt_rate`, of all interfaces on its port.
        pub over_quota: u64,
        /// Packets for the kernel by reason, those without any left out.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub punts: Vec<PuntInfo>,
    }
} }

netvm_counters::target! { shown! {
    /// A target of NAT rules that netvmd checks.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct NatTargetInfo: TARGET {
        /// Its address and port.
        pub target: String,
        /// The router from whose namespace netvmd connects to it; `None`: from netvmd's own.
        pub router: Option<String>,
        /// The rules that lead to it: names, or places in the file from 1.
        pub rules: Vec<String>,
        /// New connections may lead to it.
        pub up: bool,
        /// Why the last attempt failed; `None`: it did not.
        pub problem: Option<String>,
    } {}
} }

netvm_counters::punt! { shown! {
    /// Packets for a router's kernel, punted for one reason.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct PuntInfo: PUNT {
        /// The class whose share of `punt_rate` they use: `routing`, `neighbour`, `local`, `kernel`, `miss` or
        /// `relearn`.
        pub class: String,
        /// `routing-protocol`, `neighbour-discovery`, `own-address`, `unresolved-neighbour`, `ttl-expired`,
        /// `ip-options`, `link-local`, `group-address`, `ether-type`, `exceeds-mtu`, `no-route`, `kernel-route`,
        /// `unresolved-gateway`, `redirect`, `forwarding-off`, `martian` or `lost-neighbour`.
        #[serde(default)]
        pub reason: String,
    } {}
} }

/// A virtual router and its routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RouterRoutes {
    /// The router.
    pub router: RouterInfo,
    /// Routes as the engine has them, by prefix.
    pub routes: Vec<RouteInfo>,
    /// How many routes that the query selects are not listed.
    pub more: u64,
}

/// Static routes to add to a router, beside those of its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddRoutes {
    /// `routes`, as in the `[[router]]` of a configuration: `routes = [{ to = "192.0.2.0/24", via = "10.0.2.2" }]`.
    pub toml: String,
}

/// Selects the static routes to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveRoutes {
    /// Those to exactly this prefix.
    pub prefix: String,
    /// Only those with this metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

impl RemoveRoutes {
    /// As the query of a URL.
    pub(crate) fn query(&self) -> String {
        let metric = self.metric.map(|metric| format!("&metric={metric}")).unwrap_or_default();
        format!("prefix={}{metric}", encode(&self.prefix, "/:"))
    }
}

/// A neighbour of a router, whose MAC address its kernel knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NeighbourInfo {
    /// Its address.
    pub address: String,
    /// The interface in the namespace.
    pub interface: String,
    /// Its MAC address.
    pub mac: String,
    /// Whether the kernel has not heard from it for a while; it is probed again if a route uses it.
    pub is_stale: bool,
}

/// Selects routes of a router; the default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteQuery {
    /// Most routes in the answer; at most, and by default, [`MAX_ROUTES`](crate::MAX_ROUTES).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
    /// Only those of IPv4 (4) or IPv6 (6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<u8>,
    /// Only those to this prefix and to prefixes in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Only the one that a packet to this address takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Only those behind this prefix in the order of the answer: the last one of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl RouteQuery {
    /// As the query of a URL.
    pub(crate) fn query(&self) -> String {
        let most = self.most.map(|most| format!("most={most}"));
        let family = self.family.map(|family| format!("family={family}"));
        let text =
            |name: &str, value: &Option<String>| Some(format!("{name}={}", encode(value.as_ref()?, "/:")));
        let texts =
            [text("prefix", &self.prefix), text("address", &self.address), text("after", &self.after)];
        let all: Vec<String> = [most, family].into_iter().chain(texts).flatten().collect();
        all.join("&")
    }
}

/// A route as the engine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RouteInfo {
    /// The destination.
    pub prefix: String,
    /// What happens to packets.
    pub action: RouteAction,
    /// The next hops; empty unless packets are forwarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<RouteHop>,
}

/// What a route does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouteAction {
    /// The engine forwards them; the kernel does until the next hop is resolved.
    Forward,
    /// They are punted to the kernel.
    Punt,
    /// They are dropped.
    Blackhole,
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RouteHop {
    /// The interface; absent if it has just been removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The gateway's or neighbour's address.
    pub address: String,
    /// Its MAC address, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its share of the flows.
    pub weight: u16,
}
