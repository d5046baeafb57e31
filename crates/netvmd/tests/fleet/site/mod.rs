// SPDX-License-Identifier: Apache-2.0
//! An etcd, ways to it that can be cut, and hosts.

mod way;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use netvm_fleet::{HostKey, HostState, HostStatus};

use crate::common::hosts::within;
use crate::common::peers::peer;
use crate::common::{Daemon, ENGINE, Folder, forwarding_chain, program};

pub use way::Way;

/// Limit for things that take a second on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running member of etcd; mostly the only one.
pub struct Etcd {
    child: Child,
    pub folder: Arc<Folder>,
    pub address: SocketAddr,
    peers: SocketAddr,
    options: Vec<String>,
    ctl: Vec<String>,
    /// What etcdctl needs to trust it.
    trust: Vec<String>,
}

/// A program of etcd: this machine's, else the unpacked one.
fn etcd_program(name: &str) -> Option<Vec<String>> {
    let installed = Command::new(name).arg("--help").output().is_ok();
    if installed { Some(vec![name.to_owned()]) } else { peer("etcd", &format!("usr/bin/{name}")) }
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Etcd {
    /// `None`: there is no etcd on this machine, or this is not root.
    pub fn start() -> Option<Self> {
        Self::start_with(&Arc::new(Folder::new()), &[], &[])
    }

    /// One with these options, and those by which etcdctl trusts it; with any, it serves TLS.
    pub fn start_with(folder: &Arc<Folder>, options: &[String], trust: &[String]) -> Option<Self> {
        if !crate::common::is_root() {
            return None;
        }
        let member = Self::launch_member(folder, free_address(), options, trust)?;
        member.until_there();
        Some(member)
    }

    /// Three members of one cluster.
    pub fn cluster() -> Option<Vec<Self>> {
        if !crate::common::is_root() {
            return None;
        }
        let peers = [free_address(), free_address(), free_address()];
        let all: Vec<String> =
            (0..).zip(&peers).map(|(n, address)| format!("m{n}=http://{address}")).collect();
        let member = |(n, peers): (usize, &SocketAddr)| {
            let (name, all) = (format!("m{n}"), all.join(","));
            let options = ["--name", &name, "--initial-cluster", &all].map(str::to_owned);
            Self::launch_member(&Arc::new(Folder::new()), *peers, &options, &[])
        };
        let members: Vec<Self> = peers.iter().enumerate().map(member).collect::<Option<_>>()?;
        members.iter().for_each(Self::until_there);
        Some(members)
    }

    /// Whether it is the leader.
    pub fn is_leader(&self) -> bool {
        let text = self.ctl(&["endpoint", "status", "-w", "json"]);
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        let status = &status[0]["Status"];
        status["leader"] == status["header"]["member_id"]
    }

    fn launch_member(
        folder: &Arc<Folder>,
        peers: SocketAddr,
        options: &[String],
        trust: &[String],
    ) -> Option<Self> {
        let ctl = etcd_program("etcdctl")?;
        let (address, folder) = (free_address(), Arc::clone(folder));
        let mut options = options.to_vec();
        let url = if trust.is_empty() { format!("http://{address}") } else { format!("https://{address}") };
        let urls = [("--listen-client-urls", url.as_str()), ("--advertise-client-urls", url.as_str())];
        options.extend(urls.iter().flat_map(|(key, url)| [(*key).to_owned(), (*url).to_owned()]));
        let child = launch(&folder, peers, &options)?;
        Some(Self { child, folder, address, peers, options, ctl, trust: trust.to_vec() })
    }

    fn until_there(&self) {
        let is_there = || TcpStream::connect(self.address).is_ok();
        assert!(within(TIMEOUT, is_there), "etcd does not start: {}", self.log());
    }

    /// Waits until a host's status has gone with its lease.
    pub fn until_gone(&self, host: &str) {
        assert!(within(TIMEOUT, || self.status(host).is_none()), "{host} still reports");
    }

    pub fn url(&self) -> String {
        let scheme = if self.trust.is_empty() { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    /// A folder with a program `etcdctl` that uses this etcd.
    pub fn programs(&self) -> PathBuf {
        let folder = self.folder.0.join("programs");
        std::fs::create_dir_all(&folder).unwrap();
        let script = format!(
            "#!/bin/sh\nETCDCTL_API=3 ETCDCTL_ENDPOINTS={} exec {} \"$@\"\n",
            self.address,
            self.ctl.join(" ")
        );
        let program = folder.join("etcdctl");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        folder
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.0.join("etcd.log")).unwrap_or_default()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, with its data.
    pub fn start_again(&mut self) {
        self.child = launch(&self.folder, self.peers, &self.options).unwrap();
        self.until_there();
    }

    /// Runs etcdctl.
    pub fn try_ctl(&self, words: &[&str]) -> Output {
        let (program, first) = self.ctl.split_first().unwrap();
        let mut command = Command::new(program);
        command.args(first).arg("--endpoints").arg(self.address.to_string()).args(&self.trust).args(words);
        command.env("ETCDCTL_API", "3").output().unwrap()
    }

    /// Runs etcdctl, which must succeed.
    pub fn ctl(&self, words: &[&str]) -> String {
        let mut output = None;
        let is_good = within(TIMEOUT, || output.insert(self.try_ctl(words)).status.success());
        let output = output.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(is_good, "etcdctl {words:?}: {error}{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Writes a key; returns the revision.
    pub fn put(&self, key: &str, value: &str) -> i64 {
        revision_of(&self.ctl(&["put", key, value, "-w", "json"]))
    }

    /// Writes the configuration of a host.
    pub fn configure(&self, host: &str, config: &str) -> i64 {
        self.put(&key(host, HostKey::Config), config)
    }

    pub fn get(&self, key: &str) -> Option<String> {
        let value = self.ctl(&["get", key, "--print-value-only"]);
        value.strip_suffix('\n').filter(|value| !value.is_empty()).map(str::to_owned)
    }

    pub fn status(&self, host: &str) -> Option<HostStatus> {
        Some(serde_json::from_str(&self.get(&key(host, HostKey::Status))?).unwrap())
    }

    /// Waits until a host's status fits.
    pub fn until(&self, host: &str, what: &str, fits: impl Fn(&HostStatus) -> bool) -> HostStatus {
        let mut status = None;
        let is_so = within(TIMEOUT, || {
            status = self.status(host);
            status.as_ref().is_some_and(&fits)
        });
        assert!(is_so, "{host}: {what}: {status:#?}");
        status.unwrap()
    }

    /// Waits until a host runs a revision.
    pub fn until_runs(&self, host: &str, revision: i64) -> HostStatus {
        let runs = |status: &HostStatus| status.state == HostState::Running && status.running == revision;
        self.until(host, &format!("runs revision {revision}"), runs)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(folder: &Folder, peers: SocketAddr, options: &[String]) -> Option<Child> {
    let program = etcd_program("etcd")?;
    let (program, first) = program.split_first()?;
    let log = std::fs::File::options().create(true).append(true).open(folder.0.join("etcd.log")).unwrap();
    let peers = format!("http://{peers}");
    let mut command = Command::new(program);
    command.args(first).arg("--data-dir").arg(folder.0.join("etcd"));
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    // Of two values, etcd takes the last one.
    command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "warn"]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().ok()
}

/// The revision in an answer of etcdctl.
pub fn revision_of(answer: &str) -> i64 {
    let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
    answer["header"]["revision"].as_i64().unwrap()
}

/// The key of a host.
pub fn key(host: &str, which: HostKey) -> String {
    host.parse::<netvm_fleet::HostName>().unwrap().key(which)
}

/// A configuration with a chain, tested for health within so many seconds.
pub fn config(within: u16) -> String {
    let health = format!("\n[health]\nwithin = {within}\nsteady = 0\n");
    format!("{ENGINE}{}{health}", forwarding_chain("a", &program("forward")))
}

/// The same with a rule more, which never matches.
pub fn config_with(rule: &str, within: u16) -> String {
    format!("{}{}", config(within), drop_rule(rule))
}

/// A rule.
pub fn drop_rule(name: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nfrom = \"a-out\"\nmatch = {{ source = \"192.0.2.1\" }}\ndrop = true\n"
    )
}

/// A host that starts as `name`, with what etcd has for it, by these options.
pub fn launch_host(folder: &Arc<Folder>, name: &str, options: &[&str]) -> Daemon {
    // The harness writes a configuration file, and such a host has none at its first start.
    let start = format!(
        "[ -e {run}/kept ] || {{ rm -f {config}; mkdir -p {run}; : >{run}/kept; }}; exec \"$0\" \"$@\"",
        run = folder.0.display(),
        config = folder.config().display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &start, env!("CARGO_BIN_EXE_netvmd"), "--host", name]).args(options);
    Daemon::launch_as(command, Arc::clone(folder), "")
}

/// A host of a fleet.
pub struct Host {
    pub daemon: Daemon,
    pub name: String,
}

impl Host {
    /// Starts a host that has a configuration in etcd.
    pub fn start(name: &str, url: &str) -> Self {
        let mut daemon = launch_host(&Arc::new(Folder::new()), name, &["--etcd", url]);
        daemon.await_log("serves its API on");
        Self { daemon, name: name.to_owned() }
    }

    /// Kills netvmd, and starts it again with what it has on disk.
    pub fn restart(&mut self, url: &str) {
        let folder = Arc::clone(&self.daemon.folder);
        self.daemon.signal(rustix::process::Signal::TERM);
        self.daemon.wait();
        let text = std::fs::read_to_string(folder.config()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvmd"));
        command.args(["--host", &self.name, "--etcd", url]);
        self.daemon = Daemon::launch_as(command, folder, &text);
        self.daemon.await_log("serves its API on");
    }

    /// The names of its rules.
    pub fn rules(&self) -> Vec<String> {
        let policy: netvm_api::PolicyInfo = self.daemon.get(netvm_api::path::POLICY);
        policy.rules.into_iter().map(|rule| rule.name).collect()
    }

    /// Packets that its chain has lost.
    pub fn lost(&self) -> u64 {
        let stats = self.daemon.stats();
        stats.drops.chains.get("a").map_or(0, |reasons| reasons.values().sum())
    }

    pub fn kept(&self) -> PathBuf {
        self.daemon.folder.config()
    }
}

/// Runs shell commands with netvm, netvmd and etcdctl: whether they succeeded, and what they printed.
pub fn shell(etcd: &Etcd, folder: &Path, commands: &str) -> (bool, String) {
    let built = Path::new(env!("CARGO_BIN_EXE_netvmd")).parent().unwrap().display().to_string();
    let path = format!("{}:{built}:{}", etcd.programs().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec 2>&1\nset -e\n{commands}")]).current_dir(folder);
    command.env("PATH", path).env("NETVM_ETCD", etcd.url()).env("HOME", folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// Whether there is a netvm to run; prints that the test is skipped if not.
pub fn has_netvm() -> bool {
    let is_built = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm").exists();
    if !is_built {
        println!("SKIP: no netvm beside netvmd");
    }
    is_built
}

/// The lines of a file of JSON.
pub fn json_lines(file: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // netvmd may be writing the next one.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
