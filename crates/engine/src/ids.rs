//! Numbers of things that the engine makes itself; those of the configuration are the model's.

use core::fmt;

pub use netvm_config::model::{ChainId, GroupId, PortId, RoleId};

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index.
            #[inline(always)]
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

id! {
    /// A worker.
    WorkerId(u8);
    /// An NF thread: an NF's thread, within its trust group. 0 is the engine.
    NfThreadId(u8);
    /// A link: the engine's two rings with one NF thread. Unlike an NF thread's, its number is unique in the whole engine.
    LinkId(u16);
    /// A memory: the region of one group on one NUMA node. Unique in the whole engine.
    MemoryId(u16);
    /// An NF that has attached: one process, all its threads. Never used twice.
    InstanceId(u32);
}
