// SPDX-License-Identifier: Apache-2.0
//! What must hold after a change that netvmd makes by itself, or netvmd goes back.

use std::net::IpAddr;

/// Tests of health.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HealthConfig {
    /// Seconds that a change has to become healthy.
    pub within: u16,
    /// Seconds for which it must then be healthy without a break.
    pub steady: u16,
    /// Whether each chain must have a running NF for each of its hops.
    pub chains: bool,
    /// The names of ports that must be open, with link.
    pub ports: Vec<String>,
    /// Addresses that must answer pings.
    pub ping: Vec<IpAddr>,
    /// The name of the router from whose namespace pings are sent; `None`: from netvmd's own.
    pub router: Option<String>,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { within: 30, steady: 2, chains: true, ports: Vec::new(), ping: Vec::new(), router: None }
    }
}
