// SPDX-License-Identifier: Apache-2.0
//! The events of netvmd: a bounded history, and followers. A slow follower loses events without affecting others.
//!
//! A guest or an NF can cause events as often as it likes. So those about one subject are limited, with a count of what
//! was suppressed; the last one is never lost, only late. And they push only each other out of the history.

mod limit;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use netvm_api::{Event, EventKind, EventSeverity};
use tokio::sync::broadcast;

pub(crate) use limit::{Bucket, LogLimit, Rate, more};

/// Events that are kept.
const MAX_EVENTS: usize = 1000;
/// Events that are queued for a follower.
const MAX_QUEUED: usize = 256;
/// Events about a port, which its guest can cause, and about an NF.
const PORT_RATE: Rate = Rate { burst: 20, interval: Duration::from_secs(5) };
const NF_RATE: Rate = Rate { burst: 100, interval: Duration::from_secs(1) };
/// Subjects that are limited each by itself; others together.
const MAX_LIMITERS: usize = 4096;
/// How often suppressed events are looked for.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Counts of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventCounts {
    pub(crate) by_severity: [(EventSeverity, u64); 3],
    /// Events that followers did not read in time.
    pub(crate) lost: u64,
}

/// Kinds that are limited together, so that the last event always tells the state; others each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Link,
    Nf,
    Target,
    Kind(&'static str),
}

impl Class {
    /// `None`: only an operator causes such events, or they are few.
    const fn of(kind: EventKind) -> Option<Self> {
        Some(match kind {
            EventKind::Started
            | EventKind::Applied
            | EventKind::NotApplied
            | EventKind::WentBack
            | EventKind::WakesMayWait
            | EventKind::OutOfFiles
            | EventKind::Lost
            | EventKind::Other => return None,
            EventKind::LinkUp | EventKind::LinkDown | EventKind::PortReopened => Self::Link,
            EventKind::NfUp
            | EventKind::NfDown
            | EventKind::NfHung
            | EventKind::NfStarved
            | EventKind::NfRecovered
            | EventKind::NfEvicted
            | EventKind::StandbyTookOver
            | EventKind::Reclaimed
            | EventKind::Audited
            | EventKind::GroupReset => Self::Nf,
            EventKind::TargetDown | EventKind::TargetUp => Self::Target,
            other => Self::Kind(other.word()),
        })
    }

    const fn rate(self) -> Rate {
        match self {
            Self::Link | Self::Target | Self::Kind(_) => PORT_RATE,
            Self::Nf => NF_RATE,
        }
    }
}

/// Events of one class about one subject.
#[derive(Debug)]
struct EventLimiter {
    bucket: Bucket,
    /// The last one that was suppressed.
    pending: Option<(EventKind, String)>,
}

#[derive(Debug)]
struct Log {
    last: u64,
    history: VecDeque<Event>,
    by_severity: [u64; 3],
    limiters: BTreeMap<(String, Class), EventLimiter>,
}

impl Log {
    /// Whether an event may be written now: how many of its class were suppressed before it. Otherwise it is kept for
    /// later.
    fn admit(&mut self, now: Instant, kind: EventKind, subject: &str, message: &str) -> Option<u64> {
        let Some(class) = Class::of(kind) else { return Some(0) };
        let key = (subject.to_owned(), class);
        let is_full = self.limiters.len() >= MAX_LIMITERS && !self.limiters.contains_key(&key);
        let key = if is_full { (String::new(), class) } else { key };
        let new = || EventLimiter { bucket: Bucket::new(class.rate(), now), pending: None };
        let limiter = self.limiters.entry(key).or_insert_with(new);
        let allowed = limiter.bucket.allows(now);
        limiter.pending = allowed.is_none().then(|| (kind, message.to_owned()));
        allowed
    }

    /// Suppressed events that may be written now.
    fn due(&mut self, now: Instant) -> Vec<(EventKind, String, String)> {
        let mut due = Vec::new();
        self.limiters.retain(|(subject, _), limiter| {
            if limiter.pending.is_some()
                && let Some(suppressed) = limiter.bucket.takes(now)
                && let Some((kind, message)) = limiter.pending.take()
            {
                due.push((kind, subject.clone(), message + &more(suppressed.saturating_sub(1))));
            }
            limiter.pending.is_some() || !limiter.bucket.is_full(now)
        });
        due
    }

