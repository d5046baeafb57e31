//! Pages of connections, to show or to end them: a worker reads its table in parts and handles packets in between. The
//! manager owns the memory.

use std::time::Duration;

use netvm_conntrack::Connection;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{Address, IpNet, IpProto};

use crate::ids::{PortId, WorkerId};
use crate::worker::state::connections::WorkerConnections;

/// Slots of the table that one page covers, in some tens of microseconds.
const SLOTS: u32 = 2048;

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// The worker that has it.
    pub worker: WorkerId,
    /// The port that received its first packet.
    pub port: PortId,
    /// Its zone.
    pub zone: u16,
    /// Its protocol.
    pub protocol: IpProto,
    /// Address and port of the end that began it.
    pub source: (Address, u16),
    /// Those of the other end.
    pub destination: (Address, u16),
    /// The state of its protocol.
    pub state: &'static str,
    /// Packets in the direction of the first, and in the other.
    pub packets: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// Time since its first packet.
    pub age: Duration,
    /// Time until it ends if no packet comes.
    pub left: Duration,
}

/// Which connections: those to which everything that is given applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFilter {
    /// The network of one of their ends.
    pub address: Option<IpNet>,
    /// A port of one of their ends.
    pub l4_port: Option<u16>,
    /// Their protocol.
    pub protocol: Option<IpProto>,
    /// The port that received their first packets.
    pub port: Option<PortId>,
    /// Their zone.
    pub zone: Option<u16>,
}

impl ConnectionFilter {
    fn accepts(&self, view: &ConnectionView) -> bool {
        let ends = [view.source, view.destination];
        self.address.is_none_or(|net| ends.iter().any(|(address, _)| net.contains(*address)))
            && self.l4_port.is_none_or(|wanted| ends.iter().any(|(_, port)| *port == wanted))
            && self.protocol.is_none_or(|protocol| protocol == view.protocol)
            && self.port.is_none_or(|port| port == view.port)
            && self.zone.is_none_or(|zone| zone == view.zone)
    }
}

/// A part of one worker's connections.
#[derive(Debug)]
pub(crate) struct ConnectionPage {
    pub(crate) worker: WorkerId,
    /// The request that they answer.
    pub(crate) ticket: u64,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<u32>,
    filter: ConnectionFilter,
    /// End the connections instead of showing them.
    flushes: bool,
    /// Filled up to its capacity: a worker does not allocate.
    pub(crate) rows: Vec<ConnectionView>,
    /// Connections that were ended.
    pub(crate) flushed: u64,
}

impl ConnectionPage {
    /// To show the connections that a filter accepts, from the first slot on.
    pub(crate) fn to_read(worker: WorkerId, ticket: u64, filter: ConnectionFilter) -> Box<Self> {
        let rows = Vec::with_capacity(SLOTS as usize);
        Box::new(Self { worker, ticket, cursor: Some(0), filter, flushes: false, rows, flushed: 0 })
    }

    /// To end them.
    pub(crate) fn to_flush(worker: WorkerId, ticket: u64, filter: ConnectionFilter) -> Box<Self> {
        let mut page = Self::to_read(worker, ticket, filter);
        page.flushes = true;
        page
    }

    /// Shows or ends the connections of the next slots.
    pub(crate) fn fill(&mut self, connections: Option<&mut WorkerConnections>, now: u32) {
        let Some(first) = self.cursor else { return };
        let Some(connections) = connections else {
            self.cursor = None;
            return;
        };
        let table = &mut connections.table;
        let mut slot = first;
        while slot < first.saturating_add(SLOTS) && slot < table.capacity() {
            let found =
                table.page(slot, 1, now).next().map(|(id, connection)| (id, self.view(connection, now)));
            let wanted = found.filter(|(_, view)| self.filter.accepts(view));
            if let Some((id, view)) = wanted {
                match self.flushes {
                    true => self.flushed += u64::from(table.end(id)),
                    false if self.rows.len() < self.rows.capacity() => self.rows.push(view),
                    false => {}
                }
            }
            slot += 1;
        }
        self.cursor = (slot < table.capacity()).then_some(slot);
    }

    fn view(&self, connection: &Connection, now: u32) -> ConnectionView {
        let seconds =
            |ticks: u32| Duration::from_millis(u64::from(ticks) * 1000 / u64::from(TICKS_PER_SECOND));
        let it = connection.original();
        ConnectionView {
            worker: self.worker,
            port: PortId(connection.from),
            zone: it.zone.0,
            protocol: it.protocol,
            source: (it.source, it.source_port),
            destination: (it.destination, it.destination_port),
            state: connection.state().name(),
            packets: connection.packets,
            bytes: connection.bytes,
            age: seconds(connection.age(now)),
            left: seconds(connection.left(now)),
        }
    }
}
