//! Only tests: see `tests/`.
#![forbid(unsafe_code)]
