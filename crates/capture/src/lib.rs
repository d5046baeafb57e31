//! netvm-capture
