//! Ids of the objects that rules name, and their names.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an array index.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

number! {
    /// Id of a port in descriptors, verdicts and counters.
    PortId(u16);
    /// Id of a chain in descriptors and counters.
    ChainId(u16);
    /// Id of a virtual router in counters.
    RouterId(u16);
    /// Id of a queue name; queues of several ports have one name and one id.
    QueueId(u8);
    /// Id of a rule; stays the same if the rule moves.
    RuleId(u32);
}

/// Names of ports, chains, routers and queues.
pub trait Names {
    /// The name of a port.
    fn port(&self, port: PortId) -> Cow<'_, str>;
    /// The name of a chain.
    fn chain(&self, chain: ChainId) -> Cow<'_, str>;
    /// The name of a router.
    fn router(&self, router: RouterId) -> Cow<'_, str>;
    /// The name of a queue.
    fn queue(&self, queue: QueueId) -> Cow<'_, str>;
}
