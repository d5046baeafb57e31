// SPDX-License-Identifier: Apache-2.0
//! The thread that follows the kernel's routes of all routers by netlink and sends changes to the engine.

mod followed;
mod global;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netvm_engine::LocalAddresses;
use netvm_model::RouterId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::oneshot;

use super::evpn::{Devices, INTERVAL, Local, Network};
use super::kernel::GROUPS;
use super::namespace::Namespace;
use super::rib::Rib;
use crate::engine_thread::EngineHandle;
use followed::Followed;
use global::GlobalFiles;
use netvm_netlink::{Events, NatChains, Requests};

/// Poll interval while the engine has the most pending updates.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Interval at which neighbours are probed, and settings without events read.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// The netlink sockets of a router.
#[derive(Debug)]
pub struct NetlinkSockets {
    pub(super) events: Events,
    pub(super) requests: Requests,
    /// `None` if this kernel has no nftables.
    nat_chains: Option<NatChains>,
    global: GlobalFiles,
}

impl NetlinkSockets {
    /// Opens the sockets in a router's namespace. The kernel queues events from then on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(namespace: &Namespace) -> io::Result<Self> {
        let open = || {
            let nat_chains = NatChains::open().ok();
            let (events, requests) = (Events::open(GROUPS)?, Requests::open()?);
            Ok(Self { events, requests, nat_chains, global: GlobalFiles::open() })
        };
        namespace.inside(open).flatten()
    }
}

/// A router to follow.
pub struct ToFollow {
    pub id: RouterId,
    /// Its name.
    pub name: String,
    /// The names of its interfaces in the engine's order, with the index of the outer end of each.
    pub interfaces: Vec<(String, Option<u32>)>,
    pub sockets: NetlinkSockets,
}

enum Request {
    Follow(ToFollow),
    Forget(RouterId, oneshot::Sender<()>),
    Targets(RouterId, Vec<IpAddr>),
    Networks(RouterId, Vec<(Network, Devices)>),
    Local(Option<LocalAddresses>),
    Query(RouterId, Box<dyn FnOnce(&Rib) + Send>),
}

/// Handle of the thread; dropping it ends the thread.
#[derive(Debug)]
pub struct Follower {
    requests: Option<Sender<Request>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread or its eventfd cannot be created.
    pub fn start(engine: EngineHandle) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, inbox) = mpsc::channel();
        let woken = Arc::clone(&wake);
        let main = move || {
            let (routers, local) = (BTreeMap::new(), Local::default());
            Following { engine, inbox, woken, routers, local, round: Instant::now() }.run();
        };
        let thread = std::thread::Builder::new().name("netvm-routers".to_owned()).spawn(main)?;
        Ok(Self { requests: Some(requests), wake, thread: Some(thread) })
    }

    /// Starts to follow a router whose tables in the engine are empty.
    pub fn follow(&self, router: ToFollow) {
        self.send(Request::Follow(router));
    }

    /// Has a followed router resolve addresses that the engine sends to by itself, in place of earlier ones.
    pub fn set_targets(&self, id: RouterId, targets: Vec<IpAddr>) {
        self.send(Request::Targets(id, targets));
    }

    /// Has a followed router follow networks with EVPN, in place of earlier ones.
    pub fn set_networks(&self, id: RouterId, networks: Vec<(Network, Devices)>) {
        self.send(Request::Networks(id, networks));
    }

    /// Tells routers where to read the addresses behind ports of this host.
    pub fn set_local(&self, addresses: Option<LocalAddresses>) {
        self.send(Request::Local(addresses));
    }

    /// Stops following a router; sends the engine no more updates of it once this returns.
    pub async fn forget(&self, id: RouterId) {
        let (done, outcome) = oneshot::channel();
        self.send(Request::Forget(id, done));
        // An error means that the thread has ended, so it sends nothing.
        let _ = outcome.await;
    }

    /// Runs `query` on a router's routes; `None` if the thread does not follow the router.
    pub async fn query<T: Send + 'static>(
        &self,
        id: RouterId,
        query: impl FnOnce(&Rib) -> T + Send + 'static,
    ) -> Option<T> {
        let (done, outcome) = oneshot::channel();
        // The caller may have been cancelled.
        let query = move |rib: &Rib| drop(done.send(query(rib)));
        self.send(Request::Query(id, Box::new(query)));
        outcome.await.ok()
    }

    fn send(&self, request: Request) {
        // If the thread has ended, its panic is on standard error.
        if let Some(requests) = &self.requests {
            let _ = requests.send(request);
        }
        wake(&self.wake);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.requests = None;
        wake(&self.wake);
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, is on standard error.
            let _ = thread.join();
        }
    }
}

