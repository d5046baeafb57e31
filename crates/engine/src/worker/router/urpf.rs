// SPDX-License-Identifier: Apache-2.0
//! Unicast reverse path forwarding (RFC 3704). In: packets whose routes are known. Out: packets whose source passes the
//! check. Others are dropped, or punted if only the kernel knows the route back.
//!
//! Packets without a route lookup (multicast, an expired TTL) are not checked.
//!
//! Cost: a second lookup for each packet, if an interface of the router has `urpf`.

use netvm_model::Urpf;
use netvm_router::{NextHop, NextHopId, Tables};

use super::head::Head;
use super::punt::PuntCause;
use super::{Family, MAX, RouteVerdict, punted};
use crate::drop_reason::DropReason;
use crate::router::{Ingress, PuntReason, RouterPath};

/// The result of the check of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceCheck {
    Valid,
    Forged,
    /// Only the kernel can tell.
    Unknown,
}

/// Checks a source by the route to it, for a packet of a family (0: IPv4, 1: IPv6) that this interface received.
fn check_route(router: &RouterPath, interface: u16, family: usize, route: NextHopId) -> SourceCheck {
    let Some(path) = router.interface(interface) else { return SourceCheck::Valid };
    let Some(urpf) = path.urpf[family] else { return SourceCheck::Valid };
    let is_back = match (router.tables.next_hop(route), route) {
        (_, NextHopId::LOCAL) if path.ingress.has(Ingress::ACCEPTS_LOCAL) => return SourceCheck::Unknown,
        // No route, or an address of the router itself.
        (_, NextHopId::PUNT | NextHopId::LOCAL) | (NextHop::Blackhole, _) => return SourceCheck::Forged,
        _ if urpf == Urpf::Loose => return SourceCheck::Valid,
        (NextHop::Via(hop), _) => hop.interface == interface,
        (NextHop::Ecmp(hops), _) => hops.iter().any(|hop| hop.interface == interface),
        (NextHop::Glean(by), _) => *by == interface,
        (NextHop::Punt, _) => return SourceCheck::Unknown,
    };
    if is_back { SourceCheck::Valid } else { SourceCheck::Forged }
}

/// What becomes of a packet whose source is forged: dropped, unless the kernel logs such packets (`log_martians`).
pub(super) fn forged(router: &RouterPath, head: &Head, reason: DropReason) -> RouteVerdict {
    let ingress = router.interface(head.interface()).map(|interface| interface.ingress);
    if ingress.is_some_and(|ingress| ingress.has(Ingress::SEES_MARTIANS)) {
        return punted(head, PuntCause::Of(PuntReason::Martian));
    }
    RouteVerdict::Drop(reason)
}

/// An address of a family.
pub(super) trait Address: Copy + Default {
    /// 0: IPv4, 1: IPv6.
    const FAMILY: usize;
    fn source_of(head: &Head) -> Self;
    fn look_up(tables: &Tables, addresses: &[Self], found: &mut [NextHopId]);
}

impl Address for u32 {
    const FAMILY: usize = 0;

    fn source_of(head: &Head) -> Self {
        head.source_v4()
    }

    fn look_up(tables: &Tables, addresses: &[Self], found: &mut [NextHopId]) {
        tables.lookup_v4(addresses, found);
    }
}

impl Address for [u8; 16] {
    const FAMILY: usize = 1;

    fn source_of(head: &Head) -> Self {
        head.source_v6()
    }

    fn look_up(tables: &Tables, addresses: &[Self], found: &mut [NextHopId]) {
        tables.lookup_v6(addresses, found);
    }
}

impl<A: Address> Family<A> {
    /// Removes the packets whose sources fail the check, with a verdict for each.
    #[inline(never)]
    pub(super) fn check_sources(
        &mut self,
        router: &RouterPath,
        heads: &[Head; MAX],
        verdicts: &mut [RouteVerdict; MAX],
    ) {
        let (mut sources, mut routes) = ([A::default(); MAX], [NextHopId::PUNT; MAX]);
        let indexes = self.indexes;
        for (source, index) in sources.iter_mut().zip(&indexes[..self.count]) {
            *source = A::source_of(&heads[usize::from(*index)]);
        }
        A::look_up(&router.tables, &sources[..self.count], &mut routes[..self.count]);
        let mut kept = 0;
        for n in 0..self.count {
            let index = usize::from(indexes[n]);
            let head = &heads[index];
            let check = match head.has_chosen_source() {
                true => SourceCheck::Valid,
                false => check_route(router, head.interface(), A::FAMILY, routes[n]),
            };
            match check {
                SourceCheck::Valid => {
                    (self.found[kept], self.lengths[kept], self.indexes[kept]) =
                        (self.found[n], self.lengths[n], self.indexes[n]);
                    kept += 1;
                }
                SourceCheck::Forged => verdicts[index] = forged(router, head, DropReason::Urpf),
                SourceCheck::Unknown => {
                    verdicts[index] = punted(head, PuntCause::Of(PuntReason::KernelRoute));
                }
            }
        }
        self.count = kept;
    }
}
