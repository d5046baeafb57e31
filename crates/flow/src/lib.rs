//! The flow cache: exact match on flow keys, bounded, in bursts.
