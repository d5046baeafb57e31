// SPDX-License-Identifier: Apache-2.0
//! Events of refused connections. In: counters of the workers, once a second. Out: events, for each port and reason one
//! in [`INTERVAL`] at most, with what was counted since the last one, so that a flood cannot fill the history.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netvm_api::EventKind;
use netvm_engine::{DropReason, Engine};

use crate::engine_thread::EngineHandle;

/// How often the counters are read.
const PERIOD: Duration = Duration::from_secs(1);
/// Least time between two events about the same.
const INTERVAL: Duration = Duration::from_secs(30);
/// SYNs that a port has answered with cookies in a second are a flood from this number on, unless half of them are
/// acknowledged.
const FLOOD: u64 = 1000;

/// Why packets are dropped that would begin a connection.
const REASONS: [DropReason; 5] = [
    DropReason::ConnTableFull,
    DropReason::ConnQuota,
    DropReason::ConnHalfOpen,
    DropReason::NatNoPort,
    DropReason::NatUnsupported,
];

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    name: String,
    zone: u16,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// Packets of a port are dropped for this reason.
    Refused(Port, &'static str),
    /// A port gets many more SYNs than connections.
    SynFlood(Port),
    /// Connections without an answer give way to new ones.
    Evicted,
}

impl About {
    fn kind(&self) -> EventKind {
        match self {
            Self::Refused(..) => EventKind::ConnectionsRefused,
            Self::SynFlood(_) => EventKind::SynFlood,
            Self::Evicted => EventKind::ConnectionsEvicted,
        }
    }

    fn subject(&self) -> &str {
        match self {
            Self::Refused(port, _) | Self::SynFlood(port) => &port.name,
            Self::Evicted => "",
        }
    }

    fn message(&self, count: u64) -> String {
        match self {
            Self::Refused(Port { name, zone }, reason) => format!(
                "port {name}, zone {zone}: {count} packets that would begin connections were dropped as {reason}; \
                 `netvm explain {reason}` says what to do"
            ),
            Self::SynFlood(Port { name, zone }) => format!(
                "port {name}, zone {zone}: {count} SYNs were answered with cookies, few of which were acknowledged: \
                 a SYN flood, which servers do not see; `netvm conn stats` counts cookies"
            ),
            Self::Evicted => format!(
                "the table of connections is full: {count} connections without an answer have given way to new ones; \
                 bound them by `half_open_per_source` of [engine.connections], or raise its `limit`"
            ),
        }
    }
}

/// Numbers that only grow.
#[derive(Debug, Default)]
struct Counts {
    drops: BTreeMap<(Port, &'static str), u64>,
    accepted_cookies: u64,
    evicted: u64,
}

impl Counts {
    /// What was counted so far; `None`: no connections are tracked.
    fn read(engine: &mut Engine) -> Option<Self> {
        let host = engine.shared_host();
        if !host.tracks() {
            return None;
        }
        let connections = engine.connection_counts();
        let mut counts = Self {
            accepted_cookies: connections.cookies_accepted,
            evicted: connections.evicted,
            ..Self::default()
        };
        for view in engine.ports() {
            let Some(port) = host.port(view.id) else { continue };
            for (reason, count) in &view.drops {
                if REASONS.contains(reason) || *reason == DropReason::SynAnswered {
                    let port = Port { name: port.name.clone(), zone: port.policy.zone };
                    counts.drops.insert((port, reason.name()), *count);
                }
            }
        }
        Some(counts)
    }
}

/// What was not told yet, and when the last event was.
#[derive(Debug, Default)]
struct Untold {
    count: u64,
    told: Option<Instant>,
}

#[derive(Debug, Default)]
struct Refusals {
    before: Counts,
    untold: BTreeMap<About, Untold>,
}

impl Refusals {
    /// The events that are due, with their counts.
    fn note(&mut self, counts: Counts, now: Instant) -> Vec<(About, u64)> {
        // Counters begin anew with a port that is configured anew.
        let since = |now: u64, before: Option<&u64>| now.checked_sub(*before.unwrap_or(&0)).unwrap_or(now);
        let before = std::mem::take(&mut self.before);
        let accepted = counts.accepted_cookies.saturating_sub(before.accepted_cookies);
        for (of, count) in &counts.drops {
            let more = since(*count, before.drops.get(of));
            let (port, reason) = of.clone();
            let about = match reason == DropReason::SynAnswered.name() {
                false => About::Refused(port, reason),
                true if more >= FLOOD && accepted < more / 2 => About::SynFlood(port),
                true => continue,
            };
            self.add(about, more);
        }
        self.add(About::Evicted, since(counts.evicted, Some(&before.evicted)));
        self.before = counts;
        self.due(now)
    }

    fn add(&mut self, about: About, count: u64) {
        if count > 0 {
            self.untold.entry(about).or_default().count += count;
        }
    }

    fn due(&mut self, now: Instant) -> Vec<(About, u64)> {
        let mut due = Vec::new();
        self.untold.retain(|about, untold| {
            let is_early =
                |told: Option<Instant>| told.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL);
            if untold.count > 0 && !is_early(untold.told) {
                due.push((about.clone(), std::mem::take(&mut untold.count)));
                untold.told = Some(now);
            }
            untold.count > 0 || is_early(untold.told)
        });
        due
    }
}

/// Watches the counters until the engine ends.
pub(super) async fn watch(engine: EngineHandle) {
    let mut refusals = Refusals::default();
    loop {
        tokio::time::sleep(PERIOD).await;
        let Ok(counts) = engine.call(Counts::read).await else { return };
        for (about, count) in refusals.note(counts.unwrap_or_default(), Instant::now()) {
            engine.events().push(about.kind(), about.subject(), about.message(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str) -> Port {
        Port { name: name.to_owned(), zone: 3 }
    }

    fn counts(quota: u64, syns: u64, accepted_cookies: u64) -> Counts {
        let drops = [((port("a"), "conn-quota"), quota), ((port("a"), "syn-answered"), syns)];
        Counts { drops: drops.into(), accepted_cookies, evicted: 0 }
    }

    #[test]
    fn the_first_refusal_is_told_at_once_and_more_of_them_once_in_an_interval() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let mut note =
            |seconds, quota| refusals.note(counts(quota, 0, 0), start + Duration::from_secs(seconds));
        let told = |count| vec![(About::Refused(port("a"), "conn-quota"), count)];
        assert_eq!(note(1, 0), []);
        assert_eq!(note(2, 5), told(5));
        assert_eq!((note(3, 7), note(31, 8)), (vec![], vec![]));
        assert_eq!(note(32, 10), told(5));
        assert_eq!(note(33, 10), []);
        // After a quiet time at once. The port was configured anew before.
        assert_eq!(note(100, 2), told(2));
        assert!(refusals.untold.len() == 1 && note_quiet(&mut refusals, start).is_empty());
        assert!(refusals.untold.is_empty());
    }

    fn note_quiet(refusals: &mut Refusals, start: Instant) -> Vec<(About, u64)> {
        refusals.note(Counts::default(), start + Duration::from_secs(1000))
    }

    #[test]
    fn many_syns_are_a_flood_unless_clients_acknowledge_them() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.note(counts(0, 999, 0), now), []);
        assert_eq!(refusals.note(counts(0, 2999, 1900), now), []);
        let flood = About::SynFlood(port("a"));
        assert_eq!(refusals.note(counts(0, 5999, 1901), now), [(flood.clone(), 3000)]);
        assert!(flood.message(3000).starts_with("port a, zone 3: 3000 SYNs"));
    }
}
