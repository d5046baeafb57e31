// SPDX-License-Identifier: Apache-2.0
//! Puts outer headers before packets. In: packets that a port of a tunnel sends. Out: by the next hop of the router to
//! the VTEP behind which their destination is; to all VTEPs of the network if that is unknown, or a group (with EVPN,
//! to those that ask for such packets). With EVPN, requests for known neighbours are answered here ([`neighbours`]).
//!
//! The outer packet is the router's own: its TTL is that of the configuration, and no rule of the port that sends it is
//! asked but egress rules. Its UDP port is of the inner flow's hash, by which routers on the way spread flows, and so
//! does this router over several next hops.
//!
//! Cost: a route lookup for each burst and VTEP; for each packet the key of the flow, a hash, and 50 bytes before it.
//! With several VTEPs a lookup of the destination, and for floods a copy for each VTEP but the last. Whole packets of
//! TCP and UDP over IPv4, to a VTEP of IPv4 by one next hop, get headers that are made once for a burst ([`Common`]).

use dpdk::{Mbuf, PortNumber, Unfinished};
use netvm_router::{NextHop, NextHopId, Tables};
use netvm_wire::neighbour::Message;
use netvm_wire::partial::transport;
use netvm_wire::vxlan::{Outer, Template, TosPlace, V4_HEADERS, V6_HEADERS, set_checksum, source_port};
use netvm_wire::{Address, EtherType, FiveTuple, FlowKey, Fragment, IpProto, MacAddr};

use super::neighbours::{self, Outcome};
use super::tunnel_of;
use crate::drop_reason::DropReason;
use crate::ids::{PortId, RouterId};
use crate::memory::mark;
use crate::router::{InterfacePath, RouterPath, Tunnel, source_hasher};
use crate::worker::next::{Dispatch, Next, Step, ToVtep};
use crate::worker::packet::keys::key_of;
use crate::worker::router::counters_of;
use crate::worker::tx::copy::copies_for;

const ETHERNET: usize = 14;
const TAG: usize = 4;
/// Bytes that are read to choose the VTEP.
const LINE: usize = 64;
/// The most bytes before a packet.
const MAX_OUTER: usize = ETHERNET + TAG + V6_HEADERS;
/// Bytes of a packet that are read: Ethernet with two tags, and the longest IP header without extensions.
const FRONT: usize = ETHERNET + 2 * TAG + 60;

/// Chooses the VTEP of each packet.
pub(crate) fn choose(burst: &mut Dispatch<'_>, from: PortId, router: RouterId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Some((path, tunnel)) = tunnel_of(cx.snapshot, from, router) else {
        return Step::All(Next::drop_at(from, DropReason::NoVtepRoute));
    };
    let to = |remote| ToVtep { from, router, remote };
    if let ([_], false) = (&*tunnel.remotes, tunnel.is_evpn) {
        return Step::All(Next::Encapsulate(to(0)));
    }
    let addresses = path.tunnels.addresses.as_ref().filter(|_| !tunnel.remotes.is_empty());
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        let mut line = [0; LINE];
        let copied = match mbuf.copy_first(&mut line) {
            0 => mbuf.copy_to(&mut line),
            copied => copied,
        };
        if tunnel.is_evpn && Message::may_begin(&line[..copied]) {
            match neighbours::answer(dp, tunnel, mbuf) {
                Outcome::Forwarded => {}
                Outcome::Own => {
                    *next = Next::drop_at(from, DropReason::Filtered);
                    continue;
                }
                Outcome::Answered => {
                    dp.counters.ports[from.index()].neigh_answered.add(1);
                    *next = Next::Rx(from);
                    continue;
                }
            }
        }
        let [a, b, c, d, e, f, ..] = line;
        let destination = MacAddr([a, b, c, d, e, f]);
        let known = addresses.and_then(|all| all.lookup(from.0, destination, dp.clock.tick));
        *next = match known.and_then(|number| tunnel.place_of(number)) {
            Some(remote) => Next::Encapsulate(to(remote)),
            None if tunnel.floods == 0 || addresses.is_none() => Next::drop_at(from, DropReason::NoVtepRoute),
            None => Next::EncapsulateAll(to(0)),
        };
    }
    Step::Each
}

