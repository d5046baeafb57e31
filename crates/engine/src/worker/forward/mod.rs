//! Which port packets leave by, and whether they may.

pub(crate) mod egress;
pub(crate) mod route;
pub(crate) mod switching;
