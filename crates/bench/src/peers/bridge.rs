// SPDX-License-Identifier: Apache-2.0
//! The kernel's bridge between two guests on TAP devices, with a filter of nft. It runs on the core of the
//! guest that sends: in the guest's write to its device.

use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Instant;

use crate::error::BenchError;
use crate::measure::harness::Plan;
use crate::measure::probe::ip;
use crate::peers::converse;
use crate::peers::guests::{Guests, TAPS};

const NAME: &str = "the kernel's bridge";
/// The chain in which rules belong.
pub const CHAIN: &str = "bridge bench forward";

/// Joins the guests by a bridge with these rules, and returns the millions of packets per second that the second one
/// received.
///
/// # Errors
/// [`BenchError::Peer`] if a program fails; [`BenchError::Nothing`] without packets.
pub fn measure(mut guests: Guests, rules: &str, plan: &Plan) -> Result<f64, BenchError> {
    ip(&["link", "add", "bench", "type", "bridge"])?;
    for tap in TAPS {
        ip(&["link", "set", tap, "master", "bench", "up"])?;
    }
    ip(&["link", "set", "bench", "up"])?;
    let chain =
        "add table bridge bench\nadd chain bridge bench forward { type filter hook forward priority 0; }\n";
    let Output { status, stderr, .. } =
        converse(Command::new("nft").args(["-f", "-"]), &format!("{chain}{rules}"))
            .map_err(BenchError::system("cannot run nft"))?;
    if !status.success() {
        let problem = format!("nft, {status}: {}", String::from_utf8_lossy(&stderr).trim());
        return Err(BenchError::Peer { peer: NAME, problem });
    }
    sleep(plan.warm_up);
    let (before, start) = (guests.received()?, Instant::now());
    sleep(plan.window);
    let seconds = start.elapsed().as_secs_f64();
    match guests.received()? - before {
        0 => Err(BenchError::Nothing { what: NAME.to_owned(), seconds }),
        packets => Ok(packets as f64 / seconds / 1e6),
    }
}
