// SPDX-License-Identifier: Apache-2.0
//! The built-in traffic source: UDP over IPv4 in the configured number of flows, at a rate or as fast as possible. It
//! counts and frees packets to send.
//!
//! Packets go through the flows in turn. A port with several queues divides the flows among them, so that each flow has
//! one queue; `rate` and `count` are the port's, and each queue sends those of its flows.
//!
//! Flow `n` has source address 10.0.0.0 + n (mod 2^24) and source port 1024 + n / 2^24; the UDP checksum is 0, which
//! IPv4 allows (RFC 768). So 2^32 - 1 flows are possible, enough that no flow repeats for minutes. A packet costs one
//! cache line of stores: registers combine a template with the fields of the flow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dpdk::Batch;
use netvm_clock as clock;
use netvm_model::SourceConfig;

use crate::interface::device::{Device, Expects, PortContext};
use crate::interface::sink::count_as_sent;
use crate::memory::Memory;

/// The first cache line of a frame: Ethernet, IPv4 and UDP headers and padding.
const TEMPLATE_BYTES: usize = 64;
/// The same as words in memory order; only two differ between flows.
type Words = [u64; TEMPLATE_BYTES / 8];
const IP: usize = 14;

/// A source.
pub(super) struct Source {
    /// The first line without checksum, source address and source port.
    template: Words,
    /// The header checksum's sum over everything but the source address.
    base_sum: u32,
    size: u16,
    part: Part,
    flow: u32,
    /// Packets of this queue that are not sent yet.
    left: Option<u64>,
    rate_limit: Option<RateLimit>,
}

/// What the queues of a port share.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    /// When the first queue started, in cycles; 0: not yet.
    start: AtomicU64,
    /// Packets that were due but not generated.
    missed: AtomicU64,
}

impl SharedState {
    /// Packets that were due but not generated.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    fn start(&self, now: u64) -> u64 {
        match self.start.compare_exchange(0, now.max(1), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(start) => start,
        }
    }
}

/// The flows of a queue: every `queues`th one, from `queue`.
#[derive(Clone, Copy, Debug)]
struct Part {
    flows: u32,
    queue: u32,
    queues: u32,
}

impl Part {
    /// How many of the port's first `packets` packets are of these flows.
    fn of(self, packets: u64) -> u64 {
        let (flows, queue, queues) = (self.flows.into(), u64::from(self.queue), u64::from(self.queues));
        let within = |flows: u64| (flows + queues - 1).saturating_sub(queue) / queues;
        packets / flows * within(flows) + within(packets % flows)
    }

    /// The flow after this one.
    #[inline(always)]
    const fn next(self, flow: u32) -> u32 {
        match flow.checked_add(self.queues) {
            Some(next) if next < self.flows => next,
            _ => self.queue,
        }
    }
}

struct RateLimit {
    rate: u64,
    burst: u64,
    hertz: u64,
    part: Part,
    /// Packets of the port.
    count: u64,
    start: Option<u64>,
    sent: u64,
    common: Arc<SharedState>,
}

impl RateLimit {
    /// Packets due at `now`, in whole bursts of the port. Skips a backlog of more than 10 ms (or one burst, if that is
    /// longer).
    fn due(&mut self, now: u64) -> usize {
        let start = *self.start.get_or_insert_with(|| self.common.start(now));
        let since = now.saturating_sub(start);
        let due = (u128::from(since) * u128::from(self.rate) / u128::from(self.hertz)) as u64;
        let due = (due - due % self.burst).min(self.count);
        let earliest = due.saturating_sub((self.rate / 100 + 1).max(self.burst));
        let (due, earliest) = (self.part.of(due), self.part.of(earliest));
        if earliest > self.sent {
            self.common.missed.fetch_add(earliest - self.sent, Ordering::Relaxed);
            self.sent = earliest;
        }
        due.saturating_sub(self.sent) as usize
    }
}

impl Source {
    /// A queue of a source as configured, with its number and that of all; frames are at least as long as their
    /// headers.
    pub(super) fn new(config: &SourceConfig, (queue, queues): (u16, u16), common: &Arc<SharedState>) -> Self {
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
        let part = Part { flows: config.flows.max(1), queue: queue.into(), queues: queues.max(1).into() };
        let rate_limit = config.rate.map(|rate| RateLimit {
            rate,
            burst: config.burst.max(1).into(),
            hertz: clock::cycles_per_second(),
            part,
            count: config.count.unwrap_or(u64::MAX),
            start: None,
            sent: 0,
            common: Arc::clone(common),
        });
        // A queue without flows sends nothing.
        let left = if part.queue < part.flows { config.count.map(|count| part.of(count)) } else { Some(0) };
        let (chunks, _) = template.as_chunks::<8>();
        let template = std::array::from_fn(|n| u64::from_ne_bytes(chunks[n]));
        Self { template, base_sum, size, part, flow: part.queue, left, rate_limit }
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
        self.flow = self.part.next(self.flow);
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
        count_as_sent(batch, cx);
    }

