// SPDX-License-Identifier: Apache-2.0
//! What NFs, workers and the manager do in a test, and random sequences of it.

use dpdk::Batch;
use netvm_ring::{Descriptor, VerdictKind};
use proptest::prelude::*;

use super::model::{THREADS, WORKERS};

/// What an NF makes of the packets that it returns.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReturnPattern {
    InOrder,
    Reversed,
    /// Each seventh after all others.
    Late,
    /// Each third 4 bytes shorter and further on.
    Trimmed,
    /// Each third beyond its buffer.
    Stretched,
    /// Each third shorter than an Ethernet header.
    Stunted,
    Twice,
    /// Each with another verdict than the one before.
    Alternating,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    HandOut {
        worker: usize,
        thread: usize,
        count: usize,
    },
    /// `by` returns what `of` was handed, or as much of it, to its own worker or to the other.
    Return {
        worker: usize,
        of: usize,
        by: usize,
        count: usize,
        pattern: ReturnPattern,
        to_other_worker: bool,
    },
    /// A descriptor out of thin air.
    Forge {
        worker: usize,
        by: usize,
        words: [u64; 2],
        action: u8,
    },
    Withdraw {
        worker: usize,
        by: usize,
    },
    Spill,
    Tick,
    NextGeneration,
    /// The NF thread is gone, by the owner table.
    SweepGone {
        worker: usize,
        thread: usize,
    },
    SweepAll {
        worker: usize,
    },
    SweepOlder {
        worker: usize,
    },
}

/// The descriptors of a burst that an NF returns.
pub(super) fn changed(burst: Vec<Descriptor>, pattern: ReturnPattern) -> Vec<Descriptor> {
    let third = |change: fn(Descriptor) -> Descriptor| {
        let each = burst.iter().zip(0..);
        each.map(|(d, n)| if n % 3 == 1 { change(*d) } else { *d }).collect()
    };
    match pattern {
        ReturnPattern::InOrder => burst,
        ReturnPattern::Reversed => burst.into_iter().rev().collect(),
        ReturnPattern::Late => {
            let (late, rest): (Vec<_>, Vec<_>) = burst.into_iter().partition(|d| d.buffer() % 7 == 0);
            [rest, late].concat()
        }
        ReturnPattern::Trimmed => third(|d| d.with_span(d.offset() + 4, d.length() - 4)),
        ReturnPattern::Stretched => third(|d| d.with_span(d.offset(), u16::MAX)),
        ReturnPattern::Stunted => third(|d| d.with_span(d.offset(), 13)),
        ReturnPattern::Twice => burst.iter().flat_map(|descriptor| [*descriptor; 2]).collect(),
        ReturnPattern::Alternating => third(|d| d.with_verdict(VerdictKind::Drop, 0)),
    }
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let pattern = prop_oneof![
        5 => Just(ReturnPattern::InOrder),
        1 => Just(ReturnPattern::Reversed),
        1 => Just(ReturnPattern::Late),
        1 => Just(ReturnPattern::Trimmed),
        1 => Just(ReturnPattern::Stretched),
        1 => Just(ReturnPattern::Stunted),
        1 => Just(ReturnPattern::Twice),
        1 => Just(ReturnPattern::Alternating),
    ];
    let (worker, thread) = (0..WORKERS, 0..THREADS);
    let hand_out = (worker.clone(), thread.clone(), 1..=Batch::CAPACITY)
        .prop_map(|(worker, thread, count)| Step::HandOut { worker, thread, count });
    let give_back = (worker.clone(), thread.clone(), thread.clone(), 1..200usize, pattern, 0..12u8).prop_map(
        |(worker, of, by, count, pattern, other)| {
            let to_other_worker = other == 0;
            Step::Return { worker, of, by, count, pattern, to_other_worker }
        },
    );
    let forge = (worker.clone(), thread.clone(), any::<[u64; 2]>(), any::<u8>())
        .prop_map(|(worker, by, words, action)| Step::Forge { worker, by, words, action });
    prop_oneof![
        8 => hand_out,
        10 => give_back,
        2 => forge,
        1 => (worker.clone(), thread.clone()).prop_map(|(worker, by)| Step::Withdraw { worker, by }),
        1 => Just(Step::Spill),
        2 => Just(Step::Tick),
        1 => Just(Step::NextGeneration),
        1 => (worker.clone(), thread).prop_map(|(worker, thread)| Step::SweepGone { worker, thread }),
        1 => worker.clone().prop_map(|worker| Step::SweepAll { worker }),
        1 => worker.prop_map(|worker| Step::SweepOlder { worker }),
    ]
}
