// SPDX-License-Identifier: Apache-2.0
//! Real guests under QEMU's emulation, driven by a shell on their serial console.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netvm_api::{VmInfo, VmState, path};
use netvm_testing::within;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::{Daemon, Folder};

/// Limit for anything that a guest does, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Most concurrent guests: each takes a processor.
const MAX_GUESTS: usize = 2;
/// Read timeout of a console.
const READ_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

static TAKEN: Mutex<usize> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

/// A test's reservation of guests.
struct Reservation(usize);

impl Reservation {
    fn take(places: usize) -> Self {
        // After a panic, the number is still valid.
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken + places > MAX_GUESTS {
            taken = LEFT.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += places;
        Self(places)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        LEFT.notify_all();
    }
}

/// A kernel and an initramfs with a shell, in a folder that every user can read.
pub struct Image {
    pub folder: Arc<Folder>,
    _places: Reservation,
}

/// Prints why a test is skipped.
pub fn skip(why: &str) -> Option<Image> {
    println!("SKIP: {why}");
    None
}

impl Image {
    /// An image for `guests` guests with a shell; `None`, with the reason on standard output, if this machine cannot
    /// run them.
    pub fn make(guests: usize) -> Option<Self> {
        Self::with_modules(guests, &["virtio_pci", "virtio_net", "pvpanic-mmio"], &[])
    }

    /// The same with a writable raw disk, `disk.img` in the folder.
    pub fn on_disk(guests: usize) -> Option<Self> {
        Self::with_modules(guests, &["virtio_pci", "virtio_net", "virtio_blk"], &["--disk"])
    }

    /// An image with a shell, the kernel's drivers of e1000 and e1000e cards and what `further` arguments of the script
    /// say.
    pub fn with_e1000(further: Vec<String>) -> Option<Self> {
        Self::with(2, |_| {
            let ethtool = format!("{}:bin/ethtool", super::hosts::run("which ethtool").trim());
            let words =
                ["--drivers", "--module", "e1000", "--module", "e1000e", "--module", "8021q", "--file"];
            words.map(str::to_owned).into_iter().chain([ethtool]).chain(further).collect()
        })
    }

    fn with_modules(guests: usize, modules: &[&str], further: &[&str]) -> Option<Self> {
        let modules = modules.iter().flat_map(|name| ["--module", *name]);
        Self::with(guests, |_| modules.chain(further.iter().copied()).map(str::to_owned).collect())
    }

    /// A guest that runs this test binary as an NF.
    pub fn of_this_program() -> Option<Self> {
        Self::with(1, |folder| {
            let words = [&*own_program(folder), "be_the_program", "--exact", "--nocapture"];
            words.map(str::to_owned).to_vec()
        })
    }

    /// An image with a shell, and this test binary as a program of this name in the root folder.
    pub fn with_program(guests: usize, name: &str) -> Option<Self> {
        Self::with(guests, |folder| {
            let file = format!("{}:{name}", own_program(folder));
            let words = ["--module", "virtio_pci", "--module", "virtio_net", "--file", &file];
            words.map(str::to_owned).to_vec()
        })
    }

    /// An image made by the script with these arguments.
    fn with(guests: usize, arguments: impl FnOnce(&Path) -> Vec<String>) -> Option<Self> {
        let places = Reservation::take(guests);
        if !cfg!(target_arch = "x86_64") {
            return skip("the guest image is for x86-64");
        }
        if Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err() {
            return skip("qemu-system-x86_64 is not installed (./dev setup installs it)");
        }
        let folder = Arc::new(Folder::new());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/guest/image.sh");
        // The build folder caches the kernel.
        let build = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("guest");
        let made_in = build.join(folder.0.file_name().unwrap());
        let made = Command::new(script).arg(&made_in).args(arguments(&folder.0)).output().unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            return skip(&format!("no guest image: {}", why.trim()));
        }
        for file in std::fs::read_dir(&made_in).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), folder.0.join(file.file_name())).unwrap();
        }
        std::fs::remove_dir_all(made_in).unwrap();
        // QEMU's user can listen here, too.
        let sockets = folder.0.join("sockets");
        std::fs::create_dir(&sockets).unwrap();
        std::fs::set_permissions(sockets, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        Some(Self { folder, _places: places })
    }

    /// A guest and its port of the same name, with further keys for each.
    pub fn guest(&self, name: &str, port: &str, vm: &str) -> String {
        let folder = self.folder.0.display();
        format!(
            r#"
            [[port]]
            name = "{name}"
            kind = "vhost-user"
            path = "{folder}/sockets/{name}.sock"
            {port}

            [[vm]]
            name = "{name}"
            ports = ["{name}"]
            kernel = "{folder}/kernel"
            initrd = "{folder}/initrd"
            append = "quiet panic=-1"
            memory = 128
            {vm}
            "#
        )
    }
}

/// This test binary without debug symbols, which would not fit into a guest's memory.
fn own_program(folder: &Path) -> String {
    let program = folder.join("nf");
    let own = std::env::current_exe().unwrap();
    assert!(Command::new("strip").arg("-o").arg(&program).arg(own).status().unwrap().success());
    program.display().to_string()
}

