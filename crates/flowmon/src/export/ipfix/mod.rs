// SPDX-License-Identifier: Apache-2.0
//! Records on their way to a collector by IPFIX.

mod clock;
mod collector;
mod item;
mod message;
mod nat;
mod options;
mod template;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use clock::Clock;
pub use collector::{ParseTargetError, Target, Transport};
pub(super) use item::Item;
pub use nat::{NatBlock, NatEnd, NatEvent, NatEventKind, NatSession};
pub use options::Options;
pub(super) use options::{IDLE_INTERVAL, MAX_MESSAGE_DELAY};

pub(super) use collector::Collector;
use collector::Sent;
use message::Messages;

use super::interfaces::{Interface, Numbered};
use super::view::Shared;

/// Records that wait for a collector; when it is away, older ones are lost.
const WAITING: usize = 16_384;
/// Longest wait for the collector at the end.
const LAST_WAIT: Duration = Duration::from_secs(3);
/// A UDP collector is back after so long without an error.
const BACK_AFTER: Duration = Duration::from_secs(3);

/// Records on their way to a collector.
pub(super) struct Ipfix {
    program: &'static str,
    collector: Collector,
    messages: Messages,
    waiting: VecDeque<Item>,
    interfaces: Arc<Numbered>,
    /// A whole message that the collector has not taken yet, and its records.
    message: Option<(Vec<u8>, u32)>,
    spare: Vec<u8>,
    begun: Instant,
    templates: Instant,
    template_refresh: Duration,
    pace: MessageRate,
    /// Lost records when the collector went away.
    away: Option<u64>,
    failed: Instant,
    /// There was a session with the collector.
    has_session: bool,
    shared: Arc<Shared>,
}

impl Ipfix {
    pub(super) fn new(collector: Collector, options: &Options, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        let rate = match collector.target().transport {
            Transport::Udp => options.messages_per_second,
            Transport::Tcp => u32::MAX,
        };
        Self {
            program: options.program,
            collector,
            messages: Messages::new(options.message_size, options.domain, options.sampling, options.clock),
            waiting: VecDeque::with_capacity(WAITING),
            interfaces: options.interfaces.current(),
            message: None,
            spare: Vec::new(),
            begun: now,
            templates: now,
            template_refresh: options.template_refresh,
            pace: MessageRate::new(rate),
            away: None,
            failed: now,
            has_session: false,
            shared,
        }
    }

    /// While the collector is away there is always room: old records give way.
    pub(super) fn has_room(&self) -> bool {
        self.away.is_some() || self.waiting.len() < WAITING
    }

    pub(super) fn push(&mut self, record: Item) {
        if self.waiting.len() >= WAITING
            && let Some(old) = self.waiting.pop_front()
        {
            self.lose(u64::from(!old.is_option()));
        }
        self.waiting.push_back(record);
    }

    /// Tells the collector of interfaces that are new, or have other names.
    pub(super) fn set_interfaces(&mut self, interfaces: Arc<Numbered>) {
        let known = std::mem::replace(&mut self.interfaces, interfaces);
        // A collector that was told of none yet will be told of all.
        if self.has_session && !Arc::ptr_eq(&known, &self.interfaces) {
            let changed = self.interfaces.iter().filter(|(number, it)| known.get(number) != Some(*it));
            self.waiting.extend(changed.map(|(number, it)| item(*number, it)));
        }
    }

    /// Tells the collector of all interfaces before anything else.
    fn tell_interfaces(&mut self) {
        self.waiting.retain(|item| !item.is_option());
        for (number, interface) in self.interfaces.iter().rev() {
            self.waiting.push_front(item(*number, interface));
        }
    }

    fn lose(&self, records: u64) {
        self.shared.lost.fetch_add(records, Ordering::Relaxed);
    }

    /// Sends what is due.
    pub(super) fn work(&mut self) {
        if self.waiting.is_empty() && self.messages.is_empty() && self.message.is_none() {
            if let Sent::Away(error) = self.collector.flush() {
                self.note_away(&error);
            }
            return;
        }
        if let Sent::Away(error) = self.collector.connect() {
            self.note_away(&error);
            return;
        }
        if self.collector.is_new_session() {
            self.new_session();
        }
        if self.template_refresh < self.templates.elapsed()
            && self.collector.target().transport == Transport::Udp
        {
            self.templates = Instant::now();
            self.messages.forget_templates();
            self.tell_interfaces();
        }
        while self.fill() {
            if !self.pace.allows() || !self.send() {
                return;
            }
        }
    }

