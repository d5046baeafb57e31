//! Shares of the worker's time among its ports. In: the cycles that each port's packets took. Out: the ports that a turn
//! leaves out. Their packets stay in the port's queue, where the device or the kernel drops them before any work is spent.
//!
//! Start-time fair queueing (P. Goyal, H. M. Vin and H. Cheng, ACM SIGCOMM 1996) of bursts, by cycles: each port has a virtual
//! time, which runs the slower, the larger its share is. A port is left out while it is ahead of the slowest port with a
//! backlog. So ports with a backlog get their shares, and others get what these do not use: a reserve wastes no cycle.
//!
//! There are two levels, as in that paper's section 3. The worker is divided among owners: virtual routers with a share of their
//! own, and ports that belong to none. A router's share is divided among its ports in the same way, by virtual times within the
//! router.
//!
//! The share of an owner is its `reserve`, and its `weight`'s part of what the reserves of owners with a backlog leave. The time of
//! receiving counts, and of everything until packets are in an NF's ring or with the port that sends them; packets that come
//! back from NFs and sending itself do not count.
//!
//! Predicted cost where a port or router of the configuration has a `weight` or `reserve`: a time stamp and 30 instructions for
//! each port and turn, about a cycle a packet in bursts of 64; elsewhere a branch.

mod account;

use netvm_config::model::RouterId;

use crate::counters::WorkerCounters;
use crate::ids::PortId;
use crate::policy::{Policy, Share};
use crate::worker::state::BURST;
use account::{Account, Demand, Timeline, WHOLE, reserve};

/// Most cycles that a burst is charged for, some 16,000 a packet: a worker that loses its core meanwhile is away for longer, and
/// no port pays for that.
const MOST: u64 = 1 << 20;
/// A burst of this many packets means that the port has a backlog: a TAP or packet socket gives no more at once.
const BACKLOG: usize = BURST / 2;

/// A port by which the worker receives.
#[derive(Clone, Copy, Debug)]
struct PortAccount {
    port: PortId,
    /// Index of its owner.
    owner: usize,
    account: Account,
}

/// A virtual router with a share, or a port of none.
#[derive(Clone, Copy, Debug)]
struct Owner {
    router: Option<RouterId>,
    account: Account,
    /// Of its ports.
    ports: Timeline,
}

/// The accounts of all ports by which a worker receives; empty if none has a share.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    ports: Vec<PortAccount>,
    owners: Vec<Owner>,
    /// Of the owners.
    timeline: Timeline,
    /// When the current port's turn began.
    began: u64,
    /// The set of ports with a backlog has changed.
    is_changed: bool,
}

impl Shares {
    /// Follows the ports by which the worker receives, and what the policy says of them. Ports and routers keep their virtual
    /// time.
    pub(crate) fn follow(&mut self, inputs: &[PortId], policy: &Policy) {
        let configured = |port: PortId| {
            let ingress = policy.ingress(port);
            ingress.map(|ingress| (ingress.share, ingress.router_share)).unwrap_or_default()
        };
        if inputs.iter().all(|port| configured(*port) == Default::default()) {
            *self = Self::default();
            return;
        }
        let before = std::mem::take(self);
        let (timeline, began) = (before.timeline, before.began);
        let mut now = Self { timeline, began, is_changed: true, ..Self::default() };
        for port in inputs {
            let (own, router) = configured(*port);
            let known = before.ports.iter().find(|known| known.port == *port);
            let known = known.map(|known| (known.account, before.owners[known.owner]));
            // The only port of its owner has all of the owner's share.
            let configured = if router.is_some() { own } else { Share::default() };
            let account =
                known.map_or(Account::new(configured, 0), |(account, _)| Account { configured, ..account });
            let owner = now.owner(*port, (own, router), &before);
            // A port that comes to a router, or leaves it, begins with the others.
            let ports = now.owners[owner].ports;
            let stays = known.is_some_and(|(_, known)| known.router == router.map(|(id, _)| id));
            let account = if stays { account } else { Account { finish: ports.now, ..account } };
            now.ports.push(PortAccount { port: *port, owner, account });
        }
        *self = now;
    }

