//! Numbers of things that rules name.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index into an array that has a place for every possible one.
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
    /// Number of a port: the one in descriptors, verdicts and counters.
    PortId(u16);
    /// Number of a chain: the one in descriptors and counters.
    ChainId(u16);
    /// Number of a virtual router: the one in counters.
    RouterId(u16);
    /// Number of a rule; it keeps it while it is there, wherever it moves in the order.
    RuleId(u32);
}
