//! Packets as bytes and in batches: reading keys, changing tags, noting queues, splitting a batch into runs.

pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod packet_set;
pub(crate) mod queue;
pub(crate) mod retag;
