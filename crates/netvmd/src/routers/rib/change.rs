//! What the kernel tells.

use netvm_wire::{IpNet, MacAddr};

use super::{Gateway, Peer};

/// What tells routes to the same prefix apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKey {
    /// Where to.
    pub net: IpNet,
    /// The lower one is preferred.
    pub metric: u32,
    /// Only for packets of this type of service, if it is not 0.
    pub tos: u8,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// What only the kernel does.
    Kernel,
    /// Nowhere.
    Blackhole,
    /// To neighbours on an interface.
    Connected(u32),
    /// By gateways.
    Gateways(Vec<Gateway>),
}

/// A neighbour as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Nobody has outcome of it for a while.
    pub is_stale: bool,
}

/// An interface as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub is_up: bool,
}

/// Something that the kernel tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface is there.
    Link(u32, Link),
    /// One has gone.
    LinkGone(u32),
    /// A prefix is the kernel's own.
    Local(IpNet),
    /// It is no more.
    LocalGone(IpNet),
    /// There is a route.
    Route {
        /// Which.
        key: RouteKey,
        /// Its way.
        way: Way,
        /// It takes the place of the one of this key.
        replaces: bool,
    },
    /// There is this route no more.
    RouteGone {
        /// Which.
        key: RouteKey,
        /// The way that it had.
        way: Way,
    },
    /// A neighbour is known, or (`None`) is not.
    Neighbour(Peer, Option<Neighbour>),
    /// Somebody's own rule of policy routing is there.
    Rule,
    /// Something has changed of which the kernel does not say all.
    Unclear,
}
