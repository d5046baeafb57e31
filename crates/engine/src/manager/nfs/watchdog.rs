// SPDX-License-Identifier: Apache-2.0
//! The watchdog: finds NFs that hang. In: ring indexes and heartbeats, as the NFs write them. Out: instances whose
//! state is [`InstanceState::Hung`], and notices; and how full the rings of each NF thread are, for statistics.
//!
//! An NF thread hangs if packets wait in one of its rings while neither its heartbeat nor the head of any of its rings
//! moves, for the role's `hang_timeout`. Time in which the NF's process only waited for a core does not count
//! ([`cpu_time`](super::cpu_time)): such an NF is *starved*, which is reported, and it keeps getting packets. netlib
//! moves the heartbeat with each packet and while it waits for room in another ring, so a slow NF does not count as
//! hung, nor does an NF that waits for a slow NF after it. The engine treats a hung NF like a dead one: a standby takes
//! over, or its chains bypass it or drop at their entry. But the NF keeps its buffers until it ends, because it may
//! still write to them. If it makes progress again, it gets packets again.
//!
//! An NF that moves its heartbeat without reading packets harms only the chains that it is in, which it could do anyway
//! by dropping packets.

use std::time::{Duration, Instant};

use netvm_model::Host;
use netvm_ring::RingMemory;

use super::Nfs;
use super::instance::{Instance, InstanceState, Interval, Observation, Progress};
use crate::manager::notice::{Notice, Notices};
use crate::manager::workers::Workers;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Factor on the time-out for VMs: what their own kernels do to the NF is not seen from here.
const GUEST_FACTOR: u32 = 2;

/// The time of the last check.
#[derive(Debug)]
pub(super) struct Watchdog(Instant);

impl Watchdog {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// The time since the last check, if the next one is due. At most twice the interval, because NFs may have been
    /// stopped together with this thread (in a stopped machine or process).
    fn step(&mut self) -> Option<Duration> {
        let elapsed = self.0.elapsed();
        if elapsed < INTERVAL {
            return None;
        }
        self.0 = Instant::now();
        Some(elapsed.min(INTERVAL * 2))
    }
}

impl Nfs {
    /// Checks the NFs that get packets, at intervals. Returns whether some get packets now that got none, or the other
    /// way round.
    pub(super) fn service_watchdog(&mut self, host: &Host, workers: &Workers, notices: &mut Notices) -> bool {
        let Some(step) = self.watchdog.step() else { return false };
        let mut changed = false;
        for id in self.instances.keys().copied().collect::<Vec<_>>() {
            let Some(instance) = self.instances.get(&id) else { continue };
            if !matches!(instance.state, InstanceState::Active | InstanceState::Hung) {
                continue;
            }
            let threads = 0..instance.nf_threads.len() as u16;
            let found: Vec<_> =
                threads.map(|thread| self.observation(instance, thread, workers.len())).collect();
            let limit = hang_timeout(host, instance);
            let Some(instance) = self.instances.get_mut(&id) else { continue };
            let change = instance.observe(&found, step, limit);
            let role = instance.role;
            match change {
                Some(Change::Hangs(stalled)) => {
                    notices.push(Notice::Hung { instance: id, role, stalled });
                    self.promote_standby(role, host, notices);
                    changed = true;
                }
                Some(Change::Starves(starved)) => {
                    notices.push(Notice::Starved { instance: id, role, starved });
                }
                Some(Change::Recovers { was_hung }) => {
                    notices.push(Notice::Recovered { instance: id, role });
                    changed |= was_hung;
                }
                None => {}
            }
        }
        changed
    }

    /// Observes the rings of a thread.
    fn observation(&self, instance: &Instance, thread: u16, workers: usize) -> Observation {
        let control = &instance.control;
        let mut position = control.thread(thread).heartbeat.load(std::sync::atomic::Ordering::Relaxed);
        let (mut waits, mut fill) = (false, 0.0_f32);
        let mut add_ring = |ring: RingMemory| {
            let (head, tail) = ring.claims();
            // Heads that move by the same number in both directions must not cancel each other.
            position = position.wrapping_mul(31).wrapping_add(head.into());
            waits |= head != tail;
            fill = fill.max(ring.occupancy() as f32 / ring.capacity() as f32);
        };
        for worker in 0..workers as u16 {
            add_ring(control.ring_to_nf(thread, worker));
        }
        if let Some(group) = self.groups.get(&instance.group) {
            let to = instance.nf_threads[usize::from(thread)];
            group.rings_to(to).filter_map(|ring| group.ring(ring)).for_each(add_ring);
        }
        Observation { position, waits, fill }
    }
}

/// The hang time-out of an NF; `None`: it has none.
fn hang_timeout(host: &Host, instance: &Instance) -> Option<Duration> {
    let seconds = host.nf(instance.role)?.hang_timeout;
    let factor = if instance.guest.is_some() { GUEST_FACTOR } else { 1 };
    (seconds > 0).then(|| Duration::from_secs(seconds.into()) * factor)
}

/// What an observation of an NF finds.
enum Change {
    /// No progress for this long although it could run.
    Hangs(Duration),
    /// No progress, and no core for this long.
    Starves(Duration),
    /// Progress again.
    Recovers { was_hung: bool },
}

impl Instance {
    /// Adds an observation of each thread, `step` after the last one.
    fn observe(&mut self, found: &[Observation], step: Duration, limit: Option<Duration>) -> Option<Change> {
        self.progress.resize_with(found.len(), Progress::default);
        let is_stalled =
            self.progress.iter().zip(found).any(|(progress, observation)| progress.is_stalled(observation));
        let granted = if is_stalled {
            self.cpu_time.granted(step)
        } else {
            self.cpu_time.forget();
            step
        };
        for (progress, observation) in self.progress.iter_mut().zip(found) {
            progress.note(*observation, Interval { step, granted });
        }
        let longest = |of: fn(&Progress) -> Duration| self.progress.iter().map(of).max().unwrap_or_default();
        let (stalled, starved) = (longest(|progress| progress.stalled), longest(|progress| progress.starved));
        let has_reached = |time: Duration| limit.is_some_and(|limit| time >= limit);
        let was_hung = self.state == InstanceState::Hung;
        if !was_hung && has_reached(stalled) {
            self.state = InstanceState::Hung;
            return Some(Change::Hangs(stalled));
        }
        if !was_hung && !self.is_starved && has_reached(starved) {
            self.is_starved = true;
            return Some(Change::Starves(starved));
        }
        if (was_hung || self.is_starved) && stalled.is_zero() && starved.is_zero() {
            self.is_starved = false;
            if was_hung {
                self.state = InstanceState::Active;
            }
            return Some(Change::Recovers { was_hung });
        }
        None
    }
}
