// SPDX-License-Identifier: Apache-2.0
//! Starts the process of an NF.
//!
//! PDEATHSIG ties a process to the *thread* that forked it, so only the daemon's main thread starts processes: it lives
//! as long as the daemon.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use tokio::process::{Child, Command};

use netvm_model::NfLimits;

use super::cgroup::Cgroup;
use super::cores::{CoreSet, CoresError};
use super::program::{Program, ProgramError};
use super::sandbox::{Confinement, Domain, Fallback, Rights, Sandbox, Step};
use crate::account::{Account, AccountError};

/// Task limit without a cgroup. The kernel then counts the tasks of all processes of the user, so it is high.
const UNCONFINED_TASKS: u64 = 4096;

/// The environment variables that a process inherits from netvmd.
pub(crate) const INHERITED: [&str; 2] = ["PATH", "LANG"];

/// An NF cannot be started as configured.
#[derive(Debug, thiserror::Error)]
#[error("nf {role}: {problem}")]
pub struct ProcessSpecError {
    /// Its role.
    pub role: String,
    /// The reason and the remedy.
    pub problem: ProcessSpecProblem,
}

/// The reason why an NF cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ProcessSpecProblem {
    /// Its program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Its user.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// Its cores.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// The command is empty.
    #[error("`command` is empty: give the program and its arguments")]
    NoCommand,
}

