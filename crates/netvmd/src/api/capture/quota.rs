// SPDX-License-Identifier: Apache-2.0
//! How many captures the clients of a socket may run, and how much memory for their rings. In: a client and the size of
//! a ring that it wants. Out: the size that it gets, held until the capture ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netvm_capture_ring::ring_bytes;

use super::super::serve::Peer;

/// Bytes of records for each worker, if the client names none and has so much left.
const DEFAULT_RING: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

/// Limits of a socket.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct CaptureLimits {
    /// Bytes of all rings of all clients.
    pub(in crate::api) bytes: u64,
    /// Bytes of all rings of one user.
    pub(in crate::api) bytes_of_each: u64,
    /// Captures of all clients.
    pub(in crate::api) captures: usize,
    /// Captures of one user.
    pub(in crate::api) captures_of_each: usize,
}

/// A capture would exceed a limit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuotaError {
    #[error(
        "{wanted} MiB for each of {workers} workers is more than the {left} MiB that {whose} may still use: the limit is {limit} \
         MiB: ask for less with --buffer, or end another capture"
    )]
    Memory { wanted: u64, workers: u64, left: u64, whose: &'static str, limit: u64 },
    #[error("{running} captures run already, which is the limit of {whose}: end one")]
    Captures { running: usize, whose: &'static str },
}

/// What captures use.
#[derive(Clone, Copy, Debug, Default)]
struct QuotaUsage {
    captures: usize,
    bytes: u64,
}

/// The quotas of a socket.
#[derive(Debug)]
pub(in crate::api) struct CaptureQuota {
    limits: CaptureLimits,
    used: Mutex<BTreeMap<Peer, QuotaUsage>>,
}

/// A capture's part of its quota, until dropped.
#[derive(Debug)]
pub(super) struct Share {
    quota: Arc<CaptureQuota>,
    peer: Peer,
    bytes: u64,
    /// Bytes of each worker's ring.
    pub(super) ring: u64,
}

impl CaptureQuota {
    pub(in crate::api) fn new(limits: CaptureLimits) -> Arc<Self> {
        Arc::new(Self { limits, used: Mutex::default() })
    }

    /// A share for a capture with a ring of `wanted` bytes on each worker; 0: as many as are usual.
    ///
    /// # Errors
    /// [`QuotaError`] names the limit.
    pub(super) fn take(
        self: &Arc<Self>,
        peer: Peer,
        wanted: u64,
        workers: usize,
    ) -> Result<Share, QuotaError> {
        let mut used = self.used();
        let all = used.values().fold(QuotaUsage::default(), |sum, one| QuotaUsage {
            captures: sum.captures + one.captures,
            bytes: sum.bytes + one.bytes,
        });
        let own = used.get(&peer).copied().unwrap_or_default();
        let limits = self.limits;
        for (captures, limit, whose) in [
            (own.captures, limits.captures_of_each, "this user"),
            (all.captures, limits.captures, "all users of this socket"),
        ] {
            if captures >= limit {
                return Err(QuotaError::Captures { running: captures, whose });
            }
        }
        let of_user = limits.bytes_of_each.saturating_sub(own.bytes);
        let of_all = limits.bytes.saturating_sub(all.bytes);
        let (left, limit, whose) = if of_user <= of_all {
            (of_user, limits.bytes_of_each, "this user's captures")
        } else {
            (of_all, limits.bytes, "all captures of this socket")
        };
        let workers = workers.max(1) as u64;
        let usual = (left / workers / 2).checked_next_power_of_two().unwrap_or_default();
        let ring = ring_bytes(if wanted == 0 { DEFAULT_RING.min(usual) } else { wanted });
        let bytes = ring * workers;
        if bytes > left || wanted > left {
            let (wanted, left, limit) = (ring.max(wanted) / MIB, left / MIB, limit / MIB);
            return Err(QuotaError::Memory { wanted, workers, left, whose, limit });
        }
        let mine = used.entry(peer).or_default();
        *mine = QuotaUsage { captures: mine.captures + 1, bytes: mine.bytes + bytes };
        drop(used);
        Ok(Share { quota: Arc::clone(self), peer, bytes, ring })
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<Peer, QuotaUsage>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.quota.used();
        if let Some(mine) = used.get_mut(&self.peer) {
            *mine = QuotaUsage { captures: mine.captures - 1, bytes: mine.bytes - self.bytes };
            if mine.captures == 0 {
                used.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_captures_of_users_are_limited() {
        let limits =
            CaptureLimits { bytes: 512 * MIB, bytes_of_each: 256 * MIB, captures: 4, captures_of_each: 2 };
        let quota = CaptureQuota::new(limits);
        let take = |uid, wanted| quota.take(Peer::User(uid), wanted, 2);
        let error = take(1, 1 << 40).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1048576 MiB for each of 2 workers is more than the 256 MiB that this user's captures may still use: the limit is \
             256 MiB: ask for less with --buffer, or end another capture"
        );
        let first = take(1, 0).unwrap();
        assert_eq!(first.ring, 32 * MIB);
        assert!(matches!(take(1, 128 * MIB), Err(QuotaError::Memory { left: 192, .. })));
        let second = take(1, 64 * MIB).unwrap();
        assert!(matches!(take(1, 1), Err(QuotaError::Captures { running: 2, .. })));
        let _other = take(2, 128 * MIB).unwrap();
        assert!(matches!(take(3, 64 * MIB), Err(QuotaError::Memory { left: 64, .. })));
        // Who names no size gets what is left.
        assert_eq!(take(3, 0).unwrap().ring, 16 * MIB);
        assert_eq!(quota.take(Peer::User(3), 0, 32).unwrap().ring, MIB);
        drop((first, second));
        let _third = take(3, 32 * MIB).unwrap();
        assert!(take(1, 128 * MIB).is_err(), "the limit of all");
        assert!(take(1, 64 * MIB).is_ok());
    }
}
