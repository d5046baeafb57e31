//! Adapts the burst size to the number of packets in a guest's ring at the last burst.
//!
//! The library allocates all requested mbufs before it reads the ring, and frees the unused ones (`virtio_dev_tx_packed` of
//! DPDK 22.11 to 25.11). For an empty ring, this costs as much as several packets. So the first request is for slightly
//! more packets than the ring had last time, and further requests follow only if the library returned all of them.

use dpdk_sys as sys;

const PAIRS: usize = sys::NETVM_VHOST_MAX_PAIRS as usize;
/// Packets per request at most.
const BURST: u16 = sys::NETVM_VHOST_BURST as u16;
/// Packets that the library copies at once from a packed ring.
const LEAST: u16 = 4;

/// Packets that each ring had last time.
#[derive(Debug)]
pub(super) struct AdaptiveBurst([u8; PAIRS]);

impl AdaptiveBurst {
    pub(super) const fn new() -> Self {
        Self([0; PAIRS])
    }

    /// Requests packets of a pair from `ask`, which takes the number received so far and the number requested (at most
    /// 32), until it returns fewer or there are `most`. Returns the total.
    #[inline(always)]
    pub(super) fn gather(&mut self, pair: u32, most: u16, mut ask: impl FnMut(u16, u16) -> u16) -> u16 {
        let Some(last) = self.0.get_mut(pair as usize) else { return 0 };
        let mut asked = (u16::from(*last) + 1).next_power_of_two().max(LEAST).min(most).min(BURST);
        let mut count = 0;
        loop {
            let brought = ask(count, asked).min(asked);
            count += brought;
            if brought < asked || count == most {
                break;
            }
            asked = (most - count).min(BURST);
        }
        *last = count.min(u8::MAX.into()) as u8;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_follow_the_last_burst_and_drain_the_ring() {
        let mut adaptive_burst = AdaptiveBurst::new();
        let mut gather = |has: u16| {
            let mut asked = Vec::new();
            let count = adaptive_burst.gather(63, 64, |before, more| {
                asked.push(more);
                more.min(has - before)
            });
            (count, asked)
        };
        assert_eq!(gather(0), (0, vec![4]));
        assert_eq!(gather(100), (64, vec![4, 32, 28]));
        assert_eq!(gather(100), (64, vec![32, 32]));
        assert_eq!(gather(10), (10, vec![32]));
        assert_eq!(gather(10), (10, vec![16]));
        assert_eq!(gather(16), (16, vec![16, 32]));
        assert_eq!(gather(0), (0, vec![32]));
        assert_eq!(gather(0), (0, vec![4]));
        assert_eq!(adaptive_burst.gather(0, 2, |_, more| more), 2);
        assert_eq!(adaptive_burst.gather(64, 2, |_, more| more), 0);
    }
}
