//! First matching rule for bursts of flow keys.

#![forbid(unsafe_code)]
