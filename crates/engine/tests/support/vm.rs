// SPDX-License-Identifier: Apache-2.0
//! NFs in real VMs, under QEMU's translator: no KVM is needed.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netvm_engine::{InstanceId, NotifyMode, ReadyMessage};
use netvm_vm::GuestMemory;

use super::Rig;

/// How long a guest may take to boot and attach on a busy machine.
const BOOT: Duration = Duration::from_secs(120);

/// A kernel and an initramfs with one program.
#[derive(Debug)]
pub struct Image {
    folder: PathBuf,
    /// Processors, as for QEMU's `-smp`. With one possible processor, the translator makes no atomic instructions.
    pub processors: &'static str,
    /// How the guest wakes the engine and other NFs.
    pub notify: NotifyMode,
    /// Threads of the NF.
    pub threads: u16,
}

impl Image {
    /// An image with a program of this build, started with these arguments; `None`, and a word on standard output, when
    /// this machine cannot make or run one.
    pub fn of(program: &str, arguments: &[&str]) -> Option<Self> {
        Self::with(program, arguments, None)
    }

    /// The same with another program of this build, `nf` there, that the first can start.
    pub fn with(program: &str, arguments: &[&str], nf: Option<&str>) -> Option<Self> {
        let skip = |why: &str| {
            println!("SKIP: {why}");
            None
        };
        if !cfg!(target_arch = "x86_64") {
            return skip("the guest image is one of x86-64");
        }
        if Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err() {
            return skip("qemu-system-x86_64 is not installed (./dev setup installs it)");
        }
        let build = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        let path = build.join(program);
        let nf = nf.map(|nf| build.join(nf));
        if let Some(missing) = nf.iter().chain([&path]).find(|path| !path.exists()) {
            return skip(&format!("{} is not built (cargo build --workspace --examples)", missing.display()));
        }
        let mut options = Vec::new();
        if let Some(nf) = nf {
            options.extend(["--file".to_owned(), format!("{}:bin/nf", nf.display())]);
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/guest/image.sh");
        let name = std::thread::current().name().unwrap_or("test").replace("::", "-");
        let folder = build.join("guest").join(format!("{name}-{}", std::process::id()));
        let made =
            Command::new(script).arg(&folder).args(options).arg(path).args(arguments).output().unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            // Without a network there is no kernel package.
            return skip(&format!("no guest image: {}", why.trim()));
        }
        Some(Self { folder, processors: "1,maxcpus=2", notify: NotifyMode::Poll, threads: 1 })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A VM that runs.
pub struct Vm {
    pub id: InstanceId,
    pub child: Child,
    console: PathBuf,
}

impl Vm {
    /// What the guest has written on its console.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Presses Enter on its console.
    pub fn press_enter(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rig {
    /// Starts a VM as an NF of this role; it may not have booted yet.
    pub fn start_vm(&mut self, role: &str, image: &Image, standby: bool) -> Vm {
        let id = self.engine.admit_guest(role, image.threads, standby, image.notify);
        let id = id.unwrap_or_else(|error| panic!("{error}"));
        let memory = GuestMemory::new(&self.engine.descriptors(id).unwrap(), image.notify).unwrap();
        let console = image.folder.join(format!("console-{id}"));
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35,accel=tcg"]);
        command.args(["-cpu", "max", "-smp", image.processors, "-m", "128M", "-device", "pvpanic"]);
        command
            .arg("-kernel")
            .arg(image.folder.join("kernel"))
            .arg("-initrd")
            .arg(image.folder.join("initrd"));
        command.args(["-append", "console=ttyS0 no_timer_check quiet panic=-1"]);
        command.args(["-serial", "stdio"]).stdout(std::fs::File::create(&console).unwrap());
        command.args(memory.arguments()).stdin(Stdio::piped());
        let passed: Vec<i32> = memory.descriptors().map(|fd| fd.as_raw_fd()).collect();
        // SAFETY: only async-signal-safe calls between fork and exec, and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for fd in &passed {
                    if libc::fcntl(*fd, libc::F_SETFD, 0) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        Vm { id, child: command.spawn().unwrap(), console }
    }

    /// Waits for a VM to attach.
    pub fn attach_vm(&mut self, role: &str, image: &Image, standby: bool) -> Vm {
        let mut vm = self.start_vm(role, image, standby);
        let ready_message = self.ready_message(&mut vm);
        assert!(matches!(ready_message, ReadyMessage::Ready { .. }), "{ready_message:?}\n{}", vm.console());
        vm
    }

    /// A line that the VM prints once it has booted.
    pub fn ready_message(&mut self, vm: &mut Vm) -> ReadyMessage {
        let start = std::time::Instant::now();
        while start.elapsed() < BOOT {
            self.until(Duration::from_millis(10), |_| false);
            if let Some(ready_message) = self.engine.guest_ready(vm.id) {
                println!("{}: {ready_message:?} after {:?}", vm.id, start.elapsed());
                return ready_message;
            }
            if let Some(status) = vm.child.try_wait().unwrap() {
                panic!("QEMU ended: {status}\n{}", vm.console());
            }
        }
        panic!("the guest said nothing:\n{}", vm.console());
    }

    /// Kills a VM with SIGKILL, and reports it to the engine.
    pub fn kill_vm(&mut self, mut vm: Vm) {
        vm.child.kill().unwrap();
        vm.child.wait().unwrap();
        self.engine.departed(vm.id);
    }
}
