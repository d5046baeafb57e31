// SPDX-License-Identifier: Apache-2.0
//! Actions of rules: rate limits, VLAN tags, queues, mirroring, rejects, and where packets go.

pub(crate) mod answer;
pub(crate) mod decision;
pub(crate) mod police;
pub(crate) mod reject;
pub(crate) mod vlan;
