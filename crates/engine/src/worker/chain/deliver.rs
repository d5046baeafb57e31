//! Into a hop: choose a replica, hand the buffers out, write descriptors.
//!
//! Cost: 8 bytes of descriptor per packet cross to the NF's core (the other 8 are mostly there already), and what
//! [`crate::inflight`] says of handing out.
//!
//! Every function here takes over the packets of the batch that it is given, and leaves it empty.

use core::sync::atomic::Ordering;

use dpdk::{Accepts, Batch, Mbuf};
use netvm_ring::Descriptor;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, MemoryId, PortId};
use crate::snapshot::{ChainPath, Choice, Snapshot, Target};
use crate::worker::classify::lookup::key_of;
use crate::worker::rx::dispatch::Origin;
use crate::worker::state::Path;
use crate::worker::tx::offload::all_plain;

/// Which chain packets are in, and how it wants them.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) chain: ChainId,
    /// Whether descriptors carry the flow's hash.
    pub(crate) hashed: bool,
    /// The port that all of them came in by, where that is known.
    pub(crate) port: Option<PortId>,
    /// The reason of drops for want of room.
    pub(crate) full: DropReason,
}

/// Where on their way packets are delivered.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    way: Way,
    hop: u8,
}

impl Path {
    /// Packets enter a chain. This is where its traffic is dropped when it has no room further down, unless room was made sure of
    /// before they were received.
    #[inline]
    pub(crate) fn enter_chain(
        &mut self,
        snapshot: &Snapshot,
        chain: ChainId,
        from: Origin,
        batch: &mut Batch,
    ) {
        let Some(path) = snapshot.chain(chain) else {
            return self.drop_in_chain(chain, DropReason::NoRule, batch);
        };
        if !from.admitted && self.is_full_inside(path, chain) {
            return self.drop_in_chain(chain, DropReason::ChainFull, batch);
        }
        let way = Way { chain, hashed: path.hashed, port: Some(from.port), full: DropReason::ChainFull };
        let entered = self.deliver(snapshot, &path.entry, way, from.memory, batch);
        if let Some(counters) = self.counters.chains.get(chain.index()) {
            counters.entered.add(entered as u64);
        }
    }

    /// How many packets the entry of a chain has room for, at most `wanted`.
    pub(crate) fn room_at_entry(&mut self, snapshot: &Snapshot, chain: ChainId, wanted: usize) -> usize {
        let Some(path) = snapshot.chain(chain) else { return wanted };
        if self.is_full_inside(path, chain) {
            return 0;
        }
        match &path.entry {
            Target::Links { links, choice, .. } => {
                let rooms = links.iter().map(|link| {
                    self.links[link.index()].as_mut().map_or(0, |link| link.room_worthwhile(wanted))
                });
                // A burst goes to the emptiest ring as a whole; by hash it could all go to any of them.
                let room = match choice {
                    Choice::LeastOccupied => rooms.max(),
                    Choice::FlowHash | Choice::Sticky(_) => rooms.min(),
                };
                let room = room.map_or(0, |room| room.min(wanted));
                if path.has_words() { self.room_inside(path, room) } else { room }
            }
            Target::Drop(DropReason::NfDown) => 0,
            Target::Port(_) | Target::Ingress | Target::Normal | Target::Router(_) | Target::Drop(_) => {
                wanted
            }
        }
    }

    /// How many packets every ring of a chain has room for, at most `wanted`: where NFs may let flows pass them by, a burst
    /// may enter at any hop.
    #[cold]
    fn room_inside(&mut self, path: &ChainPath, wanted: usize) -> usize {
        let links = path.targets.iter().filter_map(|target| match target {
            Target::Links { links, .. } => Some(links),
            _ => None,
        });
        let room = |room: usize, link: &LinkId| {
            let link = self.links[link.index()].as_mut();
            link.map_or(room, |link| room.min(link.room_worthwhile(wanted)))
        };
        links.flatten().fold(wanted, room)
    }

