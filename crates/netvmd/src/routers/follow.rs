//! The thread that follows the kernel's routes of all routers by netlink and sends changes to the engine.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_config::model::RouterId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::oneshot;

use super::kernel::{self, GROUPS};
use super::namespace::Namespace;
use super::rib::{Peer, Rib};
use crate::engine_thread::EngineHandle;
use netvm_netlink::{Events, NatChains, ReadOutcome, Requests};

/// Most datagrams read from one router before the next router's turn.
const TURN: usize = 256;
/// Most updates that the engine may have pending; later changes are merged into one update.
const MAX_PENDING: usize = 2;
/// Poll interval while the engine has the most pending updates.
const BUSY: Duration = Duration::from_millis(2);
/// Delay of a resynchronisation after an unclear change.
const SETTLING: Duration = Duration::from_millis(20);
/// Resynchronisations take at most this fraction (1/n) of the time.
const SHARE: u32 = 10;
/// Interval at which a router is compared with a dump even without an event, in case the kernel lost one.
const COMPARISON: Duration = Duration::from_secs(60);
/// Such comparisons take at most this fraction (1/n) of the time.
const COMPARISON_SHARE: u32 = 500;
/// Interval of the neighbour probes.
const ROUND: Duration = Duration::from_secs(1);
/// Interval between two probes of the same neighbour.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Most probes in a round.
const ROUND_PROBES: usize = 100;

/// The netlink sockets of a router.
#[derive(Debug)]
pub struct NetlinkSockets {
    pub(super) events: Events,
    pub(super) requests: Requests,
    /// `None` if this kernel has no nftables.
    nat_chains: Option<NatChains>,
}

impl NetlinkSockets {
    /// Opens the sockets in a router's namespace. The kernel queues events from then on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(namespace: &Namespace) -> io::Result<Self> {
        let open = || {
            let nat_chains = NatChains::open().ok();
            Ok(Self { events: Events::open(GROUPS)?, requests: Requests::open()?, nat_chains })
        };
        namespace.inside(open).flatten()
    }
}

enum Request {
    Follow { id: RouterId, name: String, interfaces: Vec<String>, sockets: NetlinkSockets },
    Forget(RouterId, oneshot::Sender<()>),
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
            Following { engine, inbox, woken, routers: BTreeMap::new(), round: Instant::now() }.run();
        };
        let thread = std::thread::Builder::new().name("netvm-routers".to_owned()).spawn(main)?;
        Ok(Self { requests: Some(requests), wake, thread: Some(thread) })
    }

    /// Starts to follow a router whose tables in the engine are empty. `interfaces`: in the engine's order.
    pub fn follow(&self, id: RouterId, name: String, interfaces: Vec<String>, sockets: NetlinkSockets) {
        self.send(Request::Follow { id, name, interfaces, sockets });
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

struct Followed {
    name: String,
    rib: Rib,
    sockets: NetlinkSockets,
    /// When to resynchronise.
    resync_at: Option<Instant>,
    /// Earliest time of the next resynchronisation.
    not_before: Instant,
    /// When to compare with a dump even without an event.
    compare_at: Instant,
    /// Updates that the engine has not applied yet.
    pending: Arc<AtomicUsize>,
    asked: HashMap<Peer, Instant>,
    /// What it last warned about: [`Rib::limitations`].
    warned: (Option<&'static str>, bool),
}

struct Following {
    engine: EngineHandle,
    inbox: Receiver<Request>,
    woken: Arc<OwnedFd>,
    routers: BTreeMap<RouterId, Followed>,
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
                self.round = now + ROUND;
            }
            busy = false;
            for (id, router) in &mut self.routers {
                if ready.contains(id) {
                    router.read_events();
                }
                if router.resync_at.is_some_and(|at| now >= at) {
                    router.resync();
                }
                busy |= !router.send_updates(*id, &self.engine);
                if is_round {
                    router.look_for_nat();
                    router.probe_neighbours(now);
                    if now >= router.compare_at {
                        router.resync_at.get_or_insert(now);
                    }
                }
            }
        }
    }

    /// Waits for work; returns the routers with netlink events to read.
    fn wait(&self, busy: bool) -> Vec<RouterId> {
        let now = Instant::now();
        let resyncs = self.routers.values().filter_map(|router| router.resync_at);
        let round = (!self.routers.is_empty()).then_some(self.round);
        let until = resyncs.chain(round).chain(busy.then_some(now + BUSY)).min();
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
                Ok(Request::Follow { id, name, interfaces, sockets }) => {
                    self.follow(id, name, interfaces, sockets);
                }
                Ok(Request::Forget(id, done)) => {
                    self.routers.remove(&id);
                    // The caller may have been cancelled.
                    let _ = done.send(());
                }
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

    fn follow(&mut self, id: RouterId, name: String, interfaces: Vec<String>, sockets: NetlinkSockets) {
        let now = Instant::now();
        let router = Followed {
            name,
            rib: Rib::new(interfaces),
            sockets,
            resync_at: Some(now),
            not_before: now,
            compare_at: now + COMPARISON,
            pending: Arc::default(),
            asked: HashMap::new(),
            warned: (None, false),
        };
        self.routers.insert(id, router);
    }
}

