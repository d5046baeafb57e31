// SPDX-License-Identifier: Apache-2.0
//! Peers that were refused, because another one has the socket.

use std::fmt::{self, Display};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::peer::Peer;

/// For how long after its last attempt a refused peer is a problem of the port.
const REPORT_FOR: Duration = Duration::from_secs(30);

/// The last peer that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// The refused one.
    pub who: Peer,
    /// The one that has the socket.
    pub holder: Peer,
    at: Instant,
}

impl Display for RefusedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, holder, .. } = self;
        write!(
            f,
            "refused {who}: {holder} has the socket. End one of them, or give each guest a port of its own"
        )
    }
}

/// Refused peers of a socket.
#[derive(Debug, Default)]
pub struct RefusedPeers(Mutex<(u32, Option<RefusedPeer>)>);

impl RefusedPeers {
    /// Records a refused peer.
    pub fn note(&self, who: Peer, holder: Peer) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *noted = (noted.0.wrapping_add(1), Some(RefusedPeer { who, holder, at: Instant::now() }));
    }

    /// How many were refused, and the last one.
    #[must_use]
    pub fn last(&self) -> (u32, Option<RefusedPeer>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last one, if it was refused a short time ago.
    #[must_use]
    pub fn recent(&self) -> Option<RefusedPeer> {
        self.last().1.filter(|refused_peer| refused_peer.at.elapsed() < REPORT_FOR)
    }
}
