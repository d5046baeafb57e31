// SPDX-License-Identifier: Apache-2.0
//! `watch`: the cost of monitoring netvmd. A netvmd forwards 64-byte frames from the built-in source, once through one
//! NF (`hop`) and once by a rule (`policy`), alternately with and without watchers. The watchers are a scraper of
//! `/metrics` and an open web page; each sends its requests once a second, as Prometheus and the page do.
//!
//! The worker polls on core A and the NF on core B. On a machine with two cores, the watchers and netvmd's API compete
//! with them for CPU time.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use netvm_api::{PortInfo, path};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::setup::guest::beside;

/// Time limit for netvmd to start, to answer and to end.
const NETVMD_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of each watcher.
const INTERVAL: Duration = Duration::from_secs(1);
/// Windows of a run: with watchers (`true`) or without. The order cancels a steady drift.
const WINDOWS: [bool; 8] = [false, true, true, false, true, false, false, true];
/// What the page requests every second, and what it also requests every fifth second.
const PAGE: [&str; 3] = [path::STATS, path::POLICY, path::EVENTS];
const PAGE_AT_TIMES: [&str; 3] = [path::CONFIG, path::ROUTERS, path::STATUS];

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let cases = [("hop", true), ("policy", false)];
    let mut subjects =
        cases.map(|(name, has_nf)| Subject::new(name, move |plan: &Plan| watched(name, has_nf, cores, plan)));
    let comparisons = cases.map(|(name, _)| Comparison::new(format!("{name} watched"), name));
    alternate(&args.plan(), &mut subjects, &comparisons)
}

fn watched(name: &str, has_nf: bool, cores: Cores, plan: &Plan) -> Measured {
    let netvmd = Netvmd::start(has_nf, cores)?;
    sleep(plan.warm_up);
    // Packets, seconds and requests of windows without and with watchers.
    let mut sums = [(0.0, 0.0, 0.0); 2];
    for is_watched in WINDOWS {
        let sum = &mut sums[usize::from(is_watched)];
        let (before, start) = (netvmd.sent()?, Instant::now());
        sum.2 += if is_watched { netvmd.watch(plan.window)? } else { 0.0 };
        sleep(plan.window.saturating_sub(start.elapsed()));
        sum.0 += (netvmd.sent()? - before) as f64;
        sum.1 += start.elapsed().as_secs_f64();
    }
    let [(packets, seconds, _), (watched_packets, watched_seconds, requests)] = sums;
    if packets < 1.0 {
        return Err(BenchError::Nothing { what: name.to_owned(), seconds });
    }
    Ok(vec![
        Figure::new(name, Unit::Mpps, packets / seconds / 1e6),
        Figure::new(format!("{name} watched"), Unit::Mpps, watched_packets / watched_seconds / 1e6),
        Figure::new(format!("{name} watched requests"), Unit::Count, requests),
    ])
}

/// A netvmd process; ended on drop.
struct Netvmd {
    process: Child,
    folder: TempDir,
    address: SocketAddr,
    agent: ureq::Agent,
    authorization: String,
}

