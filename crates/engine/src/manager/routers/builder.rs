//! Bringing tables up to date, apart from the engine's thread: that of the whole Internet takes seconds.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netvm_router::{Tables, Update, Versions};

/// How often it is looked whether workers have let go of a version.
const RETRY: Duration = Duration::from_millis(2);

/// The thread that does it.
pub(crate) struct Builder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// What each side has for the other, by the ticket of a router. There is at most one of each.
#[derive(Default)]
struct State {
    orders: BTreeMap<u64, Order>,
    made: BTreeMap<u64, Arc<Tables>>,
    /// The thread has orders that it has not carried out yet.
    is_working: bool,
    is_ending: bool,
}

enum Order {
    Change(Update),
    Forget,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Whatever a thread that panicked left there is whole: each change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for orders, or no longer than until something may be tried again; `None` at the end.
    fn wait(&self, retry: bool) -> Option<BTreeMap<u64, Order>> {
        let mut state = self.lock();
        state.is_working = retry;
        loop {
            if state.is_ending {
                return None;
            }
            if !state.orders.is_empty() {
                state.is_working = true;
                return Some(mem::take(&mut state.orders));
            }
            if retry {
                let (mut state, _) =
                    self.wake.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner);
                return (!state.is_ending).then(|| mem::take(&mut state.orders));
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Builder {
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("netvm-routes".to_owned()).spawn(move || run(&of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Adds to what is to be changed.
    pub(crate) fn change(&self, ticket: u64, update: Update) {
        match self.shared.lock().orders.entry(ticket).or_insert_with(|| Order::Change(Update::default())) {
            Order::Change(known) => known.merge(update),
            // Tickets are not used twice.
            Order::Forget => return,
        }
        self.shared.wake.notify_one();
    }

    /// Gives up a router's tables.
    pub(crate) fn forget(&self, ticket: u64) {
        let mut state = self.shared.lock();
        state.made.remove(&ticket);
        state.orders.insert(ticket, Order::Forget);
        self.shared.wake.notify_one();
    }

    /// Whether there are tables to be made or taken.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        state.is_working || !state.orders.is_empty() || !state.made.is_empty()
    }

    /// The tables that are ready since the last call.
    pub(crate) fn take(&self) -> BTreeMap<u64, Arc<Tables>> {
        mem::take(&mut self.shared.lock().made)
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It panics only if a table does, which has said so.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut routers: BTreeMap<u64, Versions> = BTreeMap::new();
    let is_waiting = |routers: &BTreeMap<u64, Versions>| routers.values().any(Versions::has_pending);
    while let Some(orders) = shared.wait(is_waiting(&routers)) {
        let mut updates = BTreeMap::new();
        for (ticket, order) in orders {
            match order {
                Order::Change(update) => {
                    routers.entry(ticket).or_default();
                    updates.insert(ticket, update);
                }
                Order::Forget => {
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
                shared.lock().made.insert(*ticket, tables);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use netvm_router::{NextHop, NextHopId};

    use super::*;

    fn update(route: &str) -> Update {
        let id = NextHopId(1);
        Update { next_hops: vec![(id, NextHop::Blackhole)], routes: vec![(route.parse().unwrap(), Some(id))] }
    }

    fn until(builder: &Builder, ticket: u64, routes: usize) -> Arc<Tables> {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(30));
            if let Some(tables) = builder.take().remove(&ticket)
                && tables.routes().0 == routes
            {
                return tables;
            }
            std::thread::sleep(RETRY);
        }
    }

    #[test]
    fn what_is_said_while_a_version_is_held_comes_once_it_is_let_go() {
        let builder = Builder::start().unwrap();
        builder.change(1, update("10.0.0.0/8"));
        let first = until(&builder, 1, 1);
        builder.change(1, update("11.0.0.0/8"));
        let second = until(&builder, 1, 2);
        builder.change(1, update("12.0.0.0/8"));
        builder.change(1, update("13.0.0.0/8"));
        std::thread::sleep(10 * RETRY);
        assert!(builder.take().is_empty());
        assert_eq!((first.routes().0, second.routes().0), (1, 2));
        drop(first);
        assert_eq!(until(&builder, 1, 4).routes(), (4, 0));
    }

    #[test]
    fn what_is_forgotten_is_let_go() {
        let builder = Builder::start().unwrap();
        builder.change(1, update("10.0.0.0/8"));
        let tables = until(&builder, 1, 1);
        builder.forget(1);
        builder.change(2, update("11.0.0.0/8"));
        until(&builder, 2, 1);
        assert_eq!(Arc::strong_count(&tables), 1);
    }
}
