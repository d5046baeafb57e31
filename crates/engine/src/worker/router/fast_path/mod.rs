// SPDX-License-Identifier: Apache-2.0
//! The fast path of a router: bursts of IPv4 packets without options, all with a tag or all without one, each with one
//! gateway. In: a burst. Out: the same verdicts and headers as by the general path, or no change at all if the burst
//! has any other packet.
//!
//! Both headers are in registers while they are checked and changed, so this copy is private, too. A burst with other
//! packets takes the general path, and so do the next ones if it is not the only one, because the attempt is lost work.

mod headers;
#[cfg(test)]
mod tests;

use dpdk::{Batch, Mbuf};
use netvm_router::{NextHop, NextHopId};
use netvm_wire::{EtherType, MacAddr, VlanId};

use super::head::{ETHERNET, TAG};
use super::{MAX, RouteVerdict, RouterBurst};
use crate::router::{InterfacePath, PortInterfaces, RouterPath};
pub(super) use headers::Headers;
use headers::word_of;

/// The most bursts that take the general path after one that has to: 1 after the first, then 3, 7 and 15.
const MAX_SKIPPED: u8 = 15;

/// An interface by which packets come in.
#[derive(Clone, Copy)]
struct Ingress {
    number: u16,
    /// Its address, or the one of its other addresses to which the first packet goes, as [`word_of`] has it.
    own: u64,
}

impl Ingress {
    /// The interface of a packet, if the packet is addressed to it.
    #[inline(always)]
    fn of(router: &RouterPath, interfaces_here: PortInterfaces<'_>, headers: &Headers) -> Option<Self> {
        let number = interfaces_here.with(headers.vlan())?;
        let interface = router.interface(number)?;
        let own = headers.to();
        let is_own = word_of(interface.mac) == own || is_also(interface, own);
        (is_own && interface.ingress.is_fast()).then_some(Self { number, own })
    }
}

/// Whether this is another address of the interface. Few have any.
#[inline(always)]
fn is_also(interface: &InterfacePath, own: u64) -> bool {
    interface.also.iter().any(|mac| word_of(*mac) == own)
}

/// Where packets leave.
#[derive(Clone, Copy)]
struct Adjacency {
    interface: u16,
    from: MacAddr,
    to: MacAddr,
    vlan: Option<VlanId>,
    verdict: RouteVerdict,
}

impl Adjacency {
    /// The adjacency of a next hop, for packets of up to `longest` bytes; `None` if they do not suit.
    #[inline(always)]
    fn by(router: &RouterPath, id: NextHopId, longest: u16) -> Option<Self> {
        let NextHop::Via(hop) = router.tables.next_hop(id) else { return None };
        let out = router.interface(hop.interface)?;
        let verdict = RouteVerdict::Out { port: out.port, interface: hop.interface };
        let adjacency =
            Self { interface: hop.interface, from: out.mac, to: hop.mac, vlan: out.vlan, verdict };
        (u32::from(longest) <= out.mtu(true)).then_some(adjacency)
    }

    /// Whether a packet has room for the tag that it gets.
    #[inline(always)]
    fn fits<const TAGGED: bool>(&self, mbuf: &Mbuf) -> bool {
        TAGGED || self.vlan.is_none() || usize::from(mbuf.data_off()) >= TAG
    }
}

/// The bytes of `count` packets that leave, of which `bytes` came in.
#[inline(always)]
fn sent_bytes<const TAGGED: bool>(bytes: u64, adjacency: &Adjacency, count: usize) -> u64 {
    let tags = |are_there| if are_there { (count * TAG) as u64 } else { 0 };
    bytes + tags(adjacency.vlan.is_some()) - tags(TAGGED)
}

impl RouterBurst {
    /// Decides a burst as [`RouterBurst::decide`] does, if all of its packets suit. Returns whether all have the same
    /// verdict; `None` if the burst has to take the general path.
    #[inline(always)]
    pub(super) fn decide_fast(
        &mut self,
        router: &RouterPath,
        interfaces_here: PortInterfaces<'_>,
        batch: &mut Batch,
    ) -> Option<bool> {
        if self.skipped > 0 || router.checks_sources[0] {
            self.skipped = self.skipped.saturating_sub(1);
            return None;
        }
        let mut ethernet = [0; ETHERNET];
        batch.as_slice().first()?.copy_first(&mut ethernet);
        let [.., high, low] = ethernet;
        if EtherType(u16::from_be_bytes([high, low])) == EtherType::VLAN {
            self.decide_form::<true>(router, interfaces_here, batch)
        } else {
            self.decide_form::<false>(router, interfaces_here, batch)
        }
    }

