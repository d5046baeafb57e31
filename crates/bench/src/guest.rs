//! A VM whose guest is an NF: its image, and QEMU.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use netvm_attach::Fds;
use netvm_region::Notify;
use netvm_vm::{Accel, Boot, GuestMemory, Machine, Sockets, Version};
use rustix::io::FdFlags;

use crate::error::BenchError;

const QEMU: &str = "qemu-system-x86_64";

/// A guest that can be started, as often as wanted.
#[derive(Debug)]
pub struct Guest {
    folder: tempfile::TempDir,
    version: Version,
    accel: Accel,
    core: u32,
}

impl Guest {
    /// Makes the image of a guest that runs `program` with these arguments, on `core`.
    ///
    /// # Errors
    /// [`BenchError::MissingPeer`] without QEMU, [`BenchError::Guest`] when the image cannot be made.
    pub fn new(program: &Path, arguments: &[&str], accel: Accel, core: u32) -> Result<Self, BenchError> {
        let qemu = BenchError::MissingPeer { program: QEMU, package: "qemu-system-x86" };
        let said = Command::new(QEMU).arg("--version").output();
        let Some(version) = said.ok().and_then(|said| Version::parse(&String::from_utf8_lossy(&said.stdout)))
        else {
            return Err(qemu);
        };
        let folder = tempfile::tempdir().map_err(BenchError::system("a folder for the guest's image"))?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/guest-image.sh");
        // Beside the program, where the kernel package is kept from one run to the next.
        let image = program.with_file_name("guest").join("bench");
        let mut command = Command::new(script);
        command.arg(&image).arg(program).args(arguments);
        let made = command.output().map_err(BenchError::system("making the guest's image"))?;
        if !made.status.success() {
            let problem = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            return Err(BenchError::Guest { problem });
        }
        for file in ["kernel", "initrd"] {
            let copied = std::fs::rename(image.join(file), folder.path().join(file))
                .or_else(|_| std::fs::copy(image.join(file), folder.path().join(file)).map(drop));
            copied.map_err(BenchError::system("the guest's image"))?;
        }
        Ok(Self { folder, version, accel, core })
    }

    /// Starts it with the memory of an NF that was let in.
    ///
    /// # Errors
    /// [`BenchError::System`] in the kernel's words.
    pub fn start(&self, fds: &Fds<BorrowedFd<'_>>) -> Result<Child, BenchError> {
        let at = |file: &str| -> PathBuf { self.folder.path().join(file) };
        let memory = GuestMemory::new(fds, Notify::Poll).map_err(BenchError::system("the guest's memory"))?;
        let boot = Boot::Kernel {
            kernel: at("kernel"),
            initrd: Some(at("initrd")),
            append: "quiet panic=-1".to_owned(),
        };
        let machine = Machine {
            name: "netvm-bench".to_owned(),
            memory: 128,
            cpus: 1,
            node: None,
            accel: self.accel,
            boot,
            cards: Vec::new(),
        };
        let (qmp, serial) = (at("qmp"), at("serial"));
        let sockets = Sockets::At { qmp: &qmp, serial: &serial };
        let mut command = pinned(self.core, Path::new(QEMU));
        command.args(machine.arguments(self.version, sockets)).args(memory.arguments()).stdin(Stdio::null());
        for fd in memory.descriptors() {
            // Nothing else is started until this process's copies are closed, so that no other child gets them.
            rustix::io::fcntl_setfd(fd.as_fd(), FdFlags::empty())
                .map_err(BenchError::system("the guest's memory"))?;
        }
        command.spawn().map_err(BenchError::system(format!("starting {QEMU}")))
    }
}

/// A command for a program that is bound to a core, with all its threads.
pub fn pinned(core: u32, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &core.to_string()]).arg(program);
    command
}
