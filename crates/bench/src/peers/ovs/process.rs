// SPDX-License-Identifier: Apache-2.0
//! Open vSwitch's tools and daemons; the daemons end with this process.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::{NAME, TIMEOUT};
use crate::error::BenchError;
use crate::machine::pin;
use crate::peers::converse;

/// A daemon. Killed on drop, or when this process ends.
#[derive(Debug)]
pub struct Daemon(pub Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts `command` on `core`, with its log, control socket and other files in `folder`, named `name`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn spawn(command: &mut Command, folder: &Path, name: &str, core: u32) -> Result<Self, BenchError> {
        let what = || format!("cannot start the {name} of {NAME}");
        let output = File::create(folder.join(format!("{name}.out"))).map_err(BenchError::system(what()))?;
        let errors = output.try_clone().map_err(BenchError::system(what()))?;
        let file = |suffix: &str| folder.join(format!("{name}.{suffix}")).display().to_string();
        command.arg(format!("--log-file={}", file("log"))).arg(format!("--unixctl={}", file("ctl")));
        command.arg(format!("--pidfile={}", file("pid"))).arg("--verbose=console:off");
        command.env("OVS_RUNDIR", folder).env("OVS_DBDIR", folder).env("OVS_SYSCONFDIR", folder);
        // The folder of DPDK's shared files.
        command.env("RUNTIME_DIRECTORY", folder);
        command.current_dir(folder).stdin(Stdio::null()).stdout(output).stderr(errors);
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            pin(core)
        };
        // SAFETY: between fork and exec it makes two system calls, without allocation or locks.
        unsafe { command.pre_exec(prepare) };
        command.spawn().map(Self).map_err(BenchError::system(what()))
    }
}

/// A program of Open vSwitch, with the folders of daemons in PATH.
pub fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Runs a tool to its end.
///
/// # Errors
/// [`BenchError::Peer`] with its output.
pub fn run(command: &mut Command) -> Result<(), BenchError> {
    feed(command, "")
}

/// Runs a tool to its end with `input` on standard input.
///
/// # Errors
/// As for [`run`].
pub fn feed(command: &mut Command, input: &str) -> Result<(), BenchError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Output { status, stderr, .. } =
        converse(command, input).map_err(BenchError::system(format!("cannot run {name}")))?;
    // Some print the switch's error on standard error but succeed.
    let errors = String::from_utf8_lossy(&stderr);
    if status.success() && !errors.contains("rror") {
        return Ok(());
    }
    Err(BenchError::Peer { peer: NAME, problem: format!("{name}, {status}: {}", errors.trim()) })
}

/// Waits until a daemon has created a file.
///
/// # Errors
/// [`BenchError::Peer`] after a timeout.
pub fn wait_for(path: &Path) -> Result<(), BenchError> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > TIMEOUT {
            let problem = format!("did not create {} within {} s", path.display(), TIMEOUT.as_secs());
            return Err(BenchError::Peer { peer: NAME, problem });
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}
