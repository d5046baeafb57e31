// SPDX-License-Identifier: Apache-2.0
//! What happens to connections and to ports of NAT, for logs. In: events of the worker's table, and refusals for want
//! of a port. Out: a ring, which a thread of netvmd reads.

use netvm_conntrack::{BlockEvent, Connections, Event, EventQueue, NoMemory, Tuple};
use netvm_wire::{Address, IpProto};
use rtrb::{Consumer, Producer, RingBuffer};

/// Events that wait in a table for the next tick, and in the ring of a table for their reader.
const EVENTS: usize = 16_384;
/// The same of blocks of ports.
pub(super) const BLOCK_EVENTS: u32 = 4096;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// A connection began, was translated, or ended.
    Connection(Event),
    /// An address inside got a block of ports, or has it no longer.
    Block {
        /// The tick at which the worker passed it on.
        at: u32,
        /// The block.
        block: BlockEvent,
    },
    /// NAT had no port for a new connection.
    NoPort(NoPort),
}

/// NAT had no port for a new connection. A worker notes one in a tick at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPort {
    /// The tick.
    pub at: u32,
    /// The zone.
    pub zone: u16,
    /// The protocol.
    pub protocol: IpProto,
    /// The source for which no port was free.
    pub inside: Address,
}

impl NoPort {
    pub(super) const fn of(original: &Tuple, at: u32) -> Self {
        Self { at, zone: original.zone.0, protocol: original.protocol, inside: original.source }
    }
}

/// Memory for what happens to the connections of a worker: some megabytes, which only those have whom somebody reads.
pub(crate) struct EventMemory {
    /// Until the next tick.
    queue: EventQueue,
    ring: Producer<LogEvent>,
}

impl EventMemory {
    /// Empty, with the ring's end for the reader.
    pub(crate) fn new() -> Result<(Self, Consumer<LogEvent>), NoMemory> {
        let (ring, consumer) = RingBuffer::new(EVENTS);
        Ok((Self { queue: EventQueue::new(EVENTS as u32)?, ring }, consumer))
    }
}

/// The ring, while there is a reader.
#[derive(Default)]
pub(super) struct EventLog {
    ring: Option<Producer<LogEvent>>,
    /// The first one since the last tick.
    no_port: Option<NoPort>,
    /// Events of blocks that were lost.
    pub(super) lost_blocks: u64,
}

impl EventLog {
    /// Events go into this memory from now on, while somebody wants them.
    pub(super) fn open(&mut self, memory: EventMemory, table: &mut Connections) {
        table.queue_events(memory.queue);
        self.ring = Some(memory.ring);
    }

    /// Notes that a connection got no port.
    pub(super) fn note(&mut self, no_port: NoPort) {
        self.no_port.get_or_insert(no_port);
    }

    /// Passes on what has happened until this tick. Events stay in the table while the ring is full.
    pub(super) fn pass(&mut self, table: &mut Connections, at: u32, are_wanted: bool) {
        table.want_events(are_wanted);
        self.lost_blocks += table.take_lost_block_events();
        let no_port = self.no_port.take().filter(|_| are_wanted);
        let Some(ring) = &mut self.ring else { return };
        while !ring.is_full()
            && let Some(event) = next(table, at)
        {
            // There is room.
            let _ = ring.push(event);
        }
        if let Some(no_port) = no_port {
            // One of so many that a full ring may do without it.
            let _ = ring.push(LogEvent::NoPort(no_port));
        }
    }
}

/// The next event of a table. A block is assigned before the connection that has the first of its ports.
fn next(table: &mut Connections, at: u32) -> Option<LogEvent> {
    let block = table.take_block_event().map(|block| LogEvent::Block { at, block });
    block.or_else(|| table.take_event().map(LogEvent::Connection))
}
