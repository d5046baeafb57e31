//! netlib
