// SPDX-License-Identifier: Apache-2.0
//! Takes outer headers off packets. In: packets that a router has received. Out: those for one of its VTEPs, received
//! by the port of their network; the others to the router as ever.
//!
//! A packet is checked as the router checks those that it forwards. One for a VTEP whose VXLAN header is invalid, of an
//! unknown network, or from a server that is none of its VTEPs is dropped, and counted at the port that received it.
//! The checksum of UDP is not read (RFC 7348 section 4.1): the inner packet has its own.
//!
//! Cost: for each packet of a router with tunnels, a line of it and a comparison; for those of tunnels also the checks
//! of the outer header, and looking at the inner one, for congestion marks (RFC 6040) and checksums that the sender's
//! kernel has left to a device.

use dpdk::{Batch, Mbuf, Unfinished};
use netvm_router::{Checked, HeaderReason, check_v4, check_v6};
use netvm_wire::partial::{Transport, transport};
use netvm_wire::vxlan::{TosPlace, datagram, decapsulated_tos, vni};
use netvm_wire::{EtherType, MacAddr};

use super::tunnel_of;
use crate::drop_reason::DropReason;
use crate::ids::{PortId, RouterId};
use crate::router::{Ingress, InterfacePath, PortInterfaces, RouterPath};
use crate::worker::next::{Dispatch, Next, OutOfTunnel, Step};
use crate::worker::router::counters_of;
use crate::worker::tx::offload::is_joined;

const ETHERNET: usize = 14;
const TAG: usize = 4;
/// Bytes that are read: the longest outer headers, and inner ones with two tags.
const FRONT: usize = ETHERNET + TAG + 56 + ETHERNET + 2 * TAG + 80;

/// Whether a device has joined datagrams, each of which has headers of its own.
#[cold]
pub(crate) fn has_joined(batch: &Batch) -> bool {
    batch.as_slice().iter().any(is_joined)
}

/// Divides packets for VTEPs from others.
pub(crate) fn divide(burst: &mut Dispatch<'_>, from: PortId, router: RouterId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Some(path) = cx.snapshot.router(router) else {
        return Step::All(Next::drop_at(from, DropReason::NoRouterInterface));
    };
    let here = path.on(from);
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
        let Some((interface, end)) = end_of(path, here, mbuf) else {
            *next = Next::RouterAlone { from, router };
            continue;
        };
        let received = counters_of(interface, &dp.counters);
        received.rx_packets.add(1);
        received.rx_bytes.add(mbuf.pkt_len().into());
        *next = match end {
            Ok(End { by, remote, headers }) => {
                Next::PopHeaders(OutOfTunnel { by, router, remote, headers: headers as u8 })
            }
            Err(reason) => {
                received.rx_dropped.add(1);
                Next::drop_at(from, reason)
            }
        };
    }
    Step::Each
}

/// Where a tunnel ends.
struct End {
    /// The port that receives its packets.
    by: PortId,
    /// The place of the VTEP that has sent it.
    remote: u16,
    /// Bytes of all outer headers.
    headers: usize,
}

/// The interface that has received a packet for a VTEP, and what the packet is for; `None` if it is for none.
fn end_of<'a>(
    path: &'a RouterPath,
    here: PortInterfaces<'_>,
    mbuf: &Mbuf,
) -> Option<(&'a InterfacePath, Result<End, DropReason>)> {
    const LINE: usize = 96;
    let mut line = [0; LINE];
    let copied = match mbuf.copy_first(&mut line) {
        0 => mbuf.copy_to(&mut line),
        copied => copied,
    };
    let packet = &line[..copied];
    let (mut l3, mut vlan) = (ETHERNET, 0);
    let kind = |at: usize| Some(EtherType(u16::from_be_bytes(*packet.get(at - 2..)?.first_chunk()?)));
    if kind(l3)?.is_vlan() {
        vlan = u16::from_be_bytes(*packet.get(l3..)?.first_chunk()?) & 0x0fff;
        l3 += TAG;
    }
    let ip = packet.get(l3..)?;
    let version = match kind(l3)? {
        EtherType::IPV4 => 4,
        EtherType::IPV6 => 6,
        _ => return None,
    };
    let found = datagram(ip).filter(|_| ip[0] >> 4 == version)?;
    if !path.tunnels.end_at(found.destination, found.port) {
        return None;
    }
    // What the router refuses, it counts.
    let interface = path.interface(here.with(vlan)?)?;
    let to = MacAddr(*packet.first_chunk()?);
    let is_own = interface.mac == to || interface.also.contains(&to);
    if !is_own || interface.ingress.has(Ingress::DOWN) || interface.ingress.has(Ingress::ENSLAVED) {
        return None;
    }
    let length = checked_length(ip, (mbuf.pkt_len() as usize).checked_sub(l3)?)?;
    let end = || {
        let network = vni(ip.get(found.ip_header..)?, length.checked_sub(found.ip_header)?);
        network.filter(|_| !found.is_fragment)
    };
    let Some(network) = end() else { return Some((interface, Err(DropReason::BadTunnelHeader))) };
    let Some(tunnel) = path.tunnels.find((found.destination, found.port, network)) else {
        return Some((interface, Err(DropReason::UnknownVni)));
    };
    let Some(remote) = tunnel.remotes.place_at(found.source) else {
        return Some((interface, Err(DropReason::UnknownVtep)));
    };
    const UDP_AND_VXLAN: usize = 16;
    let headers = l3 + found.ip_header + UDP_AND_VXLAN;
    Some((interface, Ok(End { by: tunnel.port, remote, headers })))
}

