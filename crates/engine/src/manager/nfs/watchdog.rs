//! The watchdog: finds NFs that hang. In: ring indexes and heartbeats, as the NFs write them. Out: instances whose
//! state is [`InstanceState::Hung`], and notices; and how full the rings of each NF thread are, for statistics.
//!
//! An NF thread hangs if packets wait in one of its rings while neither its heartbeat nor the head of any of its rings
//! moves, for the role's `hang_timeout`. netlib moves the heartbeat with each packet and while it waits for room in
//! another ring, so a slow NF does not count as hung, nor does an NF that waits for a slow NF after it. The engine treats a
//! hung NF like a dead one: a standby takes over, or its chains bypass it or drop at their entry. But the NF keeps its
//! buffers until it ends, because it may still write to them. If it makes progress again, it gets packets again.
//!
//! An NF that moves its heartbeat without reading packets harms only the chains that it is in, which it could do anyway
//! by dropping packets.

use std::time::{Duration, Instant};

use super::instance::{Instance, InstanceState, Look, Progress};
use crate::manager::{Engine, Notice};
use netvm_ring::RingMemory;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Factor on the time-out for VMs, which the host may not schedule for a while.
const GUEST_FACTOR: u32 = 5;

/// The time of the last check.
#[derive(Debug)]
pub(crate) struct Watchdog(Instant);

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// The time since the last check, if the next one is due. At most twice the interval, because NFs may have been stopped
    /// together with this thread (in a stopped machine or process).
    fn step(&mut self) -> Option<Duration> {
        let elapsed = self.0.elapsed();
        if elapsed < INTERVAL {
            return None;
        }
        self.0 = Instant::now();
        Some(elapsed.min(INTERVAL * 2))
    }
}

impl Engine {
    /// Checks the NFs that get packets, at intervals.
    pub(crate) fn service_watchdog(&mut self) {
        let Some(step) = self.nfs.watchdog.step() else { return };
        let ids: Vec<_> = self.nfs.instances.keys().copied().collect();
        for id in ids {
            let Some(instance) = self.nfs.instances.get(&id) else { continue };
            if !matches!(instance.state, InstanceState::Active | InstanceState::Hung) {
                continue;
            }
            let found: Vec<_> =
                (0..).zip(&instance.nf_threads).map(|(n, _)| self.look(instance, n)).collect();
            let limit = self.hang_timeout(instance);
            let (role, is_hung) = (instance.role, instance.state == InstanceState::Hung);
            let Some(instance) = self.nfs.instances.get_mut(&id) else { continue };
            instance.progress.resize_with(found.len(), Progress::default);
            for (progress, found) in instance.progress.iter_mut().zip(found) {
                progress.note(found, step);
            }
            let stalled = instance.progress.iter().map(|progress| progress.stalled).max().unwrap_or_default();
            if !is_hung && limit.is_some_and(|limit| stalled >= limit) {
                instance.state = InstanceState::Hung;
                self.notices.push(Notice::Hung { instance: id, role, stalled });
                self.promote_standby(role);
                self.publish();
            } else if is_hung && stalled.is_zero() {
                instance.state = InstanceState::Active;
                self.notices.push(Notice::Recovered { instance: id, role });
                self.publish();
            }
        }
    }

    /// The hang time-out of an NF; `None`: it has none.
    fn hang_timeout(&self, instance: &Instance) -> Option<Duration> {
        let seconds = self.host.nf(instance.role)?.hang_timeout;
        let factor = if instance.guest.is_some() { GUEST_FACTOR } else { 1 };
        (seconds > 0).then(|| Duration::from_secs(seconds.into()) * factor)
    }

    /// Observes the rings of a thread.
    fn look(&self, instance: &Instance, thread: u16) -> Look {
        let control = &instance.control;
        let mut position = control.thread(thread).heartbeat.load(std::sync::atomic::Ordering::Relaxed);
        let (mut waits, mut fill) = (false, 0.0_f32);
        let mut look_at = |ring: RingMemory| {
            let (head, tail) = ring.claims();
            // Heads that move by the same number in both directions must not cancel each other.
            position = position.wrapping_mul(31).wrapping_add(head.into());
            waits |= head != tail;
            fill = fill.max(ring.occupancy() as f32 / ring.capacity() as f32);
        };
        for worker in 0..self.workers.len() as u16 {
            look_at(control.ring_to_nf(thread, worker));
        }
        if let Some(group) = self.nfs.groups.get(&instance.group) {
            let to = instance.nf_threads[usize::from(thread)];
            for ring in group.rings_to(to) {
                let memory = group.memories.get(usize::from(ring.region));
                memory.and_then(|memory| memory.region().ring(ring.index)).into_iter().for_each(&mut look_at);
            }
        }
        Look { position, waits, fill }
    }
}
