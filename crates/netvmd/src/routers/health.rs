// SPDX-License-Identifier: Apache-2.0
//! Health of the targets of NAT rules. In: the targets that a configuration checks. Out: to the engine, whether each is
//! healthy; an event for each change.
//!
//! netvmd opens a TCP connection to each target, from the namespace of the router that reaches it, so that the attempt
//! takes the way of clients' packets. It closes the connection at once, and sends nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netvm_api::EventKind;
use netvm_model::{CheckedTarget, Host};
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::managed::ManagedRouter;
use crate::engine_thread::EngineHandle;
use crate::runtime::{blocking, lock};

/// A target has so long to accept a connection, or `interval` if that is less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Threads that make sockets in namespaces at a time.
const SOCKETS_AT_A_TIME: usize = 8;

/// A target as users see it.
#[derive(Clone, Debug)]
pub struct TargetView {
    /// The router from whose namespace it is checked; `None`: from netvmd's own.
    pub router: Option<String>,
    /// The target.
    pub address: SocketAddr,
    /// The rules that lead to it: names, or places in the file.
    pub rules: Vec<String>,
    /// New connections may lead to it.
    pub is_healthy: bool,
    /// Attempts to connect.
    pub checks: u64,
    /// Those that failed.
    pub failed: u64,
    /// Why the last one failed; `None`: it did not.
    pub problem: Option<String>,
}

/// What is known of a target.
#[derive(Debug)]
struct Checked {
    view: TargetView,
    /// Failures since the last success.
    in_a_row: u16,
}

/// A target that a task checks; dropping it ends the task.
#[derive(Debug)]
struct Running {
    checked: Arc<Mutex<Checked>>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The targets that are checked.
#[derive(Debug)]
pub(super) struct Targets {
    engine: EngineHandle,
    routers: Arc<Mutex<BTreeMap<String, ManagedRouter>>>,
    running: Mutex<BTreeMap<CheckedTarget, Running>>,
    sockets: Arc<Semaphore>,
}

impl Targets {
    pub(super) fn new(engine: EngineHandle, routers: Arc<Mutex<BTreeMap<String, ManagedRouter>>>) -> Self {
        let sockets = Arc::new(Semaphore::new(SOCKETS_AT_A_TIME));
        Self { engine, routers, running: Mutex::default(), sockets }
    }

    /// Checks the targets of a configuration that the engine runs now, and no others. Those that stay keep their state.
    pub(super) fn follow(&self, host: &Host) {
        let mut wanted = host.checked_targets();
        let mut running = lock(&self.running);
        running.retain(|target, known| {
            let Some(rules) = wanted.remove(target) else { return false };
            lock(&known.checked).view.rules = rules;
            true
        });
        for (target, rules) in wanted {
            let router = target.router.and_then(|id| host.router(id)).map(|router| router.name.clone());
            let view = TargetView {
                router,
                address: target.address,
                rules,
                is_healthy: true,
                checks: 0,
                failed: 0,
                problem: None,
            };
            let checked = Arc::new(Mutex::new(Checked { view, in_a_row: 0 }));
            let task = Task {
                target,
                checked: Arc::clone(&checked),
                engine: self.engine.clone(),
                routers: Arc::clone(&self.routers),
                sockets: Arc::clone(&self.sockets),
            };
            let task = tokio::spawn(task.run()).abort_handle();
            running.insert(target, Running { checked, task });
        }
    }

    /// All targets.
    pub(super) fn views(&self) -> Vec<TargetView> {
        lock(&self.running).values().map(|known| lock(&known.checked).view.clone()).collect()
    }
}

/// Checks one target.
struct Task {
    target: CheckedTarget,
    checked: Arc<Mutex<Checked>>,
    engine: EngineHandle,
    routers: Arc<Mutex<BTreeMap<String, ManagedRouter>>>,
    sockets: Arc<Semaphore>,
}

impl Task {
    async fn run(self) {
        let interval = Duration::from_secs(self.target.check.interval.into());
        loop {
            let next = Instant::now() + interval;
            match self.socket().await {
                Ok(socket) => self.note(connect(socket, self.target.address, interval).await),
                // This says nothing of the target: its router cannot be made yet, or netvmd has no descriptor left.
                Err(error) => tracing::debug!("cannot check target {}: {error}", self.target.address),
            }
            sleep_until(next).await;
        }
    }

