//! Shares of the worker's time among its ports. In: the cycles that each port's packets took. Out: which ports are left out of a
//! turn. Packets of those stay in the port's queue, where the device or the kernel drops them before any work is spent.
//!
//! Start-time fair queueing (P. Goyal, H. M. Vin and H. Cheng, ACM SIGCOMM 1996) of bursts, by cycles: each port has a virtual
//! time, which runs the slower, the larger its share is. A port is left out while it is ahead of the slowest port with a
//! backlog. So ports with a backlog get their shares, and what some do not use goes to the others: no cycle is lost to a
//! reserve.
//!
//! There are two levels, as in that paper's section 3. The worker is divided among owners: virtual routers with a share of their
//! own, and ports that belong to none. A router's share is divided among its ports in the same way, by virtual times within the
//! router.
//!
//! The share of an owner is its `reserve`, and its `weight`'s part of what the reserves of owners with a backlog leave. What is
//! measured is the time of receiving and of everything until packets are in an NF's ring or with the port that sends them;
//! what comes back from NFs and sending itself are not.
//!
//! Predicted cost where a port or router of the configuration has a `weight` or `reserve`: a time stamp and 30 instructions for
//! each port and turn, about a cycle a packet in bursts of 64; elsewhere a branch.

use netvm_config::model::RouterId;

use crate::counters::WorkerCounters;
use crate::ids::PortId;
use crate::policy::{Policy, Share};
use crate::worker::state::BURST;

/// All that is divided.
const WHOLE: u64 = 1 << 16;
/// The smallest share, which bounds how far a virtual time goes ahead.
const LEAST: u64 = WHOLE / 4096;
/// How far a port may be ahead: a burst or two of packets that are forwarded, so that ports with like shares are all served in
/// one turn.
const AHEAD: u64 = 1 << 15;
/// Most cycles that a burst is charged for, some 16,000 a packet: a worker that loses its core meanwhile is away for longer, which is
/// no port's doing.
const MOST: u64 = 1 << 20;
/// Packets of a burst from which on the port has more: what a TAP or packet socket gives at once.
const BACKLOG: usize = BURST / 2;

/// What an owner, or a port of an owner, has had.
#[derive(Clone, Copy, Debug)]
struct Account {
    configured: Share,
    /// Its share while the same ones have a backlog, of [`WHOLE`].
    share: u64,
    /// Virtual time when its last burst was done.
    finish: u64,
    has_backlog: bool,
    /// A port that was left out with its router, and has not been looked at since: it may have a backlog. Without this, the
    /// first of a router's ports would take all that the router gets.
    is_due: bool,
}

/// The virtual time of accounts among which something is divided.
#[derive(Clone, Copy, Debug, Default)]
struct Timeline {
    now: u64,
    /// The latest of the accounts.
    furthest: u64,
    /// Some account has a backlog, so others may have to wait.
    is_contended: bool,
    /// The earliest of the accounts with a backlog, while it is sought.
    slowest: Option<u64>,
}

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
    /// Another port has a backlog, or one less.
    is_changed: bool,
}

impl Account {
    const fn new(configured: Share, finish: u64) -> Self {
        Self { configured, share: WHOLE, finish, has_backlog: false, is_due: false }
    }
}

impl Timeline {
    /// Looks at an account's virtual time at the begin of a turn.
    #[inline(always)]
    fn look_at(&mut self, account: &Account) {
        let may_have = account.has_backlog || account.is_due;
        if may_have && self.slowest.is_none_or(|slowest| is_later(slowest, account.finish)) {
            self.slowest = Some(account.finish);
        }
    }

    /// A turn begins; all accounts have been looked at.
    #[inline(always)]
    fn begin_turn(&mut self) {
        let slowest = self.slowest.take();
        self.is_contended = slowest.is_some();
        // Without a backlog nobody is behind.
        self.now = later(self.now, slowest.unwrap_or(self.furthest));
    }

    #[inline(always)]
    const fn is_ahead(&self, account: &Account) -> bool {
        self.is_contended && is_later(account.finish, self.now.wrapping_add(AHEAD))
    }

    #[inline(always)]
    const fn charge(&mut self, account: &mut Account, cycles: u64) {
        account.finish = later(account.finish, self.now).wrapping_add(cycles * WHOLE / account.share);
        self.furthest = later(self.furthest, account.finish);
    }
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

/// What the accounts with a backlog ask for together.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    reserved: u64,
    weights: u64,
}

impl Demand {
    fn of<'a>(accounts: impl Iterator<Item = &'a Account>, reserve: impl Fn(&Account) -> u64) -> Self {
        let busy = accounts.filter(|account| account.has_backlog);
        busy.fold(Self::default(), |sum, account| sum.with(account, &reserve))
    }

    fn with(self, account: &Account, reserve: impl Fn(&Account) -> u64) -> Self {
        Self {
            reserved: self.reserved + reserve(account),
            weights: self.weights + u64::from(account.configured.weight),
        }
    }

    /// An account's share of [`WHOLE`].
    fn share_of(self, account: &Account, reserve: impl Fn(&Account) -> u64) -> u64 {
        let all = if account.has_backlog { self } else { self.with(account, &reserve) };
        let rest = WHOLE.saturating_sub(all.reserved);
        (reserve(account) + rest * u64::from(account.configured.weight) / all.weights.max(1))
            .clamp(LEAST, WHOLE)
    }
}

