//! Latency, measured by the engine.

use serde::{Deserialize, Serialize};

/// Latencies of packets between two places, since they are measured: from the first request on, until a minute after the
/// last. Each worker measures one packet at a time, at most 50,000 a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyInfo {
    /// `port`: from reception by a port until a port's device had the packet; `chain`: from its first NF's ring until it
    /// left the chain; `hop`: from an NF's ring until the NF, or the last of several that pass packets on directly,
    /// returned it.
    pub of: String,
    /// Name: `lan > uplink`, `out`, `out: firewall > monitor`.
    pub name: String,
    /// Packets measured.
    pub samples: u64,
    /// Mean in microseconds.
    pub mean_us: f64,
    /// Half of them took no longer, in microseconds.
    pub p50_us: f64,
    /// 99 % of them took no longer.
    pub p99_us: f64,
    /// 99.9 % of them took no longer.
    pub p999_us: f64,
    /// The longest, to two digits.
    pub max_us: f64,
}
