//! Newtypes for port, queue and NUMA node numbers.

use std::fmt;

/// A port as DPDK numbers it; reused after the port is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNumber(pub u16);

/// A receive or transmit queue of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

/// A NUMA node as Linux numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaNode(pub u32);

impl NumaNode {
    /// Converts a number from DPDK or sysfs; a negative number means unknown.
    #[must_use]
    pub fn from_signed(number: i32) -> Option<Self> {
        u32::try_from(number).ok().map(Self)
    }

    /// The argument for DPDK's functions: -1 means any node.
    pub(crate) fn to_signed(node: Option<Self>) -> i32 {
        node.and_then(|node| i32::try_from(node.0).ok()).unwrap_or(-1)
    }
}

macro_rules! display {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

display! { PortNumber QueueId NumaNode }
