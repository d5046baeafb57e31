//! The connections that one worker owns, and scratch space for the packets of a burst.

use netvm_conntrack::{Config, ConnectionId, Connections, NoMemory, Packet, Refusal, Tracked, Zone};
use netvm_wire::{ConnState, FlowKey};

use super::BURST;
use crate::counters::ConnectionCounters;
use crate::ids::PortId;
use crate::worker::packet::keys::HEADER_BYTES;

/// Slots that the hand of the table passes in a tick: all of 65,536 in 26 seconds.
const SLOTS_PER_TICK: u32 = 256;

/// The headers of a burst in private memory, by packet.
pub(crate) struct Headers {
    pub(crate) fronts: Box<[[u8; HEADER_BYTES]; BURST]>,
    /// Bytes of each that are the packet's.
    pub(crate) lengths: [u16; BURST],
}

/// The connections of one worker.
pub(crate) struct WorkerConnections {
    pub(crate) table: Connections,
    pub(crate) headers: Headers,
    /// Complete keys, by packet of the burst.
    keys: [FlowKey; BURST],
    /// Lengths of the packets.
    lengths: [u32; BURST],
    tracked: [Tracked; BURST],
    /// Packets that were invalid so far.
    invalid: u64,
    /// The tick of the burst.
    now: u32,
    /// The tick at which the hand last moved.
    last_tick: u32,
}

impl WorkerConnections {
    /// An empty table of this size.
    pub(crate) fn new(config: &Config) -> Result<Self, NoMemory> {
        Ok(Self {
            table: Connections::new(config)?,
            headers: Headers { fronts: Box::new([[0; HEADER_BYTES]; BURST]), lengths: [0; BURST] },
            keys: [FlowKey::EMPTY; BURST],
            lengths: [0; BURST],
            tracked: [Tracked::default(); BURST],
            invalid: 0,
            now: 0,
            last_tick: 0,
        })
    }

    /// Finds the connections of the packets whose headers were read, in this zone at this tick, and notes their states
    /// in the keys. A later fragment gets the ports of the first one, so rules treat it alike.
    pub(crate) fn track(&mut self, zone: Zone, now: u32, lengths: &[u32], keys: &mut [FlowKey]) {
        let Self { table, headers, tracked, .. } = self;
        let packet = |n: usize| Packet {
            key: &keys[n],
            zone,
            front: &headers.fronts[n][..usize::from(headers.lengths[n])],
            length: lengths[n] as usize,
        };
        let count = keys.len().min(BURST);
        let packets: arrayvec::ArrayVec<Packet<'_>, BURST> = (0..count).map(packet).collect();
        table.track(&packets, now, &mut tracked[..count]);
        drop(packets);
        self.now = now;
        self.keys[..count].copy_from_slice(&keys[..count]);
        self.lengths[..count].copy_from_slice(&lengths[..count]);
        for (key, tracked) in keys.iter_mut().zip(&self.tracked) {
            key.state = tracked.state;
            self.invalid += u64::from(tracked.state == ConnState::Invalid);
            if let Some([source, destination]) = tracked.ports {
                (key.source_port, key.destination_port) = (source, destination);
            }
        }
    }

    /// The first `count` packets of the burst that may begin a connection (bit mask).
    pub(crate) fn new_packets(&self, count: usize) -> u64 {
        let is_new = |it: &Tracked| it.state == ConnState::New && it.connection.is_none();
        let tracked = self.tracked.iter().take(count).enumerate();
        tracked.fold(0, |bits, (n, it)| bits | u64::from(is_new(it)) << n)
    }

    /// Begins the connection of packet `n` of the burst, which `from` has received.
    pub(crate) fn begin(&mut self, n: usize, zone: Zone, from: PortId) -> Result<ConnectionId, Refusal> {
        let front = &self.headers.fronts[n][..usize::from(self.headers.lengths[n])];
        let packet = Packet { key: &self.keys[n], zone, front, length: self.lengths[n] as usize };
        self.table.confirm(&packet, from.0, self.now)
    }

    /// Ends connections whose time is over, as far as the time since the last call asks for it, and writes the
    /// counters.
    pub(crate) fn tick(&mut self, now: u32, counters: &ConnectionCounters) {
        let ticks = now.wrapping_sub(self.last_tick).clamp(1, 16);
        self.last_tick = now;
        self.table.expire(now, ticks * SLOTS_PER_TICK.max(self.table.capacity() / 256));
        let ended = self.table.ended();
        counters.connections.set(self.table.len().into());
        counters.unanswered.set(self.table.incomplete().into());
        counters.begun.set(self.table.begun());
        counters.expired.set(ended.expired + ended.replaced);
        counters.evicted.set(ended.evicted);
        counters.flushed.set(ended.flushed);
        counters.invalid.set(self.invalid);
    }
}
