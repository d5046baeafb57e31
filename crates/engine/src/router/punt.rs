// SPDX-License-Identifier: Apache-2.0
//! Limits on packets that routers' interfaces punt to the kernel: each class of packets has a share of `punt_rate`, so
//! that a scan of unused addresses takes nothing from routing protocols.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netvm_model::Rate;
use netvm_router::HeaderReason;
use netvm_switch::{Meter, PolicerError};

use super::UnresolvedLimit;

/// A class of punted packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PuntClass {
    /// Routing protocols: BGP, OSPF, BFD, IS-IS, RIP, PIM, IGMP, VRRP, LDP, Babel, EIGRP, RSVP.
    Routing,
    /// ARP, neighbour and router discovery.
    Neighbour,
    /// Other packets for the router itself.
    Local,
    /// Packets that the kernel answers or forwards.
    Kernel,
    /// Packets for neighbours whose MAC address the kernel has to resolve.
    Miss,
    /// The same for neighbours that it knew a while ago: a scan takes nothing from them.
    Relearn,
}

/// Share of the rate in percent, and burst in hundredths of a second at the whole rate. A routing protocol that learns
/// a table sends thousands of packets at once.
const SHARES: [(u64, u64); PuntClass::COUNT] = [(40, 100), (15, 5), (15, 5), (20, 5), (5, 2), (5, 2)];
/// The smallest burst: two of a worker.
const MIN_BURST: u64 = 64;

impl PuntClass {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Routing, Self::Neighbour, Self::Local, Self::Kernel, Self::Miss, Self::Relearn];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The name that users see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Routing => "routing",
            Self::Neighbour => "neighbour",
            Self::Local => "local",
            Self::Kernel => "kernel",
            Self::Miss => "miss",
            Self::Relearn => "relearn",
        }
    }
}

/// Why a packet is punted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PuntReason {
    /// It is of a routing protocol.
    Routing,
    /// It is of ARP, or of neighbour or router discovery.
    Neighbour,
    /// It is for the router itself.
    Local,
    /// The MAC address of its destination, a neighbour, is unknown.
    Miss,
    /// Its TTL or hop limit ends here.
    Expired,
    /// It has IPv4 options or an IPv6 hop-by-hop header.
    Options,
    /// It has an address that is valid on the link only.
    LinkLocal,
    /// It is for a multicast group or broadcast, and of no routing protocol.
    Group,
    /// It is of another protocol than ARP and IP.
    EtherType,
    /// It is longer than the MTU of the interface by which it would leave.
    ExceedsMtu,
    /// No route matches.
    NoRoute,
    /// Its route, or the one back to its source, is of a kind that only the kernel understands, such as a tunnel.
    KernelRoute,
    /// The MAC address of its gateway is unknown.
    Gateway,
    /// It leaves by the interface that received it.
    Redirect,
    /// The namespace forwards no packets of its family that this interface receives, or has made the interface part of
    /// another.
    NotForwarding,
    /// One of its addresses cannot occur on the link, and the kernel logs or accepts such packets.
    Martian,
    /// The MAC address of its destination, a neighbour that the kernel knew a while ago, is unknown.
    Lost,
}

impl PuntReason {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Routing,
        Self::Neighbour,
        Self::Local,
        Self::Miss,
        Self::Expired,
        Self::Options,
        Self::LinkLocal,
        Self::Group,
        Self::EtherType,
        Self::ExceedsMtu,
        Self::NoRoute,
        Self::KernelRoute,
        Self::Gateway,
        Self::Redirect,
        Self::NotForwarding,
        Self::Martian,
        Self::Lost,
    ];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The class whose limits apply.
    #[must_use]
    pub const fn class(self) -> PuntClass {
        match self {
            Self::Routing => PuntClass::Routing,
            Self::Neighbour => PuntClass::Neighbour,
            Self::Local => PuntClass::Local,
            Self::Miss => PuntClass::Miss,
            Self::Expired
            | Self::Options
            | Self::LinkLocal
            | Self::Group
            | Self::EtherType
            | Self::ExceedsMtu
            | Self::NoRoute
            | Self::KernelRoute
            | Self::Gateway
            | Self::Redirect
            | Self::NotForwarding
            | Self::Martian => PuntClass::Kernel,
            Self::Lost => PuntClass::Relearn,
        }
    }

    /// The name that users see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Routing => "routing-protocol",
            Self::Neighbour => "neighbour-discovery",
            Self::Local => "own-address",
            Self::Miss => "unresolved-neighbour",
            Self::Expired => "ttl-expired",
            Self::Options => "ip-options",
            Self::LinkLocal => "link-local",
            Self::Group => "group-address",
            Self::EtherType => "ether-type",
            Self::ExceedsMtu => "exceeds-mtu",
            Self::NoRoute => "no-route",
            Self::KernelRoute => "kernel-route",
            Self::Gateway => "unresolved-gateway",
            Self::Redirect => "redirect",
            Self::NotForwarding => "forwarding-off",
            Self::Martian => "martian",
            Self::Lost => "lost-neighbour",
        }
    }
}

