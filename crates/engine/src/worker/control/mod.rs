// SPDX-License-Identifier: Apache-2.0
//! The manager's side of a worker: its handle, the commands that it sends, and the events and pages that come back.

mod affinity;
pub(crate) mod commands;
pub(crate) mod connection_page;
pub(crate) mod events;
pub(crate) mod flow_page;
pub(crate) mod handle;
pub(crate) mod visit;
