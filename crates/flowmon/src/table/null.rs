// SPDX-License-Identifier: Apache-2.0
//! The paper's `null` monitor: headers are read and lengths counted, and no flow is kept.

use super::{FlowTable, SlotLookup, Slots};
use crate::entry::Sample;

/// No table.
#[derive(Clone, Copy, Debug)]
pub struct Null;

impl FlowTable for Null {
    #[inline(always)]
    fn look_up(&self, _sample: &Sample) -> SlotLookup {
        SlotLookup::NoTable
    }

    fn begin(&mut self, _slot: usize, _sample: &Sample) {}

    fn remove(&mut self, _slot: usize) {}

    fn slots(&self) -> Option<&Slots> {
        None
    }

    fn slots_mut(&mut self) -> Option<&mut Slots> {
        None
    }
}