/// The length of a packet that a router accepts, from its IP header on. One that is for the router itself may have any
/// TTL.
fn checked_length(ip: &[u8], room: usize) -> Option<usize> {
    let field = |at: usize| Some(usize::from(u16::from_be_bytes(*ip.get(at..)?.first_chunk()?)));
    if ip.first()? >> 4 == 4 {
        match check_v4(ip, room).ok()? {
            Checked::Route { length, .. } => Some(length as usize),
            Checked::Punt(HeaderReason::Expired) => field(2),
            Checked::Punt(_) => None,
        }
    } else {
        match check_v6(ip, room).ok()? {
            Checked::Route { length, .. } => Some(length as usize),
            Checked::Punt(HeaderReason::Expired) => Some(field(4)? + 40),
            Checked::Punt(_) => None,
        }
    }
}

/// Takes the headers off packets from one VTEP, and learns that their sources are behind it.
pub(crate) fn pop(burst: &mut Dispatch<'_>, out: OutOfTunnel) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let OutOfTunnel { by, router, remote, headers } = out;
    let Some((path, tunnel)) = tunnel_of(cx.snapshot, by, router) else {
        return Step::All(Next::drop_at(by, DropReason::UnknownVni));
    };
    let learns = tunnel.remotes.len() > 1 && !tunnel.is_evpn && !dp.is_dry;
    let vtep = tunnel.remotes.get(usize::from(remote)).filter(|_| learns);
    let learning = vtep.and_then(|vtep| Some((path.tunnels.addresses.as_ref()?, vtep.number)));
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        match take_off(mbuf, headers.into()) {
            Ok(source) => {
                if let Some((addresses, number)) = learning {
                    addresses.learn(by.0, source, number, dp.clock.tick);
                }
                dp.ports.has_offload_work |= !mbuf.is_finished();
                *next = Next::Rx(by);
            }
            Err(reason) => *next = Next::drop_at(by, reason),
        }
    }
    Step::Each
}

/// Takes the headers off a packet; returns its source.
fn take_off(mbuf: &mut Mbuf, headers: usize) -> Result<MacAddr, DropReason> {
    let bad = DropReason::BadTunnelHeader;
    let mut front = [0; FRONT];
    let copied = mbuf.copy_to(&mut front);
    let (outer, inner) = front[..copied].split_at_mut_checked(headers).ok_or(bad)?;
    let [high, low] = *outer[..headers - 10].last_chunk().ok_or(bad)?;
    const UDP_AND_VXLAN: usize = 16;
    let length = usize::from(u16::from_be_bytes([high, low])).checked_sub(UDP_AND_VXLAN).ok_or(bad)?;
    let source = MacAddr(*inner.get(6..).and_then(|rest| rest.first_chunk()).ok_or(bad)?);
    let place = TosPlace::of(inner);
    let tos = match (TosPlace::of(outer), place) {
        (Some(outer_place), Some(place)) => {
            let before = place.get(inner);
            let after = decapsulated_tos(outer_place.get(outer), before).ok_or(bad)?;
            (after != before).then_some((place, after))
        }
        _ => None,
    };
    let frame = (mbuf.pkt_len() as usize - headers).min(length);
    if frame < ETHERNET || mbuf.oversized().is_some() && mbuf.tunnel().is_none() {
        return Err(bad);
    }
    let is_segment = mbuf.oversized().is_some();
    let unfinished =
        if is_segment { None } else { unfinished_within(mbuf, inner, Within { headers, frame }) };
    mbuf.replace_front(headers as u16, &[]).map_err(|_| bad)?;
    mbuf.set_tunnel(0);
    if !is_segment {
        mbuf.forget_pending();
        // Padding of the outer packet.
        mbuf.truncate(frame as u32);
        unfinished.into_iter().for_each(|(sum, v6)| mbuf.set_unfinished(sum, v6));
    }
    if let Some((place, tos)) = tos {
        place.set(inner, tos);
        mbuf.overwrite(inner);
    }
    Ok(source)
}

/// Where an inner frame is in a packet, and its length.
#[derive(Clone, Copy)]
struct Within {
    headers: usize,
    frame: usize,
}

/// The unfinished checksum of a packet in one piece, whose frame within begins with `inner`: of an mbuf that says so,
/// or of a sender whose kernel has left it to a device and told nobody. Finishes one that the mbuf cannot express
/// without the outer headers.
fn unfinished_within(mbuf: &mut Mbuf, inner: &[u8], within: Within) -> Option<(Unfinished, bool)> {
    let Within { headers, frame } = within;
    // That of an outer header goes with it.
    let noted = mbuf.unfinished().map(|sum| usize::from(sum.l2 + sum.l3)).filter(|at| *at > headers);
    let found = transport(inner).and_then(|found| {
        let Transport { l2, l3, v6, udp, pseudo_sum, length } = found;
        let at = usize::from(found.partial().at);
        let is_left = match noted {
            Some(from) => from == headers + usize::from(l2 + l3),
            None => inner.get(at..at + 2)? == pseudo_sum.to_be_bytes(),
        };
        let is_whole = usize::from(l2) + usize::from(l3) + usize::from(length) == frame;
        (is_whole && is_left).then_some((Unfinished { l2, l3, udp }, v6))
    });
    if noted.is_some() && found.is_none() {
        mbuf.finish_checksum();
    }
    found
}
