// SPDX-License-Identifier: Apache-2.0
//! Generic receive offload (GRO): joins the TCP segments and UDP datagrams of a received burst. In: packets as a device
//! received them. Out: in their place, fewer and longer packets with pending offloads, in large buffers, as ports on
//! interfaces of the kernel receive them. [`netvm_wire::gro`] decides which packets belong together.
//!
//! Not `rte_gro`: it neither verifies checksums nor compares TOS, TTL, VLAN tags and windows, it changes the order of
//! packets within a flow, and it chains buffers, which NFs cannot take.
//!
//! The order of packets within a flow stays: any packet that is not coalesced ends the run of its flow. Packets that
//! may belong to any flow (fragments, other protocols) end all runs.
//!
//! Cost: each packet's headers, and one copy and one sum of each coalesced payload. Other ports check one pointer per
//! burst.

use arrayvec::ArrayVec;
use dpdk::{Batch, Mbuf, Oversized};
use netvm_wire::gro::{Coalesced, MAX_HEADERS, Packet};

use crate::interface::device::PortContext;
use crate::memory::Memory;

/// Flows of a burst with a run; Linux holds packets of 8 flows in each of its 8 buckets (`MAX_GRO_SKBS`).
const FLOWS: usize = 8;

/// The runs of a burst.
#[derive(Default)]
pub(crate) struct Gro {
    runs: ArrayVec<Run, FLOWS>,
    /// Packets whose bytes were copied.
    copied: Batch,
}

/// A packet, and what its headers say.
#[derive(Clone, Copy)]
struct Parsed<'a> {
    mbuf: &'a Mbuf,
    packet: &'a Packet,
}

/// A run of packets.
struct Run {
    coalesced: Coalesced,
    /// Where the first packet is in the burst.
    at: usize,
}

impl Gro {
    /// Coalesces the packets of a burst. Without large buffers, packets stay as they are.
    pub(crate) fn coalesce(&mut self, memory: &Memory, burst: &mut Batch, cx: &PortContext<'_>) {
        let received = burst.len();
        let mut out = Batch::new();
        for mbuf in burst.drain() {
            if let Some(mbuf) = self.add(memory, &mut out, mbuf) {
                out.add(mbuf);
            }
        }
        for run in self.runs.drain(..) {
            run.end(&mut out);
        }
        self.copied.clear();
        cx.counters.rx_coalesced.add((received - out.len()) as u64);
        burst.append(&mut out);
    }

    /// Adds a packet to the run of its flow in `out`; gives it back if it does not continue one. It may begin one then.
    fn add(&mut self, memory: &Memory, out: &mut Batch, mbuf: Mbuf) -> Option<Mbuf> {
        let mut front = [0; MAX_HEADERS];
        let copied = mbuf.copy_to(&mut front);
        let Some(packet) = Packet::read(&front[..copied], mbuf.pkt_len() as usize) else {
            self.runs.drain(..).for_each(|run| run.end(out));
            return Some(mbuf);
        };
        let is_plain = mbuf.is_plain();
        if let Some(n) = self.runs.iter().position(|run| run.coalesced.first().is_in_flow_of(&packet)) {
            let run = &mut self.runs[n];
            if is_plain
                && run.coalesced.accepts(&packet)
                && run.append(memory, out, Parsed { mbuf: &mbuf, packet: &packet }, &mut self.copied)
            {
                self.copied.add(mbuf);
                return None;
            }
            self.runs.swap_remove(n).end(out);
        }
        if let Some(coalesced) = Coalesced::begin(packet).filter(|_| is_plain) {
            if self.runs.is_full() {
                self.runs.remove(0).end(out);
            }
            self.runs.push(Run { coalesced, at: out.len() });
        }
        Some(mbuf)
    }
}

impl Run {
    /// Appends the payload of a packet that the run accepts. Returns false if its checksum is wrong or there is no
    /// room.
    fn append(&mut self, memory: &Memory, out: &mut Batch, next: Parsed<'_>, copied: &mut Batch) -> bool {
        let Some(place) = out.as_mut_slice().get_mut(self.at) else { return false };
        if self.coalesced.count() > 1 {
            if !next.append_to(place) {
                return false;
            }
        } else {
            let first = Parsed { mbuf: place, packet: self.coalesced.first() };
            let Some(mut whole) = first.copy(memory) else { return false };
            if !next.append_to(&mut whole) {
                return false;
            }
            copied.add(std::mem::replace(place, whole));
        }
        self.coalesced.add(next.packet);
        true
    }

    /// Writes the headers of a long packet, and marks it as one to be split.
    fn end(&self, out: &mut Batch) {
        let coalesced = &self.coalesced;
        let Some(whole) = out.as_mut_slice().get_mut(self.at).filter(|_| coalesced.count() > 1) else {
            return;
        };
        let (headers, bytes) = coalesced.headers();
        // As many bytes as before, so there is room.
        let _ = whole.replace_front(bytes as u16, &headers[..bytes]);
        let (lengths, gso_type) = (coalesced.lengths(), coalesced.gso_type());
        // Headers of at most MAX_HEADERS, and a payload that was received in one ordinary buffer.
        whole.set_oversized(Oversized {
            l2: lengths.l2 as u16,
            l3: lengths.l3 as u16,
            l4: lengths.l4 as u16,
            size: coalesced.size() as u16,
            v6: gso_type.v6,
            udp: gso_type.udp,
        });
    }
}

impl Parsed<'_> {
    /// A copy of a run's first packet in a large buffer; `None` if its checksum is wrong or no buffer is free.
    fn copy(self, memory: &Memory) -> Option<Mbuf> {
        let mut buffers = Batch::new();
        let headroom = memory.region().geometry().headroom as u16;
        memory.large.as_ref()?.alloc_frames_into(&mut buffers, 1, headroom, 0);
        let mut copy = buffers.pop()?;
        copy.append_from(self.mbuf, 0, self.packet.header_bytes() as u16).ok()?;
        self.append_to(&mut copy).then_some(())?;
        copy.set_port(self.mbuf.port());
        memory.copy_stamp(self.mbuf, &copy);
        Some(copy)
    }

    /// Appends the payload to a packet, unless its checksum is wrong or it does not fit.
    fn append_to(self, whole: &mut Mbuf) -> bool {
        let Self { mbuf, packet } = self;
        let (offset, length) = (whole.data_off(), whole.data_len());
        match whole.append_from(mbuf, packet.header_bytes() as u32, packet.payload() as u16) {
            Ok(sum) if packet.is_right(u16::from_be_bytes(sum.to_ne_bytes())) => true,
            // As long as before.
            Ok(_) => whole.set_bounds(offset, length).is_err(),
            Err(_) => false,
        }
    }
}
