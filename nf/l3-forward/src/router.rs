// SPDX-License-Identifier: Apache-2.0
//! The router: packets in, rewritten packets with a port verdict out.

use std::net::IpAddr;

use netlib::{Burst, MAX_COUNTERS, NetworkFunction, Outbox, Packet, PortId, ThreadContext, Verdict};
use netvm_nf_common::{LruTable, View};
use netvm_wire::checksum::internet_checksum;
use netvm_wire::fragment::Cut;
use netvm_wire::reply::{MAX_ANSWER, Reason, Undelivered};
use netvm_wire::rewrite::{self, TtlError};
use netvm_wire::{Address, EtherType, FiveTuple, Headers, MacAddr, Network, VlanId};

use crate::neighbour::{self, SOLICITATION};
use crate::oversize::{Fit, exceeds, fragment};
use crate::{Args, NextHop, Routes};

/// The NF's counters, in the order of `Counter`.
pub const COUNTERS: [&str; 14] = [
    "routed",
    "looked-up",
    "answered",
    "no-route",
    "no-port",
    "expired",
    "not-forwarded",
    "not-mine",
    "not-ip",
    "malformed",
    "flows",
    "fragmented",
    "too-long",
    "errors-sent",
];

#[derive(Clone, Copy)]
enum Counter {
    Routed,
    LookedUp,
    Answered,
    NoRoute,
    NoPort,
    Expired,
    NotForwarded,
    NotMine,
    NotIp,
    Malformed,
    Flows,
    Fragmented,
    TooLong,
    ErrorsSent,
}

/// Why a packet is not delivered: what its sender is told, and what counts it.
#[derive(Clone, Copy)]
struct Undeliverable {
    reason: Reason,
    counter: Counter,
}

/// Most ICMP errors that a thread sends in a tick, of which a second has ten.
const ERRORS_PER_TICK: u32 = 10;
/// Most bytes of headers that errors look at.
const HEADER_BYTES: usize = 256;

/// A thread's router.
#[derive(Debug)]
pub struct Router {
    args: Args,
    routes: View<Routes>,
    /// The port of each next hop.
    ports: Vec<Option<PortId>>,
    /// Cached next hops of recent flows.
    flows: LruTable<FiveTuple, Option<u32>>,
    /// ICMP errors that may be sent until the next tick (RFC 1812 section 4.3.2.8).
    errors_left: u32,
    counters: [u64; COUNTERS.len()],
}

impl Router {
    /// `context` resolves the names in the routes.
    #[must_use]
    pub fn new(args: Args, routes: View<Routes>, context: &ThreadContext<'_>) -> Self {
        let flows = LruTable::new(args.flows as usize);
        let (ports, counters) = (Vec::new(), [0; COUNTERS.len()]);
        let mut this = Self { args, routes, ports, flows, errors_left: ERRORS_PER_TICK, counters };
        this.look_up_ports(context);
        this
    }

    fn look_up_ports(&mut self, context: &ThreadContext<'_>) {
        self.ports = self.routes.get().next_hops().iter().map(|hop| context.port(&hop.port)).collect();
    }

    fn discard(&mut self, counter: Counter) -> Verdict {
        self.counters[counter as usize] += 1;
        Verdict::Drop
    }

    fn malformed(&mut self) -> Verdict {
        self.counters[Counter::Malformed as usize] += 1;
        self.args.malformed.verdict()
    }

    #[inline]
    fn next_hop(&mut self, tuple: FiveTuple) -> Option<u32> {
        if let Some(known) = self.flows.get(&tuple, 0) {
            return *known;
        }
        let next_hop = self.routes.get().to(tuple.destination);
        self.counters[Counter::LookedUp as usize] += 1;
        self.flows.insert(tuple, next_hop, 0);
        next_hop
    }

    /// Tells the sender why its packet is dropped, if the router has an address, and discards the packet.
    #[cold]
    fn answer(&mut self, packet: &Packet<'_>, outbox: &mut Outbox<'_>, why: Undeliverable) -> Verdict {
        let frame = packet.data();
        let error = |answer: &mut [u8]| {
            let undelivered = Undelivered::of(&frame[..frame.len().min(HEADER_BYTES)], frame.len())?;
            self.args
                .address
                .iter()
                .find_map(|address: &IpAddr| undelivered.error(*address, why.reason, answer))
        };
        let mut answer = [0; MAX_ANSWER];
        if self.errors_left > 0
            && let Some(length) = error(&mut answer)
            && let Some(mut made) = outbox.alloc_for(packet, length)
        {
            made.data_mut().copy_from_slice(&answer[..length]);
            let sender = MacAddr(made.data().first_chunk().copied().unwrap_or_default());
            if rewrite::set_macs(made.data_mut(), sender, self.args.mac).is_ok() {
                outbox.send(made, Verdict::Port(packet.ingress()));
                self.errors_left -= 1;
                self.counters[Counter::ErrorsSent as usize] += 1;
            }
        }
        self.discard(why.counter)
    }

