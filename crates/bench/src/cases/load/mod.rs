// SPDX-License-Identifier: Apache-2.0
//! Behaviour under load and when idle: latency, overload, sleep, monitoring, captures, several workers.

pub mod capture;
pub mod idle;
pub mod latency;
pub mod overload;
pub mod watch;
pub mod workers;
