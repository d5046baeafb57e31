// SPDX-License-Identifier: Apache-2.0
//! The names of the objects that rules refer to by id.

use std::borrow::Cow;

use netvm_ids::{ChainId, PortId, QueueId, RoleId, RouterId};

/// Names of ports, chains, routers, queues and roles.
pub trait Names {
    /// The name of a port.
    fn port(&self, port: PortId) -> Cow<'_, str>;
    /// The name of a chain.
    fn chain(&self, chain: ChainId) -> Cow<'_, str>;
    /// The name of a router.
    fn router(&self, router: RouterId) -> Cow<'_, str>;
    /// The name of a queue.
    fn queue(&self, queue: QueueId) -> Cow<'_, str>;
    /// The name of a role.
    fn role(&self, role: RoleId) -> Cow<'_, str>;
}
