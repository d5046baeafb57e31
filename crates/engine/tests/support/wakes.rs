// SPDX-License-Identifier: Apache-2.0
//! Counts how often a thread is woken, and what other threads receive meanwhile.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::Rig;

/// A thread that is woken by an eventfd.
pub struct Woken<'a, F> {
    pub eventfd: &'a F,
    /// The port of others, whose packets are counted.
    pub port: u16,
}

/// When to stop.
#[derive(Clone, Copy)]
pub struct Until {
    pub time: Duration,
    pub wakes: u64,
}

/// Repeats something for so long, or until the eventfd has been signalled so many times; returns how often it was.
/// Prints how many packets of others left meanwhile.
pub fn wakes(
    rig: &mut Rig,
    Woken { eventfd, port }: Woken<'_, impl AsFd>,
    until: Until,
    mut again: impl FnMut(),
) -> u64 {
    let (start, before, mut wakes) = (Instant::now(), rig.sent(port), 0);
    while start.elapsed() < until.time && wakes < until.wakes {
        again();
        rig.engine.service();
        let mut count = [0; 8];
        if rustix::io::read(eventfd, &mut count).is_ok() {
            wakes += u64::from_ne_bytes(count);
        }
    }
    let others = (rig.sent(port) - before) as f64 / start.elapsed().as_secs_f64();
    println!("{wakes} wakes, {others:.0} packets of others in a second");
    wakes
}
