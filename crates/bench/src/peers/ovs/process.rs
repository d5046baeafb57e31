//! Open vSwitch's programs: tools, and daemons that end with the process that started them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::{NAME, PATIENCE};
use crate::error::BenchError;
use crate::machine::pin;

/// A daemon. Killed when dropped, or when this process goes.
#[derive(Debug)]
pub struct Daemon(pub Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended already is no error.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts `command` on `core`, with log, control socket and everything else of it in `folder`, named `name`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn spawn(command: &mut Command, folder: &Path, name: &str, core: u32) -> Result<Self, BenchError> {
        let what = || format!("starting the {name} of {NAME}");
        let output = File::create(folder.join(format!("{name}.out"))).map_err(BenchError::system(what()))?;
        let errors = output.try_clone().map_err(BenchError::system(what()))?;
        let file = |suffix: &str| folder.join(format!("{name}.{suffix}")).display().to_string();
        command.arg(format!("--log-file={}", file("log"))).arg(format!("--unixctl={}", file("ctl")));
        command.arg(format!("--pidfile={}", file("pid"))).arg("--verbose=console:off");
        command.env("OVS_RUNDIR", folder).env("OVS_DBDIR", folder).env("OVS_SYSCONFDIR", folder);
        // Where DPDK keeps what it shares with others.
        command.env("RUNTIME_DIRECTORY", folder);
        command.current_dir(folder).stdin(Stdio::null()).stdout(output).stderr(errors);
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            pin(core)
        };
        // SAFETY: between fork and exec only two system calls are made; nothing is allocated and no lock is taken.
        unsafe { command.pre_exec(prepare) };
        command.spawn().map(Self).map_err(BenchError::system(what()))
    }
}

/// A program of Open vSwitch, wherever the system keeps it.
pub fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Runs a tool to its end.
///
/// # Errors
/// [`BenchError::Peer`] with what it wrote.
pub fn run(command: &mut Command) -> Result<(), BenchError> {
    feed(command, "")
}

/// Runs a tool to its end, with `input` on its standard input.
///
/// # Errors
/// As for [`run`].
pub fn feed(command: &mut Command, input: &str) -> Result<(), BenchError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Output { status, stderr, .. } =
        converse(command, input).map_err(BenchError::system(format!("running {name}")))?;
    // Some report on standard error what the switch made of it, and succeed nevertheless.
    let said = String::from_utf8_lossy(&stderr);
    if status.success() && !said.contains("rror") {
        return Ok(());
    }
    Err(BenchError::Peer { peer: NAME, problem: format!("{name}, {status}: {}", said.trim()) })
}

fn converse(command: &mut Command, input: &str) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        match pipe.write_all(input.as_bytes()) {
            // It says itself why it did not read on.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    child.wait_with_output()
}

/// Waits until a daemon has made a file.
///
/// # Errors
/// [`BenchError::Peer`] when it does not.
pub fn wait_for(path: &Path) -> Result<(), BenchError> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > PATIENCE {
            let problem = format!("made no {} in {} s", path.display(), PATIENCE.as_secs());
            return Err(BenchError::Peer { peer: NAME, problem });
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}
