//! netvm-region