impl Followed {
    /// Reads netlink events.
    fn read_events(&mut self) {
        let rib = &mut self.rib;
        let mut is_unclear = false;
        let outcome = self.sockets.events.read(TURN, |event| {
            if let Some(change) = kernel::event_change(event) {
                is_unclear |= rib.apply(change);
            }
        });
        match outcome {
            Ok(ReadOutcome::All | ReadOutcome::More) => {}
            Ok(ReadOutcome::Lost) => {
                tracing::debug!("router {}: netlink events lost; resynchronising", self.name);
                is_unclear = true;
            }
            Err(error) => {
                tracing::warn!("router {}: cannot read netlink events: {error}", self.name);
                is_unclear = true;
            }
        }
        if is_unclear {
            self.resync_at.get_or_insert(self.not_before.max(Instant::now() + SETTLING));
        }
    }

    fn resync(&mut self) {
        let begin = Instant::now();
        self.resync_at = None;
        match kernel::everything(&mut self.sockets.requests) {
            Ok(all) => self.rib.resync(all),
            Err(error) => {
                tracing::warn!("router {}: cannot dump its routes: {error}", self.name);
                self.resync_at = Some(Instant::now() + ROUND);
            }
        }
        let now = Instant::now();
        self.not_before = now + (now - begin) * SHARE;
        self.compare_at = now + COMPARISON.max((now - begin) * COMPARISON_SHARE);
    }

    /// Sends changes to the engine; false if the engine has too many pending.
    fn send_updates(&mut self, id: RouterId, engine: &EngineHandle) -> bool {
        if self.pending.load(Ordering::Acquire) > MAX_PENDING {
            return false;
        }
        if let Some(macs) = self.rib.changed_macs() {
            engine.send(move |engine| {
                // The router may just have been removed.
                let _ = engine.set_router_macs(id, macs);
            });
        }
        for update in self.rib.updates() {
            let pending = Arc::clone(&self.pending);
            pending.fetch_add(1, Ordering::AcqRel);
            engine.send(move |engine| {
                // The router may just have been removed.
                let _ = engine.update_router(id, update);
                pending.fetch_sub(1, Ordering::AcqRel);
            });
        }
        self.warn();
        true
    }

    fn warn(&mut self) {
        let (ruled, is_full) = self.rib.limitations();
        if let Some(families) = ruled.filter(|_| ruled != self.warned.0) {
            tracing::warn!(
                "router {}: policy routing rules other than the default ones: its kernel forwards all {families} packets, slowly",
                self.name
            );
        }
        if is_full && !self.warned.1 {
            tracing::warn!(
                "router {}: more gateways and neighbours than next hops; the kernel forwards packets for the rest",
                self.name
            );
        }
        self.warned = (ruled, is_full);
    }

    /// Warns about NAT in the namespace: it does not apply to packets that the engine forwards, and no counter would show this.
    fn look_for_nat(&mut self) {
        let Some(chains) = &mut self.sockets.nat_chains else { return };
        match chains.are_there() {
            Ok(has_nat) => {
                if self.rib.set_nat(has_nat) && has_nat {
                    tracing::warn!(
                        "router {}: its namespace has chains of type nat (nft or iptables): MASQUERADE and other NAT apply \
                        only to packets that its kernel forwards, not to packets that the engine forwards",
                        self.name
                    );
                }
            }
            Err(error) => {
                tracing::debug!("router {}: cannot look for NAT: {error}", self.name);
                self.sockets.nat_chains = None;
            }
        }
    }

    /// Makes the kernel resolve unknown gateways and confirm stale neighbours.
    fn probe_neighbours(&mut self, now: Instant) {
        self.asked.retain(|_, at| now - *at < PROBE_INTERVAL);
        let due: Vec<Peer> = self
            .rib
            .neighbours_to_probe()
            .filter(|peer| !self.asked.contains_key(peer))
            .take(ROUND_PROBES)
            .collect();
        for (index, address) in due {
            self.asked.insert((index, address), now);
            let mut message = NeighbourMessage::default();
            message.header.ifindex = index;
            message.header.family =
                if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            // The kernel acts as if it sent a packet to the neighbour (NTF_USE of linux/neighbour.h).
            message.header.flags = NeighbourFlags::Use;
            message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(address)));
            if let Err(error) =
                self.sockets.requests.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE)
            {
                tracing::debug!("router {}: cannot probe {address}: {error}", self.name);
            }
        }
    }
}
