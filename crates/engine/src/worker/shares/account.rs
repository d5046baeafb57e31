// SPDX-License-Identifier: Apache-2.0
//! Accounts of shares: the virtual time of each account, and the total demand of accounts with a backlog.

use crate::policy::Share;

/// The whole worker, or an owner's whole share.
pub(super) const WHOLE: u64 = 1 << 16;
/// The smallest share, which bounds how far a virtual time goes ahead.
const MIN_SHARE: u64 = WHOLE / 4096;
/// How far a port may be ahead: one or two bursts of forwarded packets, so that a turn serves all ports with similar
/// shares.
const MAX_LEAD: u64 = 1 << 15;

/// The worker's time that an owner, or a port of an owner, has used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) configured: Share,
    /// Its share of [`WHOLE`], until the set of accounts with a backlog changes.
    pub(super) share: u64,
    /// Virtual finish time of its last burst.
    pub(super) finish: u64,
    pub(super) has_backlog: bool,
    /// The port was left out with its router and not polled since, so it may have a backlog. Without this flag, the
    /// first of a router's ports would take the router's whole share.
    pub(super) is_due: bool,
}

/// The virtual time of accounts that share a resource.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VirtualClock {
    pub(super) now: u64,
    /// The latest of the accounts.
    pub(super) furthest: u64,
    /// Some account has a backlog, so others may have to wait.
    pub(super) is_contended: bool,
    /// The earliest of the accounts with a backlog, during the search.
    pub(super) slowest: Option<u64>,
}

impl Account {
    pub(super) const fn new(configured: Share, finish: u64) -> Self {
        Self { configured, share: WHOLE, finish, has_backlog: false, is_due: false }
    }
}

impl VirtualClock {
    /// Includes an account's virtual time at the beginning of a turn.
    #[inline(always)]
    pub(super) fn look_at(&mut self, account: &Account) {
        let may_have = account.has_backlog || account.is_due;
        if may_have && self.slowest.is_none_or(|slowest| is_later(slowest, account.finish)) {
            self.slowest = Some(account.finish);
        }
    }

    /// Begins a turn, after [`VirtualClock::look_at`] for all accounts.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self) {
        let slowest = self.slowest.take();
        self.is_contended = slowest.is_some();
        // Without a backlog, no account is behind.
        self.now = later(self.now, slowest.unwrap_or(self.furthest));
    }

    #[inline(always)]
    pub(super) const fn is_ahead(&self, account: &Account) -> bool {
        self.is_contended && is_later(account.finish, self.now.wrapping_add(MAX_LEAD))
    }

    #[inline(always)]
    pub(super) const fn charge(&mut self, account: &mut Account, cycles: u64) {
        account.finish = later(account.finish, self.now).wrapping_add(cycles * WHOLE / account.share);
        self.furthest = later(self.furthest, account.finish);
    }
}

/// The total demand of the accounts with a backlog.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    reserved: u64,
    weights: u64,
}

impl Demand {
    pub(super) fn of<'a>(
        accounts: impl Iterator<Item = &'a Account>,
        reserve: impl Fn(&Account) -> u64,
    ) -> Self {
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
    pub(super) fn share_of(self, account: &Account, reserve: impl Fn(&Account) -> u64) -> u64 {
        let all = if account.has_backlog { self } else { self.with(account, &reserve) };
        let rest = WHOLE.saturating_sub(all.reserved);
        (reserve(account) + rest * u64::from(account.configured.weight) / all.weights.max(1))
            .clamp(MIN_SHARE, WHOLE)
    }
}

/// The reserve of an account as a part of [`WHOLE`].
pub(super) fn reserve(account: &Account) -> u64 {
    u64::from(account.configured.reserve) * WHOLE / 100
}

/// Whether a virtual time is later than another. Virtual times wrap, but are never far apart.
#[inline(always)]
const fn is_later(one: u64, other: u64) -> bool {
    (one.wrapping_sub(other) as i64) > 0
}

#[inline(always)]
const fn later(one: u64, other: u64) -> u64 {
    if is_later(one, other) { one } else { other }
}
