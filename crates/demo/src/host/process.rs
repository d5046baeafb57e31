// SPDX-License-Identifier: Apache-2.0
//! Programs that the demo runs. None outlives it: each has a process group, which is killed when its [`Process`] is
//! dropped, and the kernel signals it if the demo is killed (`setpriv --pdeathsig`, which applies to the thread that
//! starts it: the main thread).

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::failure::{Failure, io};

/// Tools that the demo needs, with their packages.
const TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("busybox", "busybox"), ("curl", "curl"), ("setpriv", "util-linux")];

/// Checks that all tools are installed.
///
/// # Errors
/// [`Failure::MissingTools`].
pub fn check_tools() -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let missing: Vec<String> = TOOLS
        .iter()
        .filter(|(tool, _)| !is_installed(tool))
        .map(
            |(tool, package)| {
                if tool == package { (*tool).to_owned() } else { format!("{tool} (package {package})") }
            },
        )
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Failure::MissingTools(missing.join(", "))) }
}

/// Runs a short command and returns its output.
///
/// # Errors
/// [`Failure::Command`] with its error output.
pub fn run(line: &str) -> Result<String, Failure> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .map_err(io(format!("cannot run `{line}`")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let output = match text(&output.stderr) {
        message if message.is_empty() => output.status.to_string(),
        message => message,
    };
    Err(Failure::Command { command: line.to_owned(), output })
}

/// A background program.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    status: Option<ExitStatus>,
}

/// A program to start.
#[derive(Debug)]
pub struct Start {
    name: String,
    command: Command,
}

impl Start {
    /// `signal`: sent by the kernel if the demo is killed; a name for `setpriv`.
    pub fn new(name: &str, signal: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", signal]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self { name: name.to_owned(), command }
    }

    /// Redirects standard output and error to a file.
    ///
    /// # Errors
    /// [`Failure::Io`] if it cannot be created.
    pub fn into_file(mut self, path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(io(format!("cannot create {}", path.display())))?;
        let copy = file.try_clone().map_err(io(format!("cannot create {}", path.display())))?;
        self.command.stdout(file).stderr(copy);
        Ok(self)
    }

    /// Connects standard output to a pipe.
    pub fn piped(mut self) -> Self {
        self.command.stdout(Stdio::piped());
        self
    }

    /// Starts it. Call on the main thread only.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn spawn(mut self) -> Result<Process, Failure> {
        let child = self.command.spawn().map_err(io(format!("cannot start {}", self.name)))?;
        Ok(Process { child, name: self.name, status: None })
    }
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the pipe of its standard output, if any.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(io(format!("cannot wait for {}", self.name)))?;
        }
        Ok(self.status)
    }

    /// Sends SIGTERM, and SIGKILL after `grace`; false if it had to be killed.
    pub fn end(&mut self, grace: Duration) -> bool {
        self.signal(Signal::TERM);
        let end = Instant::now() + grace;
        while Instant::now() < end {
            if matches!(self.ended(), Ok(Some(_))) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Signals the group. The leader must not have been waited for, so that the group id is still its own.
    fn signal(&self, signal: Signal) {
        if self.status.is_none()
            && let Some(group) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw)
        {
            // It may just have ended.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if self.status.is_none() {
            // Killed, so the wait is short.
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_shows_its_error() {
        assert_eq!(run("echo a b").unwrap(), "a b");
        let error = run("ls /nonexistent/x").unwrap_err().to_string();
        assert!(error.contains("`ls /nonexistent/x` failed") && error.contains("No such file"), "{error}");
        assert!(matches!(run("/nonexistent/program"), Err(Failure::Io { .. })));
    }

    #[test]
    fn the_guard_kills_a_process_and_its_children() {
        let script = "sleep 77 & echo $!; wait";
        let mut process = Start::new("sh", "KILL", ["sh", "-c", script]).piped().spawn().unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(process.stdout().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let grandchild = format!("/proc/{}/stat", line.trim());
        assert!(std::fs::exists(&grandchild).unwrap());
        drop(process);
        // Ended, or a zombie that init has not reaped.
        netvm_testing::until("the grandchild has ended", || {
            std::fs::read_to_string(&grandchild).ok().is_none_or(|stat| stat.contains(") Z "))
        });
    }

    #[test]
    fn sigterm_comes_before_sigkill() {
        let mut process = Start::new("sleep", "KILL", ["sleep", "77"]).spawn().unwrap();
        assert!(process.ended().unwrap().is_none());
        assert!(process.end(Duration::from_secs(5)));
        let script = "trap '' TERM; echo; while :; do sleep 0.1; done";
        let mut stubborn = Start::new("sh", "KILL", ["sh", "-c", script]).piped().spawn().unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(&mut stubborn.stdout().unwrap(), &mut byte).unwrap();
        assert!(!stubborn.end(Duration::from_millis(50)));
    }
}
