// SPDX-License-Identifier: Apache-2.0
//! Ids: the numbers by which configuration, rules, descriptors, shared memory and counters refer to the same objects.
//! Limits: how many of each there can be.
#![forbid(unsafe_code)]

mod limits;

pub use limits::{
    MAX_CHAINS, MAX_GROUP_THREADS, MAX_GROUPS, MAX_HOPS, MAX_NODES, MAX_PORTS, MAX_QUEUE_NAMES, MAX_REPLICAS,
    MAX_ROLES, MAX_ROUTERS, MAX_RULES, MAX_SET, MAX_THREADS, MAX_TX_QUEUES, MAX_VMS, MAX_WORKERS, NAME_BYTES,
};

/// Defines ids: a newtype for each number, with `index` and `Display`.
///
/// ```text
/// netvm_ids::id! {
///     /// A worker.
///     WorkerId(u8);
/// }
/// ```
#[macro_export]
macro_rules! id {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an array index.
            #[inline(always)]
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}

id! {
    /// A port, in descriptors, verdicts and counters.
    PortId(u16);
    /// A chain, in descriptors and counters.
    ChainId(u16);
    /// A role, in descriptors, verdicts and counters.
    RoleId(u16);
    /// A trust group.
    GroupId(u16);
    /// A virtual router, in counters.
    RouterId(u16);
    /// A name of queues; queues of several ports may share the name, and so the id.
    QueueId(u8);
    /// A rule; stays the same if the rule moves.
    RuleId(u32);
}
