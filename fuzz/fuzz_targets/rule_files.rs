// SPDX-License-Identifier: Apache-2.0
//! See [`netvm_fuzz_targets::rule_files`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netvm_fuzz_targets::rule_files(data));
