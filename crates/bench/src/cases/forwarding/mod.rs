//! Forwarding without NFs: rules, switching, routes, containers.

pub mod container;
pub mod policy;
pub mod route;
pub mod router;
