// SPDX-License-Identifier: Apache-2.0
//! The connections that one worker owns, and scratch space for the packets of a burst.

mod decisions;
mod families;
mod log;
mod nat;
mod syn_proxy;
mod translated;

use std::sync::Arc;

use dpdk::Mbuf;
use netvm_conntrack::{
    Config, ConnectionId, Connections, Ended, NoMemory, Origin, Packet, ProxyTable, Quotas, Refusal, Shared,
    Target, Timeouts, Tracked, Translation, Zone,
};
use netvm_model::ConnectionsConfig;
use netvm_policy::RuleId;
use netvm_wire::{ConnState, FlowKey};

use super::BURST;
use crate::counters::ConnectionCounters;
use crate::ids::{PortId, WorkerId};
use crate::memory::mark::{OfConnection, connection_of, set_connection, state_of};
use crate::nat::Nat;
use crate::policy::Tracking;
use crate::worker::packet::keys::HEADER_BYTES;
pub(crate) use decisions::Deciding;
use decisions::Decisions;
pub(crate) use families::Entrance;
pub(crate) use log::EventMemory;
use log::{BLOCK_EVENTS, EventLog};
pub use log::{LogEvent, NoPort};
use syn_proxy::{CookieCounts, SynProxy};
pub(crate) use translated::Passage;

/// Slots that the hand of the table passes in a tick: all of 65,536 in 26 seconds. Of a larger table, a 256th of it.
const SLOTS_PER_TICK: u32 = 256;
/// Of these, slots that it passes at once, in some tens of microseconds. It passes the others with packets, one each.
const SLOTS_AT_ONCE: u32 = 8192;

/// The room for blocks of ports of all workers: each has so many mappings on average.
const MAPPINGS_PER_BLOCK: u32 = 16;

/// The number of a rule in connections, where 0 stands for none.
#[must_use]
pub const fn rule_number(rule: RuleId) -> u32 {
    rule.0.saturating_add(1)
}

/// The rule of such a number.
#[must_use]
pub fn rule_of(number: u32) -> Option<RuleId> {
    number.checked_sub(1).map(RuleId)
}

/// Tables count in the ticks of the worker's clock.
const _: () = assert!(netvm_conntrack::TICKS_PER_SECOND == netvm_switch::TICKS_PER_SECOND);

/// The headers of a burst in private memory, by packet.
pub(crate) struct Headers {
    pub(crate) fronts: Box<[[u8; HEADER_BYTES]; BURST]>,
    /// Bytes of each that are the packet's.
    pub(crate) lengths: [u16; BURST],
}

/// Memory of a table beyond what all have.
pub(crate) enum TableMemory {
    /// Connections may be proxied.
    SynProxy(ProxyTable),
    /// What happens to connections is passed on, while somebody wants it.
    Events(EventMemory),
}

/// Where packets arrived.
#[derive(Clone, Copy)]
pub(crate) struct ReceivedBy {
    pub(crate) port: PortId,
    pub(crate) zone: Zone,
}

/// Numbers that only grow.
#[derive(Clone, Copy, Default)]
struct Counted {
    begun: u64,
    ended: Ended,
    invalid: u64,
    decided: u64,
    events_lost: u64,
    cookies: CookieCounts,
}

/// The connections of one worker.
pub(crate) struct WorkerConnections {
    pub(crate) table: Connections,
    pub(crate) headers: Headers,
    /// Complete keys, by packet of the burst.
    pub(super) keys: [FlowKey; BURST],
    /// Lengths of the packets.
    pub(super) lengths: [u32; BURST],
    pub(super) tracked: [Tracked; BURST],
    pub(crate) syn_proxy: SynProxy,
    /// Where packets of the burst lead that may begin a connection.
    targets: [Option<Target>; BURST],
    /// What the counters have of this table.
    counted: Counted,
    /// What connections have stored.
    decisions: Decisions,
    /// Packets that were invalid so far.
    invalid: u64,
    /// Packets that had stored decisions so far.
    decided: u64,
    /// The tick of the burst.
    now: u32,
    /// The tick at which the hand last moved.
    last_tick: u32,
    /// Slots that the hand has to pass.
    slots_to_pass: u32,
    /// Gets what happens to connections.
    log: EventLog,
}

impl WorkerConnections {
    /// What the tables of so many workers share.
    ///
    /// `mapping_key`: by which NAT chooses addresses and ports, for the same choice after a restart.
    pub(crate) fn shared(
        config: &ConnectionsConfig,
        mapping_key: Option<u64>,
        workers: usize,
    ) -> Result<Arc<Shared>, NoMemory> {
        let shared = Shared::new(&Config { mapping_key, mappings: 0, ..config_of(config) })?;
        shared.allow_workers(workers)?;
        Ok(shared)
    }

    /// Sets aside what NAT of so many workers needs, if it is not done yet.
    pub(crate) fn allow_nat(
        shared: &Shared,
        config: &ConnectionsConfig,
        workers: usize,
    ) -> Result<(), NoMemory> {
        let of_worker = config_of(config);
        let mappings = of_worker.mappings.saturating_mul(workers as u32);
        let blocks = mappings.div_ceil(MAPPINGS_PER_BLOCK);
        shared.allow_mappings(&Config { mappings, blocks, ..of_worker })
    }