    /// Whether a ring inside the chain is filling up: by the word of the NFs that write to it, or, where the engine itself
    /// hands packets from one trust group to the next, by a look at the ring.
    #[inline]
    pub(crate) fn is_full_inside(&mut self, path: &ChainPath, chain: ChainId) -> bool {
        path.watched.iter().any(|watched| self.is_pressed(*watched, chain))
            || path.crossings.iter().any(|link| {
                self.links[link.index()].as_mut().is_some_and(|link| {
                    let quarter = link.to_nf.memory().capacity() / 4;
                    link.to_nf.room(quarter) < quarter
                })
            })
    }

    #[inline(always)]
    fn is_pressed(&self, memory: MemoryId, chain: ChainId) -> bool {
        self.memory(memory).is_some_and(|m| m.region().backpressure(chain.0).load(Ordering::Relaxed) != 0)
    }

    /// Packets go where `target` says. Returns how many were handed to an NF or a port.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        snapshot: &Snapshot,
        target: &Target,
        way: Way,
        memory: MemoryId,
        batch: &mut Batch,
    ) -> usize {
        let chain = way.chain;
        match target {
            Target::Links { group, hop, choice, links } => {
                self.deliver_to_group(*group, choice, links, Place { way, hop: *hop }, memory, batch)
            }
            Target::Port(port) => self.leave(snapshot, chain, *port, memory, batch),
            Target::Ingress => self.leave_as(chain, batch, |path, port, run| {
                path.send_out(snapshot, port, memory, run);
            }),
            Target::Normal => self.leave_as(chain, batch, |path, port, run| {
                path.switch_again(snapshot, Origin::behind_chain(port, memory), run);
            }),
            Target::Router(router) => self.leave_as(chain, batch, |path, port, run| {
                path.route(snapshot, *router, Origin::behind_chain(port, memory), run);
            }),
            Target::Drop(reason) => {
                self.drop_in_chain(chain, *reason, batch);
                0
            }
        }
    }

    /// Out of a port at the end of a chain; returns how many packets.
    #[inline]
    pub(crate) fn leave(
        &mut self,
        snapshot: &Snapshot,
        chain: ChainId,
        port: PortId,
        memory: MemoryId,
        batch: &mut Batch,
    ) -> usize {
        let count = self.count_leaving(chain, batch);
        self.send_out(snapshot, port, memory, batch);
        count
    }

    /// Out of a chain, in runs that came in by one port; returns how many packets.
    #[inline]
    fn leave_as(
        &mut self,
        chain: ChainId,
        batch: &mut Batch,
        mut each: impl FnMut(&mut Self, PortId, &mut Batch),
    ) -> usize {
        let count = self.count_leaving(chain, batch);
        runs(batch, |mbuf| PortId(mbuf.port().0), |port, run| each(self, port, run));
        count
    }

    #[inline(always)]
    fn count_leaving(&self, chain: ChainId, batch: &Batch) -> usize {
        let count = batch.len();
        if let Some(counters) = self.counters.chains.get(chain.index()) {
            counters.left.add(count as u64);
        }
        count
    }

    /// To NFs of the same role in another group than `target` is for: the hop stays what it is.
    pub(crate) fn detour(
        &mut self,
        snapshot: &Snapshot,
        target: &Target,
        way: Way,
        hop: u8,
        memory: MemoryId,
        batch: &mut Batch,
    ) -> usize {
        let Target::Links { group, choice, links, .. } = target else {
            return self.deliver(snapshot, target, way, memory, batch);
        };
        self.deliver_to_group(*group, choice, links, Place { way, hop }, memory, batch)
    }

    #[inline]
    fn deliver_to_group(
        &mut self,
        group: GroupId,
        choice: &Choice,
        links: &[LinkId],
        place: Place,
        memory: MemoryId,
        batch: &mut Batch,
    ) -> usize {
        if self.leaves_work && !all_plain(batch) {
            let mut delivered = 0;
            self.finish(memory, Accepts::default(), batch, |path, batch| {
                delivered += path.deliver_to_group(group, choice, links, place, memory, batch);
            });
            return delivered;
        }
        let Some(home) = self.home_of(group) else {
            self.drop_in_chain(place.way.chain, DropReason::NfDown, batch);
            return 0;
        };
        if home != memory {
            let lost = self.copy_into(home, memory, batch);
            if lost > 0
                && let Some(counters) = self.counters.chains.get(place.way.chain.index())
            {
                counters.drops.add(DropReason::NoBuffer, lost as u64);
            }
        }
        match (links, choice) {
            ([only], _) => self.push_or_drop(*only, place, batch),
            (several, Choice::LeastOccupied) => {
                let mut best = (u32::MAX, several[0]);
                for link in several {
                    let load =
                        self.links[link.index()].as_mut().map_or(u32::MAX, |link| link.to_nf.occupancy());
                    if load < best.0 {
                        best = (load, *link);
                    }
                }
                self.push_or_drop(best.1, place, batch)
            }
            (several, Choice::Sticky(sticky)) => self.deliver_sticky(sticky, several, place, batch),
            (several, Choice::FlowHash) => {
                let mut delivered = 0;
                let choose = |mbuf: &Mbuf| several[usize::from(hash_of(mbuf)) % several.len()];
                runs(batch, choose, |link, run| delivered += self.push_or_drop(link, place, run));
                delivered
            }
        }
    }

    #[inline]
    pub(crate) fn push_or_drop(&mut self, link: LinkId, place: Place, batch: &mut Batch) -> usize {
        let delivered = self.push(link, place, batch);
        if !batch.is_empty() {
            self.drop_in_chain(place.way.chain, place.way.full, batch);
        }
        delivered
    }

    /// Hands packets from the front of the batch to one NF thread, as many as its ring has room for.
    #[inline]
    fn push(&mut self, link: LinkId, place: Place, batch: &mut Batch) -> usize {
        let worker = self.id;
        let Self { links, in_flight, counters, .. } = self;
        let Some(link) = links[link.index()].as_deref_mut() else { return 0 };
        let wanted = batch.len() as u32;
        let count = link.to_nf.room(wanted).min(wanted);
        if count == 0 {
            return 0;
        }
        link.to_nf.prefetch_index();
        link.to_nf.prefetch(0, count);
        let Place { way: Way { chain, hashed, port, .. }, hop } = place;
        let from = |port: u16| Descriptor::default().on_path(chain.0, hop, port, worker.0);
        let is_out = in_flight.hand_out(link.id, count as usize, batch, |packets, spans| {
            if !hashed && let Some(port) = port.or_else(|| port_of_all(packets)) {
                let like = from(port.0);
                link.to_nf.write_each(0, spans, |span| like.with_packet(*span));
            } else {
                for ((n, mbuf), span) in (0..).zip(packets).zip(spans) {
                    let descriptor = from(mbuf.port().0).with_packet(*span);
                    let hashed = if hashed { descriptor.with_hash(hash_of(mbuf)) } else { descriptor };
                    link.to_nf.write(n, hashed);
                }
            }
        });
        if !is_out {
            return 0;
        }
        link.to_nf.publish(count);
        // The next burst is probably as long; its slots cross while others are being served.
        link.to_nf.prefetch(0, count);
        link.note_published();
        if let Some(counters) = counters.links.get(link.id.index()) {
            counters.delivered.add(count.into());
        }
        count as usize
    }
}