/// Sends a copy to one VTEP, or the packets themselves to the last.
pub(crate) fn encapsulate_for_next(burst: &mut Dispatch<'_>, to: ToVtep) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let count = tunnel_of(cx.snapshot, to.from, to.router).map_or(0, |(_, tunnel)| tunnel.floods);
    if usize::from(to.remote) + 1 >= count {
        return Step::All(Next::Encapsulate(to));
    }
    split.copies = copies_for(dp, to.from, cx.memory, batch.as_slice());
    Step::Copies(Next::Encapsulate(to), Next::EncapsulateAll(ToVtep { remote: to.remote + 1, ..to }))
}

/// Puts the headers before packets for one VTEP.
pub(crate) fn encapsulate(burst: &mut Dispatch<'_>, to: ToVtep) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let ToVtep { from, router, remote } = to;
    let lost = Step::All(Next::drop_at(from, DropReason::NoVtepRoute));
    let Some((path, tunnel)) = tunnel_of(cx.snapshot, from, router) else { return lost };
    let Some(remote) = tunnel.remotes.get(usize::from(remote)).map(|vtep| vtep.address) else { return lost };
    let next_hop = path.tables.next_hop(route_to(&path.tables, remote));
    let way = Way { path, tunnel, remote, next_hop };
    let common = way.common();
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        let plain = common.as_ref().and_then(|common| common.encapsulate(tunnel, mbuf));
        *next = match plain.map_or_else(|| way.encapsulate(mbuf), Ok) {
            Ok(out) => {
                let sent = counters_of(out, &dp.counters);
                sent.tx_packets.add(1);
                sent.tx_bytes.add(mbuf.pkt_len().into());
                Next::Forwarded { router, out: out.port }
            }
            Err(Unsent::TooLong { mtu }) => Next::TellMtu { from, mtu },
            Err(Unsent::Dropped(reason)) => Next::drop_at(from, reason),
        };
    }
    Step::Each
}

fn route_to(tables: &Tables, remote: Address) -> NextHopId {
    let mut found = [NextHopId::PUNT];
    match remote.v4_bits() {
        Some(v4) => tables.lookup_v4(&[v4], &mut found),
        None => tables.lookup_v6(&[remote.v6_bits().to_be_bytes()], &mut found),
    }
    found[0]
}

/// Why a packet is not sent.
enum Unsent {
    /// It is longer than an IP packet that the tunnel carries.
    TooLong {
        mtu: u16,
    },
    Dropped(DropReason),
}

impl From<DropReason> for Unsent {
    fn from(reason: DropReason) -> Self {
        Self::Dropped(reason)
    }
}

/// The way to a VTEP.
#[derive(Clone, Copy)]
struct Way<'a> {
    path: &'a RouterPath,
    tunnel: &'a Tunnel,
    remote: Address,
    next_hop: &'a NextHop,
}

impl<'a> Way<'a> {
    /// The headers, but for what differs from packet to packet.
    fn outer(&self) -> Outer {
        let Self { tunnel, remote, .. } = *self;
        Outer {
            source: tunnel.local,
            destination: remote,
            ports: [0, tunnel.udp_port],
            vni: tunnel.vni,
            tos: 0,
            ttl: tunnel.ttl,
            may_fragment: tunnel.may_fragment,
        }
    }

