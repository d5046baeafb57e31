// SPDX-License-Identifier: Apache-2.0
//! Guests: `dpdk-testpmd` with a virtio-user port, a process of its own.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PROGRAM: &str = "dpdk-testpmd";

/// One test at a time: guests poll, and there may be two cores only.
static ONE_GUEST: Mutex<()> = Mutex::new(());

/// The lock of guests, if the program is installed; else prints that the test is skipped.
pub fn turn() -> Option<MutexGuard<'static, ()>> {
    if Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().is_err() {
        println!("SKIP: no {PROGRAM} (package dpdk-dev)");
        return None;
    }
    Some(ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The last core: the engine's worker has the first.
fn core() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).unwrap()
}

/// What a guest is made of.
pub struct Guest<'a> {
    pub socket: &'a Path,
    /// Further parameters of its virtio-user device, such as `,queues=2`.
    pub device: &'a str,
    /// Devices of testpmd before that one, such as captures.
    pub others: Vec<String>,
    /// Arguments of testpmd itself.
    pub arguments: Vec<&'a str>,
    /// Commands for its prompt.
    pub commands: &'a str,
}

impl<'a> Guest<'a> {
    pub fn new(socket: &'a Path) -> Self {
        Self { socket, device: "", others: Vec::new(), arguments: Vec::new(), commands: "start\n" }
    }

    /// With a capture of frames that it sends, and one of those that it gets.
    pub fn capture(mut self, input: &Path, output: &Path) -> Self {
        self.others.push(format!("net_pcap0,rx_pcap={},tx_pcap={}", input.display(), output.display()));
        self
    }

    pub fn start(self) -> Running {
        let mut command = Command::new(PROGRAM);
        command.arg(format!("--lcores=0@{0},1@{0}", core()));
        command.args(["--no-huge", "--no-shconf", "-m", "128", "--no-pci", "--no-telemetry"]);
        for other in &self.others {
            command.arg(format!("--vdev={other}"));
        }
        command.arg(format!("--vdev=net_virtio_user0,path={}{}", self.socket.display(), self.device));
        command.args(["--", "-i", "--no-flush-rx", "--total-num-mbufs=4096"]).args(&self.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let mut prompt = child.stdin.take().unwrap();
        prompt.write_all(self.commands.as_bytes()).unwrap();
        Running { child, prompt: Some(prompt) }
    }
}

/// A guest that runs; killed when dropped.
pub struct Running {
    child: Child,
    prompt: Option<ChildStdin>,
}

impl Running {
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How often it has called write(2): for its log, and for kicks.
    pub fn writes(&self) -> u64 {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.child.id())).unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap();
        line.parse().unwrap()
    }

    /// Types something at its prompt.
    pub fn command(&mut self, line: &str) {
        if let Some(prompt) = &mut self.prompt {
            writeln!(prompt, "{line}").unwrap();
        }
    }
}

/// Ends all guests together and in order, so that captures are complete.
pub fn quit(mut guests: Vec<Running>) {
    for guest in &mut guests {
        if let Some(mut prompt) = guest.prompt.take() {
            let _ = prompt.write_all(b"quit\n");
        }
    }
    let have_ended = || {
        guests.retain_mut(|guest| guest.child.try_wait().unwrap().is_none());
        guests.is_empty()
    };
    assert!(netvm_testing::within(Duration::from_secs(60), have_ended), "{PROGRAM} does not end");
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A socket's path in a folder.
pub fn socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}
