// SPDX-License-Identifier: Apache-2.0
//! Only tests: see `tests/`.
#![forbid(unsafe_code)]