    /// An empty table of a worker.
    pub(crate) fn of_worker(
        config: &ConnectionsConfig,
        shared: &Arc<Shared>,
        worker: WorkerId,
    ) -> Result<Self, NoMemory> {
        Ok(Self {
            table: Connections::of_worker(&config_of(config), shared, worker.0)?,
            headers: Headers { fronts: Box::new([[0; HEADER_BYTES]; BURST]), lengths: [0; BURST] },
            keys: [FlowKey::EMPTY; BURST],
            lengths: [0; BURST],
            tracked: [Tracked::default(); BURST],
            syn_proxy: SynProxy::new(),
            targets: [None; BURST],
            counted: Counted::default(),
            decisions: Decisions::new(),
            invalid: 0,
            decided: 0,
            now: 0,
            last_tick: 0,
            slots_to_pass: 0,
            log: EventLog::default(),
        })
    }

    /// The table of the only worker, with what NAT needs.
    pub(crate) fn new(config: &ConnectionsConfig, mapping_key: Option<u64>) -> Result<Self, NoMemory> {
        let shared = Self::shared(config, mapping_key, 1)?;
        Self::allow_nat(&shared, config, 1)?;
        Self::of_worker(config, &shared, WorkerId(0))
    }

    /// Uses further memory.
    pub(crate) fn extend(&mut self, memory: TableMemory) {
        match memory {
            TableMemory::SynProxy(table) => self.table.allow_syn_proxy(table),
            TableMemory::Events(memory) => self.log.open(memory, &mut self.table),
        }
    }

