// SPDX-License-Identifier: Apache-2.0
//! Empty: the NFs of this folder are in C, `ttl-forward.c` and `outer-tag.c`. The package exists for its tests, which
//! build them with `libnetlib` and run them as the engine would.
#![forbid(unsafe_code)]
