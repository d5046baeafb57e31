//! The exporter's thread.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rtrb::Consumer;

use super::collector::{Collector, Target};
use super::eve::{Drops, Eve};
use super::ipfix::Ipfix;
use super::options::{IDLE_INTERVAL, MAX_MESSAGE_DELAY, Options};
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
        let (drops, dropped) = channel();
        let shared = Arc::new(Shared::default());
        let ipfix = collector.map(|collector| Ipfix::new(collector, options, Arc::clone(&shared)));
        let mut task = Task {
            program: options.program,
            incoming: Some(receiver),
            dropped,
            rings: Vec::new(),
            ipfix,
            eve,
            eve_failed: false,
            heaviest: Heaviest::new(),
            reopen: Arc::clone(&options.reopen),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("export".into()).spawn(move || task.run());
        let thread = thread.map_err(StartError::Thread)?;
        Ok(Self { rings: sender, drops, shared, thread })
    }

    /// Hands the thread the ring of one more meter.
    pub fn add(&self, ring: Consumer<Record>) {
        // If the thread has ended, records are lost, and the meter counts them.
        let _ = self.rings.send(ring);
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
        drop((self.rings, self.drops));
        // A panic of the thread has been printed.
        let _ = self.thread.join();
        self.shared.totals()
    }
}

struct Task {
    program: &'static str,
    /// `None` when no more meters come.
    incoming: Option<Receiver<Consumer<Record>>>,
    dropped: Receiver<Drops>,
    rings: Vec<Consumer<Record>>,
    ipfix: Option<Ipfix>,
    eve: Option<Eve>,
    eve_failed: bool,
    heaviest: Heaviest,
    reopen: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Task {
    fn run(&mut self) {
        let mut published = Instant::now();
        loop {
            self.take_rings();
            let taken = self.take_records();
            while let Ok(drops) = self.dropped.try_recv() {
                let written = self.eve.as_mut().map_or(Ok(()), |eve| eve.write_drops(&drops));
                self.note_eve(&written);
            }
            if let Some(ipfix) = &mut self.ipfix {
                ipfix.work();
            }
            if published.elapsed() > MAX_MESSAGE_DELAY {
                published = Instant::now();
                self.publish();
            }
            if taken == 0 {
                if self.incoming.is_none() && self.rings.is_empty() {
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

    fn take_rings(&mut self) {
        while let Some(incoming) = &self.incoming {
            match incoming.try_recv() {
                Ok(ring) => self.rings.push(ring),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.incoming = None,
            }
        }
    }

    /// Takes what the rings have, as far as there is room for it.
    fn take_records(&mut self) -> usize {
        let mut taken = 0;
        let mut rings = std::mem::take(&mut self.rings);
        rings.retain_mut(|ring| {
            // Asked first: what a meter that has ended had pushed is here then.
            let ended = ring.is_abandoned();
            while self.ipfix.as_ref().is_none_or(Ipfix::has_room) {
                let Ok(record) = ring.pop() else { return !ended };
                taken += 1;
                self.take(&record);
            }
            true
        });
        self.rings = rings;
        taken
    }

    fn take(&mut self, record: &Record) {
        self.heaviest.add(record);
        if let Some(eve) = &mut self.eve {
            let written = eve.write(record);
            self.note_eve(&written);
        }
        if let Some(ipfix) = &mut self.ipfix {
            ipfix.push(record);
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
