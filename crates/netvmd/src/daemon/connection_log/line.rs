// SPDX-License-Identifier: Apache-2.0
//! The lines. In: an event, the configuration for names, and the clock of the workers. Out: what the API shows.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use netvm_api::{ClosedConnection, ConnectionEvent, LoggedConnection, PortBlock};
use netvm_clock as clock;
use netvm_conntrack::{BlockEvent, Event, Happened, TICKS_PER_SECOND};
use netvm_engine::{LogEvent, NoPort};
use netvm_model::{Host, PortId};
use netvm_policy::Names;

use crate::names::{Ends, rule_name};

/// A moment, by the clock of the workers and by the calendar.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickTime {
    pub(super) tick: u32,
    pub(super) cycles: u64,
    pub(super) time: SystemTime,
}

impl TickTime {
    pub(super) fn now() -> Self {
        Self { tick: netvm_engine::current_tick(), cycles: clock::cycles(), time: SystemTime::now() }
    }

    /// An earlier tick in cycles.
    pub(super) fn cycles_of(self, tick: u32) -> u64 {
        let ago = u64::from(self.tick.wrapping_sub(tick));
        self.cycles.saturating_sub(ago * (clock::cycles_per_second() / u64::from(TICKS_PER_SECOND)))
    }

    /// An earlier tick, as in RFC 3339.
    fn of(self, tick: u32) -> String {
        let ago = u64::from(self.tick.wrapping_sub(tick)) * 1000 / u64::from(TICKS_PER_SECOND);
        let time = self.time.checked_sub(Duration::from_millis(ago)).unwrap_or(SystemTime::UNIX_EPOCH);
        let time = Timestamp::try_from(time).unwrap_or(Timestamp::MAX);
        time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
    }
}

/// Whether an event is about a connection that is translated.
pub(super) fn is_translated(event: &Event) -> bool {
    event.reply != event.original.reversed()
}

/// What the API shows of an event.
pub(super) fn described(event: &LogEvent, host: &Host, now: TickTime) -> ConnectionEvent {
    match event {
        LogEvent::Connection(event) => of_connection(event, host, now),
        LogEvent::Block { at, block } => {
            let BlockEvent { is_assigned, inside, zone, outside, ports } = *block;
            let block = PortBlock {
                time: now.of(*at),
                zone: zone.0,
                inside: inside.to_string(),
                outside: outside.to_string(),
                first_port: ports.first(),
                last_port: ports.last(),
            };
            if is_assigned {
                ConnectionEvent::BlockAssigned(block)
            } else {
                ConnectionEvent::BlockReleased(block)
            }
        }
        LogEvent::NoPort(NoPort { at, zone, protocol, inside }) => ConnectionEvent::PortsExhausted {
            time: now.of(*at),
            protocol: protocol.to_string(),
            zone: *zone,
            inside: inside.to_string(),
        },
    }
}

fn of_connection(event: &Event, host: &Host, now: TickTime) -> ConnectionEvent {
    let Event { original, reply, .. } = event;
    let Ends { source, destination, translated_source, translated_destination } = Ends::of(original, reply);
    let connection = LoggedConnection {
        time: now.of(event.at),
        protocol: original.protocol.to_string(),
        zone: original.zone.0,
        port: Names::port(host, PortId(event.from)).into_owned(),
        rule: netvm_engine::rule_of(event.rule).map(|id| rule_name(host, id)),
        source,
        destination,
        translated_source,
        translated_destination,
    };
    let cause = match event.happened {
        Happened::Opened => return ConnectionEvent::Opened(connection),
        Happened::SourceTranslated => return ConnectionEvent::Translated(connection),
        Happened::Closed(cause) => cause,
    };
    let ([packets, reply_packets], [bytes, reply_bytes]) = (event.packets, event.bytes);
    let (begun, why) = (now.of(event.begun), cause.name().to_owned());
    let closed = ClosedConnection { connection, begun, why, packets, bytes, reply_packets, reply_bytes };
    ConnectionEvent::Closed(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_times_of_the_calendar_also_after_the_counter_has_wrapped() {
        let now = TickTime {
            tick: 5,
            cycles: 1 << 60,
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(951_782_400_500),
        };
        assert_eq!(now.of(5), "2000-02-29T00:00:00.500Z");
        assert_eq!(now.of(u32::MAX - 4), "2000-02-28T23:59:59.500Z");
    }
}
