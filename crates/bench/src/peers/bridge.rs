//! The kernel's bridge between two guests on TAP devices, with a filter of nft. It runs on the
//! core of the guest that sends: in the guest's write to its device.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use crate::error::BenchError;
use crate::measure::harness::Plan;
use crate::peers::guests::{Guests, TAPS};

/// The chain in which rules belong.
pub const CHAIN: &str = "bridge bench forward";

/// Joins the guests by a bridge with these rules, and returns the millions of packets per second that the second one
/// received.
///
/// # Errors
/// [`BenchError::Peer`] if a program fails; [`BenchError::Nothing`] without packets.
pub fn measure(mut guests: Guests, rules: &str, plan: &Plan) -> Result<f64, BenchError> {
    run("ip", &["link", "add", "bench", "type", "bridge"], "")?;
    for tap in TAPS {
        run("ip", &["link", "set", tap, "master", "bench", "up"], "")?;
    }
    run("ip", &["link", "set", "bench", "up"], "")?;
    let chain =
        "add table bridge bench\nadd chain bridge bench forward { type filter hook forward priority 0; }\n";
    run("nft", &["-f", "-"], &format!("{chain}{rules}"))?;
    sleep(plan.warm_up);
    let (before, start) = (guests.received()?, Instant::now());
    sleep(plan.window);
    let seconds = start.elapsed().as_secs_f64();
    match guests.received()? - before {
        0 => Err(BenchError::Nothing { what: "the kernel's bridge".to_owned(), seconds }),
        packets => Ok(packets as f64 / seconds / 1e6),
    }
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<(), BenchError> {
    let what = format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(BenchError::system(format!("cannot run {what}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(BenchError::system(format!("cannot write to {what}")))?;
    }
    let status = child.wait().map_err(BenchError::system(format!("cannot run {what}")))?;
    if status.success() {
        Ok(())
    } else {
        Err(BenchError::system(what)(std::io::Error::other(status.to_string())))
    }
}