    /// Finds the connections of the packets whose headers were read, at this tick, and notes their states
    /// in the keys. A later fragment gets the ports of the first one, so rules treat it alike.
    pub(crate) fn track(&mut self, how: Tracking, now: u32, lengths: &[u32], keys: &mut [FlowKey]) {
        let Self { table, headers, tracked, .. } = self;
        let zone = Zone(how.zone);
        let packet = |n: usize| Packet {
            key: &keys[n],
            zone,
            front: &headers.fronts[n][..usize::from(headers.lengths[n])],
            length: lengths[n] as usize,
        };
        let count = keys.len().min(BURST);
        let packets: arrayvec::ArrayVec<Packet<'_>, BURST> = (0..count).map(packet).collect();
        table.track(&packets, now, &mut tracked[..count]);
        if how.is_from_kernel {
            track_forwarded(table, &packets, now, tracked);
        }
        drop(packets);
        self.pass_slots(now, count as u32);
        self.now = now;
        self.targets = [None; BURST];
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

    /// Begins the connection of packet `n` of the burst.
    pub(crate) fn begin(
        &mut self,
        n: usize,
        zone: Zone,
        origin: Origin,
        nat: Option<&Nat>,
    ) -> Result<(), Refusal> {
        let front = &self.headers.fronts[n][..usize::from(self.headers.lengths[n])];
        let packet = Packet { key: &self.keys[n], zone, front, length: self.lengths[n] as usize };
        let from = PortId(origin.port);
        if let Some(nat) = nat {
            self.table.reserve(nat.reserved());
        }
        let nat64 = nat.and_then(|nat| nat.nat64(from)).filter(|nat64| nat64.takes(packet.key));
        let begun = match (self.targets[n], nat64) {
            (None, Some(nat64)) => self.table.confirm_nat64(&packet, origin, self.now, &nat64.parts()),
            (None, None) => self.table.confirm(&packet, origin, self.now),
            (target, _) => {
                let translation = Translation { sources: &[], destination: target };
                self.table.confirm_translated(&packet, origin, self.now, translation)
            }
        };
        if begun == Err(Refusal::NoPort) {
            let FlowKey { protocol, source: inside, .. } = *packet.key;
            self.log.note(NoPort { at: self.now, zone: zone.0, protocol, inside });
        }
        self.tracked[n].connection = Some(begun?);
        self.proxy_if_proved(n);
        Ok(())
    }

    /// Notes the connection that packet `n` of the burst has begun.
    pub(crate) fn note_begun(&self, n: usize, mbuf: &mut Mbuf) {
        if let Some(id) = self.tracked[n].connection {
            set_connection(mbuf, OfConnection { connection: id.note(), is_reply: false });
        }
    }

    /// Forgets the connection of a packet that did not get out, if it has had no answer.
    pub(crate) fn forget_begun(&mut self, mbuf: &Mbuf) {
        let of = connection_of(mbuf).filter(|of| !of.is_reply && state_of(mbuf) == ConnState::New);
        let id = of.and_then(|of| self.table.noted(of.connection));
        let is_unanswered = |id: &ConnectionId| self.table.get(*id).is_some_and(|it| !it.is_answered());
        if let Some(id) = id.filter(is_unanswered) {
            self.table.take(id);
        }
    }

    /// Ends connections whose time is over, as far as the time since the last call asks for it, and writes the
    /// counters.
    pub(crate) fn tick(&mut self, now: u32, counters: &ConnectionCounters) {
        let ticks = now.wrapping_sub(self.last_tick).clamp(1, 16);
        self.last_tick = now;
        let capacity = self.table.capacity();
        let slots = self.slots_to_pass + ticks * SLOTS_PER_TICK.max(capacity / 256);
        self.slots_to_pass = slots.min(capacity);
        self.pass_slots(now, SLOTS_AT_ONCE);
        counters.connections.set(self.table.len().into());
        counters.unanswered.set(self.table.incomplete().into());
        // A worker may have had another table before.
        let now = Counted {
            begun: self.table.begun(),
            ended: self.table.ended(),
            invalid: self.invalid,
            decided: self.decided,
            cookies: self.syn_proxy.counts,
            events_lost: self.table.events_lost() + self.log.lost_blocks,
        };
        let before = std::mem::replace(&mut self.counted, now);
        counters.begun.add(now.begun - before.begun);
        let over = |it: &Counted| it.ended.expired + it.ended.replaced;
        counters.expired.add(over(&now) - over(&before));
        counters.evicted.add(now.ended.evicted - before.ended.evicted);
        counters.flushed.add(now.ended.flushed - before.ended.flushed);
        counters.refused.add(now.ended.refused - before.ended.refused);
        counters.invalid.add(now.invalid - before.invalid);
        counters.decided.add(now.decided - before.decided);
        counters.events_lost.add(now.events_lost - before.events_lost);
        counters.cookies_sent.add(now.cookies.sent - before.cookies.sent);
        counters.cookies_accepted.add(now.cookies.accepted - before.cookies.accepted);
        counters.cookies_wrong.add(now.cookies.wrong - before.cookies.wrong);
    }

    /// The hand of the table passes the slots that it has to pass, at most so many.
    fn pass_slots(&mut self, now: u32, most: u32) {
        let slots = self.slots_to_pass.min(most);
        self.table.expire(now, slots);
        self.slots_to_pass -= slots;
    }

    /// Passes on what has happened to connections.
    pub(crate) fn pass_events(&mut self, are_wanted: bool) {
        self.log.pass(&mut self.table, self.last_tick, are_wanted);
    }

    /// Ends all connections, of which nobody is told.
    pub(crate) fn forget_all(&mut self) {
        self.table.want_events(false);
        self.table.end_slots(0, self.table.capacity());
    }

    /// Writes the counters for the last time, before the table goes.
    pub(crate) fn finish(&mut self, now: u32, counters: &ConnectionCounters) {
        self.tick(now, counters);
        counters.connections.set(0);
        counters.unanswered.set(0);
    }
}

/// Finds the connections of packets that the kernel of a router has forwarded after their destination was translated.
fn track_forwarded(table: &mut Connections, packets: &[Packet<'_>], now: u32, tracked: &mut [Tracked]) {
    for (packet, tracked) in packets.iter().zip(tracked) {
        if tracked.connection.is_none()
            && let Some(found) = table.track_forwarded(packet, now)
        {
            *tracked = found;
        }
    }
}

/// The configuration of a table.
fn config_of(config: &ConnectionsConfig) -> Config {
    let ConnectionsConfig { limit, pick_up, per_source, per_port, per_zone, timeouts, .. } = *config;
    let ConnectionsConfig { half_open_per_source, half_open_per_port, .. } = *config;
    let mappings = config.mappings.unwrap_or(limit);
    Config {
        sessions: limit,
        mappings,
        pick_up,
        events: 0,
        block_events: BLOCK_EVENTS,
        quotas: Quotas { per_source, per_port, per_zone, half_open_per_source, half_open_per_port },
        timeouts: Timeouts {
            tcp_syn_sent: timeouts.tcp_syn_sent,
            tcp_syn_recv: timeouts.tcp_syn_recv,
            tcp_established: timeouts.tcp_established,
            tcp_fin_wait: timeouts.tcp_fin_wait,
            tcp_close_wait: timeouts.tcp_close_wait,
            tcp_last_ack: timeouts.tcp_last_ack,
            tcp_time_wait: timeouts.tcp_time_wait,
            tcp_close: timeouts.tcp_close,
            udp: timeouts.udp,
            udp_stream: timeouts.udp_stream,
            icmp: timeouts.icmp,
            sctp_closed: timeouts.sctp_closed,
            sctp_cookie_wait: timeouts.sctp_cookie_wait,
            sctp_cookie_echoed: timeouts.sctp_cookie_echoed,
            sctp_established: timeouts.sctp_established,
            sctp_shutdown_sent: timeouts.sctp_shutdown_sent,
            sctp_shutdown_recd: timeouts.sctp_shutdown_recd,
            sctp_shutdown_ack_sent: timeouts.sctp_shutdown_ack_sent,
            sctp_heartbeat_sent: timeouts.sctp_heartbeat_sent,
            generic: timeouts.generic,
        },
        ..Config::default()
    }
}