/// A shell in a guest.
pub struct Shell {
    line: File,
    output: String,
    commands: u32,
}

impl Shell {
    /// Attaches to a console and waits for the shell.
    pub fn attach(socket: &Path) -> Self {
        Self::over(OwnedFd::from(UnixStream::connect(socket).unwrap()).into())
    }

    /// The same for a console that is a pseudo-terminal.
    pub fn on_terminal(path: &Path) -> Self {
        let line = File::options().read(true).write(true).open(path).unwrap();
        // Without raw mode it would echo the guest's output back.
        let mut attributes = tcgetattr(&line).unwrap();
        attributes.make_raw();
        tcsetattr(&line, OptionalActions::Now, &attributes).unwrap();
        Self::over(line)
    }

    fn over(line: File) -> Self {
        let mut shell = Self { line, output: String::new(), commands: 0 };
        shell.until_ready();
        shell
    }

    /// Repeats a command until the shell answers: input before that is lost.
    fn until_ready(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.commands += 1;
            let n = self.commands;
            self.line.write_all(format!("echo up-$(({n}+0))-now\n").as_bytes()).unwrap();
            let until = Instant::now() + Duration::from_millis(500);
            while Instant::now() < until {
                self.listen();
                if self.output.contains(&format!("up-{n}-now")) {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "the guest did not answer:\n{}", self.output);
        }
    }

    fn listen(&mut self) {
        let mut ready = [PollFd::new(&self.line, PollFlags::IN)];
        if poll(&mut ready, Some(&READ_TIMEOUT)).unwrap() == 0 {
            return;
        }
        let mut bytes = [0; 4096];
        match self.line.read(&mut bytes) {
            Ok(read) if read > 0 => self.output.push_str(&String::from_utf8_lossy(&bytes[..read])),
            ended => panic!("the console has ended ({ended:?}):\n{}", self.output),
        }
    }

    /// Types a command without waiting for it.
    pub fn type_in(&mut self, command: &str) {
        self.line.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// Runs a command; returns its output and exit status.
    pub fn run(&mut self, command: &str) -> (String, i32) {
        self.commands += 1;
        let n = self.commands;
        let from = self.output.len();
        self.type_in(&format!("{command}; echo end-$(({n}+0))-$?-"));
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.listen();
            let output = &self.output[from..];
            if let Some((output, rest)) = output.split_once(&format!("end-{n}-"))
                && let Some((status, _)) = rest.split_once('-')
            {
                return (output.to_owned(), status.parse().unwrap());
            }
            assert!(Instant::now() < deadline, "`{command}` did not end:\n{output}");
        }
    }

    /// Runs a command that must succeed.
    pub fn must(&mut self, command: &str) -> String {
        let (output, status) = self.run(command);
        assert_eq!(status, 0, "{command}:\n{output}");
        output
    }

    /// Repeats a command until it succeeds; returns the time taken.
    pub fn until(&mut self, command: &str) -> Duration {
        let start = Instant::now();
        let succeeds = within(TIMEOUT, || self.run(command).1 == 0);
        assert!(succeeds, "`{command}` kept failing:\n{}", self.output);
        start.elapsed()
    }

    /// Gives the guest's interface addresses that end in `n`.
    pub fn address(&mut self, n: u32) {
        self.must("echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad");
        self.must("ip link set eth0 up");
        self.must(&format!("ip addr add 10.9.0.{n}/24 dev eth0"));
        self.must(&format!("ip -6 addr add fd00:9::{n}/64 dev eth0"));
    }
}

impl Daemon {
    pub fn vm(&self, name: &str) -> VmInfo {
        self.get::<Vec<VmInfo>>(path::VMS).into_iter().find(|vm| vm.name == name).unwrap()
    }

    pub fn console(&self, name: &str) -> PathBuf {
        self.vm(name).console
    }

    /// Waits until a VM runs and attaches to its console.
    pub fn shell(&self, name: &str) -> Shell {
        self.until_slowly(&format!("vm {name} runs"), |daemon| daemon.vm(name).state == VmState::Running);
        Shell::attach(&self.console(name))
    }

    /// As [`Daemon::until`], with a limit for guests.
    pub fn until_slowly(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        assert!(within(TIMEOUT, || condition(self)), "timeout: {what}\n{}", self.log());
    }
}

/// Kills the guests of a test, which outlive their netvmd.
pub struct Reaper(pub Arc<Folder>);

impl Drop for Reaper {
    fn drop(&mut self) {
        let Ok(folders) = std::fs::read_dir(self.0.run_dir().join("vm")) else { return };
        for folder in folders.map_while(Result::ok) {
            let record = std::fs::read_to_string(folder.path().join("record.json")).unwrap_or_default();
            let record: serde_json::Value = serde_json::from_str(&record).unwrap_or_default();
            let (pid, started) = (record["pid"].as_i64(), record["started"].as_u64());
            let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
            let stat = pid.map(|pid| format!("/proc/{}/stat", pid.as_raw_nonzero()));
            let stat = stat.and_then(|stat| std::fs::read_to_string(stat).ok()).unwrap_or_default();
            let runs = started.is_some_and(|started| stat.contains(&format!(" {started} ")));
            if let (Some(pid), true) = (pid, runs) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}
