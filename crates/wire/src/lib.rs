//! netvm-wire
