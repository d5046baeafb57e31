// SPDX-License-Identifier: Apache-2.0
//! A loop of links: two uplinks of one switch lead to the same bridge outside, and what one floods comes back by the
//! other, without end. netvmd must limit the flood, report it, and be at rest soon after the loop is cut.

use std::time::{Duration, Instant};

use netvm_api::EventKind;

use crate::config::UPLINK_PORTS;
use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::interfaces;

/// Storm and flapping addresses must be reported within this time.
const REPORT: Duration = Duration::from_secs(15);
/// No packets and no problems after this time without a loop: problems are listed for 10 s after the last packet.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Packets between two checks that are no storm: the kernel's own.
const MAX_KERNEL_PACKETS: u64 = 100;

/// The loop.
#[derive(Debug, Default)]
pub enum Storm {
    #[default]
    Over,
    /// The loop is closed.
    Rages {
        /// The last event before.
        event: u64,
        since: Instant,
    },
    /// The loop is cut.
    Ends {
        since: Instant,
        /// Packets that the uplinks had received at the last check.
        received: u64,
    },
}

impl Storm {
    /// Closes the loop, unless the last storm is not over yet. Returns whether it did.
    pub fn start(&mut self, daemon: &Daemon) -> Result<bool, Failure> {
        if !matches!(self, Self::Over) {
            return Ok(false);
        }
        let event = daemon.last_event()?;
        interfaces::close_loop()?;
        *self = Self::Rages { event, since: Instant::now() };
        Ok(true)
    }

    /// The storm is reported in time, and ends in time when the loop is cut. Returns whether it is over.
    pub fn check(&mut self, daemon: &Daemon) -> Result<bool, Failure> {
        match *self {
            Self::Over => return Ok(true),
            Self::Rages { event, since } => {
                let events = daemon.events_after(event)?;
                let has = |kind| {
                    events.iter().any(|event| event.kind == kind && UPLINK_PORTS.contains(&&*event.subject))
                };
                let missing: Vec<_> = [EventKind::Storm, EventKind::MacFlapping]
                    .into_iter()
                    .filter(|kind| !has(*kind))
                    .map(EventKind::word)
                    .collect();
                if missing.is_empty() {
                    interfaces::cut_loop()?;
                    *self = Self::Ends { since: Instant::now(), received: received(daemon)? };
                } else if since.elapsed() > REPORT {
                    return Err(Failure::Broken(format!(
                        "a loop was not reported within {} s: no event of kind {missing:?}",
                        REPORT.as_secs()
                    )));
                }
            }
            Self::Ends { since, received: before } => {
                let now = received(daemon)?;
                let problems = problems(daemon)?;
                let new = now.saturating_sub(before);
                if new <= MAX_KERNEL_PACKETS && problems.is_empty() {
                    *self = Self::Over;
                } else if since.elapsed() > QUIESCE_TIMEOUT {
                    return Err(Failure::Broken(format!(
                        "a storm was not over {} s after its loop was cut: {new} packets since the last check, \
                         {problems:?}",
                        QUIESCE_TIMEOUT.as_secs()
                    )));
                } else {
                    *self = Self::Ends { since, received: now };
                }
            }
        }
        Ok(matches!(self, Self::Over))
    }
}

/// Packets that the uplinks have received.
fn received(daemon: &Daemon) -> Result<u64, Failure> {
    let ports = daemon.ask(daemon.client.ports())?;
    Ok(ports.iter().filter(|port| UPLINK_PORTS.contains(&&*port.name)).map(|port| port.rx_packets).sum())
}

/// Problems of the uplinks.
fn problems(daemon: &Daemon) -> Result<Vec<String>, Failure> {
    let mut problems = daemon.ask(daemon.client.status())?.problems;
    problems.retain(|text| UPLINK_PORTS.iter().any(|port| text.starts_with(&format!("port {port}:"))));
    Ok(problems)
}
