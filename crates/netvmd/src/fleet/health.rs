// SPDX-License-Identifier: Apache-2.0
//! Whether this host is healthy, by the tests of its configuration (`[health]`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netvm_model::HealthConfig;
use tokio::time::{Instant, sleep};

use super::ping::{self, Sockets};
use crate::api::unhealthy;
use crate::daemon::Daemon;
use crate::runtime::blocking;

/// Between two tests.
const INTERVAL: Duration = Duration::from_millis(250);

/// What is not healthy now.
pub(super) async fn problems(daemon: &Arc<Daemon>) -> Vec<String> {
    let Ok(running) = daemon.running().await else { return vec!["the engine has ended".to_owned()] };
    let health = running.health.clone();
    let mut problems = unhealthy(daemon, &health).await;
    if !health.ping.is_empty() {
        problems.extend(silent(daemon, health).await);
    }
    problems
}

/// The addresses that do not answer.
async fn silent(daemon: &Arc<Daemon>, health: HealthConfig) -> Vec<String> {
    let from = health.router.as_ref().map_or_else(String::new, |router| format!(" from router {router}"));
    let addresses: Vec<IpAddr> = health.ping;
    let open = {
        let addresses = addresses.clone();
        move || Sockets::open(&addresses)
    };
    let opened = match &health.router {
        None => open().map_err(|error| error.to_string()),
        Some(router) => match daemon.routers().inside(router, open).await {
            Ok(opened) => opened.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        },
    };
    let outcome = match opened {
        Ok(sockets) => {
            blocking(move || ping::unanswered(&sockets, &addresses)).await.map_err(|error| error.to_string())
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(silent) => silent.iter().map(|to| format!("no answer to pings of {to}{from}")).collect(),
        Err(error) => vec![format!("cannot send pings{from}: {error}")],
    }
}

/// Waits until the host has been healthy for a while. What was not, if it takes too long.
pub(super) async fn wait(daemon: &Arc<Daemon>, health: &HealthConfig) -> Result<(), Vec<String>> {
    let end = Instant::now() + Duration::from_secs(health.within.into());
    let steady = Duration::from_secs(health.steady.into());
    let mut since = None;
    loop {
        let problems = problems(daemon).await;
        let now = Instant::now();
        if problems.is_empty() {
            if now.duration_since(*since.get_or_insert(now)) >= steady {
                return Ok(());
            }
        } else {
            since = None;
        }
        // One that became healthy in time may be so for as long as it must.
        if now >= end && since.is_none_or(|since| since >= end) {
            let late = || vec![format!("not healthy for {} s without a break", health.steady)];
            return Err(if problems.is_empty() { late() } else { problems });
        }
        sleep(INTERVAL).await;
    }
}