    /// Removes the oldest event of the subject that has the most, so that no subject pushes out another's.
    fn make_room(&mut self) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for event in &self.history {
            *counts.entry(&event.subject).or_default() += 1;
        }
        let most = counts.values().max().copied();
        let place = self.history.iter().position(|event| counts.get(event.subject.as_str()) == most.as_ref());
        place.and_then(|place| self.history.remove(place));
    }
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
        let history = VecDeque::with_capacity(MAX_EVENTS);
        let log = Log { last: 0, history, by_severity: [0; 3], limiters: BTreeMap::new() };
        let followers = broadcast::Sender::new(MAX_QUEUED);
        Self(Arc::new(Shared { log: Mutex::new(log), followers, lost: AtomicU64::new(0) }))
    }
}

impl Events {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event about `subject`, and writes it to the log, at once unless there were too many about it.
    pub(crate) fn push(&self, kind: EventKind, subject: &str, message: String) {
        // Both may have names and texts of NFs, guests and the kernel.
        let subject = &*netvm_text::line(subject);
        let is_fine = message.chars().all(netvm_text::is_visible);
        let message = if is_fine { message } else { netvm_text::line(&message).into_owned() };
        let admitted = self.log().admit(Instant::now(), kind, subject, &message);
        if let Some(suppressed) = admitted {
            self.write(kind, subject, message + &more(suppressed));
        }
    }

    /// Writes suppressed events when they may be written, until the future is dropped.
    pub(crate) async fn keep_flushing(self) {
        loop {
            tokio::time::sleep(FLUSH_INTERVAL).await;
            self.flush(Instant::now());
        }
    }

    fn flush(&self, now: Instant) {
        let due = self.log().due(now);
        for (kind, subject, message) in due {
            self.write(kind, &subject, message);
        }
    }

    fn write(&self, kind: EventKind, subject: &str, message: String) {
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
        if log.history.len() == MAX_EVENTS {
            log.make_room();
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
        for n in 0..MAX_EVENTS as u64 + 50 {
            events.push(EventKind::Applied, "x", format!("event {n}"));
            assert_eq!(quick.try_recv().unwrap().number, n + 1);
        }
        let kept = events.after(0);
        assert_eq!((kept.len(), kept[0].number), (MAX_EVENTS, 51));
        assert_eq!(events.after(MAX_EVENTS as u64 + 49).len(), 1);
        let broadcast::error::TryRecvError::Lagged(lost) = slow.try_recv().unwrap_err() else { panic!() };
        assert_eq!(lost, (MAX_EVENTS + 50 - MAX_QUEUED) as u64);
        assert_eq!(events.lost(lost).kind, EventKind::Lost);
        assert_eq!(events.counts().lost, lost);
        assert_eq!(events.counts().by_severity[0], (EventSeverity::Info, MAX_EVENTS as u64 + 50));
    }

    #[test]
    fn a_port_that_floods_is_limited_and_pushes_out_only_its_own() {
        let events = Events::default();
        events.push(EventKind::LinkDown, "quiet", "port quiet: link down".to_owned());
        for n in 0..3 * MAX_EVENTS {
            let kind = if n % 2 == 0 { EventKind::LinkUp } else { EventKind::LinkDown };
            events.push(kind, "loud", format!("port loud: change {n}"));
            events.push(EventKind::PortFault, "loud", format!("port loud: fault {n}"));
        }
        let burst = PORT_RATE.burst as usize;
        assert_eq!(events.after(0).len(), 1 + 2 * burst);
        // The last state comes, late, and says what was left out.
        events.flush(Instant::now() + PORT_RATE.interval);
        let messages: Vec<String> = events.after(0).into_iter().map(|event| event.message).collect();
        let left_out = 3 * MAX_EVENTS - burst - 1;
        assert_eq!(
            messages[messages.len() - 2..],
            [
                format!("port loud: change {} ({left_out} more suppressed)", 3 * MAX_EVENTS - 1),
                format!("port loud: fault {} ({left_out} more suppressed)", 3 * MAX_EVENTS - 1),
            ]
        );
        events.flush(Instant::now() + 2 * PORT_RATE.interval);
        assert_eq!(events.after(0).len(), 3 + 2 * burst, "there is nothing more to say");
        for n in 0..2 * MAX_EVENTS {
            events.push(EventKind::Applied, "operator", format!("{n}"));
        }
        let kept = events.after(0);
        assert_eq!(kept.len(), MAX_EVENTS);
        assert_eq!((kept[0].subject.as_str(), kept[1].subject.as_str()), ("quiet", "loud"));
    }
}
