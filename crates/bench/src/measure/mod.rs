// SPDX-License-Identifier: Apache-2.0
//! Takes figures and prints them.

pub mod distance;
pub mod harness;
pub mod probe;
pub mod report;
pub mod stats;
pub mod window;
