// SPDX-License-Identifier: Apache-2.0
//! DPDK's `testpmd`, driven through its prompt. testpmd itself reports the rate.

mod process;

use std::io::{ErrorKind, Write};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::machine::Cores;
use crate::machine::huge_pages_are_worthwhile;
use crate::measure::harness::Plan;

pub use process::Testpmd;

/// Its name in errors.
pub const NAME: &str = "dpdk-testpmd";
/// Time limit for testpmd to end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that testpmd has to start.
const START_TIME: Duration = Duration::from_millis(1500);

/// Checks that testpmd is installed.
///
/// # Errors
/// [`BenchError::MissingPeer`] names the package.
pub fn find() -> Result<(), BenchError> {
    match Command::new(NAME)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
    {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(BenchError::MissingPeer { program: NAME, package: "dpdk-dev" })
        }
        // `measure` reports other errors.
        _ => Ok(()),
    }
}

/// Forwards from a null port to itself with swapped MAC addresses on one core; returns million packets per second.
///
/// # Errors
/// [`BenchError::Peer`] if it fails.
pub fn measure(cores: Cores, buffers: u32, plan: &Plan) -> Result<f64, BenchError> {
    let mut command = Command::new(NAME);
    command
        .args(arguments(cores, buffers))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(BenchError::system(NAME))?;
    let asked = converse(&mut child, plan);
    let ended = wait(&mut child);
    asked.and(ended).map_err(BenchError::system(NAME))?;
    let output = child.wait_with_output().map_err(BenchError::system(NAME))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match rate(&text) {
        Some(rate) if rate > 0 => Ok(rate as f64 / 1e6),
        _ => Err(BenchError::Peer { peer: NAME, problem: format!("no rate in its output: {}", tail(&text)) }),
    }
}

/// Arguments. testpmd needs two cores: one for its prompt, which sleeps, and one for forwarding.
fn arguments(cores: Cores, buffers: u32) -> Vec<String> {
    let fixed: &[&str] = if huge_pages_are_worthwhile() {
        &["--in-memory"]
    } else {
        &["--no-huge", "--no-shconf", "-m", "256"]
    };
    let mut list: Vec<String> = fixed.iter().map(|&argument| argument.to_owned()).collect();
    list.push(format!("--lcores=0@{},1@{}", cores.engine, cores.nf));
    let rest = ["--no-pci", "--no-telemetry", "--log-level=*:error", "--vdev=net_null0,size=64", "--", "-i"];
    list.extend(rest.map(str::to_owned));
    let own = [
        "--forward-mode=macswap",
        "--port-topology=loop",
        "--nb-cores=1",
        "--rxq=1",
        "--txq=1",
        "--burst=32",
    ];
    list.extend(own.map(str::to_owned));
    list.push(format!("--total-num-mbufs={buffers}"));
    list
}

/// Reads the statistics twice: the second reading shows the rate since the first.
fn converse(child: &mut Child, plan: &Plan) -> std::io::Result<()> {
    // Dropped at return, which ends the prompt's input.
    let Some(mut prompt) = child.stdin.take() else { return Ok(()) };
    let mut type_line = |line: &str, then: Duration| {
        prompt.write_all(line.as_bytes())?;
        prompt.flush()?;
        sleep(then);
        Ok(())
    };
    sleep(START_TIME);
    type_line("start\n", plan.warm_up)?;
    type_line("show port stats 0\n", plan.window)?;
    type_line("show port stats 0\n", Duration::ZERO)?;
    type_line("quit\n", Duration::ZERO)
}

/// Waits for its end, or kills it. Its output fits into a pipe.
fn wait(child: &mut Child) -> std::io::Result<()> {
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > TIMEOUT {
            return child.kill();
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The last rate in its output.
fn rate(text: &str) -> Option<u64> {
    let line = text.lines().rev().find_map(|line| line.trim().strip_prefix("Tx-pps:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn tail(text: &str) -> &str {
    text.trim().lines().last().unwrap_or("nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rate_counts() {
        let text = "  Rx-pps:  7  Rx-bps: 0\n  Tx-pps:            0          Tx-bps:            0\n\
                    testpmd> \n  Tx-pps:     37533688          Tx-bps:            0\nBye...\n";
        assert_eq!(rate(text), Some(37_533_688));
        assert_eq!(rate("EAL: Error"), None);
    }
}
