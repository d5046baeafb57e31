//! What rules do to packets besides sending them: copies, answers, tags.

pub(crate) mod mirror;
pub(crate) mod reject;
pub(crate) mod vlan;
