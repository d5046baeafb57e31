// SPDX-License-Identifier: Apache-2.0
//! Monitoring of netvmd: metrics, events and latencies.

pub(super) mod events;
pub(super) mod latency;
pub(super) mod metrics;
