// SPDX-License-Identifier: Apache-2.0
//! Pages of connections, to show, end, save or restore them: a worker handles its table in parts, and packets in
//! between. The manager owns the memory.

use std::ops::Add;
use std::time::Duration;

use netvm_conntrack::{Connection, ConnectionId, Refusal, SavedConnection, TcpEnd, Tuple};
use netvm_policy::RuleId;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{IpNet, IpProto};

use crate::ids::{PortId, WorkerId};
use crate::worker::state::connections::{WorkerConnections, rule_of};

/// Slots of the table that one page covers, in some tens of microseconds.
const SLOTS: u32 = 2048;
/// Connections that are restored at a time, in some hundreds of microseconds.
const RESTORED: usize = 512;

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// The worker that has it.
    pub worker: WorkerId,
    /// Its number there.
    pub id: ConnectionId,
    /// The port that received its first packet.
    pub port: PortId,
    /// The rule that accepted it.
    pub rule: Option<RuleId>,
    /// The direction of its first packet: protocol, zone, addresses and ports.
    pub original: Tuple,
    /// The direction of answers; another one than `original` reversed if it is translated.
    pub reply: Tuple,
    /// The state of its protocol.
    pub state: &'static str,
    /// It has had an answer.
    pub is_answered: bool,
    /// It stays when the table is full.
    pub is_assured: bool,
    /// The ends of TCP: the one that began it, and the other.
    pub tcp: Option<[TcpEnd; 2]>,
    /// Packets in the direction of the first, and in the other.
    pub packets: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// Time since its first packet.
    pub age: Duration,
    /// Time until it ends if no packet comes.
    pub left: Duration,
}

impl ConnectionView {
    fn of(connection: &Connection, worker: WorkerId, id: ConnectionId, now: u32) -> Self {
        let seconds =
            |ticks: u32| Duration::from_millis(u64::from(ticks) * 1000 / u64::from(TICKS_PER_SECOND));
        Self {
            worker,
            id,
            port: PortId(connection.from),
            rule: rule_of(connection.rule),
            original: *connection.original(),
            reply: *connection.reply(),
            state: connection.state().name(),
            is_answered: connection.is_answered(),
            is_assured: connection.is_assured(),
            tcp: connection.tcp_ends(),
            packets: connection.packets(),
            bytes: connection.bytes,
            age: seconds(connection.age(now)),
            left: seconds(connection.left(now)),
        }
    }
}

/// Which connections: those to which everything that is given applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFilter {
    /// The worker that has it, and its number there.
    pub id: Option<(WorkerId, ConnectionId)>,
    /// The network of one of their ends, also of those that stand for others.
    pub address: Option<IpNet>,
    /// A port of one of their ends, also of those that stand for others.
    pub l4_port: Option<u16>,
    /// Their protocol.
    pub protocol: Option<IpProto>,
    /// The name of their state.
    pub state: Option<&'static str>,
    /// The port that received their first packets.
    pub port: Option<PortId>,
    /// Their zone.
    pub zone: Option<u16>,
}

impl ConnectionFilter {
    /// Whether a saved connection is one of them. It has no number.
    #[must_use]
    pub fn accepts_saved(&self, saved: &SavedConnection) -> bool {
        self.id.is_none() && self.accepts_any(saved.connection())
    }

    fn accepts(&self, worker: WorkerId, id: ConnectionId, connection: &Connection) -> bool {
        self.id.is_none_or(|wanted| wanted == (worker, id)) && self.accepts_any(connection)
    }

    /// Whether all fits but its number.
    fn accepts_any(&self, connection: &Connection) -> bool {
        let tuples = [connection.original(), connection.reply()];
        let is_in = |net: IpNet| {
            tuples.iter().any(|tuple| [tuple.source, tuple.destination].iter().any(|it| net.contains(*it)))
        };
        let has = |port: u16| {
            tuples.iter().any(|tuple| [tuple.source_port, tuple.destination_port].contains(&port))
        };
        let Tuple { protocol, zone, .. } = *connection.original();
        self.address.is_none_or(is_in)
            && self.l4_port.is_none_or(has)
            && self.protocol.is_none_or(|wanted| wanted == protocol)
            && self.state.is_none_or(|wanted| wanted == connection.state().name())
            && self.port.is_none_or(|port| port.0 == connection.from)
            && self.zone.is_none_or(|wanted| wanted == zone.0)
    }
}

