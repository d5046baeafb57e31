//! The ways to classify a burst implement [`Classify`]; all of them work on a [`Classifier`].

use dpdk::Batch;
use netvm_flow::Moment;

use crate::counters::WorkerCounters;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::tap::{Passing, Place, Taps};
use crate::worker::packet::keys::{key_of, prefetch};
use crate::worker::state::Datapath;
use crate::worker::state::burst::{Burst, Ingress};
use crate::worker::state::flows::Flows;
use crate::worker::state::lookup_results::Alike;

/// A way to find the actions of a burst. All ways must find the same actions; `worker/tests/classify.rs` compares them with
/// [`PerFlow`](super::per_flow::PerFlow).
pub(crate) trait Classify {
    /// Finds the action of every packet of the burst. First drops packets that must be parsed but cannot be.
    fn classify(&self, cl: &mut Classifier<'_>, ingress: &Ingress<'_>, burst: &mut Burst) -> Classified;
}

/// The outcome of [`Classify::classify`].
#[derive(Clone, Copy)]
pub(crate) enum Classified {
    /// All packets have the same action.
    Alike(Alike),
    /// The burst's results have the action of each packet.
    Each,
}

/// The parts of a [`Datapath`] that classification needs.
pub(crate) struct Classifier<'a> {
    pub(crate) flows: &'a mut Flows,
    pub(crate) counters: &'a WorkerCounters,
    pub(crate) tick: u32,
    /// The captures, while there are any.
    pub(crate) taps: Option<&'a Taps>,
}

impl<'a> Classifier<'a> {
    #[inline(always)]
    pub(crate) fn of(dp: &'a mut Datapath) -> Self {
        Self {
            flows: &mut dp.flows,
            counters: &dp.counters,
            tick: dp.clock.tick,
            taps: dp.is_tapped.then_some(&dp.taps),
        }
    }

    /// The time and policy generation of the lookups of a burst. Decisions of another policy are misses.
    #[inline(always)]
    pub(crate) fn moment(&self, ingress: &Ingress<'_>) -> Moment {
        Moment { generation: ingress.origin.cx.snapshot.policy.generation, now: self.tick }
    }

    /// Drops the packets whose bits are set, as malformed or as having too many headers, and closes the gaps that they leave in
    /// keys and lengths.
    #[cold]
    pub(crate) fn drop_malformed(&mut self, port: PortId, bad: u64, burst: &mut Burst) {
        let Burst { batch, results } = burst;
        let mut good = Batch::new();
        let mut left = 0;
        for (n, mbuf) in batch.drain().enumerate() {
            if bad >> n & 1 == 0 {
                results.keys[left] = results.keys[n];
                results.lengths[left] = results.lengths[n];
                left += 1;
                let _ = good.push(mbuf);
            } else {
                let counters = &self.counters.ports[port.index()];
                let why = key_of(&mbuf).err();
                let reason = why.map_or(DropReason::Malformed, DropReason::from);
                counters.drops.add(reason, 1);
                if let Some(taps) = self.taps {
                    let passing = Passing::dropped(Place::Port(port), reason);
                    taps.show(&passing, std::slice::from_ref(&mbuf));
                }
                if let Some(why) = why {
                    counters.malformed[why as usize].add(1);
                }
            }
        }
        batch.append(&mut good);
    }
}

/// Prefetches the first line of each packet.
#[inline(always)]
pub(crate) fn prefetch_headers(batch: &Batch) {
    for mbuf in batch.as_slice() {
        prefetch(mbuf.data());
    }
}
