// SPDX-License-Identifier: Apache-2.0
//! Divides the worker's time among its ports. In: the cycles that each port's packets took. Out: the ports that a turn
//! leaves out. Their packets stay in the port's queue; if it overflows, the device or the kernel drops them before any
//! work is spent.
//!
//! Start-time fair queueing (P. Goyal, H. M. Vin and H. Cheng, ACM SIGCOMM 1996) of bursts, by cycles: each port has a
//! virtual time, which runs the slower, the larger its share is. A turn leaves out ports that are ahead of the slowest
//! port with a backlog. So ports with a backlog get at least their shares, and unused shares go to other ports: a
//! reserve wastes no cycle.
//!
//! There are two levels, as in section 3 of that paper. The worker's time is divided among owners: virtual routers with
//! their own share, and ports of no such router. A router's share is divided among its ports in the same way, by
//! virtual times within the router.
//!
//! The share of an owner is its `reserve`, plus a part by `weight` of the time that the reserves of owners with a
//! backlog leave. Time counts from receiving until packets are in an NF's ring or in the egress port's queue.
//! Collecting packets from NFs and sending do not count.
//!
//! Cost if a port or router has a `weight` or `reserve`: a time stamp and some 30 instructions for each port and turn.
//! Otherwise a branch.

mod account;

use netvm_model::RouterId;

use crate::counters::WorkerCounters;
use crate::ids::PortId;
use crate::policy::{Policy, Share};
use crate::worker::state::BURST;
use account::{Account, Demand, VirtualClock, WHOLE, reserve};

/// Most cycles charged for a burst, some 16,000 per packet. If the worker loses its core, it is away for longer, which
/// must not be charged to a port.
const MAX_CHARGE: u64 = 1 << 20;
/// A burst of this many packets means that the port has a backlog: a TAP or packet socket never returns more at once.
const BACKLOG: usize = BURST / 2;

/// A port by which the worker receives.
#[derive(Clone, Copy, Debug)]
struct PortAccount {
    port: PortId,
    /// Index of its owner.
    owner: usize,
    account: Account,
}

/// A virtual router with a share, or a port that does not belong to one.
#[derive(Clone, Copy, Debug)]
struct Owner {
    router: Option<RouterId>,
    account: Account,
    /// The virtual times of its ports.
    ports: VirtualClock,
}

/// The accounts of all ports by which a worker receives; empty if none has a share.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    ports: Vec<PortAccount>,
    owners: Vec<Owner>,
    /// The virtual times of the owners.
    virtual_clock: VirtualClock,
    /// Start time of the current port's burst.
    began: u64,
    /// The set of ports with a backlog has changed.
    is_changed: bool,
}

impl Shares {
    /// Updates the accounts to the worker's ports and the policy. Ports and routers keep their virtual time.
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
        let (virtual_clock, began) = (before.virtual_clock, before.began);
        let mut now = Self { virtual_clock, began, is_changed: true, ..Self::default() };
        for port in inputs {
            let (own, router) = configured(*port);
            let known = before.ports.iter().find(|known| known.port == *port);
            let known = known.map(|known| (known.account, before.owners[known.owner]));
            // A port that is its own owner has the whole of the owner's share.
            let configured = if router.is_some() { own } else { Share::default() };
            let account =
                known.map_or(Account::new(configured, 0), |(account, _)| Account { configured, ..account });
            let owner = now.owner(*port, own, router, &before);
            // A port that joins or leaves a router starts at the virtual time of the others.
            let ports = now.owners[owner].ports;
            let stays = known.is_some_and(|(_, known)| known.router == router.map(|(id, _)| id));
            let account = if stays { account } else { Account { finish: ports.now, ..account } };
            now.ports.push(PortAccount { port: *port, owner, account });
        }
        *self = now;
    }

    /// The index of a port's owner, which is added if it is missing.
    fn owner(&mut self, port: PortId, own: Share, router: Option<(RouterId, Share)>, before: &Self) -> usize {
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
            account: Account::new(configured, self.virtual_clock.now),
            ports: VirtualClock::default(),
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

    /// Begins a turn at `now` (cycles).
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
            self.virtual_clock.look_at(&owner.account);
        }
        self.virtual_clock.begin_turn();
        self.began = now;
    }

    /// Whether the `n`th port has to wait in this turn, because it or its router is ahead.
    #[inline]
    pub(crate) fn has_to_wait(&mut self, n: usize, counters: &WorkerCounters) -> bool {
        let Some(port) = self.ports.get_mut(n) else { return false };
        let owner = &self.owners[port.owner];
        let waits_with_owner = self.virtual_clock.is_ahead(&owner.account);
        port.account.is_due |= waits_with_owner;
        let waits = waits_with_owner || owner.ports.is_ahead(&port.account);
        if waits {
            counters.ports[port.port.index()].waited.add(1);
        }
        waits
    }

    /// Charges the `n`th port for this number of packets, whose handling ended at `now` (cycles).
    #[inline]
    pub(crate) fn charge(&mut self, n: usize, packets: usize, now: u64, counters: &WorkerCounters) {
        let cycles = now.wrapping_sub(std::mem::replace(&mut self.began, now));
        let Some(port) = self.ports.get_mut(n) else { return };
        let cycles = if packets == 0 { 0 } else { cycles };
        counters.ports[port.port.index()].cycles.add(cycles);
        let cycles = cycles.min(MAX_CHARGE);
        let owner = &mut self.owners[port.owner];
        owner.ports.charge(&mut port.account, cycles);
        self.virtual_clock.charge(&mut owner.account, cycles);
        port.account.is_due = false;
        let has_backlog = packets >= BACKLOG;
        self.is_changed |= has_backlog != std::mem::replace(&mut port.account.has_backlog, has_backlog);
    }

    /// Divides the worker among the owners with a backlog, and the share of each owner among its ports with a backlog.
    /// Others get the share that they would have with a backlog.
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
            // Reserves are parts of the worker, but shares are parts of the router's share.
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
