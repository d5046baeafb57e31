//! Counts how often a thread is woken, and what other threads receive meanwhile.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::Rig;

/// Repeats something for so long, or until an eventfd has been signalled `enough` times; returns how often it was. Prints
/// how many packets left by another port meanwhile.
pub fn wakes(
    rig: &mut Rig,
    (eventfd, port): (&impl AsFd, u16),
    (time, enough): (Duration, u64),
    mut again: impl FnMut(),
) -> u64 {
    let (start, before, mut wakes) = (Instant::now(), rig.sent(port), 0);
    while start.elapsed() < time && wakes < enough {
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
