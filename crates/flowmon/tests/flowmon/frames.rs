// SPDX-License-Identifier: Apache-2.0
//! Frames of many flows, for tests and examples.
#![allow(clippy::unwrap_used, reason = "tests")]

use netvm_wire::{FrameBuilder, MacAddr};

/// A UDP frame of 60 bytes that can be of any flow.
pub struct FlowFrame(Vec<u8>);

impl FlowFrame {
    pub fn new() -> Self {
        let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
        let builder = builder.ip([10, 0, 0, 0].into(), [192, 0, 2, 1].into()).udp(1, 2);
        Self(builder.frame_len(60).to_vec().unwrap())
    }

    /// The frame of this flow: its source address is 10.0.0.0 plus `flow`.
    #[inline]
    pub fn of(&mut self, flow: u32) -> &[u8] {
        self.0[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
        &self.0
    }
}
