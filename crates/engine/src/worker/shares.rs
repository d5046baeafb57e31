//! Shares of the worker's time among its ports. In: the cycles that each port's packets took. Out: which ports are left out of a
//! turn. Packets of those stay in the port's queue, where the device or the kernel drops them before any work is spent.
//!
//! Start-time fair queueing (P. Goyal, H. M. Vin and H. Cheng, ACM SIGCOMM 1996) of bursts, by cycles: each port has a virtual
//! time, which runs the slower, the larger its share is. A port is left out while it is ahead of the slowest port with a backlog. So ports with a backlog get their shares, and what some do not use goes to the others: no
//! cycle is lost to a reserve.
//!
//! The share of a port is its `reserve`, and its `weight`'s part of what the reserves of ports with a backlog leave. What is
//! measured is the time of receiving and of everything until packets are in an NF's ring or with the port that sends them;
//! what comes back from NFs and sending itself are not.
//!
//! Predicted cost where a port of the configuration has a `weight` or `reserve`: a time stamp and 20 instructions for each port and
//! turn, about a cycle a packet in bursts of 64; elsewhere a branch.

use crate::counters::WorkerCounters;
use crate::ids::PortId;
use crate::policy::{Policy, Share};
use crate::worker::state::BURST;

/// The worker's whole time.
const WHOLE: u64 = 1 << 16;
/// The smallest share, which bounds how far a virtual time goes ahead.
const LEAST: u64 = WHOLE / 4096;
/// How far a port may be ahead: a burst or two of packets that are forwarded, so that ports with like shares are all served in
/// one turn.
const AHEAD: u64 = 1 << 15;
/// Packets of a burst from which on the port has more: what a TAP or packet socket gives at once.
const BACKLOG: usize = BURST / 2;

/// A port by which the worker receives.
#[derive(Clone, Copy, Debug)]
struct Account {
    port: PortId,
    configured: Share,
    /// Its share while the same ports have a backlog, of [`WHOLE`].
    share: u64,
    /// Virtual time when its last burst was done.
    finish: u64,
    has_backlog: bool,
}

/// The accounts of all ports by which a worker receives; empty if no port has a share.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    accounts: Vec<Account>,
    /// Virtual time of the worker.
    now: u64,
    /// The latest of the accounts.
    furthest: u64,
    /// When the current port's turn began.
    began: u64,
    /// Some port has a backlog, so others may have to wait.
    is_contended: bool,
    /// Another port has a backlog, or one less.
    is_changed: bool,
}

impl Shares {
    /// Follows the ports by which the worker receives, and what the policy says of them. Ports keep their virtual time.
    pub(crate) fn follow(&mut self, inputs: &[PortId], policy: &Policy) {
        let configured = |port: PortId| policy.ingress(port).map(|ingress| ingress.share).unwrap_or_default();
        if inputs.iter().all(|port| configured(*port) == Share::default()) {
            *self = Self::default();
            return;
        }
        let known = std::mem::take(&mut self.accounts);
        let account = |port: &PortId| {
            let before = known.iter().find(|account| account.port == *port);
            let (finish, has_backlog) =
                before.map_or((self.now, false), |before| (before.finish, before.has_backlog));
            Account { port: *port, configured: configured(*port), share: WHOLE, finish, has_backlog }
        };
        self.accounts = inputs.iter().map(account).collect();
        self.is_changed = true;
    }

    #[inline(always)]
    pub(crate) fn are_in_use(&self) -> bool {
        !self.accounts.is_empty()
    }

    /// A turn begins at `now` (cycles).
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: u64) {
        if std::mem::take(&mut self.is_changed) {
            self.divide();
        }
        let slowest =
            self.accounts.iter().filter(|account| account.has_backlog).map(|account| account.finish);
        let slowest = slowest.reduce(|one, other| if is_later(one, other) { other } else { one });
        self.is_contended = slowest.is_some();
        // Without a backlog nobody is behind.
        self.now = later(self.now, slowest.unwrap_or(self.furthest));
        self.began = now;
    }

    /// Whether the `n`th port has to wait in this turn, as it is ahead.
    #[inline]
    pub(crate) fn has_to_wait(&self, n: usize, counters: &WorkerCounters) -> bool {
        let Some(account) = self.accounts.get(n) else { return false };
        let waits = self.is_contended && is_later(account.finish, self.now.wrapping_add(AHEAD));
        if waits {
            counters.ports[account.port.index()].waited.add(1);
        }
        waits
    }

    /// The `n`th port gave so many packets, and they have been handled at `now` (cycles).
    #[inline]
    pub(crate) fn charge(&mut self, n: usize, (packets, now): (usize, u64), counters: &WorkerCounters) {
        let cycles = now.wrapping_sub(std::mem::replace(&mut self.began, now));
        let Some(account) = self.accounts.get_mut(n) else { return };
        let cycles = if packets == 0 { 0 } else { cycles };
        counters.ports[account.port.index()].cycles.add(cycles);
        account.finish = later(account.finish, self.now).wrapping_add(cycles * WHOLE / account.share);
        self.furthest = later(self.furthest, account.finish);
        let has_backlog = packets >= BACKLOG;
        self.is_changed |= has_backlog != std::mem::replace(&mut account.has_backlog, has_backlog);
    }

    /// Divides the worker among the ports with a backlog. The others have the share that they would get with one.
    fn divide(&mut self) {
        let busy = self.accounts.iter().filter(|account| account.has_backlog);
        let (reserved, weights) = busy.fold((0, 0), |(reserved, weights), account| {
            (reserved + reserve(account), weights + u64::from(account.configured.weight))
        });
        for account in &mut self.accounts {
            let (own, weight) = (reserve(account), u64::from(account.configured.weight));
            let (reserved, weights) =
                if account.has_backlog { (reserved, weights) } else { (reserved + own, weights + weight) };
            let rest = WHOLE.saturating_sub(reserved);
            account.share = (own + rest * weight / weights.max(1)).clamp(LEAST, WHOLE);
        }
    }
}

/// The reserve of a port, of [`WHOLE`].
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
    }

    /// Packets a second of each port in a simulated worker: handled, and dropped at the port.
    fn throughput(loads: &[Load], is_shared: bool) -> Vec<(u64, u64)> {
        let counters = WorkerCounters::new();
        let mut shares = Shares::default();
        let account = |(n, load): (u16, &Load)| Account {
            port: PortId(n),
            configured: load.share,
            share: WHOLE,
            // About to wrap.
            finish: u64::MAX - 1000,
            has_backlog: false,
        };
        if is_shared {
            (shares.now, shares.furthest) = (u64::MAX - 1000, u64::MAX - 1000);
            shares.accounts = (0..).zip(loads).map(account).collect();
            shares.is_changed = true;
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
        Load { offered: kpps * 1000, cost, share: Share { weight, reserve } }
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
}