    /// The index of a port's owner, which is added if it is not there.
    fn owner(
        &mut self,
        port: PortId,
        (own, router): (Share, Option<(RouterId, Share)>),
        before: &Self,
    ) -> usize {
        let id = router.map(|(id, _)| id);
        if let Some(index) = self.owners.iter().position(|owner| id.is_some() && owner.router == id) {
            return index;
        }
        let known = match id {
            Some(_) => before.owners.iter().find(|owner| owner.router == id),
            None => {
                let known = before.ports.iter().find(|known| known.port == port);
                known.map(|known| &before.owners[known.owner]).filter(|owner| owner.router.is_none())
            }
        };
        let configured = router.map_or(own, |(_, share)| share);
        let new = Owner {
            router: id,
            account: Account::new(configured, self.timeline.now),
            ports: Timeline::default(),
        };
        let owner =
            known.map_or(new, |known| Owner { account: Account { configured, ..known.account }, ..*known });
        self.owners.push(owner);
        self.owners.len() - 1
    }

    #[inline(always)]
    pub(crate) fn are_in_use(&self) -> bool {
        !self.ports.is_empty()
    }

    /// A turn begins at `now` (cycles).
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: u64) {
        if std::mem::take(&mut self.is_changed) {
            self.divide();
        }
        for PortAccount { owner, account, .. } in &self.ports {
            self.owners[*owner].ports.look_at(account);
        }
        for owner in &mut self.owners {
            owner.ports.begin_turn();
            self.timeline.look_at(&owner.account);
        }
        self.timeline.begin_turn();
        self.began = now;
    }

    /// Whether the `n`th port has to wait in this turn, as it or its router is ahead.
    #[inline]
    pub(crate) fn has_to_wait(&mut self, n: usize, counters: &WorkerCounters) -> bool {
        let Some(port) = self.ports.get_mut(n) else { return false };
        let owner = &self.owners[port.owner];
        let waits_with_owner = self.timeline.is_ahead(&owner.account);
        port.account.is_due |= waits_with_owner;
        let waits = waits_with_owner || owner.ports.is_ahead(&port.account);
        if waits {
            counters.ports[port.port.index()].waited.add(1);
        }
        waits
    }

    /// The `n`th port gave so many packets, and they have been handled at `now` (cycles).
    #[inline]
    pub(crate) fn charge(&mut self, n: usize, (packets, now): (usize, u64), counters: &WorkerCounters) {
        let cycles = now.wrapping_sub(std::mem::replace(&mut self.began, now));
        let Some(port) = self.ports.get_mut(n) else { return };
        let cycles = if packets == 0 { 0 } else { cycles };
        counters.ports[port.port.index()].cycles.add(cycles);
        let cycles = cycles.min(MOST);
        let owner = &mut self.owners[port.owner];
        owner.ports.charge(&mut port.account, cycles);
        self.timeline.charge(&mut owner.account, cycles);
        port.account.is_due = false;
        let has_backlog = packets >= BACKLOG;
        self.is_changed |= has_backlog != std::mem::replace(&mut port.account.has_backlog, has_backlog);
    }

    /// Divides the worker among the owners with a backlog, and the share of each among its ports with one. The others have the
    /// share that they would get with one.
    fn divide(&mut self) {
        self.owners.iter_mut().for_each(|owner| owner.account.has_backlog = false);
        for port in self.ports.iter().filter(|port| port.account.has_backlog) {
            self.owners[port.owner].account.has_backlog = true;
        }
        let demand = Demand::of(self.owners.iter().map(|owner| &owner.account), reserve);
        for owner in &mut self.owners {
            owner.account.share = demand.share_of(&owner.account, reserve);
        }
        for (n, owner) in self.owners.iter().enumerate() {
            // Reserves are of the worker, and shares of the router.
            let router = |account: &Account| (reserve(account) * WHOLE / owner.account.share).min(WHOLE);
            let mine = |port: &PortAccount| port.owner == n;
            let demand =
                Demand::of(self.ports.iter().filter(|port| mine(port)).map(|port| &port.account), router);
            for port in self.ports.iter_mut().filter(|port| mine(port)) {
                port.account.share = demand.share_of(&port.account, router);
            }
        }
    }
}

#[cfg(test)]
mod tests;
