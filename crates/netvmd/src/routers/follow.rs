//! The thread that follows the kernels of all routers, and tells the engine.

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
use super::netlink::{Events, ReadOutcome, Requests};
use super::rib::{Peer, Rib};
use crate::engine_thread::EngineHandle;

/// Datagrams that are read of one router before others have their turn.
const TURN: usize = 256;
/// Parts of updates that the engine may have before it is told more; what changes meanwhile becomes one update.
const UNDER_WAY: usize = 2;
/// How soon the engine is looked at again when it has enough to do.
const BUSY: Duration = Duration::from_millis(2);
/// How long something unclear may settle before everything is looked at.
const SETTLING: Duration = Duration::from_millis(20);
/// Looking at everything takes at most one part in so many of the time.
const SHARE: u32 = 10;
/// How often neighbours are looked after.
const ROUND: Duration = Duration::from_secs(1);
/// How long the kernel is given to find a gateway before it is asked again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most neighbours that are asked for in one round.
const ROUND_NEIGHBOURS: usize = 100;

/// The sockets by which a router's kernel is outcome.
#[derive(Debug)]
pub struct NetlinkSockets {
    pub(super) events: Events,
    pub(super) requests: Requests,
}

impl NetlinkSockets {
    /// Opens them in a router's namespace. Events are kept from then on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(namespace: &Namespace) -> io::Result<Self> {
        let open = || Ok(Self { events: Events::open(GROUPS)?, requests: Requests::open()? });
        namespace.inside(open).flatten()
    }
}

enum Command {
    Follow { id: RouterId, name: String, interfaces: Vec<String>, sockets: NetlinkSockets },
    Forget(RouterId, oneshot::Sender<()>),
    Look(RouterId, Box<dyn FnOnce(&Rib) + Send>),
}

/// The thread, from outside. It ends when this is dropped.
#[derive(Debug)]
pub struct Follower {
    commands: Option<Sender<Command>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts it.
    ///
    /// # Errors
    /// No thread, or no descriptor.
    pub fn start(engine: EngineHandle) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, inbox) = mpsc::channel();
        let woken = Arc::clone(&wake);
        let main = move || {
            Following { engine, inbox, woken, routers: BTreeMap::new(), round: Instant::now() }.run();
        };
        let thread = std::thread::Builder::new().name("netvm-routers".to_owned()).spawn(main)?;
        Ok(Self { commands: Some(commands), wake, thread: Some(thread) })
    }

    /// Follows a router from now on, of which the engine knows nothing yet. `interfaces`: as the engine numbers them.
    pub fn follow(&self, id: RouterId, name: String, interfaces: Vec<String>, sockets: NetlinkSockets) {
        self.order(Command::Follow { id, name, interfaces, sockets });
    }

    /// Follows it no more; the engine is told nothing more of it once this returns.
    pub async fn forget(&self, id: RouterId) {
        let (done, outcome) = oneshot::channel();
        self.order(Command::Forget(id, done));
        // A thread that has ended tells nobody anything.
        let _ = outcome.await;
    }

    /// What a router's routes are; `None` when it is not followed.
    pub async fn look<T: Send + 'static>(
        &self,
        id: RouterId,
        look: impl FnOnce(&Rib) -> T + Send + 'static,
    ) -> Option<T> {
        let (done, outcome) = oneshot::channel();
        // Nobody waits any more: the caller was cancelled.
        let look = move |rib: &Rib| drop(done.send(look(rib)));
        self.order(Command::Look(id, Box::new(look)));
        outcome.await.ok()
    }

    fn order(&self, order: Command) {
        // A thread that has ended said so by its panic.
        if let Some(commands) = &self.commands {
            let _ = commands.send(order);
        }
        wake(&self.wake);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.commands = None;
        wake(&self.wake);
        if let Some(thread) = self.thread.take() {
            // Its panic is on standard error.
            let _ = thread.join();
        }
    }
}

