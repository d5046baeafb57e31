// SPDX-License-Identifier: Apache-2.0
//! Pairs of interfaces, the routers that they belong to, and the addresses of their traffic.

use netvm_wire::MacAddr;

use super::{Kind, RoutersArgs};

/// Pairs of interfaces, and the routers that they belong to. A pair has one on an ingress interface of the host and one
/// on an egress interface; with `--ingress` all pairs of a router share the latter.
#[derive(Clone, Copy, Debug)]
pub(super) struct InterfacePairs {
    /// All pairs.
    pub(super) count: u16,
    /// Pairs of each router.
    of_each: u16,
    /// Whether the pairs of a router share one egress interface.
    share_egress: bool,
    /// Whether netvm distinguishes the interfaces of its router by VLAN.
    pub(super) are_tagged: bool,
    /// Ingress and egress interfaces of the host.
    pub(super) ingress: usize,
    pub(super) egress: usize,
}

/// The side of a pair: ingress or egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    In,
    Out,
}

impl Side {
    /// Its name in those of interfaces.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// An interface of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) pair: u8,
    pub(super) side: Side,
}

impl End {
    /// Its MAC address.
    pub(super) const fn mac(self) -> MacAddr {
        MacAddr([2, 0, 0, 1, self.side as u8, self.pair])
    }

    /// Its name in its router.
    pub(super) fn name(self) -> String {
        format!("{}{}", self.side.name(), self.pair)
    }

    /// The third number of the destinations behind it, 10.N.PAIR.1.
    const fn network(self) -> u8 {
        200 + self.side as u8
    }

    /// The destination behind it.
    pub(super) const fn destination(self) -> [u8; 4] {
        [10, self.network(), self.pair, 1]
    }
}

impl InterfacePairs {
    pub(super) fn of(args: &RoutersArgs) -> Self {
        let one =
            Self { count: 1, of_each: 1, share_egress: false, are_tagged: false, ingress: 1, egress: 1 };
        match (args.interfaces, args.ingress) {
            // The router beside comes last.
            _ if args.beside.is_some() => Self { count: 2, ingress: 2, egress: 2, ..one },
            (Some(interfaces), _) => {
                Self { count: interfaces / 2, of_each: interfaces / 2, are_tagged: true, ..one }
            }
            (None, ingress) => Self {
                count: u16::from(args.routers) * u16::from(ingress),
                of_each: ingress.into(),
                share_egress: true,
                ingress: ingress.into(),
                ..one
            },
        }
    }

    /// All pairs, by number.
    pub(super) fn all(self) -> impl Iterator<Item = u8> + Clone {
        (0..=u8::MAX).take(self.count.into())
    }

    /// The number of a pair's router.
    pub(super) fn router_of(self, pair: u8) -> u8 {
        (u16::from(pair) / self.of_each) as u8
    }

    /// The pairs of each router.
    pub(super) fn by_router(self) -> Vec<Vec<u8>> {
        let all: Vec<u8> = self.all().collect();
        all.chunks(self.of_each.into()).map(<[u8]>::to_vec).collect()
    }

    /// The interface by which packets leave that enter by the ingress interface of a pair.
    pub(super) fn egress_of(self, pair: u8) -> End {
        let first = u16::from(self.router_of(pair)) * self.of_each;
        End { pair: if self.share_egress { first as u8 } else { pair }, side: Side::Out }
    }

    /// The interfaces of a router, in order.
    pub(super) fn ends(self, pairs: &[u8]) -> Vec<End> {
        let of = |pair: &u8| {
            let (enter, leave) = (End { pair: *pair, side: Side::In }, End { pair: *pair, side: Side::Out });
            [enter, leave].into_iter().filter(|end| end.side == Side::In || self.egress_of(end.pair) == *end)
        };
        pairs.iter().flat_map(of).collect()
    }

    /// The interface of the host below an interface of a router, by number among those of its side.
    pub(super) const fn below(self, end: End) -> usize {
        match end.side {
            Side::In => end.pair as usize % self.ingress,
            Side::Out => end.pair as usize % self.egress,
        }
    }

    /// The VLAN of a pair's interfaces, if netvm routes.
    pub(super) const fn vlan_of(self, pair: u8) -> Option<u16> {
        if self.are_tagged { Some(pair as u16 + 1) } else { None }
    }

    /// The MAC address to which packets go that enter by an interface.
    pub(super) fn mac(self, kind: Kind, end: End) -> MacAddr {
        match kind {
            // The host's own interface.
            Kind::KernelForward => End { pair: self.below(end) as u8, ..end }.mac(),
            _ => end.mac(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pairs(routers: u16, of_each: u16, share_egress: bool) -> InterfacePairs {
        let ingress = if share_egress { of_each as usize } else { 1 };
        InterfacePairs {
            count: routers * of_each,
            of_each,
            share_egress,
            are_tagged: false,
            ingress,
            egress: 1,
        }
    }

    #[test]
    fn a_router_with_three_ingress_interfaces_has_one_to_leave_by() {
        let pairs = pairs(2, 3, true);
        assert_eq!(pairs.by_router(), [vec![0, 1, 2], vec![3, 4, 5]]);
        let names: Vec<_> = pairs.ends(&[3, 4, 5]).into_iter().map(End::name).collect();
        assert_eq!(names, ["in3", "out3", "in4", "in5"]);
        assert_eq!(pairs.egress_of(5), End { pair: 3, side: Side::Out });
        assert_eq!([3, 4, 5].map(|pair| pairs.below(End { pair, side: Side::In })), [0, 1, 2]);
    }

    #[test]
    fn a_router_with_many_interfaces_has_as_many_on_each_side() {
        let pairs = pairs(1, 2, false);
        let names: Vec<_> = pairs.ends(&[0, 1]).into_iter().map(End::name).collect();
        assert_eq!(names, ["in0", "out0", "in1", "out1"]);
        assert_eq!(pairs.egress_of(1), End { pair: 1, side: Side::Out });
    }
}
