// SPDX-License-Identifier: Apache-2.0
//! Latency histograms of the workers' samples.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use netvm_clock as clock;

use crate::manager::workers::Workers;
use crate::worker::{LatencySample, Span};

/// Most spans with a histogram. Further ones, for example after many changes of chains, are not measured.
const MAX_SPANS: usize = 1024;
/// Workers measure for this long after a request.
const MEASURE_FOR: Duration = Duration::from_secs(60);
/// The longest latency in the histogram, in nanoseconds.
const MAX_LATENCY_NANOS: u64 = 10_000_000_000;

/// Latencies of one span, in nanoseconds.
#[derive(Clone, Debug)]
pub struct LatencyView {
    /// The measured part of the packet path.
    pub span: Span,
    /// How often each latency occurred, to two digits.
    pub histogram: Histogram<u32>,
}

/// The histograms.
#[derive(Default)]
pub(crate) struct Latencies {
    histograms: BTreeMap<Span, Histogram<u32>>,
    /// The end of the measurement, while it is on.
    until: Option<Instant>,
}

impl Latencies {
    /// The histograms. Workers measure from the first call until a minute after the last call.
    pub(crate) fn views(&mut self, workers: &mut Workers) -> Vec<LatencyView> {
        self.measure(workers);
        let view = |(span, histogram): (&Span, &Histogram<u32>)| LatencyView {
            span: *span,
            histogram: histogram.clone(),
        };
        self.histograms.iter().map(view).collect()
    }

    /// Discards the latencies so far, and measures as [`Latencies::views`] does.
    pub(crate) fn reset(&mut self, workers: &mut Workers) {
        self.measure(workers);
        self.histograms.clear();
    }

    fn measure(&mut self, workers: &mut Workers) {
        self.service(workers);
        if self.until.is_none() {
            self.histograms.clear();
            set_measuring(workers, true);
        }
        self.until = Some(Instant::now() + MEASURE_FOR);
    }

    /// Has workers that were added measure, too, if the others do.
    pub(crate) fn go_on(&self, workers: &Workers) {
        set_measuring(workers, self.until.is_some());
    }

    /// Takes the workers' samples, and ends the measurement when its time is up.
    pub(crate) fn service(&mut self, workers: &mut Workers) {
        if self.until.is_some_and(|until| until < Instant::now()) {
            self.until = None;
            set_measuring(workers, false);
        }
        while let Some(sample) = workers.next_latency_sample() {
            self.record(sample);
        }
    }

    fn record(&mut self, sample: LatencySample) {
        let nanos = clock::duration_of(sample.cycles).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(MAX_LATENCY_NANOS);
        let is_known = self.histograms.contains_key(&sample.span);
        if !is_known
            && self.histograms.len() < MAX_SPANS
            && let Ok(histogram) = Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, 2)
        {
            self.histograms.insert(sample.span, histogram);
        }
        if let Some(histogram) = self.histograms.get_mut(&sample.span) {
            waits(nanos, sample.missed).for_each(|nanos| histogram.saturating_record(nanos));
        }
    }
}

/// The latency of a packet, and estimates for packets that would have been measured in the meantime: if packets keep
/// their order, these waited for the rest of its time.
fn waits(nanos: u64, missed: u32) -> impl Iterator<Item = u64> {
    let parts = u64::from(missed) + 1;
    (0..parts).map(move |n| nanos - nanos / parts * n)
}

fn set_measuring(workers: &Workers, is_on: bool) {
    for worker in workers.iter() {
        worker.counters.measures_latency.store(is_on, Ordering::Relaxed);
    }
}

impl LatencyView {
    /// The latency that this share of packets (0 to 1) does not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(share))
    }
}

#[cfg(test)]
mod tests {
    use super::waits;

    #[test]
    fn packets_behind_a_slow_one_waited_for_the_rest_of_its_time() {
        assert_eq!(waits(5000, 0).collect::<Vec<_>>(), [5000]);
        assert_eq!(waits(1000, 3).collect::<Vec<_>>(), [1000, 750, 500, 250]);
        assert!(waits(2, 7).all(|nanos| nanos <= 2));
    }
}
