// SPDX-License-Identifier: Apache-2.0
//! NFs that get no new flows, as they are to end: sticky roles keep the replicas of their flows.

use super::{Chains, policy};
use crate::ids::{NfThreadId, RoleId};

impl Chains {
    /// How many flows of a sticky role have a packet with one of these NF threads, now and then: buckets of flows that
    /// are not idle.
    pub(crate) fn live_flows(&self, role: RoleId, nf_threads: &[NfThreadId]) -> usize {
        let is_one = |replica: u16| nf_threads.iter().any(|one| u16::from(one.0) == replica);
        self.sticky.get(&role).map_or(0, |table| table.live(policy::now() as u16, is_one))
    }
}
