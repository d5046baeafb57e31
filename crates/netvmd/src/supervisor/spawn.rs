//! Starting the process of an NF.
//!
//! The kernel ties a process to the *thread* that forked it (PDEATHSIG): processes are therefore started on the daemon's
//! main thread only, which lives as long as the daemon.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use tokio::process::{Child, Command};

use super::account::{Account, AccountError};
use super::cores::{CoreSet, CoresError};
use super::program::{Program, ProgramError};
use super::sandbox::{Confinement, Sandbox, Step};

/// The program's share of the environment that netvmd itself was started with.
pub(crate) const INHERITED: [&str; 2] = ["PATH", "LANG"];

/// Why an NF cannot be started as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("nf {role}: {problem}")]
pub struct RecipeError {
    /// Its role.
    pub role: String,
    /// What is wrong, and what helps.
    pub problem: RecipeProblem,
}

/// What keeps an NF from being started.
#[derive(Debug, thiserror::Error)]
pub enum RecipeProblem {
    /// The program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The user.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The cores.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// No command at all.
    #[error("`command` is empty: give the program and its arguments")]
    NoCommand,
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No socket or pipe.
    #[error("no descriptors for it: {0} (raise the limit of open files)")]
    Descriptors(io::Error),
    /// It could not be made, or the program not executed.
    #[error("{program} cannot be executed: {source}")]
    Execute {
        /// The program.
        program: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A step into the sandbox failed; nothing of the program ran.
    #[error("its sandbox cannot be entered ({step}): {source}")]
    Sandbox {
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Everything that it takes to start an NF, checked.
#[derive(Debug)]
pub struct Recipe {
    /// Its role.
    pub role: String,
    /// The program.
    pub program: Program,
    /// Its name and arguments, as configured.
    pub command: Vec<String>,
    /// Who it runs as; `None`: this process's own user.
    pub account: Option<Account>,
    /// Variables beyond those that netvmd sets.
    pub environment: Vec<(String, String)>,
    /// How many threads it has.
    pub threads: u16,
    /// Where it may run.
    pub cores: CoreSet,
}

/// A process that has been started, and this side of its attach socket.
#[derive(Debug)]
pub struct Started {
    /// The process; standard output and error are pipes.
    pub child: Child,
    /// The attach socket.
    pub socket: OwnedFd,
}

/// Starts a command in a sandbox, which is told where to write the byte of a step that fails. To be called on the
/// daemon's main thread, see above.
///
/// # Errors
/// [`SpawnError`]; no process is left then.
pub(crate) fn start(
    mut command: Command,
    program: &Path,
    sandbox: impl FnOnce(OwnedFd) -> Sandbox,
) -> Result<Child, SpawnError> {
    let (mut failed_step, report) = io::pipe().map_err(SpawnError::Descriptors)?;
    let sandbox = sandbox(report.into());
    // SAFETY: only async-signal-safe calls are made, and no memory is allocated or freed: see `Sandbox::enter`.
    unsafe { command.pre_exec(move || sandbox.enter()) };
    let outcome = command.spawn();
    // The last end for writing in this process goes with it: reading then ends.
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

impl Recipe {
    /// Starts a process. To be called on the daemon's main thread, see above.
    ///
    /// # Errors
    /// [`SpawnError`]; no process is left then.
    pub fn spawn(&self, confinement: &Arc<Confinement>) -> Result<Started, SpawnError> {
        let (socket, theirs) = netvm_attach::pair().map_err(SpawnError::Descriptors)?;
        let command = self.command(theirs.as_raw_fd());
        let child = start(command, self.program.path(), |failed_step| Sandbox {
            keep: vec![theirs.as_raw_fd()],
            failed_step,
            cores: self.cores.to_kernel(),
            account: self.account,
            groups: Vec::new(),
            parent: Some(rustix::process::getpid().as_raw_nonzero().get()),
            confinement: Arc::clone(confinement),
            is_nf: true,
        })?;
        Ok(Started { child, socket })
    }

    fn command(&self, attach_fd: RawFd) -> Command {
        let mut command = Command::new(self.program.to_execute());
        if let Some((name, arguments)) = self.command.split_first() {
            command.arg0(name).args(arguments);
        }
        command.env_clear();
        command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env(netvm_attach::THREADS_VARIABLE, self.threads.to_string());
        command.env(netvm_attach::ROLE_VARIABLE, &self.role);
        command.env(netvm_attach::FD_VARIABLE, attach_fd.to_string());
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C at the terminal is for netvmd, which then stops NFs in order.
        command.process_group(0).kill_on_drop(true);
        command
    }
}