    #[inline]
    fn route(
        &mut self,
        packet: &mut Packet<'_>,
        outbox: &mut Outbox<'_>,
        headers: &Headers,
        tuple: FiveTuple,
    ) -> Verdict {
        let key = headers.key();
        if self.args.only_mine && key.destination_mac != self.args.mac {
            return self.discard(Counter::NotMine);
        }
        if key.destination_mac.is_multicast() || !may_be_forwarded(&tuple) {
            return self.discard(Counter::NotForwarded);
        }
        if !header_is_intact(packet.data(), headers) {
            return self.malformed();
        }
        let Some(number) = self.next_hop(tuple) else { return self.discard(Counter::NoRoute) };
        let Some(port) = self.ports.get(number as usize).copied().flatten() else {
            return self.discard(Counter::NoPort);
        };
        if let Some(mtu) = self.args.mtu.filter(|mtu| exceeds(packet, headers, *mtu))
            && Cut::of(packet.data(), headers, mtu).is_none()
        {
            let why = Undeliverable { reason: Reason::TooLong(mtu), counter: Counter::TooLong };
            return self.answer(packet, outbox, why);
        }
        match rewrite::decrement_ttl(packet.data_mut(), headers) {
            Ok(_) => {}
            Err(TtlError::Expired) => {
                let why = Undeliverable { reason: Reason::Expired, counter: Counter::Expired };
                return self.answer(packet, outbox, why);
            }
            Err(TtlError::NotIp | TtlError::FrameTooShort) => return self.malformed(),
        }
        let Some(NextHop { mac, vlan, .. }) = self.routes.get().next_hops().get(number as usize) else {
            return self.discard(Counter::NoRoute);
        };
        if !set_tag(packet, headers, *vlan)
            || rewrite::set_macs(packet.data_mut(), *mac, self.args.mac).is_err()
        {
            return self.discard(Counter::NotForwarded);
        }
        if let Some(mtu) = self.args.mtu.filter(|mtu| exceeds(packet, headers, *mtu)) {
            match fragment(packet, outbox, mtu, port) {
                Fit::Whole => {}
                Fit::Fragmented => self.counters[Counter::Fragmented as usize] += 1,
                Fit::TooLong | Fit::NoBuffer => return self.discard(Counter::TooLong),
            }
        }
        self.counters[Counter::Routed as usize] += 1;
        Verdict::Port(port)
    }

    fn is_solicitation(headers: &Headers) -> bool {
        headers.network() == Network::Ipv6 && headers.key().icmp_type == SOLICITATION
    }
}

impl Router {
    #[inline]
    fn handle(&mut self, packet: &mut Packet<'_>, outbox: &mut Outbox<'_>) -> Verdict {
        let Ok(headers) = netvm_wire::parse(packet.data()) else {
            return self.malformed();
        };
        if self.args.proxy_arp && (headers.network() == Network::Arp || Self::is_solicitation(&headers)) {
            let answered = neighbour::answer_arp(packet.data_mut(), &headers, self.args.mac)
                || neighbour::answer_solicitation(packet, &headers, self.args.mac);
            if !answered {
                return self.discard(Counter::NotForwarded);
            }
            self.counters[Counter::Answered as usize] += 1;
            return Verdict::Port(packet.ingress());
        }
        match headers.five_tuple() {
            Some(tuple) => self.route(packet, outbox, &headers, tuple),
            None => self.discard(Counter::NotIp),
        }
    }
}

impl NetworkFunction for Router {
    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        if self.routes.refresh() {
            self.flows.clear();
            self.look_up_ports(&burst.context());
        }
        burst.for_each_with(|mut packet, outbox| self.handle(&mut packet, outbox));
    }

    fn changed(&mut self, context: &ThreadContext<'_>) {
        self.look_up_ports(context);
    }

    fn tick(&mut self) {
        self.errors_left = ERRORS_PER_TICK;
        self.routes.tick();
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        counters[..self.counters.len()].copy_from_slice(&self.counters);
        counters[Counter::Flows as usize] = self.flows.len() as u64;
    }
}

/// Whether a router may forward between these addresses: both unicast, neither link-local nor loopback (RFC 1812
/// sections
/// 5.3.4 and 5.3.7, RFC 3927 section 2.7, RFC 4291 section 2.5).
#[inline]
fn may_be_forwarded(tuple: &FiveTuple) -> bool {
    let (source, destination) = (tuple.source, tuple.destination);
    global(source) && global(destination)
}

#[inline]
fn global(address: Address) -> bool {
    match address.v4_bits() {
        Some(bits) => !matches!(bits.to_be_bytes(), [0 | 127 | 224.., ..] | [169, 254, ..]),
        None => {
            let bits = address.v6_bits();
            // ::, ::1, fe80::/10, ff00::/8.
            bits > 1 && bits >> 118 != 0xfe80 >> 6 && bits >> 120 != 0xff
        }
    }
}

/// Verifies the checksum of an IPv4 header, as RFC 1812 section 5.2.2 requires.
#[inline]
fn header_is_intact(frame: &[u8], headers: &Headers) -> bool {
    if headers.network() != Network::Ipv4 {
        return true;
    }
    let header = frame.get(headers.l3_offset()..).and_then(|packet| {
        let length = usize::from(packet.first()? & 0x0f) * 4;
        packet.get(..length)
    });
    header.is_some_and(|header| internet_checksum(header) == 0)
}

/// Gives the packet one tag, of `vlan`, or none; false without headroom.
#[inline]
fn set_tag(packet: &mut Packet<'_>, headers: &Headers, vlan: Option<VlanId>) -> bool {
    if headers.vlan_tags() == 0 && vlan.is_none() {
        return true;
    }
    for _ in 0..headers.vlan_tags() {
        let start = rewrite::strip_vlan(packet.data_mut(), 0);
        if start.ok().and_then(|start| packet.trim_front(start)).is_none() {
            return false;
        }
    }
    let Some(vlan) = vlan else { return true };
    let buffer = packet.prepend(4);
    buffer.is_some_and(|buffer| rewrite::push_vlan(buffer, 4, EtherType::VLAN, vlan).is_ok())
}

#[cfg(test)]
mod tests;
