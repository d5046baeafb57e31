// SPDX-License-Identifier: Apache-2.0
//! The SYN proxy of a worker. In: the packets of a burst that were tracked, and those that rules with `syn_proxy`
//! accept. Out: SYNs to servers in place of acknowledgments that have proved an address, translated segments, and
//! answers to the senders, which the rx stage sends by the port that received the burst.

use arrayvec::ArrayVec;
use dpdk::Mbuf;
use netvm_conntrack::{ByProxy, MAX_PROXY_FRAME, Packet, Proved, ProxiedPacket, Rewrite, Zone};
use netvm_wire::{ConnState, FlowKey, IpProto};

use super::WorkerConnections;
use crate::policy::{SYN_ANSWERED, WRONG_COOKIE};
use crate::worker::state::BURST;

/// A frame for the sender of a packet.
pub(crate) struct Answer {
    bytes: [u8; MAX_PROXY_FRAME],
    length: usize,
}

impl Answer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Numbers that only grow.
#[derive(Clone, Copy, Default)]
pub(crate) struct CookieCounts {
    pub(crate) sent: u64,
    pub(crate) accepted: u64,
    pub(crate) wrong: u64,
}

/// What the SYN proxy keeps from step to step of a burst.
pub(crate) struct SynProxy {
    /// To be sent by the port that has received the burst.
    pub(crate) answers: Box<ArrayVec<Answer, BURST>>,
    /// Packets of the burst that have proved their address and are SYNs now (bit mask),
    proved: u64,
    /// and with what.
    with: [Proved; BURST],
    pub(crate) counts: CookieCounts,
}

impl SynProxy {
    pub(crate) fn new() -> Self {
        let answers = Box::new(ArrayVec::new());
        Self { answers, proved: 0, with: [Proved::default(); BURST], counts: CookieCounts::default() }
    }

    fn answer(&mut self, bytes: [u8; MAX_PROXY_FRAME], length: usize) {
        // There is room: a packet has at most one answer, and the answers to a burst are sent before the next one.
        let _ = self.answers.try_push(Answer { bytes, length });
    }
}

impl WorkerConnections {
    /// Makes SYNs of the packets that acknowledge a cookie, and translates those of connections that are proxied.
    /// Returns those that cannot be translated (bit mask).
    #[inline]
    pub(crate) fn pass_by_proxy(
        &mut self,
        zone: Zone,
        keys: &mut [FlowKey],
        lengths: &mut [u32],
        packets: &mut [Mbuf],
    ) -> u64 {
        self.syn_proxy.proved = 0;
        let mut failed = 0;
        for (n, ((key, length), mbuf)) in keys.iter_mut().zip(lengths).zip(packets).enumerate() {
            let done = match self.tracked[n].proxy {
                ByProxy::Nothing => continue,
                ByProxy::Proved => self.open(n, zone, mbuf),
                ByProxy::Translates => self.translate(n, mbuf),
            };
            failed |= u64::from(done.is_none()) << n;
            if let (Some(()), ByProxy::Proved) = (done, self.tracked[n].proxy) {
                *key = FlowKey { state: key.state, ..self.keys[n] };
                *length = self.lengths[n];
            }
        }
        failed
    }

    /// Makes the SYN to the server of packet `n` of the burst.
    #[cold]
    fn open(&mut self, n: usize, zone: Zone, mbuf: &mut Mbuf) -> Option<()> {
        let front = &mut self.headers.fronts[n];
        // With all options.
        let copied = mbuf.copy_to(front);
        let key = &self.keys[n];
        let packet = Packet { key, zone, front: &front[..copied], length: mbuf.pkt_len() as usize };
        let mut syn = [0; MAX_PROXY_FRAME];
        let (length, proved) = self.table.syn_of(&packet, self.now, &mut syn)?;
        mbuf.forget_pending();
        mbuf.copy_from(&syn[..length]).ok()?;
        front[..length].copy_from_slice(&syn[..length]);
        self.headers.lengths[n] = length as u16;
        self.lengths[n] = length as u32;
        self.keys[n].read_frame(&syn[..length], length).ok()?;
        match self.tracked[n].connection {
            Some(id) => self.table.proxy(id, &proved),
            None => {
                self.syn_proxy.proved |= 1 << n;
                self.syn_proxy.with[n] = proved;
            }
        }
        self.syn_proxy.counts.accepted += 1;
        Some(())
    }

    /// Translates packet `n` of the burst.
    fn translate(&mut self, n: usize, mbuf: &mut Mbuf) -> Option<()> {
        let front = &mut self.headers.fronts[n];
        let copied = mbuf.copy_to(front);
        self.headers.lengths[n] = copied as u16;
        let (length, is_partial) = (mbuf.pkt_len() as usize, mbuf.unfinished().is_some());
        let mut bytes = [0; MAX_PROXY_FRAME];
        let rewrite = Rewrite { front: &mut front[..copied], length, is_partial };
        let mut packet = ProxiedPacket { key: &self.keys[n], rewrite, answer: &mut bytes };
        let answer = self.table.translate_proxied(&self.tracked[n], &mut packet, self.now).ok()?;
        mbuf.overwrite(&front[..copied]);
        if answer > 0 {
            self.syn_proxy.answer(bytes, answer);
        }
        Some(())
    }

    /// What becomes of packet `n` of the burst, which a rule with `syn_proxy` accepts: the number of a decision, or
    /// `None` if it goes on.
    pub(crate) fn by_syn_proxy(&mut self, n: usize, zone: Zone) -> Option<u32> {
        let (key, tracked) = (&self.keys[n], &self.tracked[n]);
        let is_unknown = tracked.connection.is_none() && tracked.state != ConnState::Related;
        let is_proved = self.syn_proxy.proved >> n & 1 == 1;
        if key.protocol != IpProto::TCP || !is_unknown || is_proved || tracked.ports.is_some() {
            return None;
        }
        let front = &self.headers.fronts[n][..usize::from(self.headers.lengths[n])];
        let packet = Packet { key, zone, front, length: self.lengths[n] as usize };
        let mut bytes = [0; MAX_PROXY_FRAME];
        match self.table.cookie_for(&packet, self.now, &mut bytes) {
            Some(length) => {
                self.syn_proxy.answer(bytes, length);
                self.syn_proxy.counts.sent += 1;
                Some(SYN_ANSWERED)
            }
            None => {
                self.syn_proxy.counts.wrong += 1;
                Some(WRONG_COOKIE)
            }
        }
    }

    /// The connection of packet `n` of the burst, which has begun, is proxied if its client has proved its address.
    pub(super) fn proxy_if_proved(&mut self, n: usize) {
        if self.syn_proxy.proved >> n & 1 == 1
            && let Some(id) = self.tracked[n].connection
        {
            self.table.proxy(id, &self.syn_proxy.with[n]);
        }
    }
}