/// The port that all packets came in by, if it is one.
fn port_of_all(packets: &[Mbuf]) -> Option<PortId> {
    let port = packets.first()?.port();
    packets.iter().all(|mbuf| mbuf.port() == port).then_some(PortId(port.0))
}

/// Splits a batch into runs of packets with the same key, in order, and gives each to `each`, which empties it.
pub(crate) fn runs<K: PartialEq + Copy>(
    batch: &mut Batch,
    mut key: impl FnMut(&Mbuf) -> K,
    mut each: impl FnMut(K, &mut Batch),
) {
    let mut run = Batch::new();
    let mut current = None;
    for mbuf in batch.drain() {
        let this = key(&mbuf);
        if let Some(before) = current
            && before != this
        {
            each(before, &mut run);
        }
        current = Some(this);
        // A run is no longer than the batch it comes from: there is room.
        let _ = run.push(mbuf);
    }
    if let Some(last) = current {
        each(last, &mut run);
    }
}

/// Eight bits of the hash of a packet's flow, the same for both directions; 0 for what has none.
fn hash_of(mbuf: &Mbuf) -> u8 {
    let tuple = key_of(mbuf).ok().and_then(|key| key.five_tuple());
    tuple.map_or(0, |tuple| tuple.symmetric_hash() as u8)
}