impl Netvmd {
    fn start(has_nf: bool, cores: Cores) -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::system("cannot make a folder for netvmd"))?;
        let unused = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = unused.map_err(BenchError::system("no loopback port is free"))?;
        let file = folder.path().join("host.toml");
        std::fs::write(&file, configuration(has_nf, cores, address))
            .map_err(BenchError::system("cannot write netvmd's configuration"))?;
        let log =
            File::create(log_path(folder.path())).map_err(BenchError::system("cannot make netvmd's log"))?;
        let program = beside("netvmd", "netvmd")?;
        let mut command = Command::new(&program);
        command.arg("--config").arg(file);
        command.arg("--run-dir").arg(folder.path().join("run"));
        command.arg("--state-dir").arg(folder.path().join("state"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process =
            command.spawn().map_err(BenchError::system(format!("cannot run {}", program.display())))?;
        let agent = ureq::Agent::config_builder().timeout_global(Some(NETVMD_TIMEOUT)).build().into();
        let mut netvmd = Self { process, folder, address, agent, authorization: String::new() };
        netvmd.wait()?;
        Ok(netvmd)
    }

    /// Waits until netvmd sends packets.
    fn wait(&mut self) -> Result<(), BenchError> {
        let start = Instant::now();
        let token = self.folder.path().join("run/token");
        loop {
            if let Ok(token) = std::fs::read_to_string(&token) {
                self.authorization = format!("Bearer {}", token.trim());
                if self.sent().is_ok_and(|sent| sent > 0) {
                    return Ok(());
                }
            }
            if start.elapsed() > NETVMD_TIMEOUT || self.process.try_wait().is_ok_and(|end| end.is_some()) {
                let log = std::fs::read_to_string(log_path(self.folder.path())).unwrap_or_default();
                return Err(failure(format!(
                    "no packet left within {} s; its log:\n{log}",
                    NETVMD_TIMEOUT.as_secs()
                )));
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn ask(&self, path: &str) -> Result<String, BenchError> {
        let request = self.agent.get(format!("http://{}{path}", self.address));
        let reply = request.header("Authorization", &self.authorization).call();
        let text = reply.and_then(|mut reply| reply.body_mut().read_to_string());
        text.map_err(|error| failure(format!("GET {path}: {error}")))
    }

    /// Packets that netvmd has sent so far.
    fn sent(&self) -> Result<u64, BenchError> {
        let ports: Result<Vec<PortInfo>, _> = serde_json::from_str(&self.ask(path::PORTS)?);
        let ports = ports.map_err(|error| failure(format!("GET {}: {error}", path::PORTS)))?;
        Ok(ports.iter().map(|port| port.tx_packets).sum())
    }

    /// Runs both watchers for `time`; returns the number of their requests.
    fn watch(&self, time: Duration) -> Result<f64, BenchError> {
        thread::scope(|scope| {
            let scraper = scope.spawn(|| self.repeat(time, |_| vec![path::METRICS]));
            let page = scope.spawn(|| {
                self.repeat(time, |turn| {
                    let more = PAGE_AT_TIMES.iter().take(if turn % 5 == 0 { PAGE_AT_TIMES.len() } else { 0 });
                    more.chain(&PAGE).copied().collect()
                })
            });
            let ended = |_| failure("a watcher panicked".to_owned());
            Ok(scraper.join().map_err(ended)?? + page.join().map_err(ended)??)
        })
    }

    fn repeat(&self, time: Duration, paths: impl Fn(u32) -> Vec<&'static str>) -> Result<f64, BenchError> {
        let start = Instant::now();
        let (mut requests, mut turn) = (0.0, 0);
        while start.elapsed() < time {
            for path in paths(turn) {
                self.ask(path)?;
                requests += 1.0;
            }
            turn += 1;
            sleep((INTERVAL * turn).min(time).saturating_sub(start.elapsed()));
        }
        Ok(requests)
    }
}

impl Drop for Netvmd {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && start.elapsed() < NETVMD_TIMEOUT {
            sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn log_path(folder: &Path) -> PathBuf {
    folder.join("netvmd.log")
}

fn failure(problem: String) -> BenchError {
    BenchError::Peer { peer: "netvmd", problem }
}

/// From the built-in source to a sink, by a rule or through an NF.
fn configuration(has_nf: bool, cores: Cores, address: SocketAddr) -> String {
    let (engine, nf) = (cores.engine, cores.nf);
    let end = if has_nf {
        format!(
            "[[nf]]\nrole = \"forward\"\ngroup = \"bench\"\ncores = [{nf}]\n\
             command = [\"netvm-simple-forward\", \"--poll\"]\n\n\
             [[chain]]\nname = \"hop\"\nhops = [\"forward\"]\noutput = \"out\"\n\n\
             [[rule]]\nfrom = \"in\"\nchain = \"hop\"\n"
        )
    } else {
        "[[rule]]\nfrom = \"in\"\nout = \"out\"\n".to_owned()
    };
    format!(
        "[engine]\ncores = [{engine}]\nidle = \"poll\"\n\n[api]\nweb = \"{address}\"\n\n\
         [[group]]\nname = \"bench\"\nbuffers = 8192\n\n\
         [[port]]\nname = \"in\"\nkind = \"source\"\nsize = 60\nlossless = true\ngroup = \"bench\"\n\n\
         [[port]]\nname = \"out\"\nkind = \"sink\"\n\n{end}"
    )
}
