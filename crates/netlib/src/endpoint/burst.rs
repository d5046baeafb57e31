// SPDX-License-Identifier: Apache-2.0
//! A burst of received packets, and the look-ups of names that an NF needs meanwhile. In: the packets that an
//! [`Endpoint`] received. Out: a verdict for each; dropping the burst sends the packets. If the NF panics, packets
//! without a verdict are discarded instead, and the first of them is written to standard error.

use std::io::Write as _;

use netvm_attach::messages::Message;
use netvm_ids::{ChainId, PortId, RoleId};

use super::{BURST, Endpoint, Outbox, OwnedPacket};
use crate::packet::{Packet, Verdict};
use crate::shared::messages::{MessageError, Outgoing};

/// Packets of a burst after which the heartbeat moves: an NF that takes less than an eighth of its `hang_timeout` for a
/// packet never counts as hung.
const PACKETS_PER_HEARTBEAT: usize = 8;

/// Most bytes of a packet that are written to standard error when the NF panics.
const DUMPED: usize = 2048;

/// A received burst. Packets without a verdict go to the next hop, unless the NF panics: then they are discarded.
/// Dropping the burst sends it.
#[derive(Debug)]
pub struct Burst<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) count: usize,
    /// Bit mask of packets that have a verdict from the NF.
    decided: u32,
}

const _: () = assert!(BURST <= u32::BITS as usize);

impl<'a> Burst<'a> {
    /// The first `count` packets of the endpoint; `None` if there are none.
    #[inline]
    pub(super) fn of(endpoint: &'a mut Endpoint, count: usize) -> Option<Self> {
        // Not `then_some`: a burst that is dropped sends, also an empty one.
        (count > 0).then(|| Self { endpoint, count, decided: 0 })
    }
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

    /// Packet `n`, if the burst has it and the NF does not hold it.
    #[inline]
    pub fn packet(&mut self, n: usize) -> Option<Packet<'_>> {
        let endpoint = &mut *self.endpoint;
        if endpoint.kit.is_held(n) {
            return None;
        }
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
            self.decided |= 1 << n;
            if n.is_multiple_of(PACKETS_PER_HEARTBEAT) {
                self.endpoint.beat(n);
            }
        }
    }

    /// Sets the same verdict on all packets.
    #[inline]
    pub fn set_all(&mut self, verdict: Verdict) {
        self.endpoint.verdicts[..self.count].fill(verdict);
        self.decided = u32::MAX;
    }

    /// Withdraws the per-flow verdicts that this thread gave in earlier bursts, but not those in this one.
    pub fn withdraw(&mut self) {
        self.endpoint.withdraw();
    }

    /// Makes, copies and sends packets: they leave before the first packet of the burst that has no verdict yet.
    pub fn outbox(&mut self) -> Outbox<'_> {
        let at = ((!self.decided).trailing_zeros() as usize).min(self.count);
        let Endpoint { kit, tx_rings, table, .. } = &mut *self.endpoint;
        let mut outbox = Outbox::new(kit, tx_rings, table);
        outbox.set_place(at, core::ptr::null());
        outbox
    }

    /// Calls `work` on packet `n` and the outbox, which may hold it; `None` if the burst does not have it.
    pub fn with_outbox<T>(
        &mut self,
        n: usize,
        work: impl FnOnce(Packet<'_>, &mut Outbox<'_>) -> T,
    ) -> Option<T> {
        let Endpoint { shared, descriptors, kit, tx_rings, table, .. } = &mut *self.endpoint;
        if kit.is_held(n) {
            return None;
        }
        let descriptor = descriptors[..self.count].get_mut(n)?;
        let region = shared.region_of(descriptor.worker())?;
        let mut outbox = Outbox::new(kit, tx_rings, table);
        outbox.set_place(n, &raw const *descriptor);
        // SAFETY: as for `packet`.
        Some(work(unsafe { Packet::new(region, descriptor) }, &mut outbox))
    }

    /// Holds packet `n`: see [`Outbox::hold`]. `None` if the burst does not have it, or the NF may hold no more.
    pub fn hold(&mut self, n: usize) -> Option<OwnedPacket> {
        let held = self.with_outbox(n, |packet, outbox| outbox.hold(packet).ok())??;
        self.decided |= 1 << n;
        Some(held)
    }

    /// As [`Burst::for_each`], with the outbox, and each packet by value: [`Outbox::hold`] takes it.
    #[inline]
    pub fn for_each_with(&mut self, mut verdict: impl FnMut(Packet<'_>, &mut Outbox<'_>) -> Verdict) {
        for n in 0..self.count {
            if let Some(ahead) = self.packet(n + 4) {
                ahead.prefetch();
            }
            if let Some(verdict) = self.with_outbox(n, |packet, outbox| verdict(packet, outbox)) {
                self.set(n, verdict);
            }
        }
    }

    /// As [`Endpoint::next_message`].
    pub fn next_message(&mut self) -> Option<Message> {
        self.endpoint.next_message()
    }

    /// As [`Endpoint::send_message`].
    ///
    /// # Errors
    /// [`MessageError`]; it was not sent.
    pub fn send_message(&self, message: Outgoing) -> Result<(), MessageError> {
        self.endpoint.send_message(message)
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

impl Burst<'_> {
    /// Discards the packets that have no verdict, because the NF panicked. Dumps the first, which is the one that
    /// [`Burst::for_each`] was at.
    #[cold]
    fn fail_closed(&mut self) {
        let undecided = (0..self.count).filter(|n| self.decided >> n & 1 == 0).collect::<Vec<_>>();
        let (thread, count) = (self.endpoint.thread(), self.count);
        if let Some(first) = undecided.first()
            && let Some(packet) = self.packet(*first)
        {
            let text = hex_dump(&packet.data()[..packet.data().len().min(DUMPED)]);
            // Standard error may be closed; the packets are discarded all the same.
            let _ = write!(
                std::io::stderr(),
                "netlib: thread {thread} of the NF panicked at packet {first} of a burst of {count}; it discards the {} \
                 packets without a verdict. Packet {first}, {} bytes, for text2pcap:\n{text}",
                undecided.len(),
                packet.data().len(),
            );
        }
        for n in undecided {
            self.endpoint.verdicts[n] = Verdict::Drop;
        }
    }
}

/// Bytes as `text2pcap` reads them: an offset, then 16 bytes, on each line.
fn hex_dump(bytes: &[u8]) -> String {
    let line = |(n, row): (usize, &[u8])| {
        let row: String = row.iter().map(|byte| format!(" {byte:02x}")).collect();
        format!("{:06x} {row}\n", n * 16)
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

impl Drop for Burst<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail_closed();
        }
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

    /// The number of the chain with this name, for [`crate::Steer`].
    #[must_use]
    pub fn chain(&self, name: &str) -> Option<ChainId> {
        self.endpoint.chain(name)
    }
}