impl From<HeaderReason> for PuntReason {
    fn from(reason: HeaderReason) -> Self {
        match reason {
            HeaderReason::Expired => Self::Expired,
            HeaderReason::Options => Self::Options,
            HeaderReason::Group => Self::Group,
            HeaderReason::LinkLocal => Self::LinkLocal,
        }
    }
}

/// Packets that were punted for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PuntCounts {
    /// Punted to the kernel.
    pub punted: u64,
    /// Dropped, because they exceeded the share of the class or the limit of their destination.
    pub dropped: u64,
}

/// The counts of a reason.
#[derive(Debug, Default)]
struct Counters {
    punted: AtomicU64,
    dropped: AtomicU64,
}

impl Counters {
    fn count(&self, punted: usize, dropped: usize) {
        self.punted.fetch_add(punted as u64, Ordering::Relaxed);
        if dropped > 0 {
            self.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        }
    }
}

/// The limits and the counts of an interface.
#[derive(Debug)]
pub(crate) struct PuntLimits {
    by_class: [Meter; PuntClass::COUNT],
    by_reason: [Counters; PuntReason::COUNT],
    /// Of all routers together.
    pub(crate) unresolved: Arc<UnresolvedLimit>,
}

impl PuntLimits {
    /// Shares `rate`. `hz`: of the workers' clock.
    pub(crate) fn new(rate: Rate, unresolved: Arc<UnresolvedLimit>, hz: u64) -> Result<Self, PolicerError> {
        let share = |(percent, burst): (u64, u64)| {
            let part = |percent: u64| rate.per_second * percent / 100;
            let limit = (part(percent).max(1), part(burst).max(MIN_BURST));
            Meter::new(Some(limit), None, hz)
        };
        let [routing, neighbour, local, kernel, miss, relearn] = SHARES.map(share);
        let by_class = [routing?, neighbour?, local?, kernel?, miss?, relearn?];
        Ok(Self { by_class, by_reason: Default::default(), unresolved })
    }

    /// The limit of a class.
    pub(crate) const fn of(&self, class: PuntClass) -> &Meter {
        &self.by_class[class as usize]
    }

    /// Adds the counts of a burst. Workers share the counters and the meters, so both are updated only once per burst.
    pub(crate) fn count(&self, reason: PuntReason, punted: usize, dropped: usize) {
        self.by_reason[reason as usize].count(punted, dropped);
    }

    /// In the order of [`PuntReason::ALL`].
    pub(crate) fn counts(&self) -> [PuntCounts; PuntReason::COUNT] {
        self.by_reason.each_ref().map(|of| PuntCounts {
            punted: of.punted.load(Ordering::Relaxed),
            dropped: of.dropped.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn classes_share_the_whole_rate_and_do_not_take_from_each_other() {
        assert_eq!(SHARES.iter().map(|(percent, _)| percent).sum::<u64>(), 100);
        const HZ: u64 = 1_000_000_000;
        let unresolved = Arc::new(UnresolvedLimit::new(1024, HZ).unwrap());
        let of = |per_second| {
            let rate = Rate { per_second, burst: 1000 };
            PuntLimits::new(rate, Arc::clone(&unresolved), HZ).unwrap()
        };
        let limits = of(10_000);
        let lengths = [64u32; 64];
        let admit = |class: PuntClass, now: u64| limits.of(class).admit_run(now, &lengths);
        let all = |class: PuntClass, now: u64| std::iter::repeat_with(move || admit(class, now)).take(500);
        // A scan for a second.
        let misses: usize = (0..1000).flat_map(|ms| all(PuntClass::Miss, HZ + ms * HZ / 1000)).sum();
        assert!((500..800).contains(&misses), "{misses}");
        // Meanwhile a neighbour that was lost is learned again.
        assert_eq!(all(PuntClass::Relearn, HZ + HZ / 2).sum::<usize>(), 200);
        // A burst of a routing protocol passes meanwhile.
        assert_eq!(all(PuntClass::Routing, 2 * HZ).sum::<usize>(), 10_000);
        assert_eq!(all(PuntClass::Neighbour, 2 * HZ).sum::<usize>(), 500);
        // The smallest rate still passes something of each class.
        let limits = of(1);
        assert!(PuntClass::ALL.iter().all(|class| limits.of(*class).admit(HZ, 64)));
    }

    #[test]
    fn reasons_have_the_numbers_of_their_places_and_names_of_their_own() {
        let names: BTreeSet<_> = PuntReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), PuntReason::COUNT);
        assert!((0..).zip(PuntReason::ALL).all(|(n, reason)| reason as usize == n));
    }
}