fn wake(fd: &OwnedFd) {
    // A counter that is full wakes as well.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

struct Followed {
    name: String,
    rib: Rib,
    sockets: NetlinkSockets,
    /// When to look at everything.
    look_at: Option<Instant>,
    /// Before then not again.
    not_before: Instant,
    /// Parts of updates that the engine has not dealt with yet.
    under_way: Arc<AtomicUsize>,
    asked: HashMap<Peer, Instant>,
    warned: (bool, bool),
}

struct Following {
    engine: EngineHandle,
    inbox: Receiver<Command>,
    woken: Arc<OwnedFd>,
    routers: BTreeMap<RouterId, Followed>,
    round: Instant,
}

impl Following {
    fn run(mut self) {
        let mut busy = false;
        loop {
            let ready = self.wait(busy);
            if self.take_orders().is_err() {
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
                    router.listen();
                }
                if router.look_at.is_some_and(|at| now >= at) {
                    router.look_at_everything();
                }
                busy |= !router.tell(*id, &self.engine);
                if is_round {
                    router.look_after(now);
                }
            }
        }
    }

    /// Waits until there is something to do; says which routers' kernels have something to tell.
    fn wait(&self, busy: bool) -> Vec<RouterId> {
        let now = Instant::now();
        let looks = self.routers.values().filter_map(|router| router.look_at);
        let round = (!self.routers.is_empty()).then_some(self.round);
        let until = looks.chain(round).chain(busy.then_some(now + BUSY)).min();
        let timeout = until.map(|until| Timespec::try_from(until.saturating_duration_since(now)));
        let timeout = timeout.and_then(Result::ok);
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        fds.extend(
            self.routers
                .values()
                .map(|one| PollFd::from_borrowed_fd(one.sockets.events.as_fd(), PollFlags::IN)),
        );
        // An interrupted wait is one that has ended early.
        let _ = poll(&mut fds, timeout.as_ref());
        let is_ready = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        let ready = self.routers.keys().zip(is_ready).filter(|(_, is_ready)| *is_ready);
        let ready = ready.map(|(id, _)| *id).collect();
        // It is empty unless somebody woke this thread.
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        ready
    }

    fn take_orders(&mut self) -> Result<(), TryRecvError> {
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Follow { id, name, interfaces, sockets }) => {
                    self.follow(id, name, interfaces, sockets);
                }
                Ok(Command::Forget(id, done)) => {
                    self.routers.remove(&id);
                    // Nobody waits any more: the caller was cancelled.
                    let _ = done.send(());
                }
                Ok(Command::Look(id, look)) => {
                    if let Some(router) = self.routers.get(&id) {
                        look(&router.rib);
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
            look_at: Some(now),
            not_before: now,
            under_way: Arc::default(),
            asked: HashMap::new(),
            warned: (false, false),
        };
        self.routers.insert(id, router);
    }
}

impl Followed {
    /// Hears what the kernel tells.
    fn listen(&mut self) {
        let rib = &mut self.rib;
        let mut is_unclear = false;
        let outcome = self.sockets.events.read(TURN, |flags, message| {
            if let Some(change) = kernel::change(flags, message) {
                is_unclear |= rib.hear(change);
            }
        });
        match outcome {
            Ok(ReadOutcome::All | ReadOutcome::More) => {}
            Ok(ReadOutcome::Lost) => {
                tracing::debug!("router {}: the kernel told more than could be outcome", self.name);
                is_unclear = true;
            }
            Err(error) => {
                tracing::warn!("router {}: listening to its kernel: {error}", self.name);
                is_unclear = true;
            }
        }
        if is_unclear {
            self.look_at.get_or_insert(self.not_before.max(Instant::now() + SETTLING));
        }
    }

    fn look_at_everything(&mut self) {
        let begin = Instant::now();
        self.look_at = None;
        match kernel::everything(&mut self.sockets.requests) {
            Ok(all) => self.rib.begin_anew(all),
            Err(error) => {
                tracing::warn!("router {}: asking its kernel for its routes: {error}", self.name);
                self.look_at = Some(Instant::now() + ROUND);
            }
        }
        let now = Instant::now();
        self.not_before = now + (now - begin) * SHARE;
    }

    /// Tells the engine what has changed, unless it still has enough to do.
    fn tell(&mut self, id: RouterId, engine: &EngineHandle) -> bool {
        if self.under_way.load(Ordering::Acquire) > UNDER_WAY {
            return false;
        }
        for update in self.rib.updates() {
            let under_way = Arc::clone(&self.under_way);
            under_way.fetch_add(1, Ordering::AcqRel);
            engine.tell(move |engine| {
                // A router that has just gone needs no routes.
                let _ = engine.update_router(id, update);
                under_way.fetch_sub(1, Ordering::AcqRel);
            });
        }
        self.warn();
        true
    }

    fn warn(&mut self) {
        let (has_rules, is_full) = self.rib.complaints();
        if has_rules && !self.warned.0 {
            tracing::warn!(
                "router {}: its namespace has rules of policy routing: its kernel forwards all packets, slowly",
                self.name
            );
        }
        if is_full && !self.warned.1 {
            tracing::warn!(
                "router {}: it has more gateways and neighbours than there can be next hops: its kernel forwards the rest",
                self.name
            );
        }
        self.warned = (has_rules, is_full);
    }

    /// Has the kernel ask for gateways that it does not know, and confirm neighbours that it has not outcome of for a while.
    fn look_after(&mut self, now: Instant) {
        self.asked.retain(|_, at| now - *at < PATIENCE);
        let due: Vec<Peer> = self
            .rib
            .to_look_after()
            .filter(|peer| !self.asked.contains_key(peer))
            .take(ROUND_NEIGHBOURS)
            .collect();
        for (index, address) in due {
            self.asked.insert((index, address), now);
            let mut message = NeighbourMessage::default();
            message.header.ifindex = index;
            message.header.family =
                if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            // As for a packet to it (NTF_USE of linux/neighbour.h).
            message.header.flags = NeighbourFlags::Use;
            message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(address)));
            if let Err(error) =
                self.sockets.requests.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE)
            {
                tracing::debug!("router {}: asking for {address}: {error}", self.name);
            }
        }
    }
}
