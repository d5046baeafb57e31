// SPDX-License-Identifier: Apache-2.0
//! Between turns: wake NFs that sleep on packets, and back off when there is nothing to do.

pub(crate) mod backoff;
pub(crate) mod port_events;
pub(crate) mod wake_nfs;