/// What became of connections that were to be restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Connections that go on.
    pub restored: u64,
    /// Those without room in the table.
    pub no_room: u64,
    /// Those beyond a quota.
    pub over_quota: u64,
    /// Those of which an end, or what stands for it, has another connection.
    pub taken: u64,
}

impl Restored {
    fn note(&mut self, outcome: Result<ConnectionId, Refusal>) {
        *match outcome {
            Ok(_) => &mut self.restored,
            Err(Refusal::Full) => &mut self.no_room,
            Err(Refusal::SourceQuota | Refusal::PortQuota | Refusal::ZoneQuota) => &mut self.over_quota,
            Err(_) => &mut self.taken,
        } += 1;
    }
}

impl Add for Restored {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            restored: self.restored + other.restored,
            no_room: self.no_room + other.no_room,
            over_quota: self.over_quota + other.over_quota,
            taken: self.taken + other.taken,
        }
    }
}

/// What a page does. A worker does not allocate: it fills lists up to their capacity.
#[derive(Debug)]
pub(crate) enum PageWork {
    /// Shows the connections that a filter accepts.
    Show(ConnectionFilter, Vec<ConnectionView>),
    /// Ends them and counts them.
    End(ConnectionFilter, u64),
    /// Saves all connections.
    Save(Vec<SavedConnection>),
    /// Restores these connections; the cursor is a place in the list.
    Restore(Vec<SavedConnection>, Restored),
}

/// A part of one worker's connections.
#[derive(Debug)]
pub(crate) struct ConnectionPage {
    pub(crate) worker: WorkerId,
    /// The request that they answer.
    pub(crate) ticket: u64,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<u32>,
    pub(crate) work: PageWork,
}

impl ConnectionPage {
    /// For this work, from the first slot on.
    pub(crate) fn new(worker: WorkerId, ticket: u64, work: PageWork) -> Box<Self> {
        Box::new(Self { worker, ticket, cursor: Some(0), work })
    }

    /// To show the connections that a filter accepts.
    pub(crate) fn to_read(worker: WorkerId, ticket: u64, filter: ConnectionFilter) -> Box<Self> {
        Self::new(worker, ticket, PageWork::Show(filter, Vec::with_capacity(SLOTS as usize)))
    }

    /// To save connections from a slot on.
    pub(crate) fn to_save(worker: WorkerId, ticket: u64, first: u32) -> Box<Self> {
        let mut page = Self::new(worker, ticket, PageWork::Save(Vec::with_capacity(SLOTS as usize)));
        page.cursor = Some(first);
        page
    }

    /// Handles the next slots, or the next connections to restore.
    pub(crate) fn fill(&mut self, connections: &mut Option<Box<WorkerConnections>>, now: u32) {
        let Some(first) = self.cursor else { return };
        let Some(WorkerConnections { table, .. }) = connections.as_deref_mut() else {
            self.cursor = None;
            return;
        };
        let (worker, after) = (self.worker, first.saturating_add(SLOTS).min(table.capacity()));
        match &mut self.work {
            PageWork::Show(filter, rows) => {
                let found = table.page(first, SLOTS, now);
                let found = found.filter(|(id, connection)| filter.accepts(worker, *id, connection));
                let room = rows.capacity() - rows.len();
                rows.extend(found.map(|(id, it)| ConnectionView::of(it, worker, id, now)).take(room));
            }
            PageWork::End(filter, count) => {
                for slot in first..after {
                    let found = table.page(slot, 1, now).next();
                    let id = found.filter(|(id, it)| filter.accepts(worker, *id, it)).map(|(id, _)| id);
                    *count += u64::from(id.is_some_and(|id| table.end(id)));
                }
            }
            PageWork::Save(saved) => {
                let room = saved.capacity() - saved.len();
                saved.extend(table.save(first, SLOTS, now).take(room));
            }
            PageWork::Restore(saved, outcome) => {
                let rest = saved.iter().skip(first as usize).take(RESTORED);
                rest.for_each(|one| outcome.note(table.restore(one, now)));
                let end = first.saturating_add(RESTORED as u32);
                self.cursor = ((end as usize) < saved.len()).then_some(end);
                return;
            }
        }
        self.cursor = (after < table.capacity()).then_some(after);
    }
}