/// A process cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// A socket or pipe cannot be created.
    #[error("cannot create a socket or pipe: {0} (raise the limit of open files)")]
    Descriptors(io::Error),
    /// Its cgroup cannot be made.
    #[error("cannot make its cgroup: {0}")]
    Cgroup(io::Error),
    /// A folder that it may write cannot be used.
    #[error("`writable` names {}: {source}: create it, or name another folder", path.display())]
    Writable {
        /// The folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Fork or exec failed.
    #[error("cannot execute {program}: {source}")]
    Execute {
        /// The program.
        program: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A step of entering the sandbox failed; the program did not run.
    #[error("cannot enter the sandbox ({step}): {source}")]
    Sandbox {
        /// The step.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Everything needed to start an NF, checked.
#[derive(Debug)]
pub struct ProcessSpec {
    /// Its role.
    pub role: String,
    /// The program.
    pub program: Program,
    /// Name and arguments, as configured.
    pub command: Vec<String>,
    /// The user; `None`: netvmd's.
    pub account: Option<Account>,
    /// Configured environment variables.
    pub environment: Vec<(String, String)>,
    /// Number of threads.
    pub threads: u16,
    /// CPU affinity.
    pub cores: CoreSet,
    /// What it may use of the machine.
    pub limits: NfLimits,
}

/// A started process and netvmd's end of its attach socket.
#[derive(Debug)]
pub struct Started {
    /// The process; standard output and error are pipes.
    pub child: Child,
    /// The attach socket.
    pub socket: OwnedFd,
    /// Its cgroup; remove it when the process has ended.
    pub cgroup: Cgroup,
}

/// Starts a command in a sandbox. `sandbox` gets the pipe for the byte of a failed step. Call on the daemon's main
/// thread.
///
/// # Errors
/// [`SpawnError`]; no process remains.
pub(crate) fn start(
    mut command: Command,
    program: &Path,
    sandbox: impl FnOnce(OwnedFd) -> Sandbox,
) -> Result<Child, SpawnError> {
    let (mut failed_step, report) = io::pipe().map_err(SpawnError::Descriptors)?;
    let sandbox = sandbox(report.into());
    // SAFETY: `Sandbox::enter` makes only async-signal-safe calls and neither allocates nor frees.
    unsafe { command.pre_exec(move || sandbox.enter()) };
    let outcome = command.spawn();
    // Closes this process's last write end, so that the read below ends.
    drop(command);
    outcome.map_err(|source| {
        let mut step = [0];
        let read = failed_step.read(&mut step).ok().filter(|read| *read == 1);
        match read.and_then(|_| Step::from_byte(step[0])) {
            Some(step) => SpawnError::Sandbox { step, source },
            None => SpawnError::Execute { program: program.to_owned(), source },
        }
    })
}

/// How a process is started.
struct Launch {
    command: Command,
    /// The descriptors that it inherits.
    keep: Vec<RawFd>,
    /// Folders in which it may change files.
    writable: Vec<PathBuf>,
    /// Whether it is an NF of netlib.
    is_nf: bool,
    /// The network namespace of a program with two ports.
    rights: Option<Rights>,
}

/// What a program with two ports is told.
pub(crate) struct Surroundings {
    /// Its ports.
    pub(crate) ports: Vec<PortOfProgram>,
    /// Its network namespace, if it has one.
    pub(crate) rights: Option<Rights>,
}

/// A port of a program, as it is told.
pub(crate) struct PortOfProgram {
    /// `left`, `right` or `port`.
    pub(crate) side: &'static str,
    /// The name of its interface, or the path of its socket.
    pub(crate) name: String,
    /// The MAC address for it.
    pub(crate) mac: String,
}

/// Settings that belong to the network namespace in which they are written.
const NETWORK_SETTINGS: &str = "/proc/sys/net";

impl ProcessSpec {
    /// Starts the process. Call on the daemon's main thread.
    ///
    /// # Errors
    /// [`SpawnError`]; no process remains.
    pub fn spawn(&self, slot: u16, confinement: &Arc<Confinement>) -> Result<Started, SpawnError> {
        let (socket, nf_end) = netvm_attach::pair().map_err(SpawnError::Descriptors)?;
        let mut command = self.command(str::to_owned);
        command.env(netvm_attach::THREADS_VARIABLE, self.threads.to_string());
        command.env(netvm_attach::FD_VARIABLE, nf_end.as_raw_fd().to_string()).stdin(Stdio::null());
        let keep = vec![nf_end.as_raw_fd()];
        let writable = self.limits.writable.clone();
        let launch = Launch { command, keep, writable, is_nf: true, rights: None };
        let (child, cgroup) = self.launch(slot, confinement, launch)?;
        Ok(Started { child, socket, cgroup })
    }

    /// Starts a program with two ports. Its standard input stays open and has nothing to read. Call on the daemon's
    /// main thread.
    ///
    /// # Errors
    /// [`SpawnError`]; no process remains.
    pub(crate) fn spawn_program(
        &self,
        instance: u16,
        confinement: &Arc<Confinement>,
        surroundings: &Surroundings,
    ) -> Result<(Child, Cgroup), SpawnError> {
        let Surroundings { ports, rights } = surroundings;
        let mut known = vec![("instance".to_owned(), instance.to_string())];
        for PortOfProgram { side, name, mac } in ports {
            known.extend([((*side).to_owned(), name.clone()), (format!("{side}_mac"), mac.clone())]);
        }
        let mut command = self.command(|word| {
            known
                .iter()
                .fold(word.to_owned(), |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
        });
        command.envs(known.iter().map(|(name, value)| (format!("NETVM_{}", name.to_uppercase()), value)));
        command.stdin(Stdio::piped());
        let mut writable = self.limits.writable.clone();
        writable.extend(rights.map(|_| PathBuf::from(NETWORK_SETTINGS)));
        let launch = Launch { command, keep: Vec::new(), writable, is_nf: false, rights: *rights };
        self.launch(instance, confinement, launch)
    }

    fn launch(
        &self,
        slot: u16,
        confinement: &Arc<Confinement>,
        launch: Launch,
    ) -> Result<(Child, Cgroup), SpawnError> {
        let Launch { command, keep, writable, is_nf, rights } = launch;
        let domain = Domain::of_nf(&writable);
        let domain = domain.map_err(|(path, source)| SpawnError::Writable { path, source })?.map(Arc::new);
        let cgroups = confinement.cgroups();
        let mut cgroup = cgroups.make(&self.role, slot, &self.limits).map_err(SpawnError::Cgroup)?;
        let memory = u64::from(self.limits.memory) << 20;
        let fallback = Fallback {
            data: (!cgroups.limits("memory")).then_some(memory),
            tasks: (!cgroups.limits("pids")).then_some(UNCONFINED_TASKS),
            file: domain.is_none().then_some(memory),
        };
        let child = start(command, self.program.path(), |failed_step| Sandbox {
            keep,
            failed_step,
            cores: self.cores.to_kernel(),
            account: self.account,
            groups: Vec::new(),
            parent: Some(rustix::process::getpid().as_raw_nonzero().get()),
            confinement: Arc::clone(confinement),
            is_nf,
            domain,
            cgroups: cgroup.entries(),
            fallback,
            rights,
        });
        match child {
            Ok(child) => {
                cgroup.entered();
                Ok((child, cgroup))
            }
            Err(error) => {
                cgroups.remove(cgroup);
                Err(error)
            }
        }
    }

    fn command(&self, word: impl Fn(&str) -> String) -> Command {
        let mut command = Command::new(self.program.to_execute());
        if let Some((name, arguments)) = self.command.split_first() {
            command.arg0(name).args(arguments.iter().map(|argument| word(argument)));
        }
        command.env_clear();
        command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env(netvm_attach::ROLE_VARIABLE, &self.role);
        command.current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped());
        // A new process group, so that Ctrl-C reaches only netvmd, which then stops NFs in order.
        command.process_group(0).kill_on_drop(true);
        command
    }
}
