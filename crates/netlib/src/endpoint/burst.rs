//! A burst of received packets, and the look-ups of names that an NF needs meanwhile. In: the packets that an
//! [`Endpoint`] received. Out: a verdict for each; dropping the burst sends the packets.

use super::Endpoint;
use crate::packet::{Packet, PortId, RoleId, Verdict};

/// A received burst. Packets without a verdict go to the next hop. Dropping the burst sends it.
#[derive(Debug)]
pub struct Burst<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) count: usize,
}

impl Burst<'_> {
    /// Number of packets.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether the burst is empty: only if all of its descriptors were invalid, from a hostile peer.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// As [`Endpoint::epoch`].
    #[inline]
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.endpoint.table.epoch()
    }

    /// Look-ups of names, as of this burst.
    #[inline]
    #[must_use]
    pub fn context(&self) -> ThreadContext<'_> {
        ThreadContext::new(self.endpoint)
    }

    /// Packet `n`, if the burst has it.
    #[inline]
    pub fn packet(&mut self, n: usize) -> Option<Packet<'_>> {
        let endpoint = &mut *self.endpoint;
        let descriptor = endpoint.descriptors[..self.count].get_mut(n)?;
        let region = endpoint.shared.region_of(descriptor.worker())?;
        // SAFETY: `poll` kept only descriptors whose bounds are within the region, in private memory. This process owns
        // the buffer until the burst is sent. The borrow of `self` makes this the only Packet.
        Some(unsafe { Packet::new(region, descriptor) })
    }

    /// Sets the verdict on packet `n`.
    #[inline]
    pub fn set(&mut self, n: usize, verdict: Verdict) {
        if let Some(slot) = self.endpoint.verdicts[..self.count].get_mut(n) {
            *slot = verdict;
        }
    }

    /// Sets the same verdict on all packets.
    #[inline]
    pub fn set_all(&mut self, verdict: Verdict) {
        self.endpoint.verdicts[..self.count].fill(verdict);
    }

    /// Withdraws the per-flow verdicts that this thread gave in earlier bursts, but not those in this one.
    pub fn withdraw(&mut self) {
        self.endpoint.withdraw();
    }

    /// Calls `verdict` on each packet in turn, and prefetches the packets that follow.
    #[inline]
    pub fn for_each(&mut self, mut verdict: impl FnMut(&mut Packet<'_>) -> Verdict) {
        for n in 0..self.count {
            if let Some(ahead) = self.packet(n + 4) {
                ahead.prefetch();
            }
            if let Some(mut packet) = self.packet(n) {
                let verdict = verdict(&mut packet);
                self.set(n, verdict);
            }
        }
    }
}

impl Drop for Burst<'_> {
    #[inline]
    fn drop(&mut self) {
        self.endpoint.send(self.count);
    }
}

/// An NF thread's number, and look-ups of names.
#[derive(Debug)]
pub struct ThreadContext<'a> {
    endpoint: &'a Endpoint,
}

impl<'a> ThreadContext<'a> {
    pub(crate) const fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint }
    }

    /// Number of the thread in the NF, from 0.
    #[must_use]
    pub const fn thread(&self) -> u16 {
        self.endpoint.thread()
    }

    /// The number of the port with this name.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<PortId> {
        self.endpoint.port(name)
    }

    /// The number of the role with this name.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<RoleId> {
        self.endpoint.role(name)
    }
}
