// SPDX-License-Identifier: Apache-2.0
//! The usual mutations of a fuzzer, from a fixed seed.

/// xorshift64 with a fixed seed, so that failures are reproducible.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound.max(1)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// `example` with one to four changes, some of which copy a piece of `other`.
pub fn mutated(example: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut data = example.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(data.len() + 1);
        match random.below(8) {
            0 | 1 => change(&mut data, at, |byte| byte ^ (1 << (at % 8))),
            2 => {
                let value = (random.next() >> 8) as u8;
                change(&mut data, at, |_| value);
            }
            3 => {
                let extreme = [0, 1, 0x7f, 0x80, 0xfe, 0xff][random.below(6)];
                change(&mut data, at, |_| extreme);
            }
            4 => data.truncate(at),
            5 => {
                let length = random.below(9);
                let noise = random.bytes(length);
                data.splice(at..at, noise);
            }
            6 => {
                let end = (at + random.below(16)).min(data.len());
                data.drain(at..end);
            }
            _ => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(32)).min(other.len());
                data.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    data
}

fn change(data: &mut [u8], at: usize, to: impl Fn(u8) -> u8) {
    if let Some(byte) = data.get_mut(at) {
        *byte = to(*byte);
    }
}
