// SPDX-License-Identifier: Apache-2.0
//! See [`netvm_fuzz_targets::flow_names`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netvm_fuzz_targets::flow_names(data));
