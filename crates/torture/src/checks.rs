// SPDX-License-Identifier: Apache-2.0
//! What must hold during a run and after it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use netvm_api::{ApplyHow, ClientError, StopDaemon};

use crate::config::{self, Variant};
use crate::daemon::Daemon;
use crate::failure::{Failure, io};
use crate::interfaces::ip;

/// The steady chain must go on within this time.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// Limit for everything to come to rest.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Growth of netvmd's private memory in KiB that is not yet a leak: a second worker has 18 MB, and the allocator keeps
/// what a change of the configuration has freed.
const MEMORY: u64 = 32 << 10;
/// The same of descriptors: connections that end.
const DESCRIPTORS: u64 = 16;

/// The steady chain's progress.
#[derive(Debug, Default)]
pub struct SteadyChain {
    left: u64,
    moved: Option<Instant>,
}

impl SteadyChain {
    /// netvmd answers, and the steady chain has lost nothing and moves.
    pub fn check(&mut self, daemon: &Daemon) -> Result<(), Failure> {
        daemon.ask(daemon.client.status())?;
        let Some(steady) = daemon.chain("steady")? else {
            return Err(Failure::Broken("the steady chain is gone".to_owned()));
        };
        let dropped = steady.dropped_at_entry + steady.dropped_inside;
        if dropped > 0 {
            return Err(Failure::Broken(format!(
                "the steady chain lost {dropped} packets of {}",
                steady.entered
            )));
        }
        if steady.left < self.left {
            return Err(Failure::Broken(format!(
                "the steady chain's count fell from {} to {}",
                self.left, steady.left
            )));
        }
        if steady.left > self.left || self.moved.is_none() {
            (self.left, self.moved) = (steady.left, Some(Instant::now()));
        }
        match self.moved.filter(|moved| moved.elapsed() > STALL_LIMIT) {
            Some(moved) => Err(Failure::Broken(format!(
                "the steady chain has stood still for {} s",
                moved.elapsed().as_secs()
            ))),
            None => Ok(()),
        }
    }
}

/// Private memory and descriptors of a process.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    memory: u64,
    descriptors: u64,
}

impl Footprint {
    pub fn of(pid: u32) -> Result<Self, Failure> {
        let status =
            fs::read_to_string(format!("/proc/{pid}/status")).map_err(io("cannot read netvmd's status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let memory = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
        let descriptors =
            fs::read_dir(format!("/proc/{pid}/fd")).map_err(io("cannot read netvmd's descriptors"))?;
        Ok(Self { memory, descriptors: descriptors.count() as u64 })
    }

    /// Compares with the footprint at the end, when silent connections have been closed.
    pub fn compare(self, daemon: &mut Daemon) -> Result<(), Failure> {
        let mut end = self;
        let is_flat = until(daemon, "netvmd is as small as before", |daemon| {
            end = Self::of(daemon.pid())?;
            Ok(end.memory <= self.memory + MEMORY && end.descriptors <= self.descriptors + DESCRIPTORS)
        });
        println!(
            "private memory {} to {} KiB, descriptors {} to {}",
            self.memory, end.memory, self.descriptors, end.descriptors
        );
        is_flat
    }
}

/// Without packets for it, the steady chain has passed on each that it got; without ports, every buffer is free.
pub fn at_rest(daemon: &mut Daemon) -> Result<(), Failure> {
    apply(daemon, &daemon.text(Variant { link: true, quiet: true, ..Variant::default() }))?;
    until(daemon, "the ports are open whose interface or namespace is back", |daemon| {
        let status = daemon.ask(daemon.client.status())?;
        let is_closed = |text: &String| text.starts_with("port link") || text.starts_with("port box");
        Ok(!status.problems.iter().any(is_closed))
    })?;
    ip(&format!("-n {} route get 10.95.0.1", config::interface()))?;
    let mut steady = None;
    until(daemon, "the steady chain comes to rest", |daemon| {
        steady = daemon.chain("steady")?;
        Ok(steady.as_ref().is_some_and(|steady| steady.entered == steady.left))
    })?;
    if let Some(steady) = steady {
        println!("steady chain: {} packets entered, {} left", steady.entered, steady.left);
    }
    apply(daemon, &config::without_ports(daemon.program()))?;
    let mut lost = String::new();
    let at_rest = until(daemon, "every buffer is free", |daemon| {
        let groups = daemon.ask(daemon.client.groups())?;
        let regions =
            groups.iter().flat_map(|group| group.regions.iter().map(move |region| (&group.name, region)));
        lost = regions
            .filter(|(_, region)| region.free < region.buffers)
            .map(|(name, region)| format!("; group {name}: {region:?}"))
            .collect();
        Ok(lost.is_empty())
    });
    at_rest.map_err(|error| Failure::Broken(format!("{error}{lost}")))
}

/// Applies when no change waits for its confirmation any more.
fn apply(daemon: &mut Daemon, text: &str) -> Result<(), Failure> {
    let mut last = String::new();
    let applied = until(daemon, "a configuration is applied", |daemon| {
        match daemon.ask(daemon.client.apply("torture", text, ApplyHow::default())) {
            Ok(_) => Ok(true),
            Err(Failure::Api(error @ ClientError::Refused { .. })) => {
                last = error.to_string();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    });
    applied.map_err(|error| Failure::Broken(format!("{error}: {last}")))
}

fn until(
    daemon: &mut Daemon,
    what: &str,
    mut is_so: impl FnMut(&mut Daemon) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let start = Instant::now();
    while start.elapsed() < QUIESCE_TIMEOUT {
        if is_so(daemon)? {
            return Ok(());
        }
        daemon.check_alive()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(Failure::Broken(format!("not within {} s: {what}", QUIESCE_TIMEOUT.as_secs())))
}

/// netvmd ends in order, and no NF is left.
pub fn ended(daemon: &mut Daemon) -> Result<(), Failure> {
    daemon.nfs()?;
    daemon.ask(daemon.client.stop(StopDaemon { purge: true }))?;
    if !daemon.wait(QUIESCE_TIMEOUT)? {
        return Err(Failure::Broken("netvmd did not end in order".to_owned()));
    }
    let is_nf = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("netvm-")
    };
    let left: Vec<u32> = daemon.seen.iter().copied().filter(is_nf).collect();
    if !left.is_empty() {
        return Err(Failure::Broken(format!("processes of NFs are left: {left:?}")));
    }
    if Path::new(&daemon.socket("api.sock")).exists() {
        return Err(Failure::Broken("a socket is left".to_owned()));
    }
    Ok(())
}
