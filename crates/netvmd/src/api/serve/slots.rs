// SPDX-License-Identifier: Apache-2.0
//! The slots for connections of a listener. In: a client that connects. Out: a slot, or none.
//!
//! Nobody can fill the slots by connections that ask for nothing, or whose request does not come to its end: when they
//! are taken, netvmd closes the one that has waited longest for its client, of the user or address that has most such
//! connections. Clients that wait for netvmd keep their slots. On a Unix socket, a user other than root has at most a
//! share, and all of them leave some slots free for root.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct Limits {
    /// Connections at a time.
    pub(in crate::api) connections: usize,
    /// Of them, of one user or address. Does not apply to root.
    pub(in crate::api) each: usize,
    /// Of them, only for root.
    pub(in crate::api) reserve: usize,
}

/// A client, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::api) enum Peer {
    /// A user number, on a Unix socket.
    User(u32),
    /// An address.
    Address(IpAddr),
    Unknown,
}

impl Peer {
    /// Root, or the user of this process: it may do whatever netvmd may.
    fn is_privileged(self) -> bool {
        self == Self::User(0) || self == Self::User(rustix::process::geteuid().as_raw())
    }
}

/// A connection whose peer is known.
pub(in crate::api) trait HasPeer {
    fn peer(&self) -> Peer;

    /// The client's process, if it has one that this process can see.
    fn process(&self) -> Option<i32> {
        None
    }

    /// The client's address and port; empty if it has none.
    fn address(&self) -> String {
        String::new()
    }
}

impl HasPeer for UnixStream {
    fn peer(&self) -> Peer {
        self.peer_cred().map_or(Peer::Unknown, |credentials| Peer::User(credentials.uid()))
    }

    fn process(&self) -> Option<i32> {
        self.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
    }
}

/// The addresses that somebody can choose from who has this one: itself, or its IPv6 network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            IpAddr::V6(std::net::Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64))
        }
        canonical => canonical,
    }
}

impl HasPeer for TcpStream {
    fn peer(&self) -> Peer {
        self.peer_addr().map_or(Peer::Unknown, |address| Peer::Address(network(address.ip())))
    }

    fn address(&self) -> String {
        self.peer_addr().map_or_else(|_| String::new(), |address| address.to_string())
    }
}

/// What a connection does.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Requests that netvmd works on or answers.
    requests: AtomicUsize,
    /// Whether the rest of a request's body has not come yet.
    lacks_body: AtomicBool,
    /// Closes the connection.
    close: Notify,
}

