//! Histograms of latency, of the samples that workers take.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use netvm_region::clock;

use crate::manager::Engine;
use crate::worker::{LatencySample, Span};

/// Spans with a histogram; more, as after many changes of chains, are not measured.
const SPANS: usize = 1024;
/// Longest latency that is told apart, in nanoseconds.
const LONGEST: u64 = 10_000_000_000;

/// Latencies of one span, in nanoseconds.
#[derive(Clone, Debug)]
pub struct LatencyView {
    /// What was measured.
    pub span: Span,
    /// How often each latency occurred, to two digits.
    pub histogram: Histogram<u32>,
}

/// Workers measure for so long after somebody has asked.
const ASKED: Duration = Duration::from_secs(60);

/// The histograms.
#[derive(Default)]
pub(in crate::manager) struct Latencies {
    histograms: BTreeMap<Span, Histogram<u32>>,
    /// When measuring ends, if it is on.
    until: Option<Instant>,
}

impl Latencies {
    pub(in crate::manager) fn record(&mut self, sample: LatencySample) {
        let nanos = u128::from(sample.cycles) * 1_000_000_000 / u128::from(clock::cycles_per_second().max(1));
        let nanos = u64::try_from(nanos).unwrap_or(LONGEST);
        if let Some(histogram) = self.histograms.get_mut(&sample.span) {
            histogram.saturating_record(nanos);
        } else if self.histograms.len() < SPANS
            && let Ok(mut histogram) = Histogram::new_with_bounds(1, LONGEST, 2)
        {
            histogram.saturating_record(nanos);
            self.histograms.insert(sample.span, histogram);
        }
    }
}

impl Engine {
    /// Latencies since they are measured, by span. Workers measure one packet in some thousands, from the first call on
    /// until a minute after the last.
    pub fn latencies(&mut self) -> Vec<LatencyView> {
        self.measure_latencies();
        let view = |(span, histogram): (&Span, &Histogram<u32>)| LatencyView {
            span: *span,
            histogram: histogram.clone(),
        };
        self.latencies.histograms.iter().map(view).collect()
    }

    /// Forgets the latencies so far; workers measure from now on, until a minute after the last call.
    pub fn reset_latencies(&mut self) {
        self.measure_latencies();
        self.latencies.histograms.clear();
    }

    fn measure_latencies(&mut self) {
        self.take_latency_samples();
        if self.latencies.until.is_none() {
            self.latencies.histograms.clear();
            self.set_measuring(true);
        }
        self.latencies.until = Some(Instant::now() + ASKED);
    }

    fn set_measuring(&self, is_on: bool) {
        for worker in self.workers.iter() {
            worker.counters.measures_latency.store(is_on, Ordering::Relaxed);
        }
    }

    pub(in crate::manager) fn take_latency_samples(&mut self) {
        if self.latencies.until.is_some_and(|until| until < Instant::now()) {
            self.latencies.until = None;
            self.set_measuring(false);
        }
        while let Some(sample) = self.workers.next_latency_sample() {
            self.latencies.record(sample);
        }
    }
}

impl LatencyView {
    /// The latency that this share of packets (0 to 1) does not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(share))
    }
}
