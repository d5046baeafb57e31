// SPDX-License-Identifier: Apache-2.0
//! Disturbances at random.

pub mod starve;
mod storm;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use netvm_api::{ApplyHow, ClientError};
use rustix::process::Signal;

use crate::abuse;
use crate::config::{Variant, contended_core, first_core};
use crate::daemon::{Daemon, signal};
use crate::failure::{Failure, io};
use crate::hostile::Mode;
use crate::huge_pages;
use crate::interfaces;
use starve::Starvation;
use storm::Storm;

/// Most hostile NFs at once.
const HOSTILE_NFS: usize = 4;
/// Longest time for which a container that restarts is away in milliseconds.
const MAX_ABSENCE_MILLIS: u64 = 400;
/// Longest pause between two disturbances in milliseconds.
const MAX_PAUSE_MILLIS: u64 = 150;
/// Interval of checks while the last disturbances come to their end.
const CHECK: Duration = Duration::from_millis(500);
/// Limit for that; each disturbance has its own, which is shorter.
const END: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Kill,
    Stop,
    Hostile,
    Link,
    Container,
    Apply,
    Rollback,
    Invalid,
    Confirm,
    Restart,
    Api,
    Attach,
    Guest,
    Memif,
    HugePages,
    Starve,
    Storm,
}

const KINDS: [Kind; 17] = [
    Kind::Kill,
    Kind::Stop,
    Kind::Hostile,
    Kind::Link,
    Kind::Container,
    Kind::Apply,
    Kind::Rollback,
    Kind::Invalid,
    Kind::Confirm,
    Kind::Restart,
    Kind::Api,
    Kind::Attach,
    Kind::Guest,
    Kind::Memif,
    Kind::HugePages,
    Kind::Starve,
    Kind::Storm,
];

/// Disturbs, and counts how often.
pub struct Disturber {
    random: fastrand::Rng,
    counts: BTreeMap<Kind, u64>,
    hostile_nfs: Vec<Child>,
    has_link: bool,
    has_container: bool,
    /// Processes that hold huge pages for a moment.
    hoarders: Vec<Child>,
    starvation: Starvation,
    storm: Storm,
}