    /// What its packets have in common, if they leave by one untagged link over IPv4.
    fn common(&self) -> Option<Common<'a>> {
        let NextHop::Via(hop) = self.next_hop else { return None };
        let out = self.path.interface(hop.interface).filter(|out| out.vlan.is_none())?;
        let template = Template::new(&self.outer())?;
        let mut link = [0; ETHERNET];
        write_link(&mut link, out, LinkTo { mac: hop.mac, is_v4: true });
        Some(Common { link, template, out, longest: self.tunnel.longest(out.mtu(true)) })
    }

    /// Puts the headers before a packet. Returns the interface that it leaves by.
    fn encapsulate(&self, mbuf: &mut Mbuf) -> Result<&'a InterfacePath, Unsent> {
        let Self { path, tunnel, remote, next_hop } = *self;
        let mut front = [0; FRONT];
        let copied = mbuf.copy_to(&mut front);
        let front = &front[..copied];
        let hash = key_of(mbuf).map_or(0, |key| flow_hash(&key));
        let hop = next_hop.choose(hash as u32).ok_or(DropReason::NoVtepRoute)?;
        let out = path.interface(hop.interface).ok_or(DropReason::NoVtepRoute)?;
        // Of a segment, each part.
        let inner = mbuf.oversized().map_or(mbuf.pkt_len(), |cut| cut.headers() as u32 + u32::from(cut.size));
        let longest = tunnel.longest(out.mtu(remote.is_v4()));
        if inner.min(mbuf.pkt_len()) > longest {
            let is_tagged = matches!(front.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
            let link = if is_tagged { ETHERNET + TAG } else { ETHERNET } as u32;
            return Err(Unsent::TooLong {
                mtu: u16::try_from(longest.saturating_sub(link)).unwrap_or(u16::MAX),
            });
        }
        let tos = TosPlace::of(front).map_or(0, |place| place.get(front));
        let outer = Outer {
            ports: [source_port(hash), tunnel.udp_port],
            tos: outer_tos(tunnel, tos),
            ..self.outer()
        };
        let mut headers = [0; MAX_OUTER + FRONT];
        let l2 = write_link(&mut headers, out, LinkTo { mac: hop.mac, is_v4: remote.is_v4() });
        // The lengths of a segment are those of its first part, until it is cut.
        let length = outer.write(inner as usize, &mut headers[l2..]).ok_or(DropReason::TooLong)?;
        let end = l2 + length;
        let is_summed = !remote.is_v4() && sum_ahead(mbuf, front, &mut headers[l2..][..length + copied]);
        mbuf.replace_front(0, &headers[..end]).map_err(|_| DropReason::TooLong)?;
        mbuf.set_tunnel(l2 as u16);
        if !remote.is_v4() && !is_summed {
            sum_all(mbuf, l2 as u16);
        }
        mark::keep_queue(mbuf);
        mbuf.set_port(PortNumber(tunnel.port.0));
        Ok(out)
    }
}

/// DSCP and ECN of an outer packet.
fn outer_tos(tunnel: &Tunnel, inner: u8) -> u8 {
    tunnel.dscp.map_or(inner, |dscp| dscp << 2 | inner & 3)
}

/// What the packets of a burst to one VTEP have in common.
struct Common<'a> {
    link: [u8; ETHERNET],
    template: Template,
    out: &'a InterfacePath,
    /// Longest inner frame.
    longest: u32,
}

impl<'a> Common<'a> {
    /// Puts the headers before a whole packet of TCP or UDP over IPv4, without tags and pending offloads, that is not
    /// too long; the same as [`Way::encapsulate`], which is for all others.
    #[inline(always)]
    fn encapsulate(&self, tunnel: &Tunnel, mbuf: &mut Mbuf) -> Option<&'a InterfacePath> {
        let mut line = [0; LINE];
        if !mbuf.is_plain() || mbuf.copy_first(&mut line) < END_OF_PORTS {
            return None;
        }
        let tuple = plain_tuple(&line)?;
        let length =
            u16::try_from(mbuf.pkt_len()).ok().filter(|length| u32::from(*length) <= self.longest)?;
        let port = source_port(source_hasher().plain(&tuple));
        let headers = self.template.with(outer_tos(tunnel, line[15]), port, length)?;
        let mut front = [0; ETHERNET + V4_HEADERS];
        front[..ETHERNET].copy_from_slice(&self.link);
        front[ETHERNET..].copy_from_slice(&headers);
        mbuf.replace_front(0, &front).ok()?;
        mark::keep_queue(mbuf);
        mbuf.set_port(PortNumber(tunnel.port.0));
        Some(self.out)
    }
}

/// Where the ports of [`plain_tuple`] end.
const END_OF_PORTS: usize = ETHERNET + 24;

