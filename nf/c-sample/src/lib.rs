//! Nothing of Rust's: the NFs of this folder are C, in `ttl-forward.c` and `outer-tag.c`. The package exists for its tests,
//! which build them with the produced `libnetlib` and try them as the engine would.
#![forbid(unsafe_code)]