/// The reserve of an account, of [`WHOLE`].
fn reserve(account: &Account) -> u64 {
    u64::from(account.configured.reserve) * WHOLE / 100
}

/// Whether a virtual time is later than another. They are never far apart, and wrap.
#[inline(always)]
const fn is_later(one: u64, other: u64) -> bool {
    (one.wrapping_sub(other) as i64) > 0
}

#[inline(always)]
const fn later(one: u64, other: u64) -> u64 {
    if is_later(one, other) { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that wait in a port's receive queue.
    const DESCRIPTORS: u64 = 512;
    /// Cycles of looking for packets.
    const POLL: u64 = 100;
    /// Cycles of a second.
    const HERTZ: u64 = 1_000_000_000;

    /// Packets that come in by a port.
    #[derive(Clone, Copy)]
    struct Load {
        /// Packets a second.
        offered: u64,
        /// Cycles for a packet.
        cost: u64,
        share: Share,
        router: Option<(RouterId, Share)>,
    }

    /// Packets a second of each port in a simulated worker: handled, and dropped at the port.
    fn throughput(loads: &[Load], is_shared: bool) -> Vec<(u64, u64)> {
        let counters = WorkerCounters::new();
        let mut shares = Shares::default();
        if is_shared {
            // About to wrap.
            let near_end = u64::MAX - 1000;
            let timeline = Timeline { now: near_end, furthest: near_end, ..Timeline::default() };
            let before = Shares { timeline, ..Shares::default() };
            (shares.timeline, shares.is_changed) = (timeline, true);
            for (n, load) in (0..).zip(loads) {
                let owner = shares.owner(PortId(n), (load.share, load.router), &before);
                shares.owners[owner].ports = timeline;
                let own = if load.router.is_some() { load.share } else { Share::default() };
                let account = Account::new(own, near_end);
                shares.ports.push(PortAccount { port: PortId(n), owner, account });
            }
        }
        let (mut taken, mut lost) = (vec![0; loads.len()], vec![0; loads.len()]);
        let mut now = 0;
        while now < HERTZ {
            shares.begin_turn(now);
            for (n, load) in loads.iter().enumerate() {
                if shares.has_to_wait(n, &counters) {
                    continue;
                }
                let come = u128::from(now) * u128::from(load.offered) / u128::from(HERTZ);
                let waiting = come as u64 - taken[n] - lost[n];
                lost[n] += waiting.saturating_sub(DESCRIPTORS);
                let burst = waiting.min(BURST as u64);
                taken[n] += burst;
                now += POLL + burst * load.cost;
                shares.charge(n, (burst as usize, now), &counters);
            }
            now += POLL;
        }
        taken.into_iter().zip(lost).collect()
    }

    const fn load(kpps: u64, cost: u64, weight: u16, reserve: u8) -> Load {
        Load { offered: kpps * 1000, cost, share: Share { weight, reserve }, router: None }
    }

    const fn of_router(load: Load, id: u16, weight: u16, reserve: u8) -> Load {
        Load { router: Some((RouterId(id), Share { weight, reserve })), ..load }
    }

    fn is_about(found: u64, kpps: u64) -> bool {
        found.abs_diff(kpps * 1000) <= kpps * 40
    }

    #[test]
    fn a_port_at_ten_times_its_share_takes_nothing_from_another() {
        // Rathore, Hidell and Sjödin, table 1: a core forwards 650,000 packets a second.
        const COST: u64 = HERTZ / 650_000;
        for offered in [300, 1000, 3500] {
            let all = throughput(&[load(offered, COST, 1, 0), load(300, COST, 1, 0)], true);
            assert!(is_about(all[0].0, offered.min(350)) && is_about(all[1].0, 300), "{offered}: {all:?}");
            assert_eq!(all[1].1, 0, "{offered}: {all:?}");
        }
        // Its packets cost ten times as much. Bursts in turn are not enough then.
        let loads = [load(350, 10 * COST, 1, 0), load(300, COST, 1, 0)];
        let (shared, in_turn) = (throughput(&loads, true), throughput(&loads, false));
        assert!(is_about(shared[0].0, 35) && is_about(shared[1].0, 300) && shared[1].1 == 0, "{shared:?}");
        assert!(in_turn[1].1 > 150_000, "{in_turn:?}");
        // A reserve holds for more than half of the worker.
        let loads = [load(5000, COST, 1, 0), load(500, COST, 1, 80)];
        let (shared, in_turn) = (throughput(&loads, true), throughput(&loads, false));
        assert!(is_about(shared[0].0, 150) && is_about(shared[1].0, 500) && shared[1].1 == 0, "{shared:?}");
        assert!(in_turn[1].1 > 100_000, "{in_turn:?}");
    }

    #[test]
    fn ports_with_a_backlog_share_by_weight_and_reserve() {
        const COST: u64 = 1000;
        let rates = |loads: &[Load]| -> Vec<u64> {
            throughput(loads, true).into_iter().map(|(taken, _)| taken / 1000).collect()
        };
        let is_near = |found: &[u64], expected: &[u64]| {
            found.iter().zip(expected).all(|(one, other)| one.abs_diff(*other) <= 10 + other / 20)
        };
        let all = rates(&[load(9000, COST, 4, 0), load(9000, COST, 1, 0)]);
        assert!(is_near(&all, &[800, 200]), "{all:?}");
        // Half is reserved for the first, which has a weight beside; an idle one has no say.
        let all = rates(&[load(9000, COST, 1, 50), load(9000, COST, 1, 0), load(0, COST, 1, 40)]);
        assert!(is_near(&all, &[750, 250]), "{all:?}");
        // By time, not by packets; a light one gets all that it asks for.
        let all = rates(&[load(9000, 4 * COST, 1, 0), load(9000, COST, 1, 0), load(100, COST, 1, 0)]);
        assert!(is_near(&all, &[112, 450, 100]), "{all:?}");
        let all = rates(&[load(9000, COST, 1000, 0), load(9000, COST, 1, 0)]);
        assert!(all[0] > 950 && all[1] > 0, "{all:?}");
        // What is not used is not lost.
        let all = rates(&[load(9000, COST, 1, 0), load(10, COST, 1, 90)]);
        assert!(is_near(&all, &[970, 10]), "{all:?}");
    }

    #[test]
    fn a_router_at_ten_times_its_share_takes_nothing_from_another_however_many_ports_it_has() {
        // As above, with routers: one has three ports, each of them overloaded, the other has one.
        const COST: u64 = HERTZ / 650_000;
        let rest = |weight, reserve| of_router(load(300, COST, 1, 0), 1, weight, reserve);
        let three = [(); 3].map(|()| of_router(load(1100, COST, 1, 0), 0, 1, 0));
        let loads = [three[0], three[1], three[2], rest(1, 0)];
        let all = throughput(&loads, true);
        let first: u64 = all[..3].iter().map(|(taken, _)| taken).sum();
        assert!(is_about(first, 350) && is_about(all[3].0, 300) && all[3].1 == 0, "{all:?}");
        assert!(all[..3].iter().all(|(taken, _)| is_about(*taken, 350 / 3)), "{all:?}");
        // With shares of ports only, three ports are three times one: the other router gets a quarter.
        let by_port = throughput(&loads.map(|load| Load { router: None, ..load }), true);
        assert!(is_about(by_port[3].0, 650 / 4), "{by_port:?}");
        // A reserve of the router, and weights among its ports.
        let heavy = of_router(load(1100, COST, 3, 0), 0, 1, 0);
        let loads = [heavy, three[1], of_router(load(500, COST, 1, 0), 1, 1, 80)];
        let all = throughput(&loads, true);
        assert!(is_about(all[2].0, 500) && all[2].1 == 0, "{all:?}");
        assert!(is_about(all[0].0, 150 * 3 / 4) && is_about(all[1].0, 150 / 4), "{all:?}");
    }

    #[test]
    fn within_a_router_ports_share_what_it_has() {
        const COST: u64 = 1000;
        let rates = |loads: &[Load]| -> Vec<u64> {
            throughput(loads, true).into_iter().map(|(taken, _)| taken / 1000).collect()
        };
        let is_near = |found: &[u64], expected: &[u64]| {
            found.iter().zip(expected).all(|(one, other)| one.abs_diff(*other) <= 10 + other / 20)
        };
        let busy = |weight, reserve| load(9000, COST, weight, reserve);
        // Half of the worker is the router's; a port outside has the other. What is not used goes to the other port first.
        let mine = |load: Load| of_router(load, 7, 1, 30);
        let all = rates(&[mine(busy(1, 0)), mine(load(50, COST, 1, 0)), busy(1, 0)]);
        assert!(is_near(&all, &[600, 50, 350]), "{all:?}");
        // A port reserves a part of the worker within its router's reserve.
        let all = rates(&[mine(busy(1, 30)), mine(busy(1, 0)), busy(1, 0)]);
        assert!(is_near(&all, &[475, 175, 350]), "{all:?}");
        // An idle router leaves all to the others.
        let all = rates(&[mine(load(0, COST, 1, 0)), busy(3, 0), busy(1, 0)]);
        assert!(is_near(&all[1..], &[750, 250]), "{all:?}");
        // One at a time.
        let two = |id| of_router(busy(1, 0), id, 4, 0);
        let all = rates(&[two(1), two(1), two(2), busy(2, 0)]);
        assert!(is_near(&all, &[200, 200, 400, 200]), "{all:?}");
    }
}