    /// Messages of the last session are lost, and which of their records arrived is unknown.
    fn new_session(&mut self) {
        let lost = self.messages.records() + self.message.take().map_or(0, |(_, records)| records);
        self.lose(lost.into());
        self.messages.restart();
        self.templates = Instant::now();
        self.has_session = true;
        self.tell_interfaces();
    }

    /// Makes a message of waiting records, if there are enough or the first has waited for long.
    fn fill(&mut self) -> bool {
        if self.message.is_some() {
            return true;
        }
        loop {
            let Some(record) = self.waiting.front() else {
                if self.messages.is_empty() || self.begun.elapsed() < MAX_MESSAGE_DELAY {
                    return false;
                }
                break;
            };
            if self.messages.is_empty() {
                self.begun = Instant::now();
            }
            if !self.messages.add(record) {
                break;
            }
            self.waiting.pop_front();
        }
        self.take_message();
        true
    }

    fn take_message(&mut self) {
        let mut bytes = std::mem::take(&mut self.spare);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        let records = self.messages.take(unix, &mut bytes);
        self.message = Some((bytes, records));
    }

    /// Sends the message; false if it must wait.
    fn send(&mut self) -> bool {
        let Some((bytes, records)) = self.message.take() else { return true };
        match self.collector.send(&bytes) {
            Sent::Taken => {
                self.shared.exported.fetch_add(records.into(), Ordering::Relaxed);
                self.shared.messages.fetch_add(1, Ordering::Relaxed);
                self.spare = bytes;
                self.note_back();
                true
            }
            Sent::Busy => {
                self.message = Some((bytes, records));
                false
            }
            Sent::Away(error) => {
                self.lose(records.into());
                self.spare = bytes;
                self.note_away(&error);
                false
            }
        }
    }

    fn note_away(&mut self, error: &io::Error) {
        self.failed = Instant::now();
        if self.away.is_none() {
            self.away = Some(self.shared.lost.load(Ordering::Relaxed));
            self.shared.is_away.store(true, Ordering::Relaxed);
            eprintln!(
                "{}: collector {} is away: {error}; traffic goes on, up to {WAITING} records wait, older ones are lost",
                self.program,
                self.collector.target()
            );
        }
    }

    fn note_back(&mut self) {
        // Over UDP only the next messages tell whether somebody listens.
        if self.collector.target().transport == Transport::Udp && self.failed.elapsed() < BACK_AFTER {
            return;
        }
        if let Some(before) = self.away.take() {
            let lost = self.shared.lost.load(Ordering::Relaxed) - before;
            self.shared.is_away.store(false, Ordering::Relaxed);
            eprintln!(
                "{}: collector {} is back; {lost} records were lost",
                self.program,
                self.collector.target()
            );
        }
    }

    /// Sends everything, and gives up after some seconds without progress.
    pub(super) fn finish(&mut self) {
        let mut progress = (Instant::now(), self.waiting.len());
        while !self.waiting.is_empty() || self.message.is_some() || !self.messages.is_empty() {
            if self.waiting.is_empty() && self.message.is_none() {
                self.take_message();
            }
            self.work();
            if self.waiting.len() != progress.1 {
                progress = (Instant::now(), self.waiting.len());
            }
            if progress.0.elapsed() > LAST_WAIT {
                break;
            }
            thread::sleep(IDLE_INTERVAL / 5);
        }
        while matches!(self.collector.flush(), Sent::Busy) && progress.0.elapsed() <= LAST_WAIT {
            thread::sleep(IDLE_INTERVAL);
        }
        let rest = self.waiting.iter().filter(|item| !item.is_option()).count() as u64
            + u64::from(self.messages.records())
            + self.message.as_ref().map_or(0, |(_, records)| u64::from(*records));
        if rest > 0 {
            self.lose(rest);
            eprintln!(
                "{}: collector {} is away; {rest} records were lost",
                self.program,
                self.collector.target()
            );
        }
    }
}

fn item(number: u16, interface: &Interface) -> Item {
    Item::Interface(number, Arc::new(interface.clone()))
}

/// At most so many messages a second, and a 100th of that at once.
struct MessageRate {
    per_second: f64,
    credit: f64,
    last: Instant,
}

impl MessageRate {
    fn new(per_second: u32) -> Self {
        Self { per_second: f64::from(per_second), credit: 1.0, last: Instant::now() }
    }

    fn allows(&mut self) -> bool {
        let now = Instant::now();
        let earned = now.duration_since(self.last).as_secs_f64() * self.per_second;
        self.last = now;
        self.credit = (self.credit + earned).min((self.per_second / 100.0).max(1.0));
        let allowed = self.credit >= 1.0;
        if allowed {
            self.credit -= 1.0;
        }
        allowed
    }
}