impl Disturber {
    pub fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            counts: BTreeMap::new(),
            hostile_nfs: Vec::new(),
            // netvmd has started without them.
            has_link: false,
            has_container: false,
            hoarders: Vec::new(),
            starvation: Starvation::default(),
            storm: Storm::default(),
        }
    }

    /// How often each disturbance came.
    pub fn summary(&self) -> String {
        let words = self.counts.iter().map(|(kind, count)| format!("{kind:?} {count}").to_lowercase());
        words.collect::<Vec<_>>().join(", ")
    }

    /// Disturbs once, and pauses.
    pub fn disturb(&mut self, daemon: &mut Daemon) -> Result<(), Failure> {
        let kind = KINDS[self.random.usize(..KINDS.len())];
        self.hostile_nfs.retain_mut(|hostile| !matches!(hostile.try_wait(), Ok(Some(_))));
        self.hoarders.retain_mut(|hoarder| !matches!(hoarder.try_wait(), Ok(Some(_))));
        let mut disturbs = true;
        match kind {
            Kind::Kill => self.signal_one(daemon, Signal::KILL)?,
            Kind::Stop => self.signal_one(daemon, Signal::STOP)?,
            Kind::Hostile => self.start_hostile(daemon)?,
            Kind::Link => self.change_link()?,
            Kind::Container => self.change_container()?,
            Kind::Apply => self.apply(daemon, false, None)?,
            Kind::Rollback => self.apply(daemon, true, None)?,
            Kind::Confirm => self.apply(daemon, false, Some(1))?,
            Kind::Invalid => {
                refused(daemon.ask(daemon.client.apply("t", "[[port]]\nname = 7\n", ApplyHow::default())))?;
            }
            Kind::Restart => refused(daemon.ask(daemon.client.restart("disturbed-nf")))?,
            Kind::Api => abuse::api(&daemon.socket("api.sock"), &mut self.random),
            Kind::Attach => abuse::attach(&daemon.socket("attach.sock"), &mut self.random),
            Kind::Guest => abuse::guest(&daemon.folder().join("guest.sock"), &mut self.random),
            Kind::Memif => abuse::memif(&daemon.folder().join("memif.sock"), &mut self.random),
            Kind::HugePages => self.hoard()?,
            Kind::Starve => disturbs = self.starvation.start(daemon)?,
            Kind::Storm => disturbs = self.storm.start(daemon)?,
        }
        *self.counts.entry(kind).or_default() += u64::from(disturbs);
        daemon.check_alive()?;
        std::thread::sleep(Duration::from_millis(self.random.u64(..MAX_PAUSE_MILLIS)));
        Ok(())
    }

    /// An NF of the disturbed chain dies, or stands still.
    fn signal_one(&mut self, daemon: &mut Daemon, what: Signal) -> Result<(), Failure> {
        let disturbed = |role: &str| role == "disturbed-nf" || role == "spare-nf";
        let pids: Vec<u32> =
            daemon.nfs()?.iter().filter(|nf| disturbed(&nf.role)).filter_map(|nf| nf.pid).collect();
        if let Some(pid) = self.random.choice(pids) {
            signal(pid, what);
        }
        Ok(())
    }

    fn start_hostile(&mut self, daemon: &Daemon) -> Result<(), Failure> {
        if self.hostile_nfs.len() >= HOSTILE_NFS {
            let oldest = self.hostile_nfs.remove(0);
            end(oldest);
        }
        let modes = [Mode::Scribble, Mode::Punch, Mode::Idle, Mode::Crash];
        let mode = modes[self.random.usize(..modes.len())];
        let name = mode.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let hostile = Command::new(daemon.program())
            .args(["hostile", &name])
            .env(netvm_attach::PATH_VARIABLE, daemon.socket("attach.sock"))
            .env(netvm_attach::ROLE_VARIABLE, "hostile")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.hostile_nfs.push(hostile.map_err(io("cannot start a hostile NF"))?);
        Ok(())
    }

    fn change_link(&mut self) -> Result<(), Failure> {
        self.has_link = !self.has_link;
        if self.has_link { interfaces::make_link() } else { interfaces::remove_link() }
    }

    /// A container starts, or ends, or restarts.
    fn change_container(&mut self) -> Result<(), Failure> {
        if self.has_container {
            interfaces::remove_namespace()?;
            std::thread::sleep(Duration::from_millis(self.random.u64(..MAX_ABSENCE_MILLIS)));
            self.has_container = self.random.bool();
        } else {
            self.has_container = true;
        }
        if self.has_container { interfaces::make_namespace() } else { Ok(()) }
    }

    fn apply(&mut self, daemon: &Daemon, broken: bool, confirm: Option<u64>) -> Result<(), Failure> {
        let [spare, link, patch_loop, is_wide] = std::array::from_fn(|_| self.random.bool());
        // A machine with one core has one worker.
        let two_workers = is_wide && first_core() != contended_core();
        let variant = Variant { spare, link, patch_loop, two_workers, broken, quiet: false };
        let text = daemon.text(variant);
        // Refusals are in order: a change that waits for its confirmation, an interface that is gone, a broken NF.
        refused(daemon.ask(daemon.client.apply("torture", &text, ApplyHow { save: false, confirm })))
    }

    /// Another process takes all free huge pages.
    fn hoard(&mut self) -> Result<(), Failure> {
        let free = huge_pages::free();
        if free == 0 || !self.hoarders.is_empty() {
            return Ok(());
        }
        let code = "import mmap,sys,time\nm=mmap.mmap(-1,int(sys.argv[1])<<21,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS|0x40000)\n\
                    [m.__setitem__(n<<21,1) for n in range(int(sys.argv[1]))]\ntime.sleep(1)";
        let hoarder =
            Command::new("python3").args(["-c", code, &free.to_string()]).stderr(Stdio::null()).spawn();
        self.hoarders.push(hoarder.map_err(io("cannot start python3"))?);
        Ok(())
    }

    /// What disturbances that take longer must lead to. Returns whether none of them goes on.
    pub fn check(&mut self, daemon: &mut Daemon) -> Result<bool, Failure> {
        Ok(self.starvation.check(daemon)? & self.storm.check(daemon)?)
    }

    /// Ends the disturbances, and brings back what is missing.
    pub fn end(&mut self, daemon: &mut Daemon) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.check(daemon)? && start.elapsed() < END {
            std::thread::sleep(CHECK);
        }
        std::mem::take(&mut self.hostile_nfs).into_iter().for_each(end);
        std::mem::take(&mut self.hoarders).into_iter().for_each(end);
        interfaces::make_link()?;
        interfaces::make_namespace()?;
        for pid in daemon.nfs()?.iter().filter_map(|nf| nf.pid) {
            signal(pid, Signal::CONT);
        }
        Ok(())
    }
}

fn end(mut process: Child) {
    // It may have ended.
    let _ = process.kill();
    let _ = process.wait();
}

/// Passes on only failures to answer: a refusal is an answer.
fn refused<T>(outcome: Result<T, Failure>) -> Result<(), Failure> {
    match outcome {
        Ok(_) | Err(Failure::Api(ClientError::Refused { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}
