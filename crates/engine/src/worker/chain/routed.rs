// SPDX-License-Identifier: Apache-2.0
//! Programs that take packets in and return them by one port, and programs that route. In: packets that enter, and
//! those that come back. Out: for the way in, the MAC address of the program's port and, if wanted, a TTL that is
//! higher by one; for the way back, the side that they had entered by, and the MAC addresses that they had.
//!
//! Cost: a key and an entry of [`ProgramFlows`](crate::snapshot::ProgramFlows) for each packet and way; 6 or 12 bytes
//! of the packet, with a raised TTL its first 64.

use dpdk::{Batch, Mbuf};
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{FlowKey, IpProto, parse_prefix, rewrite};

use crate::snapshot::{PairReturn, Side};
use crate::worker::next::PairEntry;
use crate::worker::packet::keys::key_of;
use crate::worker::state::burst::Context;
use crate::worker::state::{BURST, Datapath};

/// Bytes of a packet that has a raised TTL: Ethernet with two tags, and IPv6.
const FRONT: usize = 64;

/// Notes packets that enter a program, and makes them such as it takes.
#[inline(never)]
pub(crate) fn go_in(dp: &Datapath, cx: Context<'_>, end: PairEntry, batch: &mut Batch) {
    let Some(back) = cx.snapshot.pairs.of(end.port) else { return };
    for mbuf in batch.as_mut_slice() {
        if let (Some(flows), Ok(key)) = (&back.flows, key_of(mbuf)) {
            flows.enter(&key, end.side, second(dp));
        }
        if let Some(mac) = back.mac {
            mbuf.overwrite_first(&mac.0);
        }
        if back.raises_ttl {
            raise_ttl(mbuf);
        }
    }
}

/// The side by which each packet had entered that comes back; `None`: nothing says so. Those that the program has
/// routed get the MAC addresses that they had.
#[inline(never)]
pub(crate) fn come_back(back: &PairReturn, batch: &mut Batch) -> [Option<Side>; BURST] {
    let mut sides = [back.only_side(); BURST];
    let Some(flows) = &back.flows else { return sides };
    for (side, mbuf) in sides.iter_mut().zip(batch.as_mut_slice()) {
        let known = key_of(mbuf).ok().and_then(|key| flows.find(&key));
        if let Some(known) = known.filter(|known| side.is_none_or(|side| side == known.side)) {
            *side = Some(known.side);
            if back.mac.is_some() {
                let [source, destination] = known.macs;
                let mut macs = [0; 12];
                macs[..6].copy_from_slice(&destination.0);
                macs[6..].copy_from_slice(&source.0);
                mbuf.overwrite_first(&macs);
            }
        }
    }
    sides
}

/// Whether a program that routes gets a packet: IP for one host. The rest is between neighbours, such as ARP and
/// neighbour discovery, and passes the program by.
pub(crate) fn is_routable(key: &FlowKey) -> bool {
    let is_discovery =
        key.protocol == IpProto::ICMPV6 && !key.source.is_v4() && (133..=137).contains(&key.icmp_type);
    key.is_ip() && key.destination_mac.0[0] & 1 == 0 && !is_discovery
}

fn second(dp: &Datapath) -> u16 {
    (dp.clock.tick / TICKS_PER_SECOND) as u16
}

/// Raises the TTL or hop limit by one; the highest stays.
fn raise_ttl(mbuf: &mut Mbuf) {
    let mut front = [0; FRONT];
    let copied = mbuf.copy_first(&mut front);
    let Ok(headers) = parse_prefix(&front[..copied], mbuf.pkt_len() as usize) else { return };
    if rewrite::increment_ttl(&mut front[..copied], &headers).is_ok() {
        mbuf.overwrite_first(&front);
    }
}
