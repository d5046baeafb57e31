// SPDX-License-Identifier: Apache-2.0
//! Starts QEMU: creates its sockets, sandboxes it, and opens its control channel.

use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use netvm_vm::{GuestMemory, Sockets};
use rustix::fs::{Gid, Uid};
use tokio::process::Command;

use crate::process::Confinement;
use crate::process::Process;
use crate::process::sandbox::{Fallback, Sandbox};
use crate::process::spawn::{INHERITED, SpawnError, start};
use crate::vms::instance::{Instance, InstanceError};
use crate::vms::qemu::console::Console;
use crate::vms::qemu::folder::{Folder, FolderError, Record, started};
use crate::vms::qemu::process::Machine;
use crate::vms::spec::problem::VmProblem;
use crate::vms::spec::{VmSpec, memory};

/// A VM did not start.
#[derive(Debug, thiserror::Error)]
pub(in crate::vms) enum LaunchError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Problem(#[from] VmProblem),
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error("port {port}: no socket at {}: {source}; see `netvm port {port}`", path.display())]
    Port { port: String, path: PathBuf, source: io::Error },
}

/// A VM to start.
#[derive(Clone, Copy)]
pub(in crate::vms) struct Launch<'a> {
    pub(in crate::vms) spec: &'a VmSpec,
    /// Its NF, if it is one.
    pub(in crate::vms) instance: Option<&'a Instance<GuestMemory>>,
    pub(in crate::vms) folder: &'a Folder,
    pub(in crate::vms) confinement: &'a Arc<Confinement>,
    /// For logs.
    pub(in crate::vms) label: &'a str,
}

/// Starts QEMU and reads its console. Call on the daemon's main thread.
pub(in crate::vms) fn launch(new: Launch<'_>) -> Result<(Machine, Console), LaunchError> {
    let Launch { spec, instance, folder, confinement, label } = new;
    let (required, available) = (spec.machine.memory, memory("MemAvailable"));
    if let Some(available) = available.filter(|available| *available < u64::from(required)) {
        return Err(VmProblem::Memory { required, available }.into());
    }
    if let Some(reason) = &spec.without_kvm {
        tracing::warn!("{label}: runs on QEMU's emulation (TCG), many times slower than KVM: {reason}");
    }
    hand_over(spec)?;
    let (qmp, serial) = folder.listen()?;
    for card in spec.machine.cards.iter().filter(|card| !card.connects) {
        // QEMU listens here, but could not remove another user's stale socket.
        let _ = std::fs::remove_file(&card.socket);
    }
    let (console, log) = Console::new().map_err(SpawnError::Descriptors)?;
    let sockets =
        Sockets::Inherited { qmp: qmp.as_raw_fd(), serial: serial.as_raw_fd(), log: Some(log.as_raw_fd()) };
    let mut arguments = spec.machine.arguments(spec.version, sockets);
    arguments.extend(instance.iter().flat_map(|instance| instance.memory.arguments()));
    let mut command = Command::new(&spec.qemu);
    command.args(&arguments).env_clear();
    command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A new process group, so that Ctrl-C at netvmd's terminal does not reach it. The QEMU of an NF ends with netvmd,
    // which owns its memory; an ordinary guest keeps running.
    command.process_group(0).kill_on_drop(instance.is_some());
    let mut keep = vec![qmp.as_raw_fd(), serial.as_raw_fd(), log.as_raw_fd()];
    keep.extend(instance.iter().flat_map(|instance| instance.memory.descriptors()).map(|fd| fd.as_raw_fd()));
    let child = start(command, &spec.qemu, |failed_step| Sandbox {
        keep,
        failed_step,
        cores: spec.cores.to_kernel(),
        account: spec.account,
        groups: spec.groups.clone(),
        parent: instance.map(|_| rustix::process::getpid().as_raw_nonzero().get()),
        confinement: Arc::clone(confinement),
        is_nf: false,
        domain: confinement.domain(),
        cgroups: Vec::new(),
        fallback: Fallback::default(),
        rights: None,
    })?;
    let process = child.id().filter(|_| instance.is_none()).and_then(|pid| Some((pid, started(pid)?)));
    if let Some((pid, started)) = process {
        let arguments = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        folder.write(&Record { pid, started, arguments, is_foreign: false })?;
    }
    Ok((Machine::Child(Process::new(child, label)), console))
}

/// Gives QEMU's user the sockets on which netvm listens, so that it can connect, and creates the folders in which QEMU
/// listens.
pub(in crate::vms) fn hand_over(spec: &VmSpec) -> Result<(), LaunchError> {
    let folders = spec.machine.cards.iter().filter(|card| !card.connects);
    for folder in folders.filter_map(|card| card.socket.parent()).filter(|folder| !folder.exists()) {
        let made = std::fs::create_dir_all(folder).and_then(|()| match spec.account {
            Some(account) => std::os::unix::fs::chown(folder, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        });
        made.map_err(|source| FolderError { path: folder.to_owned(), source })?;
    }
    let Some(account) = spec.account else { return Ok(()) };
    for card in spec.machine.cards.iter().filter(|card| card.connects) {
        let (user, group) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        let (at, flags) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let given = rustix::fs::chownat(at, &card.socket, Some(user), Some(group), flags);
        given.map_err(|error| LaunchError::Port {
            port: card.name.clone(),
            path: card.socket.clone(),
            source: error.into(),
        })?;
    }
    Ok(())
}

/// Pins the threads of virtual processors to the cores in order, round-robin.
pub(in crate::vms) fn pin(pid: u32, threads: &[u32], cores: &[u32]) -> io::Result<()> {
    for (thread, core) in threads.iter().zip(cores.iter().cycle()) {
        // QEMU reports these thread ids, and a guest may have compromised QEMU: pin only QEMU's own threads.
        if !std::path::Path::new(&format!("/proc/{pid}/task/{thread}")).exists() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let mut set = rustix::thread::CpuSet::new();
        set.set(*core as usize);
        let thread = i32::try_from(*thread).ok().and_then(rustix::process::Pid::from_raw);
        rustix::thread::sched_setaffinity(thread, &set)?;
    }
    Ok(())
}
