//! Chooses the egress port, and applies its policy.

pub(crate) mod egress;
pub(crate) mod route;
pub(crate) mod switching;
