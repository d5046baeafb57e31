// SPDX-License-Identifier: Apache-2.0
//! Cycles per packet from headers to decision: `cargo run --release -p netvm-flow --example flow_rates`.
//!
//! Bursts of 32 frames of 64 bytes of random flows are in buffers like those of a packet pool. Every step is timed over
//! a burst; the table shows medians. Arguments: cache entries (131072), buffer stride in bytes (2048), buffers in use
//! (512), and `udp`, `tcp` (half of the flows, the others UDP) or `mixed` (half TCP, a quarter tagged, an eighth IPv6).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot go on stops")]

#[cfg(target_arch = "x86_64")]
fn main() {
    measure::all();
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("SKIP: cycles are counted on x86-64 only");
}

#[cfg(target_arch = "x86_64")]
mod measure {
    use std::hint::black_box;

    use netvm_flow::{FlowCache, New, Options, Slot, Validity};
    use netvm_wire::{FlowHasher, FlowKey, FrameBuilder, MacAddr, TcpFlags, VlanId, parse_prefix};

    const BURST: usize = 32;
    const ROUNDS: usize = 20_000;
    const FRAME: usize = 64;
    const NOW: Validity = Validity { generation: 1, now: 1 };

    /// Ticks of the time stamp counter.
    fn ticks() -> u64 {
        // SAFETY: these instructions are in every x86-64 and touch no memory.
        unsafe {
            std::arch::x86_64::_mm_lfence();
            let ticks = std::arch::x86_64::_rdtsc();
            std::arch::x86_64::_mm_lfence();
            ticks
        }
    }

