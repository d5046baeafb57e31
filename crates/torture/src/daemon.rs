// SPDX-License-Identifier: Apache-2.0
//! The netvmd under test.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netvm_api::{ChainInfo, Client, ClientError, Event, NfInfo, NfState};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::config::{self, Variant};
use crate::failure::{Failure, io};
use crate::interfaces;

/// Limit for it to start.
const START: Duration = Duration::from_secs(30);
/// Limit for answers, also under attack.
const ANSWER: Duration = Duration::from_secs(10);
/// Lines of the log to show after a failure.
const LINES: usize = 60;

/// netvmd; killed on drop.
pub struct Daemon {
    child: Child,
    pub client: Client,
    runtime: tokio::runtime::Runtime,
    folder: TempDir,
    /// This program, whose parts are NFs.
    program: PathBuf,
    /// The processes of NFs that were seen.
    pub seen: BTreeSet<u32>,
}

impl Daemon {
    /// Starts it without the interfaces and the namespace of its ports, and makes the uplinks.
    pub fn start() -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(io("cannot find this program"))?;
        let folder = tempfile::Builder::new()
            .prefix("netvm-torture-")
            .tempdir()
            .map_err(io("cannot make a folder"))?;
        let path = folder.path();
        let text = config::text(&program, path, Variant { link: true, ..Variant::default() });
        fs::write(path.join("netvm.toml"), text).map_err(io("cannot write the configuration"))?;
        let log = File::create(path.join("log")).map_err(io("cannot create the log"))?;
        let netvmd = program.with_file_name("netvmd");
        let child = Command::new(&netvmd)
            .arg("--config")
            .arg(path.join("netvm.toml"))
            .arg("--run-dir")
            .arg(path.join("run"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(io(format!("cannot start {}", netvmd.display())))?;
        let client =
            Client::new(Some(&path.join("run/api.sock"))).with_timeouts(ANSWER, Duration::from_secs(60));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io("cannot start a client"))?;
        let mut daemon = Self { child, client, runtime, folder, program, seen: BTreeSet::new() };
        interfaces::make_uplinks()?;
        daemon.until_up()?;
        Ok(daemon)
    }

    fn until_up(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        while start.elapsed() < START {
            self.check_alive()?;
            let runs = |nfs: &[NfInfo], role: &str| {
                nfs.iter().any(|nf| nf.role == role && nf.state == NfState::Running)
            };
            if self.nfs().is_ok_and(|nfs| runs(&nfs, "steady-nf") && runs(&nfs, "disturbed-nf")) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Failure::NotUp(START.as_secs()))
    }

    /// Waits for an answer.
    pub fn ask<T>(&self, answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, Failure> {
        Ok(self.runtime.block_on(answer)?)
    }

    pub fn nfs(&mut self) -> Result<Vec<NfInfo>, Failure> {
        let nfs = self.ask(self.client.nfs())?;
        self.seen.extend(nfs.iter().filter_map(|nf| nf.pid));
        Ok(nfs)
    }

    /// A chain's counters; `None`: the configuration does not have it.
    pub fn chain(&self, name: &str) -> Result<Option<ChainInfo>, Failure> {
        Ok(self.ask(self.client.chains())?.into_iter().find(|chain| chain.name == name))
    }

    /// The number of the last event.
    pub fn last_event(&self) -> Result<u64, Failure> {
        Ok(self.ask(self.client.events())?.last().map_or(0, |event| event.number))
    }

    /// The events after a number.
    pub fn events_after(&self, number: u64) -> Result<Vec<Event>, Failure> {
        let mut events = self.ask(self.client.events())?;
        events.retain(|event| event.number > number);
        Ok(events)
    }

    pub fn check_alive(&mut self) -> Result<(), Failure> {
        match self.child.try_wait().map_err(io("cannot wait for netvmd"))? {
            Some(status) => Err(Failure::Ended(status.to_string())),
            None => Ok(()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn text(&self, variant: Variant) -> String {
        config::text(&self.program, self.folder.path(), variant)
    }

    pub fn end_of_log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// Its threads, each with its state and how long it ran and waited for a core: a thread that waited for seconds was
    /// starved, one that slept waits for something.
    pub fn threads(&self) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid()));
        let mut lines = String::new();
        for task in tasks.into_iter().flatten().flatten().map(|task| task.path()) {
            let read = |file| fs::read_to_string(task.join(file)).unwrap_or_default();
            // "pid (name) state …", and "nanoseconds on a core, nanoseconds waiting for one, turns".
            let (stat, times) = (read("stat"), read("schedstat"));
            let state =
                stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).unwrap_or("?");
            let mut millis =
                times.split_whitespace().map(|nanos| nanos.parse::<u64>().unwrap_or(0) / 1_000_000);
            let (ran, waited) = (millis.next().unwrap_or(0), millis.next().unwrap_or(0));
            lines +=
                &format!("{} {state}: ran {ran} ms, waited for a core {waited} ms\n", read("comm").trim());
        }
        lines
    }

    /// What its threads do, if gdb is installed.
    pub fn stacks(&self) -> String {
        let pid = self.pid().to_string();
        let words = ["-batch", "-p", &pid, "-ex", "thread apply all backtrace 12"];
        let output = Command::new("gdb").args(words).stderr(Stdio::null()).output();
        output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits for its orderly end.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, Failure> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(status) = self.child.try_wait().map_err(io("cannot wait for netvmd"))? {
                return Ok(status.success());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended, and its processes with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = interfaces::remove_link();
        let _ = interfaces::remove_namespace();
        interfaces::remove_uplinks();
    }
}

/// Signals a process that may have ended.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