    fn flush(&mut self, _cx: &PortContext<'_>) -> usize {
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn drop_unsent(&mut self, _cx: &PortContext<'_>) {}

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
        let config = SourceConfig { flows: u32::MAX, ..SourceConfig::default() };
        let source = Source::new(&config, (0, 1), &Arc::default());
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
    fn rate_limit(burst: u64, common: &Arc<SharedState>) -> RateLimit {
        let part = Part { flows: 1, queue: 0, queues: 1 };
        let (count, common) = (u64::MAX, Arc::clone(common));
        RateLimit { rate: 1000, burst, hertz: 1_000_000, part, count, start: None, sent: 0, common }
    }

    #[test]
    fn the_rate_holds_and_a_long_backlog_is_given_up() {
        let common = Arc::new(SharedState::default());
        let mut rate_limit = rate_limit(1, &common);
        assert_eq!(rate_limit.due(5_000_000), 0);
        assert_eq!(rate_limit.due(5_003_500), 3);
        rate_limit.sent += 3;
        assert_eq!(rate_limit.due(5_003_900), 0);
        assert_eq!(common.missed(), 0);
        assert_eq!(rate_limit.due(9_000_000), 11, "ten milliseconds' worth, not four seconds'");
        assert_eq!(common.missed(), 4000 - 3 - 11);
        assert_eq!(rate_limit.due(9_000_000), 11);
        assert_eq!(common.missed(), 4000 - 3 - 11, "counted once");
    }

    #[test]
    fn packets_wait_until_a_burst_is_due() {
        let common = Arc::new(SharedState::default());
        let mut rate_limit = rate_limit(64, &common);
        assert_eq!((rate_limit.due(1), rate_limit.due(64_000), rate_limit.due(64_001)), (0, 0, 64));
        rate_limit.sent += 50;
        assert_eq!(rate_limit.due(64_001), 14, "the rest of a burst that was not taken as a whole");
        rate_limit.sent += 14;
        assert_eq!((rate_limit.due(128_000), rate_limit.due(128_001)), (0, 64));
        assert_eq!(rate_limit.due(10_048_001), 64, "one burst after a pause");
        assert_eq!(common.missed(), 157 * 64 - 2 * 64);
    }

    /// Runs the queues of a source in turn, each for bursts of its own size, and returns the frames' flows by queue.
    fn flows_by_queue(config: &SourceConfig, queues: u16) -> Vec<Vec<u32>> {
        let common = Arc::default();
        let sources = (0..queues).map(|queue| Source::new(config, (queue, queues), &common));
        sources
            .map(|mut source| {
                let left = source.left.unwrap();
                let address = |words: Words| {
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    u32::from_be_bytes([0, bytes[27], bytes[28], bytes[29]])
                };
                (0..left).map(|_| address(source.next())).collect()
            })
            .collect()
    }

    #[test]
    fn queues_divide_the_flows_and_the_count() {
        for (flows, queues, count) in
            [(1, 1, 10), (1, 2, 10), (2, 3, 7), (16, 2, 1000), (7, 3, 1001), (100, 4, 5)]
        {
            let config = SourceConfig { flows, count: Some(count), ..SourceConfig::default() };
            let by_queue = flows_by_queue(&config, queues);
            let mut sent: Vec<u32> = by_queue.concat();
            sent.sort_unstable();
            let mut expected: Vec<u32> = (0..count as u32).map(|n| n % flows).collect();
            expected.sort_unstable();
            assert_eq!(sent, expected, "{flows} flows, {queues} queues: the same packets as with one queue");
            for (queue, flows) in (0..).zip(&by_queue) {
                assert!(
                    flows.iter().all(|flow| flow % u32::from(queues) == queue),
                    "each flow has one queue"
                );
            }
        }
    }

    #[test]
    fn queues_divide_the_rate_and_nothing_is_missed_after_the_last_packet() {
        let common = Arc::new(SharedState::default());
        let part = |queue| Part { flows: 4, queue, queues: 2 };
        let queue = |queue| RateLimit { part: part(queue), count: 20, ..rate_limit(1, &common) };
        let (mut first, mut second) = (queue(0), queue(1));
        assert_eq!((first.due(1), second.due(1)), (0, 0));
        assert_eq!((first.due(8_001), second.due(8_001)), (4, 4), "8 ms at 1000 a second");
        (first.sent, second.sent) = (4, 4);
        assert_eq!((first.due(18_001), second.due(18_001)), (5, 5));
        (first.sent, second.sent) = (9, 9);
        assert_eq!((first.due(20_001), second.due(20_001)), (1, 1));
        (first.sent, second.sent) = (10, 10);
        assert_eq!((first.due(9_000_000), second.due(9_000_000), common.missed()), (0, 0, 0));
    }
}
