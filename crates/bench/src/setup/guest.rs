// SPDX-License-Identifier: Apache-2.0
//! VMs of benchmarks: makes the image and starts QEMU.

use std::ffi::{OsStr, OsString};
use std::io::PipeWriter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netvm_attach::Fds;
use netvm_region::NotifyMode;
use netvm_vm::{
    Accel, Boot, Card, CardKind, GuestMemory, Machine, OLDEST_WITH_E1000, QEMU, Sockets, Version,
    find_vfio_user_client,
};
use rustix::io::FdFlags;

use crate::error::BenchError;
use crate::machine::own_program;

/// Limit for a guest to boot without KVM.
pub const BOOT: Duration = Duration::from_secs(60);

/// A guest that can be started repeatedly.
#[derive(Debug)]
pub struct Guest {
    folder: tempfile::TempDir,
    qemu: PathBuf,
    version: Version,
    accel: Accel,
    core: u32,
    console: Option<PipeWriter>,
}

/// What a guest runs on.
#[derive(Clone, Copy)]
pub struct Processor {
    /// How QEMU runs it.
    pub accel: Accel,
    /// The core.
    pub core: u32,
}

/// The accelerator of an option `--accel`.
pub fn accel(name: &str) -> Accel {
    if name == "kvm" { Accel::Kvm } else { Accel::Tcg }
}

/// What a guest that is an NF runs.
#[derive(Clone, Debug)]
pub struct NfImage {
    /// The NF.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its files, and their names in the root of the guest.
    pub files: Vec<(PathBuf, String)>,
}

impl Guest {
    /// Makes the image of a guest that runs an NF.
    ///
    /// # Errors
    /// [`BenchError::MissingPeer`] without QEMU, [`BenchError::Guest`] if the image cannot be made.
    pub fn nf(image: &NfImage, processor: Processor) -> Result<Self, BenchError> {
        let files = image.files.iter().flat_map(|(path, name)| {
            let mut file = path.as_os_str().to_owned();
            file.push(format!(":{name}"));
            [OsString::from("--file"), file]
        });
        let program = std::iter::once(image.program.as_os_str().to_owned());
        let words: Vec<OsString> =
            files.chain(program).chain(image.arguments.iter().map(OsString::from)).collect();
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        Self::make(&image.program, PathBuf::from(QEMU), &words, processor)
    }

    /// Makes the image of an ordinary guest in which `program` forwards the packets of its interface.
    ///
    /// # Errors
    /// As for [`Guest::nf`].
    pub fn ordinary(program: &Path, accel: Accel, core: u32) -> Result<Self, BenchError> {
        Self::with_interface(program, "program eth0", CardKind::VhostUser, Processor { accel, core })
    }

    /// Makes the image of an ordinary guest that runs a shell command once its interface on a card of this kind is up.
    /// The command can start the program as `program`.
    ///
    /// # Errors
    /// As for [`Guest::nf`]; [`BenchError::Guest`] if no QEMU supports netvm's e1000 cards.
    pub fn with_interface(
        program: &Path,
        command: &str,
        card: CardKind,
        processor: Processor,
    ) -> Result<Self, BenchError> {
        let mut file = program.as_os_str().to_owned();
        file.push(":bin/program");
        let (qemu, modules) = match card {
            CardKind::VhostUser => (PathBuf::from(QEMU), vec!["virtio_pci", "virtio_net"]),
            CardKind::VfioUser => (vfio_user_client()?, vec!["e1000"]),
        };
        let mut options: Vec<_> =
            modules.iter().flat_map(|name| ["--module", name].map(OsStr::new)).collect();
        if card == CardKind::VfioUser {
            options.push(OsStr::new("--drivers"));
        }
        options.push(OsStr::new("--file"));
        let command = format!("ip link set eth0 promisc on up; {command}");
        let script = ["busybox", "sh", "-c", &command].map(OsStr::new);
        let words = [&options[..], &[&file], &script].concat();
        Self::make(program, qemu, &words, processor)
    }

    /// Copies the console's output to a pipe, from the next start on.
    #[must_use]
    pub fn with_console(mut self, pipe: PipeWriter) -> Self {
        self.console = Some(pipe);
        self
    }

    /// `words`: the script's arguments after the folder.
    fn make(
        program: &Path,
        qemu: PathBuf,
        words: &[&OsStr],
        processor: Processor,
    ) -> Result<Self, BenchError> {
        let Processor { accel, core } = processor;
        let version = version_of(&qemu)?;
        let folder = make_image(program, words)?;
        Ok(Self { folder, qemu, version, accel, core, console: None })
    }

