// SPDX-License-Identifier: Apache-2.0
//! Latency between two guests: the first sends packets at even intervals, the second counts their latencies in a
//! histogram. The guests' part is `peer/traffic/timing.c`, which shares a file with this module.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hdrhistogram::Histogram;
use netvm_clock as clock;

use crate::error::BenchError;

/// As in `peer/traffic/timing.c`.
const SUB_BITS: u32 = 7;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;
const INTERVAL: u64 = 0;
const WORDS: usize = 3 + BUCKETS;
/// The longest latency in the histogram, in nanoseconds.
const MAX_LATENCY_NANOS: u64 = 10_000_000_000;

/// The shared file.
#[derive(Debug)]
pub struct Timing {
    file: File,
    path: PathBuf,
}

/// Counts so far.
#[derive(Clone, Debug)]
pub struct Reading {
    at: Instant,
    sent: u64,
    received: u64,
    buckets: Vec<u64>,
}

/// Rates and latencies between two readings.
#[derive(Clone, Debug)]
pub struct Times {
    /// Packets sent per second.
    pub offered: f64,
    /// Packets received per second.
    pub received: f64,
    /// Latencies in nanoseconds.
    histogram: Histogram<u64>,
}

impl Timing {
    /// Creates the file in a folder.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub fn create(folder: &Path) -> Result<Self, BenchError> {
        let path = folder.join("timing");
        let make = || -> std::io::Result<File> {
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
            file.set_len(8 * WORDS as u64)?;
            Ok(file)
        };
        let file = make().map_err(BenchError::system(format!("cannot write {}", path.display())))?;
        Ok(Self { file, path })
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the rate in packets per second; `None`: as many as the guest can send.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub fn offer(&self, rate: Option<f64>) -> Result<(), BenchError> {
        let cycles = rate.map_or(0, |rate| (clock::cycles_per_second() as f64 / rate).max(1.0) as u64);
        self.file
            .write_all_at(&cycles.to_ne_bytes(), INTERVAL)
            .map_err(BenchError::system(format!("cannot write {}", self.path.display())))
    }

    /// Reads the counts.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub fn read(&self) -> Result<Reading, BenchError> {
        let mut bytes = vec![0; 8 * WORDS];
        self.file
            .read_exact_at(&mut bytes, 0)
            .map_err(BenchError::system(format!("cannot read {}", self.path.display())))?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word)).skip(1);
        let mut next = || words.next().unwrap_or_default();
        Ok(Reading { at: Instant::now(), sent: next(), received: next(), buckets: words.collect() })
    }
}

impl Reading {
    /// The difference to an earlier reading; `None` if the guest received nothing.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Times> {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        let mut histogram = Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, 2).ok()?;
        for (n, (now, before)) in self.buckets.iter().zip(&earlier.buckets).enumerate() {
            let cycles = value_of(n as u64);
            let nanos = u128::from(cycles) * 1_000_000_000 / u128::from(clock::cycles_per_second().max(1));
            histogram.saturating_record_n(
                u64::try_from(nanos).unwrap_or(MAX_LATENCY_NANOS),
                now.saturating_sub(*before),
            );
        }
        (!histogram.is_empty()).then(|| Times {
            offered: self.sent.saturating_sub(earlier.sent) as f64 / seconds,
            received: self.received.saturating_sub(earlier.received) as f64 / seconds,
            histogram,
        })
    }
}

impl Times {
    /// The latency in microseconds that a share of the packets (0 to 1) does not exceed.
    #[must_use]
    pub fn micros(&self, share: f64) -> f64 {
        self.histogram.value_at_quantile(share) as f64 / 1e3
    }
}

/// The lowest value of a bucket.
const fn value_of(bucket: u64) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    (bucket - (shift << SUB_BITS)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `bucket` in `peer/traffic/timing.c`.
    fn bucket_of(value: u64) -> u64 {
        if value < 2 << SUB_BITS {
            return value;
        }
        let shift = 63 - u64::from(value.leading_zeros()) - u64::from(SUB_BITS);
        (shift << SUB_BITS) + (value >> shift)
    }

    #[test]
    fn values_are_found_again_to_a_percent() {
        for value in (0..2000).chain([4095, 4096, 1 << 20, (1 << 40) + 12_345, u64::MAX]) {
            let bucket = bucket_of(value);
            assert!((bucket as usize) < BUCKETS, "{value}");
            let lowest = value_of(bucket);
            assert!(lowest <= value && value - lowest <= value / 100, "{value} {lowest}");
        }
    }

    #[test]
    fn what_is_counted_in_the_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let timing = Timing::create(folder.path()).unwrap();
        let before = timing.read().unwrap();
        assert!(timing.read().unwrap().since(&before).is_none());
        timing.offer(Some(1000.0)).unwrap();
        let count = |word: u64, n: u64| timing.file.write_all_at(&n.to_ne_bytes(), 8 * word).unwrap();
        count(1, 12);
        count(2, 10);
        let cycles = clock::cycles_in_micros(10);
        count(3 + bucket_of(cycles), 10);
        let times = timing.read().unwrap().since(&before).unwrap();
        assert!(times.offered > times.received);
        assert!((9.5..10.5).contains(&times.micros(0.5)), "{}", times.micros(0.5));
    }
}