    /// Cycles per tick, from chains of multiplications (three cycles) and exclusive ors (one); the best of several, as
    /// other processes may use the core.
    fn cycles_per_tick() -> f64 {
        const LENGTH: u32 = 10_000;
        let (mut value, factor) = (black_box(3u64), black_box(0x9e37_79b9_7f4a_7c15u64));
        let chain = |_| {
            let begin = ticks();
            for _ in 0..LENGTH {
                value = value.wrapping_mul(factor) ^ factor;
            }
            black_box(value);
            ticks() - begin
        };
        f64::from(LENGTH) * 4.0 / (0..2000).map(chain).min().unwrap() as f64
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((u128::from(self.0 >> 32) * bound as u128) >> 32) as usize
        }
    }

    /// The kinds of flows.
    #[derive(Clone, Copy, PartialEq)]
    enum Mix {
        Udp,
        Tcp,
        All,
    }

    /// A frame of flow `n`.
    fn frame(n: u32, mix: Mix) -> [u8; FRAME] {
        let mut builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let (ports, id) = ((1024 + (n % 4096) as u16, 80), n.to_be_bytes());
        if mix == Mix::All && n % 4 == 1 {
            builder = builder.vlan(VlanId::new(1 + (n % 100) as u16).unwrap());
        }
        builder = if mix == Mix::All && n % 8 == 3 {
            let mut address = [0x20; 16];
            address[12..].copy_from_slice(&id);
            builder.ip(address.into(), [0x22; 16].into())
        } else {
            builder.ip([10, id[1], id[2], id[3]].into(), [192, 0, 2, 1].into())
        };
        // A frame of TCP over IPv6 is longer than 64 bytes.
        builder = if mix != Mix::Udp && n.is_multiple_of(2) {
            builder.tcp(ports.0, ports.1, TcpFlags::ACK)
        } else {
            builder.udp(ports.0, ports.1)
        };
        builder.frame_len(FRAME).to_vec().unwrap().try_into().expect("64 bytes")
    }

    /// The received packets.
    struct Pool {
        memory: Vec<u8>,
        stride: usize,
        buffers: usize,
        next: usize,
    }

    impl Pool {
        fn new(stride: usize, buffers: usize) -> Self {
            Self { memory: vec![0; stride * (buffers + 1)], stride, buffers, next: 0 }
        }

        /// Writes the next burst into buffers.
        fn receive(&mut self, frames: &[[u8; FRAME]], random: &mut Random) -> [usize; BURST] {
            std::array::from_fn(|_| {
                let at = self.next * self.stride + 128;
                self.next = (self.next + 1) % self.buffers;
                self.memory[at..at + FRAME].copy_from_slice(&frames[random.below(frames.len())]);
                at
            })
        }

        fn headers(&self, at: usize) -> &[u8] {
            &self.memory[at..at + 256]
        }
    }

    struct Column(Vec<u64>);

    impl Column {
        fn add(&mut self, begin: u64, end: u64, idle: u64) {
            self.0.push((end - begin).saturating_sub(idle));
        }

        fn per_packet(&mut self, scale: f64) -> f64 {
            self.0.sort_unstable();
            self.0[self.0.len() / 2] as f64 * scale / BURST as f64
        }
    }

    pub fn all() {
        let mut arguments = std::env::args().skip(1);
        let mut number =
            |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
        let (entries, stride, buffers) = (number(131_072), number(2048), number(512));
        let has = |word: &str| std::env::args().any(|argument| argument == word);
        let mix = if has("mixed") {
            Mix::All
        } else if has("tcp") {
            Mix::Tcp
        } else {
            Mix::Udp
        };
        let scale = cycles_per_tick();
        let options = Options { entries: entries as u32, ..Options::default() };
        println!(
            "{entries} entries, {buffers} buffers of {stride}, {scale:.2} cycles a tick; cycles a packet:"
        );
        println!("   flows  general     fast     hash     find      hit  parse to hit  hits %");
        for flows in [1, 1000, 10_000, 100_000, 1_000_000] {
            row(flows, &Setup { options, mix, scale }, Pool::new(stride, buffers));
        }
    }

    struct Setup {
        options: Options,
        mix: Mix,
        /// Cycles a tick.
        scale: f64,
    }

    fn row(flows: usize, setup: &Setup, mut pool: Pool) {
        let Setup { options, mix, scale } = setup;
        let mut cache = FlowCache::new(options).unwrap();
        let hasher = FlowHasher::new();
        let frames: Vec<_> = (0..flows as u32).map(|n| frame(n, *mix)).collect();
        for frame in &frames {
            let key = FlowKey::of_frame(frame, FRAME).unwrap();
            let new = New { decision: 1, extra: 0, lifetime: Options::NEVER };
            cache.insert(1, &key, new, NOW);
        }
        let mut random = Random(1);
        let mut keys = [FlowKey::EMPTY; BURST];
        let mut hashes = [0; BURST];
        let mut slots = [Slot::default(); BURST];
        let mut columns: [Column; 6] = std::array::from_fn(|_| Column(Vec::with_capacity(ROUNDS)));
        let idle = (0..1000)
            .map(|_| {
                let begin = ticks();
                ticks() - begin
            })
            .min()
            .unwrap();
        let before = *cache.counters();
        for round in 0..ROUNDS {
            let burst = pool.receive(&frames, &mut random);
            let t0 = ticks();
            if round % 2 == 0 {
                let (found, sum) =
                    whole(&pool, &burst, &mut cache, Work { keys: &mut keys, slots: &mut slots });
                black_box((found, sum));
                columns[5].add(t0, ticks(), idle);
                continue;
            }
            for (key, at) in keys.iter_mut().zip(burst) {
                *key = *parse_prefix(pool.headers(at), FRAME).unwrap().key();
            }
            black_box(&mut keys);
            let t1 = ticks();
            parse(&pool, &burst, &mut keys);
            black_box(&mut keys);
            let t2 = ticks();
            hash(&hasher, &keys, &mut hashes);
            black_box(&mut hashes);
            let t3 = ticks();
            let found = cache.find(1, &keys, NOW, &mut slots);
            black_box(&mut slots);
            let t4 = ticks();
            black_box(account(&mut cache, found, &slots));
            let t5 = ticks();
            for (column, (begin, end)) in
                columns.iter_mut().zip([(t0, t1), (t1, t2), (t2, t3), (t3, t4), (t4, t5)])
            {
                column.add(begin, end, idle);
            }
        }
        let after = cache.counters();
        let hits = (after.hits - before.hits) as f64 * 100.0 / (ROUNDS * BURST) as f64;
        let [general, fast, hash, find, hit, total] =
            columns.each_mut().map(|column| column.per_packet(*scale));
        println!(
            "{flows:8} {general:8.1} {fast:8.1} {hash:8.1} {find:8.1} {hit:8.1} {total:13.1} {hits:7.2}"
        );
    }

    struct Work<'a> {
        keys: &'a mut [FlowKey; BURST],
        slots: &'a mut [Slot; BURST],
    }

    /// All steps in the order of a worker.
    #[inline(never)]
    fn whole(pool: &Pool, burst: &[usize; BURST], cache: &mut FlowCache, work: Work<'_>) -> (u64, u64) {
        let Work { keys, slots } = work;
        parse(pool, burst, keys);
        let found = cache.find(1, keys, NOW, slots);
        (found, account(cache, found, slots))
    }

    #[inline(never)]
    fn parse(pool: &Pool, burst: &[usize; BURST], keys: &mut [FlowKey; BURST]) {
        for (key, at) in keys.iter_mut().zip(burst) {
            let _ = key.read_frame(pool.headers(*at), FRAME);
        }
    }

    #[inline(never)]
    fn hash(hasher: &FlowHasher, keys: &[FlowKey; BURST], hashes: &mut [u64; BURST]) {
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = hasher.key(key);
        }
    }

    #[inline(never)]
    fn account(cache: &mut FlowCache, found: u64, slots: &[Slot; BURST]) -> u64 {
        let mut sum = 0;
        for (n, slot) in slots.iter().enumerate() {
            if found >> n & 1 == 1 {
                sum += u64::from(cache.hit(*slot, 1, FRAME as u64, 1).decision);
            }
        }
        sum
    }
}