impl Activity {
    /// A request that lasts until the result is dropped.
    pub(super) fn request(self: &Arc<Self>) -> ActiveRequest {
        self.requests.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// Waits until the connection must make room for another.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }

    /// Says whether a request's body is waited for.
    pub(super) fn set_lacks_body(&self, lacks: bool) {
        self.lacks_body.store(lacks, Ordering::Relaxed);
    }

    fn waits_for_client(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0 || self.lacks_body.load(Ordering::Relaxed)
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<Activity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Held {
    number: u64,
    peer: Peer,
    activity: Arc<Activity>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    /// In the order in which they came.
    held: Vec<Held>,
}

/// The slots.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    limits: Limits,
    table: Mutex<Table>,
    /// A connection has ended.
    left: Notify,
}

/// A connection's slot, until dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    pub(super) peer: Peer,
    pub(super) activity: Arc<Activity>,
}

impl ConnectionSlots {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default(), left: Notify::new() })
    }

    /// A slot for a client; `None` if all that it may have are taken by clients that wait for netvmd.
    pub(super) fn take(self: &Arc<Self>, peer: Peer) -> Option<ConnectionSlot> {
        let mut table = self.table();
        let Limits { connections, each, reserve } = self.limits;
        if peer.is_privileged() {
            table.make_room(connections, |_| true)?;
        } else {
            table.make_room(each, |other| other == peer)?;
            table.make_room(connections.saturating_sub(reserve), |other| !other.is_privileged())?;
            table.make_room(connections, |other| !other.is_privileged())?;
        }
        table.last += 1;
        let (number, activity) = (table.last, Arc::new(Activity::default()));
        table.held.push(Held { number, peer, activity: Arc::clone(&activity) });
        Some(ConnectionSlot { slots: Arc::clone(self), number, peer, activity })
    }

    /// Waits until no connection is left.
    pub(super) async fn until_empty(&self) {
        loop {
            let left = self.left.notified();
            if self.table().held.is_empty() {
                return;
            }
            left.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Sees to it that fewer than `most` connections count, by closing one that waits for its client.
    fn make_room(&mut self, most: usize, counts: impl Fn(Peer) -> bool) -> Option<()> {
        if self.held.iter().filter(|held| counts(held.peer)).count() < most {
            return Some(());
        }
        let waiting =
            || self.held.iter().filter(|held| counts(held.peer) && held.activity.waits_for_client());
        let mut of_each: BTreeMap<Peer, usize> = BTreeMap::new();
        waiting().for_each(|held| *of_each.entry(held.peer).or_default() += 1);
        let most_waiting = of_each.values().max()?;
        let victim = waiting().find(|held| of_each.get(&held.peer) == Some(most_waiting))?.number;
        self.remove(victim)?.activity.close.notify_one();
        Some(())
    }

    fn remove(&mut self, number: u64) -> Option<Held> {
        let at = self.held.iter().position(|held| held.number == number)?;
        Some(self.held.remove(at))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table().remove(self.number);
        self.slots.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not root, and not the user of this test.
    const USERS: [Peer; 3] =
        [Peer::User(4_000_000_001), Peer::User(4_000_000_002), Peer::User(4_000_000_003)];

    fn slots(connections: usize, each: usize, reserve: usize) -> Arc<ConnectionSlots> {
        ConnectionSlots::new(Limits { connections, each, reserve })
    }

    /// Whether a connection was told to close.
    async fn is_closed(slot: &ConnectionSlot) -> bool {
        tokio::time::timeout(std::time::Duration::from_millis(1), slot.activity.closed()).await.is_ok()
    }

    #[tokio::test]
    async fn silent_connections_shut_nobody_out() {
        let slots = slots(4, 4, 0);
        let web = |last| Peer::Address(IpAddr::from([127, 0, 0, last]));
        let silent: Vec<ConnectionSlot> = (0..3).map(|_| slots.take(web(1)).unwrap()).collect();
        let other = slots.take(web(2)).unwrap();
        // The oldest of the address with most of them makes room.
        let busy = slots.take(web(2)).unwrap();
        let request = busy.activity.request();
        assert!(is_closed(&silent[0]).await && !is_closed(&silent[1]).await && !is_closed(&other).await);
        let more: Vec<ConnectionSlot> = (0..8).map(|_| slots.take(web(1)).unwrap()).collect();
        assert!(!is_closed(&busy).await, "it waits for netvmd");
        busy.activity.set_lacks_body(true);
        let _more: Vec<ConnectionSlot> = (0..4).map(|_| slots.take(web(1)).unwrap()).collect();
        assert!(!is_closed(&busy).await, "the other address has more of them");
        let _third = (0..4).map(|_| slots.take(web(2)).unwrap()).reduce(|_, last| last);
        assert!(is_closed(&busy).await, "its body does not come");
        drop((silent, other, more, request, busy));
    }

    #[tokio::test]
    async fn busy_clients_have_a_share_and_root_a_reserve() {
        let slots = slots(6, 3, 2);
        let busy = |peer: Peer| slots.take(peer).map(|slot| (slot.activity.request(), slot));
        let first: Vec<_> = (0..3).map(|_| busy(USERS[0]).unwrap()).collect();
        assert!(busy(USERS[0]).is_none(), "its share is 3");
        let second = busy(USERS[1]).unwrap();
        assert!(busy(USERS[2]).is_none(), "the rest is root's");
        let root: Vec<_> = (0..2).map(|_| busy(Peer::User(0)).unwrap()).collect();
        assert!(busy(Peer::User(0)).is_none());
        drop(root);
        drop(second);
        let _second = busy(USERS[2]).unwrap();
        drop(first);
    }
}
