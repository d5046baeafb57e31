// SPDX-License-Identifier: Apache-2.0
//! The exporter's thread.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rtrb::Consumer;

use super::eve::{Drops, Eve, RecordNames};
use super::interfaces::{Interfaces, Numbered};
use super::ipfix::{Collector, IDLE_INTERVAL, Ipfix, Item, MAX_MESSAGE_DELAY, NatEvent, Options, Target};
use super::rings::Rings;
use super::rules::{Names, RuleNames, name_of};
use super::view::{Heaviest, Shared, Totals, View};
use crate::entry::Record;

/// The exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The collector's name has no address.
    #[error("collector {target}: {source}; give its IP address, or correct the name")]
    Collector {
        /// The collector.
        target: Target,
        /// The resolver's error.
        source: io::Error,
    },
    /// The eve file cannot be opened.
    #[error("eve file {}: {source}", path.display())]
    Eve {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// No thread.
    #[error("thread for the export of flows: {0}")]
    Thread(io::Error),
}

/// The exporter's thread, as its owner sees it.
#[derive(Debug)]
pub struct Exporter {
    rings: Sender<Consumer<Record>>,
    nat: Sender<Consumer<NatEvent>>,
    drops: Sender<Drops>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`StartError`]. A collector that is away is no error.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        let collector = options.collector.as_ref().map(|target| {
            Collector::new(target).map_err(|source| StartError::Collector { target: target.clone(), source })
        });
        let collector = collector.transpose()?;
        let eve = options.eve.as_ref().map(|path| {
            let opened = Eve::open(path, options.clock);
            opened.map_err(|source| StartError::Eve { path: path.clone(), source })
        });
        let eve = eve.transpose()?;
        let (sender, receiver) = channel();
        let (nat, nat_receiver) = channel();
        let (drops, dropped) = channel();
        let shared = Arc::new(Shared::default());
        let ipfix = collector.map(|collector| Ipfix::new(collector, options, Arc::clone(&shared)));
        let mut task = Task {
            program: options.program,
            flows: Rings::new(receiver),
            nat: Rings::new(nat_receiver),
            dropped,
            ipfix,
            eve,
            eve_failed: false,
            rules: options.rules.clone(),
            names: options.rules.current(),
            interfaces: options.interfaces.clone(),
            numbered: options.interfaces.current(),
            heaviest: Heaviest::new(),
            reopen: Arc::clone(&options.reopen),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("export".into()).spawn(move || task.run());
        let thread = thread.map_err(StartError::Thread)?;
        Ok(Self { rings: sender, nat, drops, shared, thread })
    }

    /// Hands the thread the ring of one more meter.
    pub fn add(&self, ring: Consumer<Record>) {
        // If the thread has ended, records are lost, and the meter counts them.
        let _ = self.rings.send(ring);
    }

    /// Hands the thread a ring of NAT events, which go to the collector. What finds a ring full is lost: its producer
    /// counts it.
    pub fn add_nat(&self, ring: Consumer<NatEvent>) {
        // As above.
        let _ = self.nat.send(ring);
    }

    /// Writes dropped packets to the eve file, if there is one.
    pub fn note_drops(&self, drops: Drops) {
        // If the thread has ended, so has the file.
        let _ = self.drops.send(drops);
    }

    /// For threads that make meters.
    #[must_use]
    pub fn rings(&self) -> Sender<Consumer<Record>> {
        self.rings.clone()
    }

    /// Sums so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.totals()
    }

    /// For threads that report.
    #[must_use]
    pub fn view(&self) -> View {
        View(Arc::clone(&self.shared))
    }

    /// Waits until the records of all meters, which must have ended, are exported or lost. Returns the sums.
    #[must_use]
    pub fn finish(self) -> Totals {
        drop((self.rings, self.nat, self.drops));
        // A panic of the thread has been printed.
        let _ = self.thread.join();
        self.shared.totals()
    }
}

struct Task {
    program: &'static str,
    flows: Rings<Record>,
    nat: Rings<NatEvent>,
    dropped: Receiver<Drops>,
    ipfix: Option<Ipfix>,
    eve: Option<Eve>,
    eve_failed: bool,
    rules: RuleNames,
    /// The names of rules since the last second.
    names: Arc<Names>,
    interfaces: Interfaces,
    /// The interfaces since the last second.
    numbered: Arc<Numbered>,
    heaviest: Heaviest,
    reopen: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Task {
    fn run(&mut self) {
        let mut published = Instant::now();
        loop {
            let taken = self.take_records() + self.take_nat_events();
            while let Ok(drops) = self.dropped.try_recv() {
                let written = self.eve.as_mut().map_or(Ok(()), |eve| eve.write_drops(&drops));
                self.note_eve(&written);
            }
            if let Some(ipfix) = &mut self.ipfix {
                ipfix.work();
            }
            if published.elapsed() > MAX_MESSAGE_DELAY {
                published = Instant::now();
                self.names = self.rules.current();
                self.numbered = self.interfaces.current();
                if let Some(ipfix) = &mut self.ipfix {
                    ipfix.set_interfaces(Arc::clone(&self.numbered));
                }
                self.publish();
            }
            if taken == 0 {
                if self.flows.have_ended() && self.nat.have_ended() {
                    break;
                }
                thread::sleep(IDLE_INTERVAL);
            }
        }
        if let Some(ipfix) = &mut self.ipfix {
            ipfix.finish();
        }
        self.publish();
    }

    /// Takes what the rings have, as far as there is room for it.
    fn take_records(&mut self) -> usize {
        let (mut flows, mut taken) = (std::mem::take(&mut self.flows), 0);
        flows.take_new();
        while self.has_room()
            && let Some(record) = flows.pop()
        {
            taken += 1;
            self.take(&record);
        }
        self.flows = flows;
        taken
    }

    fn take_nat_events(&mut self) -> usize {
        let mut taken = 0;
        self.nat.take_new();
        while self.has_room()
            && let Some(event) = self.nat.pop()
        {
            taken += 1;
            if let Some(ipfix) = &mut self.ipfix {
                ipfix.push(Item::Nat(event));
            }
        }
        taken
    }

    fn has_room(&self) -> bool {
        self.ipfix.as_ref().is_none_or(Ipfix::has_room)
    }

    fn take(&mut self, record: &Record) {
        self.heaviest.add(record);
        let rule = name_of(&self.names, record.decided);
        if let Some(eve) = &mut self.eve {
            let ingress = self.numbered.get(&record.ingress);
            let written = eve.write(record, RecordNames { rule: rule.as_deref(), ingress });
            self.note_eve(&written);
        }
        if let Some(ipfix) = &mut self.ipfix {
            ipfix.push(Item::Flow(*record, rule));
        }
    }

    fn publish(&mut self) {
        if let Some(eve) = &mut self.eve {
            let mut written = eve.flush();
            if self.reopen.swap(false, Ordering::Relaxed) {
                written = eve.reopen();
            }
            if written.is_err() {
                self.note_eve(&written);
            }
        }
        self.shared.publish(&self.heaviest);
    }

    fn note_eve(&mut self, written: &io::Result<()>) {
        if let Err(error) = written {
            self.shared.eve_lost.fetch_add(1, Ordering::Relaxed);
            if !self.eve_failed {
                eprintln!(
                    "{}: eve file: {error}; lines are lost until it can be written again",
                    self.program
                );
            }
        }
        self.eve_failed = written.is_err();
    }
}
