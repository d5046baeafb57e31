//! The built-in traffic source: UDP over IPv4 in the configured number of flows, at a rate or as fast as possible. It counts
//! and frees packets to send.
//!
//! Flow `n` has source address 10.0.0.0 + n (mod 2^24) and source port 1024 + n / 2^24; the UDP checksum is 0, which
//! IPv4 allows (RFC 768). So 2^32 - 1 flows are possible, enough that no flow repeats for minutes. A packet costs one cache
//! line of stores: registers combine a template with the fields of the flow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dpdk::Batch;
use netvm_config::model::SourceConfig;
use netvm_region::clock;

use super::sink::swallow;
use crate::memory::Memory;
use crate::port::{Device, Expects, PortContext};

/// The first cache line of a frame: Ethernet, IPv4 and UDP headers and padding.
const TEMPLATE_BYTES: usize = 64;
/// The same as words in memory order; only two differ between flows.
type Words = [u64; TEMPLATE_BYTES / 8];
const IP: usize = 14;

/// A source.
pub(crate) struct Source {
    /// The first line without checksum, source address and source port.
    template: Words,
    /// The header checksum's sum over everything but the source address.
    base_sum: u32,
    size: u16,
    flows: u32,
    flow: u32,
    left: Option<u64>,
    rate_limit: Option<RateLimit>,
}

struct RateLimit {
    rate: u64,
    burst: u64,
    hertz: u64,
    start: Option<u64>,
    sent: u64,
    /// Packets that were due but not generated, over all queues of the port.
    missed: Arc<AtomicU64>,
}

impl RateLimit {
    /// Packets due at `now`, in whole bursts. Skips a backlog of more than 10 ms (or one burst, if that is longer).
    fn due(&mut self, now: u64) -> usize {
        let start = *self.start.get_or_insert(now);
        let due =
            (u128::from(now.wrapping_sub(start)) * u128::from(self.rate) / u128::from(self.hertz)) as u64;
        let due = due - due % self.burst;
        let most = (self.rate / 100 + 1).max(self.burst);
        if due > self.sent + most {
            self.missed.fetch_add(due - most - self.sent, Ordering::Relaxed);
            self.sent = due - most;
        }
        due.saturating_sub(self.sent) as usize
    }
}

impl Source {
    /// A source as configured; frames are at least as long as their headers. `missed` counts skipped packets.
    pub(crate) fn new(config: &SourceConfig, missed: &Arc<AtomicU64>) -> Self {
        let size = config.size.max(IP as u16 + 28);
        let mut template = [0; TEMPLATE_BYTES];
        template[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        template[12..14].copy_from_slice(&[0x08, 0x00]);
        let total = size - IP as u16;
        template[14..18].copy_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8]);
        template[20..24].copy_from_slice(&[0x40, 0, 64, 17]);
        template[30..34].copy_from_slice(&[192, 168, 0, 1]);
        let udp = total - 20;
        template[34..40].copy_from_slice(&[0, 0, 0, 9, (udp >> 8) as u8, udp as u8]);
        let base_sum = template[IP..IP + 20]
            .chunks_exact(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        let rate_limit = config.rate.map(|rate| RateLimit {
            rate,
            burst: config.burst.max(1).into(),
            hertz: clock::cycles_per_second(),
            start: None,
            sent: 0,
            missed: Arc::clone(missed),
        });
        let (flows, left) = (config.flows.max(1), config.count);
        let (chunks, _) = template.as_chunks::<8>();
        let template = std::array::from_fn(|n| u64::from_ne_bytes(chunks[n]));
        Self { template, base_sum, size, flows, flow: 0, left, rate_limit }
    }

    /// The first line of a flow's frame.
    #[inline(always)]
    fn frame(&self, flow: u32) -> Words {
        let address = 0x0a00_0000 | flow & 0x00ff_ffff;
        let port = 1024 + (flow >> 24) as u16;
        let mut sum = self.base_sum + (address >> 16) + (address & 0xffff);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        // In the order of the wire: bytes 24 to 29, and 34 and 35.
        let checksum_and_address = u64::from(!(sum as u16)) << 48 | u64::from(address) << 16;
        let mut words = self.template;
        words[3] |= checksum_and_address.to_be();
        words[4] |= (u64::from(port) << 32).to_be();
        words
    }

    /// The next flow's frame.
    #[inline(always)]
    fn next(&mut self) -> Words {
        let words = self.frame(self.flow);
        self.flow = if self.flow + 1 >= self.flows { 0 } else { self.flow + 1 };
        words
    }
}

