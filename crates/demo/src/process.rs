//! Programs that the demo runs. None of them outlives it: each is in a process group of its own, which is killed when
//! its [`Process`] is dropped, and the kernel signals it should the demo itself be killed (`setpriv --pdeathsig`, which
//! holds for the thread that starts it: the main thread).

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::failure::{Failure, io};

/// Programs beyond netvm's own, each with the package that has it.
const TOOLS: [(&str, &str); 5] = [
    ("ip", "iproute2"),
    ("ethtool", "ethtool"),
    ("busybox", "busybox"),
    ("curl", "curl"),
    ("setpriv", "util-linux"),
];

/// Says which of the programs that the demo needs are not there.
///
/// # Errors
/// [`Failure::MissingTools`].
pub fn check_tools() -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let missing: Vec<String> = TOOLS
        .iter()
        .filter(|(tool, _)| !is_there(tool))
        .map(
            |(tool, package)| {
                if tool == package { (*tool).to_owned() } else { format!("{tool} (package {package})") }
            },
        )
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Failure::MissingTools(missing.join(", "))) }
}

/// Runs a command that is soon done, and gives what it printed.
///
/// # Errors
/// [`Failure::Command`] with its complaint.
pub fn run(line: &str) -> Result<String, Failure> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .map_err(io(format!("running `{line}`")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = match text(&output.stderr) {
        said if said.is_empty() => output.status.to_string(),
        said => said,
    };
    Err(Failure::Command { command: line.to_owned(), said })
}

/// A program that runs beside the demo.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    status: Option<ExitStatus>,
}

/// What is about to be started.
#[derive(Debug)]
pub struct Start {
    name: String,
    command: Command,
}

impl Start {
    /// `signal`: what the kernel sends it should the demo be killed, as `setpriv` names it.
    pub fn new(name: &str, signal: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", signal]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self { name: name.to_owned(), command }
    }

    /// Standard output and error go to a file.
    ///
    /// # Errors
    /// [`Failure::Io`] when it cannot be made.
    pub fn into_file(mut self, path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(io(format!("making {}", path.display())))?;
        let copy = file.try_clone().map_err(io(format!("making {}", path.display())))?;
        self.command.stdout(file).stderr(copy);
        Ok(self)
    }

    /// Standard output can be read.
    pub fn piped(mut self) -> Self {
        self.command.stdout(Stdio::piped());
        self
    }

    /// Starts it. Only on the main thread, see above.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn spawn(mut self) -> Result<Process, Failure> {
        let child = self.command.spawn().map_err(io(format!("starting {}", self.name)))?;
        Ok(Process { child, name: self.name, status: None })
    }
}

impl Process {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pipe from its standard output, if there is one and nobody took it.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// How it ended, once it has.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(io(format!("waiting for {}", self.name)))?;
        }
        Ok(self.status)
    }

    /// Asks it to end, and gives it `grace` to do so before it is killed. Whether it ended by itself.
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

    /// The whole group, while its leader has not been waited for: the number is still its own then.
    fn signal(&self, signal: Signal) {
        if self.status.is_none()
            && let Some(group) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw)
        {
            // It may have ended in this very moment, which is what is wanted.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if self.status.is_none() {
            // Killed, so the wait is short; that it fails would mean that there is nothing to wait for.
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_says_why() {
        assert_eq!(run("echo a b").unwrap(), "a b");
        let error = run("ls /nonexistent/x").unwrap_err().to_string();
        assert!(error.contains("`ls /nonexistent/x` failed") && error.contains("No such file"), "{error}");
        assert!(matches!(run("/nonexistent/program"), Err(Failure::Io { .. })));
    }

    #[test]
    fn a_process_and_its_children_go_with_the_guard() {
        let script = "sleep 77 & echo $!; wait";
        let mut process = Start::new("sh", "KILL", ["sh", "-c", script]).piped().spawn().unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(process.stdout().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let grandchild = format!("/proc/{}/stat", line.trim());
        assert!(std::fs::exists(&grandchild).unwrap());
        drop(process);
        let end = Instant::now() + Duration::from_secs(5);
        // Gone, or dead and not yet collected by init.
        while std::fs::read_to_string(&grandchild).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < end, "the grandchild lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn ending_is_asked_for_before_it_is_forced() {
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
