//! netvm-ring
