// SPDX-License-Identifier: Apache-2.0
//! Builds forwarding tables on a separate thread: a full Internet table takes seconds.
//!
//! In: updates and removals by ticket. Out: new table versions. A version is reused once the workers have released it.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netvm_router::{Tables, Update, Versions};

/// Interval at which the thread checks whether workers have released a version.
const RELEASE_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The builder's thread.
pub(crate) struct Builder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// Messages in both directions, at most one of each per router, by its ticket.
#[derive(Default)]
struct State {
    commands: BTreeMap<u64, Command>,
    built: BTreeMap<u64, Arc<Tables>>,
    /// The thread has commands that it has not completed yet.
    is_working: bool,
    is_ending: bool,
}

enum Command {
    Change(Update),
    Forget,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked left the state consistent: each change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for commands; with `retry`, at most [`RELEASE_CHECK_INTERVAL`]. `None` at the end.
    fn wait(&self, retry: bool) -> Option<BTreeMap<u64, Command>> {
        let mut state = self.lock();
        state.is_working = retry;
        loop {
            if state.is_ending {
                return None;
            }
            if !state.commands.is_empty() {
                state.is_working = true;
                return Some(mem::take(&mut state.commands));
            }
            if retry {
                let (mut state, _) = self
                    .wake
                    .wait_timeout(state, RELEASE_CHECK_INTERVAL)
                    .unwrap_or_else(PoisonError::into_inner);
                return (!state.is_ending).then(|| mem::take(&mut state.commands));
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Builder {
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let for_thread = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("netvm-routes".to_owned()).spawn(move || run(&for_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Adds an update to those that wait.
    pub(crate) fn change(&self, ticket: u64, update: Update) {
        match self.shared.lock().commands.entry(ticket).or_insert_with(|| Command::Change(Update::default()))
        {
            Command::Change(known) => known.merge(update),
            // Tickets are never reused.
            Command::Forget => return,
        }
        self.shared.wake.notify_one();
    }

    /// Drops a router's tables.
    pub(crate) fn forget(&self, ticket: u64) {
        let mut state = self.shared.lock();
        state.built.remove(&ticket);
        state.commands.insert(ticket, Command::Forget);
        self.shared.wake.notify_one();
    }

    /// Whether tables are waiting to be built or taken.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        state.is_working || !state.commands.is_empty() || !state.built.is_empty()
    }

    /// Takes the tables built since the last call.
    pub(crate) fn take(&self) -> BTreeMap<u64, Arc<Tables>> {
        mem::take(&mut self.shared.lock().built)
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It panics only if a table does, and a panic prints its message.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut routers: BTreeMap<u64, Versions> = BTreeMap::new();
    let is_waiting = |routers: &BTreeMap<u64, Versions>| routers.values().any(Versions::has_pending);
    while let Some(commands) = shared.wait(is_waiting(&routers)) {
        let mut updates = BTreeMap::new();
        for (ticket, command) in commands {
            match command {
                Command::Change(update) => {
                    routers.entry(ticket).or_default();
                    updates.insert(ticket, update);
                }
                Command::Forget => {
                    routers.remove(&ticket);
                }
            }
        }
        for (ticket, versions) in &mut routers {
            let update = updates.remove(ticket);
            if update.is_none() && !versions.has_pending() {
                continue;
            }
            if let Some(tables) = versions.publish(update.unwrap_or_default()) {
                shared.lock().built.insert(*ticket, tables);
            }
        }
    }
}

#[cfg(test)]
mod tests {

    use netvm_router::{NextHop, NextHopId};

    use super::*;

    fn update(route: &str) -> Update {
        let id = NextHopId(1);
        Update { next_hops: vec![(id, NextHop::Blackhole)], routes: vec![(route.parse().unwrap(), Some(id))] }
    }

    fn wait_for(builder: &Builder, ticket: u64, routes: usize) -> Arc<Tables> {
        netvm_testing::until_some("the tables are built", || {
            builder.take().remove(&ticket).filter(|tables| tables.routes().0 == routes)
        })
    }

    #[test]
    fn updates_wait_while_a_version_is_held() {
        let builder = Builder::start().unwrap();
        builder.change(1, update("10.0.0.0/8"));
        let first = wait_for(&builder, 1, 1);
        builder.change(1, update("11.0.0.0/8"));
        let second = wait_for(&builder, 1, 2);
        builder.change(1, update("12.0.0.0/8"));
        builder.change(1, update("13.0.0.0/8"));
        std::thread::sleep(10 * RELEASE_CHECK_INTERVAL);
        assert!(builder.take().is_empty());
        assert_eq!((first.routes().0, second.routes().0), (1, 2));
        drop(first);
        assert_eq!(wait_for(&builder, 1, 4).routes(), (4, 0));
    }

    #[test]
    fn a_removed_router_releases_its_tables() {
        let builder = Builder::start().unwrap();
        builder.change(1, update("10.0.0.0/8"));
        let tables = wait_for(&builder, 1, 1);
        builder.forget(1);
        builder.change(2, update("11.0.0.0/8"));
        wait_for(&builder, 2, 1);
        assert_eq!(Arc::strong_count(&tables), 1);
    }
}
