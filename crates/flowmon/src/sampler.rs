// SPDX-License-Identifier: Apache-2.0
//! Sampling of packets: one in N, at a random place of each N (RFC 5475 section 5.2, stratified).

use netvm_wire::FlowHasher;

/// Chooses one packet of every `interval`.
#[derive(Clone, Debug)]
pub struct Sampler {
    interval: u32,
    left: u32,
    chosen: u32,
    random: FlowHasher,
    round: u64,
}

impl Sampler {
    /// One of `interval` packets; all of them if it is 0 or 1.
    #[must_use]
    pub fn new(interval: u32) -> Self {
        Self { interval: interval.max(1), left: 0, chosen: 0, random: FlowHasher::new(), round: 0 }
    }

    /// Whether the next packet is chosen.
    #[inline]
    pub fn takes(&mut self) -> bool {
        if self.interval == 1 {
            return true;
        }
        if self.left == 0 {
            self.left = self.interval;
            self.round += 1;
            let random = self.random.words([self.round, 0, 0, 0, 0]);
            self.chosen = ((u64::from(random as u32) * u64::from(self.interval)) >> 32) as u32;
        }
        self.left -= 1;
        self.left == self.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_n_at_every_place() {
        let mut places = [0; 8];
        let mut sampler = Sampler::new(8);
        for _ in 0..4000 {
            let chosen: Vec<_> = (0..8).filter(|_| sampler.takes()).collect();
            assert_eq!(chosen.len(), 1);
            places[chosen[0]] += 1;
        }
        assert!(places.iter().all(|count| (350..650).contains(count)), "{places:?}");
        assert!((0..9).all(|_| Sampler::new(0).takes()));
    }
}
