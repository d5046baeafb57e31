//! Accounts of shares: the virtual time of each, and what those with a backlog ask for together.

use crate::policy::Share;

/// The whole worker, or all that an owner has.
pub(super) const WHOLE: u64 = 1 << 16;
/// The smallest share, which bounds how far a virtual time goes ahead.
const LEAST: u64 = WHOLE / 4096;
/// How far a port may be ahead: a burst or two of packets that are forwarded, so that ports with like shares are all served in
/// one turn.
const AHEAD: u64 = 1 << 15;

/// How much of the worker an owner, or a port of an owner, has used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) configured: Share,
    /// Its part of [`WHOLE`], until the set of accounts with a backlog changes.
    pub(super) share: u64,
    /// Virtual time when its last burst was done.
    pub(super) finish: u64,
    pub(super) has_backlog: bool,
    /// A port that was left out with its router, and has not been looked at since: it may have a backlog. Without this, the
    /// first of a router's ports would take all that the router gets.
    pub(super) is_due: bool,
}

/// The virtual time of accounts among which something is divided.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeline {
    pub(super) now: u64,
    /// The latest of the accounts.
    pub(super) furthest: u64,
    /// Some account has a backlog, so others may have to wait.
    pub(super) is_contended: bool,
    /// The earliest of the accounts with a backlog, while it is sought.
    pub(super) slowest: Option<u64>,
}

impl Account {
    pub(super) const fn new(configured: Share, finish: u64) -> Self {
        Self { configured, share: WHOLE, finish, has_backlog: false, is_due: false }
    }
}

impl Timeline {
    /// Looks at an account's virtual time at the beginning of a turn.
    #[inline(always)]
    pub(super) fn look_at(&mut self, account: &Account) {
        let may_have = account.has_backlog || account.is_due;
        if may_have && self.slowest.is_none_or(|slowest| is_later(slowest, account.finish)) {
            self.slowest = Some(account.finish);
        }
    }

    /// A turn begins; all accounts have been looked at.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self) {
        let slowest = self.slowest.take();
        self.is_contended = slowest.is_some();
        // Without a backlog, no account is behind.
        self.now = later(self.now, slowest.unwrap_or(self.furthest));
    }

    #[inline(always)]
    pub(super) const fn is_ahead(&self, account: &Account) -> bool {
        self.is_contended && is_later(account.finish, self.now.wrapping_add(AHEAD))
    }

    #[inline(always)]
    pub(super) const fn charge(&mut self, account: &mut Account, cycles: u64) {
        account.finish = later(account.finish, self.now).wrapping_add(cycles * WHOLE / account.share);
        self.furthest = later(self.furthest, account.finish);
    }
}

/// What the accounts with a backlog ask for together.
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
            .clamp(LEAST, WHOLE)
    }
}

/// The reserve of an account, of [`WHOLE`].
pub(super) fn reserve(account: &Account) -> u64 {
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
