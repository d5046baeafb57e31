//! Packets and bits together.

use super::{Policer, PolicerError};

/// Policers of packets and of bits; what it admits conforms to both.
#[derive(Debug)]
pub struct Meter {
    packets: Option<Policer>,
    bits: Option<Policer>,
}

impl Meter {
    /// Bounds of packets and of bits, each a rate a second and a burst; `None` bounds nothing. The clock is that of
    /// [`Policer::new`].
    ///
    /// # Errors
    /// [`PolicerError`] of either.
    pub fn new(
        packets: Option<(u64, u64)>,
        bits: Option<(u64, u64)>,
        clock_hz: u64,
    ) -> Result<Self, PolicerError> {
        let policer = |(rate, burst)| Policer::new(rate, burst, clock_hz);
        Ok(Self { packets: packets.map(policer).transpose()?, bits: bits.map(policer).transpose()? })
    }

    /// How many of a run of frames conform, counted from the front; they are taken, and no others. `lengths` are in bytes,
    /// with what the rate counts: netvm's rates count frames without FCS.
    ///
    /// When several workers meet at the last packets that conform, fewer may be admitted than could be.
    #[inline]
    #[must_use]
    pub fn admit_run(&self, now: u64, lengths: &[u32]) -> usize {
        const BITS: u64 = 8;
        match (&self.packets, &self.bits) {
            (None, None) => lengths.len(),
            (Some(packets), None) => packets.admit_count(now, lengths.len()),
            (None, Some(bits)) => bits.admit_sized(now, lengths, BITS),
            (Some(packets), Some(bits)) => {
                // Bits are only taken for packets that the other will admit, unless another worker comes in between.
                let room = packets.fits(now, lengths.len());
                let count = bits.admit_sized(now, &lengths[..room], BITS);
                packets.admit_count(now, count)
            }
        }
    }

    /// Whether one frame of `length` bytes conforms.
    #[inline]
    pub fn admit(&self, now: u64, length: u32) -> bool {
        self.admit_run(now, &[length]) == 1
    }
}
