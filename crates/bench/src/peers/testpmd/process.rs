// SPDX-License-Identifier: Apache-2.0
//! A `dpdk-testpmd` at its prompt.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::NAME;
use crate::error::BenchError;
use crate::measure::window::CpuTime;
use crate::peers::kill_with_parent;

/// Time limit for every wait.
const TIMEOUT: Duration = Duration::from_secs(30);
/// testpmd's prompt.
const PROMPT: &str = "testpmd> ";
/// Names of the forwarding threads in different DPDK releases.
const THREADS: [&str; 3] = ["lcore-worker", "rte-worker", "dpdk-worker"];

/// A testpmd at its prompt. Killed on drop, or when this process ends.
#[derive(Debug)]
pub struct Testpmd {
    child: Child,
    prompt: ChildStdin,
    output: PathBuf,
}

impl Testpmd {
    /// Starts testpmd, and waits for its prompt. `eal`: arguments for the EAL; `own`: for testpmd. `output`: the file
    /// for its output.
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its last output.
    pub fn start(
        output: PathBuf,
        eal: &[String],
        own: &[String],
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Self, BenchError> {
        let system = || BenchError::system(format!("cannot start {NAME}"));
        let file = File::create(&output).map_err(system())?;
        let errors = file.try_clone().map_err(system())?;
        // Forces line buffering, although the output is a file.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", NAME]).args(eal);
        prepare(&mut command);
        command.args(["--", "-i"]).args(own);
        command.stdin(Stdio::piped()).stdout(file).stderr(errors);
        kill_with_parent(&mut command);
        let mut child = command.spawn().map_err(system())?;
        let Some(prompt) = child.stdin.take() else {
            return Err(BenchError::Peer { peer: NAME, problem: "has no standard input".to_owned() });
        };
        let mut own = Self { child, prompt, output };
        own.wait_for("its prompt", |text| text.contains(PROMPT))?;
        Ok(own)
    }

    fn text(&self) -> String {
        fs::read(&self.output).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// Types a line, which ends with `\n`.
    ///
    /// # Errors
    /// testpmd has ended.
    pub fn type_line(&mut self, line: &str) -> Result<(), BenchError> {
        self.prompt.write_all(line.as_bytes()).map_err(BenchError::system(format!("cannot write to {NAME}")))
    }

    /// Waits until `is_complete` accepts the output so far. `what` names the missing output in an error.
    ///
    /// # Errors
    /// [`BenchError::Peer`] with the last output, after [`TIMEOUT`] or when testpmd ends.
    pub fn wait_for(&mut self, what: &str, is_complete: impl Fn(&str) -> bool) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            let text = self.text();
            if is_complete(&text) {
                return Ok(());
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || start.elapsed() > TIMEOUT {
                let last = text.trim().lines().last().unwrap_or("nothing").to_owned();
                return Err(BenchError::Peer {
                    peer: NAME,
                    problem: format!("no {what}; last output: {last}"),
                });
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// A counter of a port.
    ///
    /// # Errors
    /// As [`Testpmd::wait_for`].
    pub fn count(&mut self, port: usize, name: &str) -> Result<u64, BenchError> {
        let before = self.text().len();
        self.type_line(&format!("show port stats {port}\n"))?;
        let read = |text: &str| counter(text.get(before..).unwrap_or_default(), name);
        self.wait_for("statistics", |text| read(text).is_some())?;
        Ok(read(&self.text()).unwrap_or(0))
    }

    /// Packets sent by a port so far, CPU time of the forwarding thread, and the time of the reading.
    ///
    /// # Errors
    /// As [`Testpmd::wait_for`].
    pub fn sent(&mut self, port: usize) -> Result<(u64, CpuTime, Instant), BenchError> {
        let sent = self.count(port, "TX-packets:")?;
        Ok((sent, self.cpu(), Instant::now()))
    }

    fn cpu(&self) -> CpuTime {
        let times = THREADS.map(|name| CpuTime::of_threads(self.child.id(), name));
        times.into_iter().max_by_key(|time| time.running).unwrap_or_default()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number in a port's statistics, once they are complete.
fn counter(text: &str, name: &str) -> Option<u64> {
    let (before, _) = text.split_once("Tx-pps:")?;
    before.split_once(name)?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_once_complete() {
        let whole = "  RX-packets: 5\n  TX-packets: 12345      TX-errors: 0\n\n  Throughput (since last show)\n  \
                     Rx-pps:  1\n  Tx-pps:  7\n";
        assert_eq!(counter(whole, "TX-packets:"), Some(12345));
        assert_eq!(counter(whole, "RX-packets:"), Some(5));
        assert_eq!(counter("  TX-packets: 12", "TX-packets:"), None);
    }
}
