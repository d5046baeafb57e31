// SPDX-License-Identifier: Apache-2.0
//! NAT64 in the packet path: packets become those of the other family after the rules of the port that received them,
//! which see them as they arrived. From then on they are routed as what they became.
//!
//! A packet to the end outside of another host goes through twice (hairpinning, RFC 6146 section 3.8).

use dpdk::{Mbuf, Oversized, Unfinished};
use netvm_conntrack::nat64::{Front, Translated};
use netvm_conntrack::{NextPacket, Origin, Packet, Tracked, Zone};
use netvm_wire::{ConnState, FlowKey, IpProto, parse_prefix};

use super::WorkerConnections;
use crate::ids::PortId;
use crate::memory::mark::{OfConnection, set_of_other_family};
use crate::nat::Nat64Path;
use crate::worker::packet::keys::{HEADER_BYTES, read_front};

/// Where packets arrive that may change their family.
#[derive(Clone, Copy)]
pub(crate) struct Entrance<'a> {
    pub(crate) from: PortId,
    pub(crate) zone: Zone,
    /// NAT64 of its router.
    pub(crate) nat64: &'a Nat64Path,
}

impl WorkerConnections {
    /// Translates the packets of a burst (bit mask) whose connections have an end in each family. Returns those that
    /// cannot be translated.
    pub(crate) fn translate_families(
        &mut self,
        accepted: u64,
        by: Entrance<'_>,
        packets: &mut [Mbuf],
    ) -> u64 {
        let mut failed = 0;
        for (n, mbuf) in packets.iter_mut().enumerate() {
            let (tracked, key) = (self.tracked[n], self.keys[n]);
            if accepted >> n & 1 == 0 || !self.leads_over(&tracked, &key) {
                continue;
            }
            let front = self.headers.fronts[n];
            let at_hand = &front[..usize::from(self.headers.lengths[n])];
            let packet =
                Packet { key: &key, zone: by.zone, front: at_hand, length: self.lengths[n] as usize };
            let done = self.translate_family(&packet, &tracked, by.nat64, mbuf);
            let done = done.and_then(|()| self.turn_back(by, mbuf));
            failed |= u64::from(done.is_none()) << n;
        }
        failed
    }

    /// Whether a packet becomes one of the other family. One that the kernel of a router has forwarded did already.
    fn leads_over(&self, tracked: &Tracked, key: &FlowKey) -> bool {
        let connection = tracked.connection.and_then(|id| self.table.get(id));
        connection.filter(|it| it.is_nat64()).is_some_and(|it| {
            let here = if tracked.is_reply { it.reply() } else { it.original() };
            here.source.is_v4() == key.source.is_v4()
        })
    }

    /// Translates a packet once more, if it leads to the end outside of a host.
    fn turn_back(&mut self, by: Entrance<'_>, mbuf: &mut Mbuf) -> Option<()> {
        let Entrance { from, zone, nat64 } = by;
        let (mut key, mut front) = (FlowKey::EMPTY, [0; HEADER_BYTES]);
        let copied = read_front(mbuf, &mut front, &mut key).ok()?;
        if !nat64.has(key.destination) {
            return Some(());
        }
        let packet = Packet { key: &key, zone, front: &front[..copied], length: mbuf.pkt_len() as usize };
        let mut tracked = [Tracked::default()];
        self.table.track(&[packet], self.now, &mut tracked);
        let [mut tracked] = tracked;
        if tracked.state == ConnState::New && tracked.connection.is_none() {
            let origin = Origin { port: from.0, rule: 0 };
            tracked.connection =
                Some(self.table.confirm_nat64(&packet, origin, self.now, &nat64.parts()).ok()?);
        }
        self.translate_family(&packet, &tracked, nat64, mbuf)
    }

    fn translate_family(
        &mut self,
        packet: &Packet<'_>,
        tracked: &Tracked,
        nat64: &Nat64Path,
        mbuf: &mut Mbuf,
    ) -> Option<()> {
        let is_partial = mbuf.unfinished().is_some();
        let next = NextPacket { is_partial, ..NextPacket::new(packet, tracked)? };
        let mut front = Front::new();
        let translated = self.table.translate_family(&next, &nat64.prefix, &mut front).ok()?;
        set_of_other_family(
            mbuf,
            OfConnection { connection: next.connection.note(), is_reply: next.is_reply },
        );
        replace(mbuf, &front, translated)
    }
}

/// Gives a packet its new first bytes, and its offloads the new family.
fn replace(mbuf: &mut Mbuf, front: &Front, translated: Translated) -> Option<()> {
    let (cut, length) = (mbuf.oversized(), u32::try_from(translated.length).ok()?);
    mbuf.forget_pending();
    mbuf.replace_front(u16::try_from(translated.replaced).ok()?, front.bytes()).ok()?;
    mbuf.truncate(length);
    if !translated.is_partial {
        return Some(());
    }
    let headers = parse_prefix(front.bytes(), translated.length).ok()?;
    let (l2, v6) = (headers.l3_offset() as u16, !headers.key().source.is_v4());
    let l3 = headers.l4_offset()? as u16 - l2;
    match cut {
        Some(cut) => mbuf.set_oversized(Oversized { l2, l3, v6, ..cut }),
        None => mbuf.set_unfinished(Unfinished { l2, l3, udp: headers.key().protocol == IpProto::UDP }, v6),
    }
    Some(())
}