    /// Starts the guest with the memory of an admitted NF.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub fn start(&self, fds: &Fds<BorrowedFd<'_>>) -> Result<Child, BenchError> {
        let memory = GuestMemory::new(fds, NotifyMode::Poll)
            .map_err(BenchError::system("cannot prepare the guest's memory"))?;
        for fd in memory.descriptors() {
            // No other child may start before this process closes its copies.
            rustix::io::fcntl_setfd(fd.as_fd(), FdFlags::empty())
                .map_err(BenchError::system("cannot prepare the guest's memory"))?;
        }
        self.launch(memory.arguments(), Vec::new())
    }

    /// Starts the guest with a network interface.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub fn start_with(&self, card: Card) -> Result<Running, BenchError> {
        self.launch(Vec::new(), vec![card]).map(Running)
    }

    /// A path for the socket of its network interface.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("card")
    }

    fn launch(&self, arguments: Vec<OsString>, cards: Vec<Card>) -> Result<Child, BenchError> {
        let at = |file: &str| -> PathBuf { self.folder.path().join(file) };
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
            cards,
        };
        // The benchmark uses neither socket, but QEMU needs both.
        let listen = |name: &str| -> std::io::Result<UnixListener> {
            let path = at(name);
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path)?;
            rustix::io::fcntl_setfd(&listener, FdFlags::empty())?;
            Ok(listener)
        };
        let sockets = listen("qmp").and_then(|qmp| Ok((qmp, listen("serial")?)));
        let (qmp, serial) = sockets.map_err(BenchError::system("cannot create the guest's sockets"))?;
        let log = self.console.as_ref().map(AsRawFd::as_raw_fd);
        if let Some(console) = &self.console {
            rustix::io::fcntl_setfd(console, FdFlags::empty())
                .map_err(BenchError::system("cannot prepare the guest's console"))?;
        }
        let sockets = Sockets::Inherited { qmp: qmp.as_raw_fd(), serial: serial.as_raw_fd(), log };
        let mut command = pinned(self.core, &self.qemu);
        command.args(machine.arguments(self.version, sockets)).args(arguments).stdin(Stdio::null());
        command.spawn().map_err(BenchError::system(format!("cannot start {}", self.qemu.display())))
    }
}

/// Finds a QEMU that supports netvm's e1000 cards.
///
/// # Errors
/// [`BenchError::Guest`] says how to get one.
pub fn vfio_user_client() -> Result<PathBuf, BenchError> {
    find_vfio_user_client(Path::new(QEMU)).ok_or_else(|| {
        let problem = format!(
            "no installed QEMU is a vfio-user client ({OLDEST_WITH_E1000} or later): ./dev setup --guests installs one"
        );
        BenchError::Guest { problem }
    })
}

/// The version of a QEMU.
///
/// # Errors
/// [`BenchError::MissingPeer`] if QEMU does not run.
pub fn version_of(qemu: &Path) -> Result<Version, BenchError> {
    let output = Command::new(qemu).arg("--version").output();
    let version = output.ok().and_then(|output| Version::parse(&String::from_utf8_lossy(&output.stdout)));
    version.ok_or(BenchError::MissingPeer { program: QEMU, package: "qemu-system-x86" })
}

/// A running VM; killed on drop.
#[derive(Debug)]
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes an image with the script; `words` are its arguments after the folder. The script caches the kernel package
/// beside `program`. Returns a folder with a kernel and an initramfs.
///
/// # Errors
/// [`BenchError::Guest`] says why not.
pub fn make_image(program: &Path, words: &[&OsStr]) -> Result<tempfile::TempDir, BenchError> {
    let folder =
        tempfile::tempdir().map_err(BenchError::system("cannot create a folder for the guest's image"))?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/guest/image.sh");
    // Beside the program, where the script caches the kernel package.
    let image = program.with_file_name("guest").join("bench");
    let mut command = Command::new(script);
    command.arg(&image).args(words);
    let made = command.output().map_err(BenchError::system("cannot make the guest's image"))?;
    if !made.status.success() {
        let problem = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(BenchError::Guest { problem });
    }
    for file in ["kernel", "initrd"] {
        let copied = std::fs::rename(image.join(file), folder.path().join(file))
            .or_else(|_| std::fs::copy(image.join(file), folder.path().join(file)).map(drop));
        copied.map_err(BenchError::system("cannot copy the guest's image"))?;
    }
    Ok(folder)
}

/// The path of a program of `package` in this program's folder.
///
/// # Errors
/// [`BenchError::Guest`] says how to build it.
pub fn beside(name: &str, package: &str) -> Result<PathBuf, BenchError> {
    let own = own_program()?;
    let path = own.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    let problem = format!("{} does not exist: cargo build --release -p {package}", path.display());
    Err(BenchError::Guest { problem })
}

/// A command that runs a program with all its threads on one core.
pub fn pinned(core: u32, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &core.to_string()]).arg(program);
    command
}
