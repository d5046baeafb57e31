// SPDX-License-Identifier: Apache-2.0
//! The built-in traffic source.

use super::keys::{Key, KeyValue};

/// The traffic of a [`PortKind::Source`](crate::PortKind::Source).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Length of the frames in bytes, without FCS (64-byte Ethernet frames: 60).
    pub size: u16,
    /// How many flows (UDP 5-tuples).
    pub flows: u32,
    /// Packets per second; `None`: as fast as possible.
    pub rate: Option<u64>,
    /// Packets that a source with a rate sends at once, when they are due.
    pub burst: u16,
    /// Wait for room at the chain's entry instead of losing packets.
    pub lossless: bool,
    /// Stop after this many packets.
    pub count: Option<u64>,
}

impl Default for SourceConfig {
    /// The shortest Ethernet frames, one flow, as fast as possible.
    fn default() -> Self {
        Self { size: 60, flows: 1, rate: None, burst: 1, lossless: false, count: None }
    }
}

impl SourceConfig {
    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::new("size", KeyValue::FrameSize(&mut self.size)),
            Key::new("flows", KeyValue::Number(&mut self.flows, 1..=1 << 24)),
            Key::new("rate", KeyValue::Rate(&mut self.rate, &mut self.burst)),
            Key::new("lossless", KeyValue::Flag(&mut self.lossless)),
            Key::new("count", KeyValue::Packets(&mut self.count)),
        ]
    }
}
