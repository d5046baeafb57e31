//! Forwarding without NFs: rules, switching, routes, connections, containers, tunnels.

pub mod conn;
pub mod container;
pub mod policy;
pub mod route;
pub mod router;
pub mod vxlan;
