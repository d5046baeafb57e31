// SPDX-License-Identifier: Apache-2.0
//! Monitors: what the program does with each packet (Schultz and Crowley, section III-E).

use netvm_flowmon::{DLeft, FlowTable, Meter, Settings};

/// Flows in the table, as in the XDP program.
const FLOWS: usize = 1 << 16;

/// A monitor.
pub trait Monitor {
    /// Adds a packet to the current burst.
    fn packet(&mut self, frame: &[u8]);

    /// Ends the burst. Returns the number of flows so far, including those that the full table has evicted.
    fn commit(&mut self) -> u64;
}

/// Does nothing: the caller counts packets and bytes.
#[derive(Debug)]
pub struct Null;

impl Monitor for Null {
    fn packet(&mut self, _frame: &[u8]) {}

    fn commit(&mut self) -> u64 {
        0
    }
}

/// Counts packets by flow in the paper's d-left hash table; no flow has a time-out.
#[derive(Debug)]
pub struct Flow(Meter<DLeft>);

impl Default for Flow {
    fn default() -> Self {
        let settings = Settings { idle: u64::MAX, active: u64::MAX, sampling: 1, names: 0 };
        Self(Meter::new(DLeft::new(FLOWS), settings, None))
    }
}

impl Monitor for Flow {
    fn packet(&mut self, frame: &[u8]) {
        let headers = netvm_wire::parse(frame).ok();
        self.0.packet(frame, headers.as_ref(), (0, 0));
    }

    fn commit(&mut self) -> u64 {
        self.0.commit();
        self.0.table().len() as u64 + self.0.counts().evicted
    }
}
