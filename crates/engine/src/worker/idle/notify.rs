//! Waking the NFs that sleep: when they have packets, and sometimes shortly before.

use netvm_region::clock;
use netvm_ring::full_fence;

use crate::drop_reason::Violation;
use crate::ids::{LinkId, PortId};
use crate::link::Link;
use crate::snapshot::{Snapshot, Target};
use crate::worker::state::{Awaited, Path};

impl Path {
    /// Wakes the NFs that sleep while they have packets; called once a turn, with one fence for all of them.
    #[inline(always)]
    pub(crate) fn wake_sleepers(&mut self) {
        let mut published = false;
        self.each_link(|link| published |= link.has_published());
        if published {
            self.awaited = match self.awaited {
                Awaited::Nothing | Awaited::OfAwake => Awaited::OfAwake,
                Awaited::WokenAhead | Awaited::OfWoken => Awaited::OfWoken,
            };
            full_fence();
            self.each_link(Link::look_for_sleeper);
        }
        let mut owed = false;
        self.each_link(|link| owed |= link.owes_wake());
        if owed {
            self.awaited = Awaited::OfWoken;
            let now = clock::cycles();
            for n in 0..self.active.len() {
                self.wake(self.active[n], now);
            }
        }
    }

    /// A port has packets, after a sleep of this worker: the NF that they probably go to wakes while they are being received. A core
    /// that has slept for long wakes in a tenth of a millisecond, and packets are received in a fifth of that.
    #[cold]
    pub(crate) fn wake_ahead(&mut self, snapshot: &Snapshot, port: PortId) {
        if let Some([chain]) = snapshot.policy.ingress(port).map(|ingress| &ingress.chains[..])
            && let Some(Target::Links { links, .. }) = snapshot.chain(*chain).map(|chain| &chain.entry)
            && let [only] = links[..]
            && let Some(link) = self.links[only.index()].as_deref_mut()
        {
            let now = clock::cycles();
            link.expect_packets(now);
            if link.owes_wake() {
                self.awaited = Awaited::WokenAhead;
                self.wake(only, now);
            }
        }
    }

    #[inline(always)]
    fn wake(&mut self, link: LinkId, now: u64) {
        if let Some(link) = self.links[link.index()].as_deref_mut()
            && let Some(Some(rate_limit)) = self.rate_limits.get_mut(link.group.index())
            && link.wake_if_pending(&self.signaller, rate_limit, now)
        {
            self.counters.links[link.id.index()].violations[Violation::CostlyWake as usize].add(1);
        }
    }
}
