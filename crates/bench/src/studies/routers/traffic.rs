// SPDX-License-Identifier: Apache-2.0
//! What the sender sends: a stream into each interface of the host by which packets enter.

use super::pairs::{End, InterfacePairs, Side};
use super::{HostInterfaces, Kind, RoutersArgs};
use crate::error::BenchError;
use crate::setup::routes::{IpFamily, RouteTable, Size, destinations};
use crate::setup::sender::{BURST, Destination, Stream};

/// Destinations in random order.
const COUNT: usize = 1 << 16;

/// The full table's part, of which the first half leads out if packets go both ways, and the second one back.
pub(super) struct Halves {
    pub(super) out: RouteTable,
    pub(super) back: RouteTable,
}

impl Halves {
    /// The routes of each router, if there is more than one.
    pub(super) fn of(args: &RoutersArgs) -> Result<Option<Self>, BenchError> {
        if args.routes == 1 {
            return Ok(None);
        }
        let table = RouteTable::load(IpFamily::V4, Size::Full, args.prefixes.as_deref())?.some(args.routes);
        let (mut out, mut back) = (Vec::new(), Vec::new());
        for (n, route) in table.routes.into_iter().enumerate() {
            if args.is_both_ways() && n % 2 == 1 { back.push(route) } else { out.push(route) }
        }
        Ok(Some(Self { out: RouteTable { routes: out }, back: RouteTable { routes: back } }))
    }
}

/// The streams, those into ingress interfaces first.
pub(super) fn streams(
    args: &RoutersArgs,
    pairs: InterfacePairs,
    host: &HostInterfaces,
    table: Option<&Halves>,
) -> Vec<Stream> {
    let stream = |interface: &String, side: Side, n: usize| Stream {
        interface: interface.clone(),
        queues: args.queues,
        size: args.size,
        is_multi: true,
        is_spread: pairs.are_tagged || table.is_some(),
        is_timed: args.delays,
        destinations: Way { kind: args.kind, pairs, side }.destinations(n, table),
    };
    let enter = host.near.iter().enumerate().map(|(n, near)| stream(near, Side::In, n));
    let back =
        host.out.iter().enumerate().filter(|_| args.is_both_ways()).map(|(n, out)| stream(out, Side::Out, n));
    enter.chain(back).collect()
}

/// A direction through the routers, by the side on which packets enter.
#[derive(Clone, Copy)]
struct Way {
    kind: Kind,
    pairs: InterfacePairs,
    side: Side,
}

impl Way {
    /// Destinations of packets that enter by interface `below` of the host: one burst for each router in turn, or one
    /// packet for each interface of a single router.
    fn destinations(self, below: usize, table: Option<&Halves>) -> Vec<Destination> {
        let pairs = self.pairs;
        let by: Vec<End> = pairs
            .by_router()
            .iter()
            .flat_map(|of_router| pairs.ends(of_router))
            .filter(|end| end.side == self.side && pairs.below(*end) == below)
            .collect();
        let to = |end: End, address| Destination {
            mac: pairs.mac(self.kind, end),
            vlan: pairs.vlan_of(end.pair).filter(|_| self.kind == Kind::Netvm),
            address,
        };
        let in_turn = if pairs.are_tagged { 1 } else { BURST };
        let enter = by.iter().cycle().flat_map(|end| std::iter::repeat_n(*end, in_turn));
        match table {
            Some(table) => {
                let half = if self.side == Side::In { &table.out } else { &table.back };
                let addresses = destinations(half, COUNT).into_iter().map(u32::to_ne_bytes);
                enter.zip(addresses).map(|(end, address)| to(end, address)).collect()
            }
            None if pairs.are_tagged => {
                // Pseudo-random order (Fibonacci hashing: Knuth volume 3, section 6.4).
                let leaves = (0..COUNT).map(|n| ((n * 0x9e37_79b1) >> 16) % by.len());
                enter.zip(leaves).map(|(end, n)| to(end, self.leave(by[n]).destination())).collect()
            }
            None => by.iter().map(|end| to(*end, self.leave(*end).destination())).collect(),
        }
    }

    /// The interface by which packets leave that enter by another one.
    fn leave(self, enter: End) -> End {
        match self.side {
            Side::In => self.pairs.egress_of(enter.pair),
            Side::Out => End { side: Side::In, ..enter },
        }
    }
}
