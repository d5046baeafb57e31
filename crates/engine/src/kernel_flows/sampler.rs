// SPDX-License-Identifier: Apache-2.0
//! Samples of what a worker receives by ports with a fast path. In: bursts. Out: headers, from which the manager learns
//! what the kernel could forward. A flow of many packets is sampled soon, and workers decide nothing for the kernel.
//!
//! Cost: a comparison for each burst; a sample takes a copy of 96 bytes. Ports whose packets the kernel cannot forward
//! are sampled ever less often.

use std::array::from_fn;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk::Batch;
use netvm_region::MAX_PORTS;
use netvm_wire::checksum::internet_checksum;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::ids::PortId;

/// Ethernet, IPv6 and the longest header of TCP but for options.
pub(crate) const SAMPLE_BYTES: usize = 96;
/// Samples that wait for the manager: more are not taken.
const SAMPLES: usize = 128;

/// The first bytes of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// The port that received it.
    pub(crate) port: PortId,
    /// Its length.
    pub(crate) length: u32,
    copied: u8,
    bytes: [u8; SAMPLE_BYTES],
}

impl Sample {
    /// Its headers.
    pub(crate) fn headers(&self) -> &[u8] {
        self.bytes.get(..self.copied.into()).unwrap_or_default()
    }

    /// The same of IPv4, to another destination; checksums but for the header's are wrong then.
    pub(crate) fn to(mut self, destination: Ipv4Addr, port: u16) -> Self {
        self.bytes[30..34].copy_from_slice(&destination.octets());
        self.bytes[36..38].copy_from_slice(&port.to_be_bytes());
        self.sum()
    }

    /// With the checksum of its IPv4 header.
    fn sum(mut self) -> Self {
        self.bytes[24..26].fill(0);
        let sum = internet_checksum(&self.bytes[14..34]);
        self.bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        self
    }

    /// The same of at most so many bytes: a segment becomes one of the packets that it would be cut into.
    pub(crate) fn shortened(mut self, most: u16) -> Self {
        const UDP: u8 = 17;
        if self.length <= most.into() {
            return self;
        }
        self.length = most.into();
        // Where the length of the IP packet is, what it does not count, and where the protocol and its header are.
        let (at, uncounted, protocol, transport) = match self.bytes[12..14] {
            [0x08, 0x00] => (16, 14, 23, 34),
            [0x86, 0xdd] => (18, 54, 20, 54),
            _ => return self,
        };
        let is_udp = self.bytes[protocol] == UDP;
        let mut put = |at: usize, uncounted: u16| {
            self.bytes[at..at + 2].copy_from_slice(&most.saturating_sub(uncounted).to_be_bytes());
        };
        put(at, uncounted);
        if is_udp {
            put(usize::from(transport) + 4, transport);
        }
        // Routers check it.
        if at == 16 { self.sum() } else { self }
    }
}

/// How often workers sample each port: one of so many bursts; 0: never.
#[derive(Debug)]
pub(crate) struct Intervals([AtomicU16; MAX_PORTS]);

impl Default for Intervals {
    fn default() -> Self {
        Self(from_fn(|_| AtomicU16::new(0)))
    }
}

impl Intervals {
    pub(crate) fn set(&self, port: PortId, bursts: u16) {
        if let Some(interval) = self.0.get(port.index()) {
            interval.store(bursts, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, port: PortId) -> u16 {
        self.0.get(port.index()).map_or(0, |interval| interval.load(Ordering::Relaxed))
    }
}

/// A worker's side.
#[derive(Debug)]
pub(crate) struct Sampler {
    samples: Producer<Sample>,
    intervals: Arc<Intervals>,
    /// Bursts of each port until the next sample.
    left: Box<[u16]>,
    /// Which packet of the next burst.
    turn: usize,
}

impl Sampler {
    /// Of one worker, and the manager's side.
    pub(crate) fn new(intervals: &Arc<Intervals>) -> (Box<Self>, Consumer<Sample>) {
        let (samples, taken) = RingBuffer::new(SAMPLES);
        let left = vec![0; MAX_PORTS].into();
        (Box::new(Self { samples, intervals: Arc::clone(intervals), left, turn: 0 }), taken)
    }

    /// Samples a packet of a burst that a port has received.
    #[inline(always)]
    pub(crate) fn see(&mut self, port: PortId, batch: &Batch) {
        let interval = self.intervals.get(port);
        if interval != 0 {
            self.count_down(port, interval, batch);
        }
    }

    #[inline(never)]
    fn count_down(&mut self, port: PortId, interval: u16, batch: &Batch) {
        let Some(left) = self.left.get_mut(port.index()) else { return };
        // The interval may have become shorter.
        *left = left.saturating_sub(1).min(interval - 1);
        if *left > 0 {
            return;
        }
        *left = interval;
        self.turn = self.turn.wrapping_add(1);
        let packets = batch.as_slice();
        let Some(mbuf) = packets.get(self.turn % packets.len().max(1)) else { return };
        let mut sample = Sample { port, length: mbuf.pkt_len(), copied: 0, bytes: [0; SAMPLE_BYTES] };
        sample.copied = mbuf.copy_to(&mut sample.bytes) as u8;
        // Without room the manager has enough to look at.
        let _ = self.samples.push(sample);
    }
}

#[cfg(test)]
mod tests {
    use netvm_wire::parse_prefix;

    use super::*;

    #[test]
    fn a_sample_of_a_segment_is_a_packet_that_can_be_parsed() {
        for (is_v6, protocol) in [(false, 6), (false, 17), (true, 6), (true, 17)] {
            let mut sample = Sample { port: PortId(0), length: 60_000, copied: 96, bytes: [0; SAMPLE_BYTES] };
            let (ether_type, version, at) = if is_v6 { (0x86dd_u16, 0x60, 20) } else { (0x0800, 0x45, 23) };
            sample.bytes[12..14].copy_from_slice(&ether_type.to_be_bytes());
            sample.bytes[14] = version;
            let length = if is_v6 { 60_000 - 54_u16 } else { 60_000 - 14 };
            let from = if is_v6 { 18 } else { 16 };
            sample.bytes[from..from + 2].copy_from_slice(&length.to_be_bytes());
            // Not an IPv4-mapped address.
            sample.bytes[22] = if is_v6 { 0xfd } else { sample.bytes[22] };
            sample.bytes[38] = if is_v6 { 0xfd } else { sample.bytes[38] };
            sample.bytes[at] = protocol;
            let transport = if is_v6 { 54 } else { 34 };
            match protocol {
                17 => sample.bytes[transport + 4..transport + 6].copy_from_slice(&50_000_u16.to_be_bytes()),
                _ => sample.bytes[transport + 12] = 0x50,
            }
            assert!(parse_prefix(sample.headers(), 1514).is_err());
            let short = sample.shortened(1514);
            assert_eq!(short.length, 1514);
            assert!(parse_prefix(short.headers(), 1514).is_ok(), "{is_v6} {protocol}");
            assert!(is_v6 || internet_checksum(&short.headers()[14..34]) == 0);
            assert_eq!(short.shortened(1514).headers(), short.headers());
        }
    }
}