/// The flow of a packet of TCP or UDP over IPv4 that has no tags, no options and all its parts.
#[inline(always)]
fn plain_tuple(line: &[u8; LINE]) -> Option<FiveTuple> {
    let is_plain = line[12..15] == [8, 0, 0x45] && line[20] & 0x3f == 0 && line[21] == 0;
    let protocol = IpProto(line[23]);
    if !is_plain || !matches!(protocol, IpProto::TCP | IpProto::UDP) {
        return None;
    }
    let address = |at: usize| Address::from_v4_octets([line[at], line[at + 1], line[at + 2], line[at + 3]]);
    let port = |at: usize| u16::from_be_bytes([line[at], line[at + 1]]);
    Some(FiveTuple {
        source: address(26),
        destination: address(30),
        source_port: port(34),
        destination_port: port(36),
        protocol,
    })
}

/// Where a packet goes on its link.
#[derive(Clone, Copy)]
struct LinkTo {
    mac: MacAddr,
    is_v4: bool,
}

/// Writes the Ethernet header; returns its length.
fn write_link(headers: &mut [u8], out: &InterfacePath, to: LinkTo) -> usize {
    headers[..6].copy_from_slice(&to.mac.0);
    headers[6..12].copy_from_slice(&out.mac.0);
    let mut l2 = ETHERNET;
    if let Some(vlan) = out.vlan {
        headers[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
        headers[14..16].copy_from_slice(&vlan.get().to_be_bytes());
        l2 += TAG;
    }
    let kind = if to.is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
    headers[l2 - 2..l2].copy_from_slice(&kind.0.to_be_bytes());
    l2
}

/// Writes the checksum over IPv6 without the packet's payload, for one whose own checksum is unfinished: what is
/// missing in it is known (Linux's local checksum offload). Segments get theirs when they are cut. Returns false for
/// finished packets; finishes those that contradict their offload. `headers`: from the outer IP header on, with room
/// for the packet's `front`.
fn sum_ahead(mbuf: &mut Mbuf, front: &[u8], headers: &mut [u8]) -> bool {
    if mbuf.oversized().is_some() {
        return true;
    }
    let Some(Unfinished { l2, l3, udp }) = mbuf.unfinished() else { return false };
    let found = transport(front).filter(|it| (it.l2, it.l3, it.udp) == (l2, l3, udp));
    let end = V6_HEADERS + usize::from(l2 + l3);
    let (Some(found), true) = (found, end <= headers.len()) else {
        mbuf.finish_checksum();
        return false;
    };
    headers[V6_HEADERS..end].copy_from_slice(&front[..end - V6_HEADERS]);
    set_checksum(&mut headers[..end], !found.pseudo_sum);
    true
}

/// Writes the checksum over IPv6 of a packet without pending offloads.
fn sum_all(mbuf: &mut Mbuf, l2: u16) {
    let mut front = [0; MAX_OUTER];
    let copied = mbuf.copy_to(&mut front);
    let Some(found) = transport(&front[..copied]) else { return };
    let at = usize::from(found.partial().at);
    front[at..at + 2].copy_from_slice(&found.pseudo_sum.to_be_bytes());
    mbuf.overwrite(&front[..copied]);
    mbuf.set_unfinished(Unfinished { l2, l3: found.l3, udp: true }, true);
    mbuf.finish_checksum();
}

/// The hash of a packet's flow. Only the first of several fragments has ports, so they do not count then.
fn flow_hash(key: &FlowKey) -> u64 {
    let Some(mut tuple) = key.five_tuple() else {
        let [source, destination] = [key.source_mac, key.destination_mac].map(|mac| {
            let [a, b, c, d, e, f] = mac.0;
            u64::from_be_bytes([0, 0, a, b, c, d, e, f])
        });
        return source_hasher().words([source, destination, key.ether_type.0.into(), 0, 0]);
    };
    if key.fragment != Fragment::Whole {
        (tuple.source_port, tuple.destination_port) = (0, 0);
    }
    source_hasher().plain(&tuple)
}
