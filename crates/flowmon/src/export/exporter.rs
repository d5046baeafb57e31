//! The exporter's thread.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rtrb::Consumer;
use serde::Serialize;

use super::collector::{Collector, Target};
use super::eve::{Drops, Eve};
use super::ipfix::Ipfix;
use super::message::Clock;
use crate::entry::{Name, NameKind, Record};
use crate::top::{Hitter, SpaceSaving};

/// Pause when there is nothing to do.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
/// A message goes at the latest so long after its first record.
pub(super) const LATEST: Duration = Duration::from_secs(1);
/// Counters of top talkers: errors are at most a 4096th of all bytes.
const TALKERS: usize = 4096;
/// The same for names.
const NAMES: usize = 1024;

/// Where records go.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the program in what is printed.
    pub program: &'static str,
    /// IPFIX collector.
    pub collector: Option<Target>,
    /// Observation domain.
    pub domain: u32,
    /// Most bytes of a UDP message (RFC 7011 section 10.3.3).
    pub message_size: usize,
    /// Most UDP messages in a second: RFC 7011 section 10.3.2 asks exporters not to flood.
    pub messages_per_second: u32,
    /// Interval of templates over UDP (RFC 5153 section 6.2.1).
    pub template_refresh: Duration,
    /// One packet of so many is counted.
    pub sampling: u32,
    /// File for JSON lines.
    pub eve: Option<PathBuf>,
    /// Set to open the eve file again, as after log rotation; cleared when it was.
    pub reopen: Arc<AtomicBool>,
    /// Time of records.
    pub clock: Clock,
}

/// The exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The collector's name has no address.
    #[error("collector {target}: {source}; give its IP address, or mend the name")]
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

/// Sums over all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Records given to the collector's socket.
    pub exported: u64,
    /// Messages given to it.
    pub messages: u64,
    /// Records lost because the collector was away.
    pub lost: u64,
    /// Lines that could not be written.
    pub eve_lost: u64,
    /// The collector is away.
    pub is_away: bool,
}

/// One of the heaviest senders or receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Talker {
    /// Address.
    pub address: IpAddr,
    /// Bytes sent and received, or at most `error` more.
    pub bytes: u64,
    /// Bound of the error of `bytes`.
    pub error: u64,
}

/// A name with the most bytes in the flows that it was seen in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedBytes {
    /// The name.
    pub name: String,
    /// `dns` or `tls`.
    pub kind: &'static str,
    /// Bytes of its flows, or at most `error` more.
    pub bytes: u64,
    /// Bound of the error of `bytes`.
    pub error: u64,
}

/// The heaviest addresses and names so far.
#[derive(Clone, Debug)]
struct Heaviest {
    talkers: SpaceSaving<IpAddr>,
    names: SpaceSaving<Name>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) exported: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) lost: AtomicU64,
    eve_lost: AtomicU64,
    pub(super) is_away: AtomicBool,
    heaviest: Mutex<Option<Heaviest>>,
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
            heaviest: Heaviest { talkers: SpaceSaving::new(TALKERS), names: SpaceSaving::new(NAMES) },
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

/// What an exporter has done, for threads that report.
#[derive(Clone, Debug)]
pub struct View(Arc<Shared>);

impl View {
    /// Sums so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.0.totals()
    }

    /// The heaviest `count` addresses among the records of all meters up to a second ago, heaviest first.
    #[must_use]
    pub fn talkers(&self, count: usize) -> Vec<Talker> {
        let top = self.top(|heaviest| heaviest.talkers.top(count));
        top.into_iter().map(|it| Talker { address: it.key, bytes: it.count, error: it.error }).collect()
    }

    /// The `count` names with the most bytes, among the same records.
    #[must_use]
    pub fn names(&self, count: usize) -> Vec<NamedBytes> {
        let named = |it: Hitter<Name>| NamedBytes {
            name: it.key.as_str().to_owned(),
            kind: match it.key.kind() {
                NameKind::Dns => "dns",
                NameKind::TlsServer => "tls",
            },
            bytes: it.count,
            error: it.error,
        };
        self.top(|heaviest| heaviest.names.top(count)).into_iter().map(named).collect()
    }

    fn top<K>(&self, of: impl FnOnce(&Heaviest) -> Vec<Hitter<K>>) -> Vec<Hitter<K>> {
        let heaviest = self.0.heaviest.lock().unwrap_or_else(PoisonError::into_inner);
        heaviest.as_ref().map(of).unwrap_or_default()
    }
}

impl Shared {
    fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            exported: get(&self.exported),
            messages: get(&self.messages),
            lost: get(&self.lost),
            eve_lost: get(&self.eve_lost),
            is_away: self.is_away.load(Ordering::Relaxed),
        }
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
            if published.elapsed() > LATEST {
                published = Instant::now();
                self.publish();
            }
            if taken == 0 {
                if self.incoming.is_none() && self.rings.is_empty() {
                    break;
                }
                thread::sleep(PAUSE);
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
        if let Some(addresses) = record.endpoints().addresses() {
            for address in addresses {
                self.heaviest.talkers.add(address, record.total().bytes);
            }
        }
        if let Some(name) = record.name {
            self.heaviest.names.add(name, record.total().bytes);
        }
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
        let mut heaviest = self.shared.heaviest.lock().unwrap_or_else(PoisonError::into_inner);
        *heaviest = Some(self.heaviest.clone());
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