impl Device for Source {
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, _cx: &PortContext<'_>) {
        let mut count = self.left.map_or(wanted, |left| wanted.min(left as usize));
        if let Some(rate_limit) = &mut self.rate_limit {
            count = count.min(rate_limit.due(clock::cycles()));
        }
        let geometry = memory.region().geometry();
        if count == 0 || u32::from(self.size) > geometry.room() {
            return;
        }
        let headroom = geometry.headroom as u16;
        memory.pool.alloc_frames_into(out, count, headroom, self.size);
        if geometry.room() >= TEMPLATE_BYTES as u32 {
            for mbuf in out.as_mut_slice() {
                // SAFETY: the mbuf is ours, and its buffer has at least a cache line behind the headroom.
                unsafe { mbuf.data().cast::<Words>().write_unaligned(self.next()) };
            }
        } else {
            let bytes = TEMPLATE_BYTES.min(usize::from(self.size));
            for mbuf in out.as_mut_slice() {
                let words = self.next();
                // SAFETY: the mbuf is ours, and the frame has `size` bytes.
                unsafe { core::ptr::copy_nonoverlapping(words.as_ptr().cast(), mbuf.data(), bytes) };
            }
        }
        let made = out.len() as u64;
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.sent += made;
        }
        if let Some(left) = &mut self.left {
            *left -= made;
        }
    }

    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        swallow(batch, cx);
    }

    fn flush(&mut self, _cx: &PortContext<'_>) -> usize {
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn expects(&self) -> Expects<'_> {
        if self.left == Some(0) { Expects::Nothing } else { Expects::Unnoticed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(source: &Source, flow: u32) -> Vec<u8> {
        source.frame(flow).iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_frame_is_of_its_flow_and_its_checksum_is_right() {
        let source =
            Source::new(&SourceConfig { flows: u32::MAX, ..SourceConfig::default() }, &Arc::default());
        for (flow, address, port) in [
            (0, [10, 0, 0, 0], 1024_u16),
            (0x0102_0304, [10, 2, 3, 4], 1025),
            (0xffff_fffe, [10, 255, 255, 254], 1279),
        ] {
            let frame = bytes(&source, flow);
            assert_eq!(frame[26..30], address);
            assert_eq!(frame[34..36], port.to_be_bytes());
            let word = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
            let sum: u32 = (IP..IP + 20).step_by(2).map(word).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "RFC 1071: the sum over a header is all ones");
            assert_eq!((word(16), word(36), word(38)), (46, 9, 26));
            assert!(frame[42..].iter().all(|byte| *byte == 0));
        }
    }

    /// 1000 packets a second of a clock of 1 MHz.
    fn rate_limit(burst: u64, missed: &Arc<AtomicU64>) -> RateLimit {
        RateLimit { rate: 1000, burst, hertz: 1_000_000, start: None, sent: 0, missed: Arc::clone(missed) }
    }

    #[test]
    fn the_rate_holds_and_a_long_backlog_is_given_up() {
        let missed = Arc::default();
        let mut rate_limit = rate_limit(1, &missed);
        assert_eq!(rate_limit.due(5_000_000), 0);
        assert_eq!(rate_limit.due(5_003_500), 3);
        rate_limit.sent += 3;
        assert_eq!(rate_limit.due(5_003_900), 0);
        assert_eq!(missed.load(Ordering::Relaxed), 0);
        assert_eq!(rate_limit.due(9_000_000), 11, "ten milliseconds' worth, not four seconds'");
        assert_eq!(missed.load(Ordering::Relaxed), 4000 - 3 - 11);
        assert_eq!(rate_limit.due(9_000_000), 11);
        assert_eq!(missed.load(Ordering::Relaxed), 4000 - 3 - 11, "counted once");
    }

    #[test]
    fn packets_wait_until_a_burst_is_due() {
        let missed = Arc::default();
        let mut rate_limit = rate_limit(64, &missed);
        assert_eq!((rate_limit.due(0), rate_limit.due(63_999), rate_limit.due(64_000)), (0, 0, 64));
        rate_limit.sent += 50;
        assert_eq!(rate_limit.due(64_000), 14, "the rest of a burst that was not taken as a whole");
        rate_limit.sent += 14;
        assert_eq!((rate_limit.due(127_999), rate_limit.due(128_000)), (0, 64));
        assert_eq!(rate_limit.due(10_048_000), 64, "one burst after a pause");
        assert_eq!(missed.load(Ordering::Relaxed), 157 * 64 - 2 * 64);
    }
}
