// SPDX-License-Identifier: Apache-2.0
//! A private daemon for each test, with its folder, configuration, API and log.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fmt::{Display, Formatter};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use netlib::{NetworkFunction, Packet, Verdict};
use netvm_api::{ApiError, NfInfo, NfState, Stats, path};
use netvm_testing::within;
use serde::de::DeserializeOwned;

pub mod captured;
pub mod download;
pub mod guest;
pub mod hosts;
pub mod libvirt;
pub mod page;
pub mod peers;
pub mod user_program;
pub mod vm_nf;

/// Environment variable that makes the test binary an NF.
pub const PROGRAM: &str = "NFTEST_PROGRAM";

/// Limit for things that take milliseconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(30);

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// The NF of most tests: forwards every packet to the next hop.
pub struct Forward;

impl NetworkFunction for Forward {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        Verdict::Next
    }
}

/// A folder that every user can enter; removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let name = format!("netvmd-test-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn config(&self) -> PathBuf {
        self.0.join("host.toml")
    }

    pub fn run_dir(&self) -> PathBuf {
        self.0.join("run")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running netvmd.
pub struct Daemon {
    pub child: Child,
    pub folder: Arc<Folder>,
    log: Arc<Mutex<String>>,
    /// Reads the log until nobody can write to it any more.
    reader: JoinHandle<()>,
}

impl Daemon {
    /// Starts it and waits until it serves its API.
    pub fn start(config: &str) -> Self {
        Self::start_in(Arc::new(Folder::new()), config)
    }

    pub fn start_in(folder: Arc<Folder>, config: &str) -> Self {
        let mut daemon = Self::launch(folder, config);
        daemon.await_log("serves its API on");
        daemon
    }

    /// Starts it.
    pub fn launch(folder: Arc<Folder>, config: &str) -> Self {
        Self::launch_as(Command::new(env!("CARGO_BIN_EXE_netvmd")), folder, config)
    }

    /// Starts it by the caller's command.
    pub fn launch_as(mut command: Command, folder: Arc<Folder>, config: &str) -> Self {
        std::fs::write(folder.config(), forced(config)).unwrap();
        command.arg("--config").arg(folder.config()).arg("--run-dir").arg(folder.run_dir());
        command.args(["--log", "debug"]).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let to = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = to.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, folder, log, reader }
    }

    /// The log. netvmd writes it on its own thread, and a thread of this process reads it, so this waits a moment for
    /// recent lines.
    pub fn log(&self) -> String {
        std::thread::sleep(Duration::from_millis(50));
        self.log.lock().unwrap().clone()
    }

    /// Whether the log has a text by now.
    fn has_logged(&self, text: &str) -> bool {
        self.log.lock().unwrap().contains(text)
    }

    pub fn await_log(&mut self, text: &str) {
        self.await_log_within(TIMEOUT, text);
    }

    pub fn await_log_within(&mut self, timeout: Duration, text: &str) {
        let mut ended = None;
        within(timeout, || {
            ended = self.child.try_wait().unwrap();
            ended.is_some() || self.has_logged(text)
        });
        // Its last line may be the one.
        assert!(
            self.has_logged(text) || self.log().contains(text),
            "no `{text}` ({ended:?}):\n{}",
            self.log()
        );
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_within(TIMEOUT)
    }

    pub fn wait_within(&mut self, timeout: Duration) -> ExitStatus {
        let mut status = None;
        within(timeout, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // The rest of the log, unless a process that netvmd has left behind can still write to it.
        within(Duration::from_millis(100), || self.reader.is_finished());
        status.unwrap_or_else(|| panic!("netvmd did not end:\n{}", self.log()))
    }

    /// Stops it and has it remove the namespaces of its routers.
    pub fn purge(&mut self) {
        self.purge_within(TIMEOUT);
    }

    pub fn purge_within(&mut self, timeout: Duration) {
        let (status, answer) = self.request("POST", path::STOP, "{\"purge\": true}");
        assert!(status == 200 && self.wait_within(timeout).success(), "{answer}\n{}", self.log());
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The process that keeps files for the next netvmd.
    pub fn store(&self) -> Option<rustix::process::Pid> {
        let socket = self.folder.run_dir().join("files.sock");
        let is_store = |entry: &std::fs::DirEntry| {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            line.contains(&format!("keep-files\0{}", socket.display()))
        };
        let found = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).find(is_store)?;
        rustix::process::Pid::from_raw(found.file_name().to_str()?.parse().ok()?)
    }

    pub fn kill_store(&self) {
        rustix::process::kill_process(self.store().unwrap(), rustix::process::Signal::KILL).unwrap();
    }

    pub fn api_socket(&self) -> PathBuf {
        self.folder.run_dir().join("api.sock")
    }

    pub fn attach_socket(&self) -> PathBuf {
        self.folder.run_dir().join("attach.sock")
    }

    pub fn request(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> (u16, String) {
        self.request_with(&[], method, path, body)
    }

    /// A request with headers.
    pub fn request_with(
        &self,
        headers: &[&str],
        method: &str,
        path: &str,
        body: impl AsRef<[u8]>,
    ) -> (u16, String) {
        request(&self.api_socket(), headers, &format!("{method} {path}"), body.as_ref())
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        let (status, body) = self.request("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The status and error of a request that must fail.
    pub fn post_failing(&self, path: &str, body: impl AsRef<[u8]>) -> (u16, ApiError) {
        let (status, body) = self.request("POST", path, body);
        assert!(status >= 400, "{status}: {body}");
        (status, serde_json::from_str(&body).unwrap())
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &str) -> T {
        let (status, answer) = self.request("POST", path, body);
        assert_eq!(status, 200, "{path}: {answer}\n{}", self.log());
        serde_json::from_str(&answer).unwrap()
    }

    pub fn stats(&self) -> Stats {
        self.get(path::STATS)
    }

    pub fn nf(&self, role: &str) -> NfInfo {
        self.get::<Vec<NfInfo>>(path::NFS).into_iter().find(|nf| nf.role == role).unwrap()
    }

    pub fn left(&self, chain: &str) -> u64 {
        self.stats().chains.iter().find(|info| info.name == chain).map_or(0, |info| info.left)
    }

    /// Waits until `condition` holds.
    pub fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        assert!(within(TIMEOUT, || condition(self)), "timeout: {what}\n{}", self.log());
    }

    pub fn until_running(&self, role: &str) -> NfInfo {
        self.until(&format!("{role} runs"), |daemon| daemon.nf(role).state == NfState::Running);
        self.nf(role)
    }

    /// Waits until packets pass a chain.
    pub fn until_flowing(&self, chain: &str) {
        let before = self.left(chain);
        self.until(&format!("packets leave chain {chain}"), |daemon| daemon.left(chain) > before);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A configuration whose containers have a fast path if the environment has NETVM_TEST_FAST_PATH, as has the host:
/// whatever works without one has to work with it.
fn forced(config: &str) -> String {
    if std::env::var_os("NETVM_TEST_FAST_PATH").is_none() || config.contains("fast_path") {
        return config.to_owned();
    }
    ["container", "host"].iter().fold(config.to_owned(), |config, kind| {
        let line = format!("kind = \"{kind}\"\n");
        config.replace(&line, &format!("{line}fast_path = true\n"))
    })
}

/// One request, one answer.
pub fn request(socket: &Path, headers: &[&str], line: &str, body: &[u8]) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let is_json = body.starts_with(b"{") || body.starts_with(b"[{") || body == b"[]";
    let kind = if is_json { "json" } else { "toml" };
    let body = match std::str::from_utf8(body) {
        Ok(text) if kind == "toml" => forced(text).into_bytes(),
        _ => body.to_owned(),
    };
    let length = body.len();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!(
        "{line} HTTP/1.1\r\nhost: netvm\r\nconnection: close\r\ncontent-type: application/{kind}\r\n\
         content-length: {length}\r\n{headers}\r\n"
    );
    // In one write: a server that refuses the head, as for an unknown name, closes before it reads the body.
    stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// The `command` of an NF that runs this test binary, and the environment variable that selects its behaviour.
pub fn program(name: &str) -> String {
    let own = std::env::current_exe().unwrap();
    format!(
        "command = [{:?}, \"--exact\", \"be_the_program\", \"--nocapture\", \"--test-threads=1\"]\n\
         environment = {{ {PROGRAM} = {name:?} }}\n",
        own.display().to_string()
    )
}

/// The beginning of a configuration, as text.
pub struct EngineText(pub LazyLock<String>);

impl Deref for EngineText {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl Display for EngineText {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self)
    }
}

/// An engine that sleeps when idle.
pub const ADAPTIVE: &str = "idle = \"adaptive\"\nhuge_pages = false\n";

/// A small engine that sleeps when idle.
pub static ENGINE: EngineText =
    EngineText(LazyLock::new(|| engine(ADAPTIVE) + "\n[[group]]\nname = \"edge\"\nbuffers = 2048\n"));

/// The `[engine]` table with these keys, and with as many workers as `NETVM_TEST_WORKERS` says; one without it.
pub fn engine(keys: &str) -> String {
    let wanted = std::env::var("NETVM_TEST_WORKERS").map_or(1, |number| number.parse().unwrap());
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let cores: Vec<usize> = cores.take(wanted).collect();
    let cores = if wanted > 1 { format!("cores = {cores:?}\n") } else { String::new() };
    format!("[engine]\n{cores}{keys}")
}

/// A slow source, a chain of one NF, and a sink.
pub fn forwarding_chain(name: &str, program: &str) -> String {
    format!(
        "\n[[port]]\nname = \"{name}-in\"\nkind = \"source\"\nsize = 60\nflows = 8\nrate = 5000\n\
         \n[[port]]\nname = \"{name}-out\"\nkind = \"sink\"\n\
         \n[[nf]]\nrole = \"{name}-nf\"\ngroup = \"edge\"\n{program}\
         \n[[chain]]\nname = \"{name}\"\nhops = [\"{name}-nf\"]\noutput = \"{name}-out\"\n\
         \n[[rule]]\nname = \"{name}\"\nfrom = \"{name}-in\"\nchain = \"{name}\"\n"
    )
}

/// The process ids of `parent`'s children that run this test binary.
pub fn processes_below(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        fields.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// A field of /proc/PID/status.
pub fn status_field(pid: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(&format!("{field}:"))).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

/// How long a process's threads waited for a CPU.
pub fn waited(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(Result::ok);
    let waited = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

/// Whether this process is root; if not, prints that the test is skipped.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIP: only root can start NFs as another user");
    }
    is_root
}
