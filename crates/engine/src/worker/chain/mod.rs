//! To the NFs of a chain, and back from them.

pub(crate) mod collect;
pub(crate) mod deliver;
pub(crate) mod flow_verdicts;
pub(crate) mod sticky;
