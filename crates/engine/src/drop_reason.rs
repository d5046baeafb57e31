// SPDX-License-Identifier: Apache-2.0
//! Drop reasons and NF violations, which `netvm-counters` lists.

use netvm_wire::Malformed;

pub use netvm_counters::{DropReason, Violation};

/// Why a packet with these headers is dropped.
pub(crate) fn reason_of_malformed(why: Malformed) -> DropReason {
    if why.is_too_many_headers() { DropReason::TooManyHeaders } else { DropReason::Malformed }
}
