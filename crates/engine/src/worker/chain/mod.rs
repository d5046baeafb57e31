//! Through the NFs of a chain: in at its entry, to a replica of each hop, back from it, and on by its verdict until
//! packets leave the chain.

pub(crate) mod collect;
pub(crate) mod deliver;
pub(crate) mod entry;
pub(crate) mod flow_verdicts;
pub(crate) mod leave;
