// SPDX-License-Identifier: Apache-2.0
//! Forwarding without NFs: rules, switching, routes, connections, containers, tunnels.

pub mod conn;
pub mod container;
pub mod filter_set;
pub mod policy;
pub mod route;
pub mod router;
pub mod vxlan;