    /// The same for a burst whose first packet has a tag or has none.
    #[inline(always)]
    fn decide_form<const TAGGED: bool>(
        &mut self,
        router: &RouterPath,
        interfaces_here: PortInterfaces<'_>,
        batch: &mut Batch,
    ) -> Option<bool> {
        // Most bursts for the general path begin with a packet for it, for example of IPv6.
        let first = batch.as_slice().first()?;
        let headers = Headers::read::<TAGGED>(first)?;
        let ingress = Ingress::of(router, interfaces_here, &headers)?;
        headers.destination(first.pkt_len())?;
        let decided = self.decide_all::<TAGGED>(router, interfaces_here, ingress, batch);
        let penalty = self.penalty * 2 + 1;
        self.penalty = if decided.is_some() { 0 } else { penalty.min(MAX_SKIPPED) };
        self.skipped = self.penalty;
        decided
    }

    /// Decides a burst whose first packet came in by `ingress`. Changes no packet before all are known to suit.
    #[inline(always)]
    fn decide_all<const TAGGED: bool>(
        &mut self,
        router: &RouterPath,
        interfaces_here: PortInterfaces<'_>,
        ingress: Ingress,
        batch: &mut Batch,
    ) -> Option<bool> {
        let Self { headers, verdicts, heads, v4, .. } = self;
        let (mut longest, mut bytes, mut may_be_own) = (0, 0, false);
        let count = batch.len().min(MAX);
        v4.count = count;
        let places = headers.iter_mut().zip(&mut v4.addresses).zip(&mut *heads);
        for (mbuf, ((headers, address), head)) in batch.as_slice().iter().zip(places) {
            let read = Headers::read::<TAGGED>(mbuf)?;
            if TAGGED {
                head.set_ingress(Ingress::of(router, interfaces_here, &read)?.number, true);
            } else if read.to() != ingress.own {
                return None;
            }
            *address = read.destination(mbuf.pkt_len())?;
            may_be_own |= router.own.may_have(read.source());
            *headers = read;
            longest = longest.max(read.length());
            bytes += u64::from(mbuf.pkt_len());
        }
        if may_be_own && headers[..count].iter().any(|headers| router.own.have(headers.source())) {
            return None;
        }
        let (addresses, found) = (&v4.addresses[..count], &mut v4.found[..count]);
        router.tables.lookup_v4(addresses, found);
        let first = *found.first()?;
        // Without an early end, so that many are compared at once.
        if found.iter().fold(true, |all, id| all & (*id == first)) {
            let adjacency = Adjacency::by(router, first, longest)?;
            let is_back = match TAGGED {
                true => heads[..count].iter().any(|head| head.interface() == adjacency.interface),
                false => ingress.number == adjacency.interface,
            };
            if is_back || !batch.as_slice().iter().all(|mbuf| adjacency.fits::<TAGGED>(mbuf)) {
                return None;
            }
            for (mbuf, headers) in batch.as_mut_slice().iter_mut().zip(headers) {
                headers.forward(adjacency.from, adjacency.to, adjacency.vlan);
                headers.write::<TAGGED>(mbuf);
            }
            // Of packets with one verdict that have one possible interface, the first stands for all.
            let counted = if interfaces_here.is_one() { 1 } else { count };
            verdicts[..counted].fill(adjacency.verdict);
            if !TAGGED {
                heads[..counted].iter_mut().for_each(|head| head.set_ingress(ingress.number, false));
            }
            self.bytes = Some(sent_bytes::<TAGGED>(bytes, &adjacency, count));
            return Some(true);
        }
        if router.has_many_interfaces() {
            v4.prefetch_interfaces(router);
        }
        let packets = batch.as_slice().iter().zip(&v4.found[..count]);
        let (mut first, mut is_uniform) = (None, true);
        for ((mbuf, id), ((headers, verdict), head)) in
            packets.zip(headers.iter_mut().zip(&mut *verdicts).zip(&mut *heads))
        {
            let adjacency = Adjacency::by(router, *id, headers.length())?;
            if !TAGGED {
                head.set_ingress(ingress.number, false);
            }
            if adjacency.interface == head.interface() || !adjacency.fits::<TAGGED>(mbuf) {
                return None;
            }
            headers.forward(adjacency.from, adjacency.to, adjacency.vlan);
            *verdict = adjacency.verdict;
            // The interface decides the whole verdict.
            is_uniform &= adjacency.interface == first.get_or_insert(adjacency).interface;
        }
        for (mbuf, headers) in batch.as_mut_slice().iter_mut().zip(headers) {
            headers.write::<TAGGED>(mbuf);
        }
        if is_uniform {
            self.bytes = first.map(|adjacency| sent_bytes::<TAGGED>(bytes, &adjacency, count));
        }
        Some(is_uniform)
    }
}
