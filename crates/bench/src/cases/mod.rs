// SPDX-License-Identifier: Apache-2.0
//! The benchmarks, by what they measure.

pub mod forwarding;
pub mod guests;
pub mod load;
pub mod nfs;
