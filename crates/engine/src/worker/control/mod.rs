//! What the manager asks of a worker.

pub(crate) mod commands;
pub(crate) mod flow_page;
