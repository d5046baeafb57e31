//! Ports that are a guest's network card.

pub(crate) mod e1000;
pub(crate) mod vhost;
