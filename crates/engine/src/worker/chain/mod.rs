//! The chain stages: packets enter a chain, go to a replica of each hop, come back with a verdict, and finally leave the
//! chain.

pub(crate) mod collect;
pub(crate) mod deliver;
pub(crate) mod entry;
pub(crate) mod flow_verdicts;
pub(crate) mod leave;