    /// A socket in the namespace of the router.
    async fn socket(&self) -> io::Result<TcpSocket> {
        let is_v4 = self.target.address.is_ipv4();
        let new = move || if is_v4 { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let Some(router) = lock(&self.checked).view.router.clone() else { return new() };
        let _permit = self.sockets.acquire().await.map_err(io::Error::other)?;
        let routers = Arc::clone(&self.routers);
        blocking(move || match lock(&routers).get(&router) {
            Some(made) => made.namespace.inside(new).flatten(),
            None => Err(io::ErrorKind::NotFound.into()),
        })
        .await
    }

    /// Notes the outcome of an attempt. A change goes to the engine and into the events.
    fn note(&self, outcome: Result<(), String>) {
        let Some((view, is_healthy)) = lock(&self.checked).note(outcome, self.target.check.failures) else {
            return;
        };
        let target = self.target;
        self.engine.send(move |engine| engine.set_target_health(&target, is_healthy));
        let subject = view.address.to_string();
        let rules = view.rules.join(", ");
        let (kind, message) = match view.problem {
            Some(problem) => (
                EventKind::TargetDown,
                format!(
                    "target {subject} of nat {rules} is down: {problem}: new connections go to the others"
                ),
            ),
            None => (EventKind::TargetUp, format!("target {subject} of nat {rules} is up again")),
        };
        self.engine.events().push(kind, &subject, message);
    }
}

impl Checked {
    /// Notes the outcome of an attempt. Returns whether the target is healthy, if that has changed.
    fn note(&mut self, outcome: Result<(), String>, failures: u16) -> Option<(TargetView, bool)> {
        let view = &mut self.view;
        view.checks += 1;
        view.failed += u64::from(outcome.is_err());
        self.in_a_row = if outcome.is_err() { self.in_a_row.saturating_add(1) } else { 0 };
        view.problem = outcome.err();
        let is_healthy = if view.is_healthy { self.in_a_row < failures } else { self.in_a_row == 0 };
        let is_change = std::mem::replace(&mut view.is_healthy, is_healthy) != is_healthy;
        is_change.then(|| (view.clone(), is_healthy))
    }
}

/// Connects to a target; why it cannot.
async fn connect(socket: TcpSocket, to: SocketAddr, interval: Duration) -> Result<(), String> {
    let limit = ANSWER_TIMEOUT.min(interval);
    match timeout(limit, socket.connect(to)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked() -> Checked {
        let view = TargetView {
            router: None,
            address: SocketAddr::from(([127, 0, 0, 1], 80)),
            rules: vec!["web".to_owned()],
            is_healthy: true,
            checks: 0,
            failed: 0,
            problem: None,
        };
        Checked { view, in_a_row: 0 }
    }

    #[test]
    fn a_target_is_down_after_failures_in_a_row_and_up_after_a_success() {
        let mut target = checked();
        let mut note = |outcome: Result<(), &str>| {
            target.note(outcome.map_err(str::to_owned), 3).map(|(_, is_healthy)| is_healthy)
        };
        let failed = Err("connection refused");
        let outcomes =
            [failed, failed, Ok(()), failed, failed, failed, failed, Ok(()), failed, failed, Ok(())];
        let changes: Vec<Option<bool>> = outcomes.into_iter().map(&mut note).collect();
        let mut expected = vec![None; outcomes.len()];
        (expected[5], expected[7]) = (Some(false), Some(true));
        assert_eq!(changes, expected);
        assert_eq!((target.view.checks, target.view.failed, target.view.problem), (11, 8, None));
    }

    #[tokio::test]
    async fn an_attempt_says_why_it_failed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let second = Duration::from_secs(1);
        assert_eq!(connect(TcpSocket::new_v4().unwrap(), to, second).await, Ok(()));
        drop(listener);
        let refused = connect(TcpSocket::new_v4().unwrap(), to, second).await.unwrap_err();
        assert!(refused.contains("refused"), "{refused}");
    }
}
