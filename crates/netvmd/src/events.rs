//! The events of netvmd: a bounded history, and followers. A slow follower loses events without affecting others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use netvm_api::{Event, EventKind, EventSeverity};
use tokio::sync::broadcast;

/// Events that are kept.
const KEPT: usize = 1000;
/// Events that are queued for a follower.
const BEHIND: usize = 256;

/// Counts of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventCounts {
    pub(crate) by_severity: [(EventSeverity, u64); 3],
    /// Events that followers did not read in time.
    pub(crate) lost: u64,
}

#[derive(Debug)]
struct Log {
    last: u64,
    history: VecDeque<Event>,
    by_severity: [u64; 3],
}

#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    followers: broadcast::Sender<Event>,
    lost: AtomicU64,
}

/// The events; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Events(Arc<Shared>);

impl Default for Events {
    fn default() -> Self {
        let log = Log { last: 0, history: VecDeque::with_capacity(KEPT), by_severity: [0; 3] };
        let followers = broadcast::Sender::new(BEHIND);
        Self(Arc::new(Shared { log: Mutex::new(log), followers, lost: AtomicU64::new(0) }))
    }
}

impl Events {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event about `subject`, and writes it to the log.
    pub(crate) fn push(&self, kind: EventKind, subject: &str, message: String) {
        let severity = kind.severity();
        match severity {
            EventSeverity::Info => tracing::info!("{message}"),
            EventSeverity::Warning => tracing::warn!("{message}"),
            EventSeverity::Error => tracing::error!("{message}"),
        }
        let mut log = self.log();
        log.last += 1;
        log.by_severity[severity as usize] += 1;
        let event =
            Event { number: log.last, at: now(), severity, kind, subject: subject.to_owned(), message };
        if log.history.len() == KEPT {
            log.history.pop_front();
        }
        log.history.push_back(event.clone());
        // Sent under the lock, so that followers see events in order. Sending fails if there are no followers.
        let _ = self.0.followers.send(event);
    }

    /// The events after a number that the history still has.
    pub(crate) fn after(&self, number: u64) -> Vec<Event> {
        self.log().history.iter().filter(|event| event.number > number).cloned().collect()
    }

    /// The events after a number, and a receiver of new events.
    pub(crate) fn follow(&self, number: u64) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let log = self.log();
        let events = log.history.iter().filter(|event| event.number > number).cloned().collect();
        (events, self.0.followers.subscribe())
    }

    /// The event that tells a follower that it lost `count` events.
    pub(crate) fn lost(&self, count: u64) -> Event {
        self.0.lost.fetch_add(count, Ordering::Relaxed);
        let kind = EventKind::Lost;
        let message = format!("{count} events are missing here: this client reads too slowly");
        Event { number: 0, at: now(), severity: kind.severity(), kind, subject: String::new(), message }
    }

    pub(crate) fn counts(&self) -> EventCounts {
        let counts = self.log().by_severity;
        let of = |severity: EventSeverity| (severity, counts[severity as usize]);
        EventCounts {
            by_severity: [EventSeverity::Info, EventSeverity::Warning, EventSeverity::Error].map(of),
            lost: self.0.lost.load(Ordering::Relaxed),
        }
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_bounded_and_a_slow_follower_loses_only_its_own() {
        let events = Events::default();
        let (_, mut slow) = events.follow(0);
        let (_, mut quick) = events.follow(0);
        for n in 0..KEPT as u64 + 50 {
            events.push(EventKind::NfUp, "x", format!("event {n}"));
            assert_eq!(quick.try_recv().unwrap().number, n + 1);
        }
        let kept = events.after(0);
        assert_eq!((kept.len(), kept[0].number), (KEPT, 51));
        assert_eq!(events.after(KEPT as u64 + 49).len(), 1);
        let broadcast::error::TryRecvError::Lagged(lost) = slow.try_recv().unwrap_err() else { panic!() };
        assert_eq!(lost, (KEPT + 50 - BEHIND) as u64);
        assert_eq!(events.lost(lost).kind, EventKind::Lost);
        assert_eq!(events.counts().lost, lost);
        assert_eq!(events.counts().by_severity[0], (EventSeverity::Info, KEPT as u64 + 50));
    }
}
