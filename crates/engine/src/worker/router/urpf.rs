//! Unicast reverse path forwarding (RFC 3704). In: packets whose routes are known. Out: those whose source is believed; the
//! others are dropped, or punted where only the kernel knows the way back.
//!
//! Packets that have no route looked up (multicast, an expired TTL) are not checked.
//!
//! Predicted cost: a second look-up, 10 cycles a packet with a small table, where an interface of the router has `urpf`.

use netvm_config::model::Urpf;
use netvm_router::{NextHop, NextHopId, Tables};

use super::head::Head;
use super::punt::PuntCause;
use super::{Family, MAX, RouteVerdict, V4, punted};
use crate::drop_reason::DropReason;
use crate::router::RouterPath;

/// What becomes of a packet with this source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Believed,
    Forged,
    /// Only the kernel can tell.
    Unknown,
}

/// Judges a source by the route to it, for a packet that came in by that interface.
fn judge(router: &RouterPath, interface: u16, route: NextHopId) -> Source {
    let Some(urpf) = router.interface(interface).and_then(|interface| interface.urpf) else {
        return Source::Believed;
    };
    let is_back = match (router.tables.next_hop(route), route) {
        // No route, or an address of the router itself.
        (_, NextHopId::PUNT | NextHopId::LOCAL) | (NextHop::Blackhole, _) => return Source::Forged,
        _ if urpf == Urpf::Loose => return Source::Believed,
        (NextHop::Via(hop), _) => hop.interface == interface,
        (NextHop::Ecmp(hops), _) => hops.iter().any(|hop| hop.interface == interface),
        (NextHop::Glean(by), _) => *by == interface,
        (NextHop::Punt, _) => return Source::Unknown,
    };
    if is_back { Source::Believed } else { Source::Forged }
}

/// Judges the source of one packet, which was classified as one of a family by the length of its header.
pub(crate) fn judge_source(router: &RouterPath, head: &Head, header: usize) -> Source {
    let mut found = [NextHopId::PUNT];
    if header == V4 {
        router.tables.lookup_v4(&[head.source_v4()], &mut found);
    } else {
        router.tables.lookup_v6(&[head.source_v6()], &mut found);
    }
    judge(router, head.interface(), found[0])
}

/// An address of a family.
pub(super) trait Address: Copy + Default {
    fn source_of(head: &Head) -> Self;
    fn look_up(tables: &Tables, addresses: &[Self], found: &mut [NextHopId]);
}

impl Address for u32 {
    fn source_of(head: &Head) -> Self {
        head.source_v4()
    }

    fn look_up(tables: &Tables, addresses: &[Self], found: &mut [NextHopId]) {
        tables.lookup_v4(addresses, found);
    }
}

impl Address for [u8; 16] {
    fn source_of(head: &Head) -> Self {
        head.source_v6()
    }

    fn look_up(tables: &Tables, addresses: &[Self], found: &mut [NextHopId]) {
        tables.lookup_v6(addresses, found);
    }
}

impl<A: Address> Family<A> {
    /// Takes the packets out whose sources are not believed, with a verdict for each.
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
            match judge(router, head.interface(), routes[n]) {
                Source::Believed => {
                    (self.found[kept], self.lengths[kept], self.indexes[kept]) =
                        (self.found[n], self.lengths[n], self.indexes[n]);
                    kept += 1;
                }
                Source::Forged => verdicts[index] = RouteVerdict::Drop(DropReason::Urpf),
                Source::Unknown => verdicts[index] = punted(head, PuntCause::Kernel),
            }
        }
        self.count = kept;
    }
}
