//! Forwarding without NFs: rules, switching, routes, connections, containers.

pub mod conn;
pub mod container;
pub mod policy;
pub mod route;
pub mod router;