fn wake(fd: &OwnedFd) {
    // The write fails if the counter is full, which also wakes the thread.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

struct Following {
    engine: EngineHandle,
    inbox: Receiver<Request>,
    woken: Arc<OwnedFd>,
    routers: BTreeMap<RouterId, Followed>,
    /// Addresses behind ports of this host.
    local: Local,
    round: Instant,
}

impl Following {
    fn run(mut self) {
        let mut busy = false;
        loop {
            let ready = self.wait(busy);
            if self.handle_requests().is_err() {
                return;
            }
            let now = Instant::now();
            let is_round = now >= self.round;
            if is_round {
                self.round = now + ROUND_INTERVAL;
            }
            busy = false;
            let vteps = if is_round { self.vteps() } else { BTreeMap::new() };
            for (id, router) in &mut self.routers {
                if ready.contains(id) {
                    router.read_events();
                }
                if is_round {
                    router.read_settings();
                    router.look_for_nat();
                    router.probe_neighbours(now, vteps.get(id).map_or(&[], Vec::as_slice));
                }
                router.keep_in_step(now);
                busy |= !router.send_updates(*id, &self.engine);
                for (port, address) in router.take_departed() {
                    self.local.forget(port, address);
                }
            }
            busy |= self.write_local(now);
        }
    }

    /// The VTEPs of all networks with EVPN, by the router that has to reach them.
    fn vteps(&self) -> BTreeMap<RouterId, Vec<IpAddr>> {
        let mut all: BTreeMap<RouterId, Vec<IpAddr>> = BTreeMap::new();
        for (underlay, vtep) in self.routers.values().flat_map(|router| router.tables.vteps()) {
            all.entry(underlay).or_default().push(vtep);
        }
        all
    }

    /// Tells kernels which addresses are behind ports of this host; true if that has not ended.
    fn write_local(&mut self, now: Instant) -> bool {
        if self.routers.values().all(Followed::is_in_step)
            && let Some(wanted) = self.local.look(now)
        {
            self.routers.values_mut().for_each(|router| router.compare_local(&wanted));
        }
        self.routers.values_mut().fold(false, |busy, router| router.write_local() | busy)
    }

    /// Waits for work; returns the routers with netlink events to read.
    fn wait(&self, busy: bool) -> Vec<RouterId> {
        let now = Instant::now();
        let resyncs = self.routers.values().filter_map(Followed::due_at);
        let round = (!self.routers.is_empty()).then_some(self.round);
        let has_networks = self.routers.values().any(|router| !router.tables.is_empty());
        let often = has_networks.then_some(now + INTERVAL);
        let until = resyncs.chain(round).chain(often).chain(busy.then_some(now + BUSY_POLL_INTERVAL)).min();
        let timeout = until.map(|until| Timespec::try_from(until.saturating_duration_since(now)));
        let timeout = timeout.and_then(Result::ok);
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        fds.extend(
            self.routers
                .values()
                .map(|one| PollFd::from_borrowed_fd(one.sockets.events.as_fd(), PollFlags::IN)),
        );
        // An interrupted wait only ends early.
        let _ = poll(&mut fds, timeout.as_ref());
        let is_ready = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        let ready = self.routers.keys().zip(is_ready).filter(|(_, is_ready)| *is_ready);
        let ready = ready.map(|(id, _)| *id).collect();
        // Empty unless a command woke this thread.
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        ready
    }

    fn handle_requests(&mut self) -> Result<(), TryRecvError> {
        loop {
            match self.inbox.try_recv() {
                Ok(Request::Follow(router)) => {
                    self.routers.insert(router.id, Followed::new(router));
                }
                Ok(Request::Forget(id, done)) => {
                    self.routers.remove(&id);
                    // The caller may have been cancelled.
                    let _ = done.send(());
                }
                Ok(Request::Targets(id, targets)) => {
                    if let Some(router) = self.routers.get_mut(&id) {
                        router.targets = targets;
                    }
                }
                Ok(Request::Networks(id, networks)) => {
                    if let Some(router) = self.routers.get_mut(&id) {
                        router.set_networks(networks);
                    }
                }
                Ok(Request::Local(addresses)) => self.local.set(addresses),
                Ok(Request::Query(id, query)) => {
                    if let Some(router) = self.routers.get(&id) {
                        query(&router.rib);
                    }
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(gone) => return Err(gone),
            }
        }
    }
}
