//! netvm-xsk
