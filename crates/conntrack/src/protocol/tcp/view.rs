// SPDX-License-Identifier: Apache-2.0
//! What others see of TCP, and a change from outside.

use super::{NO_SCALE, Sent, Tcp};

/// What one end of TCP has sent and offered, to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpEnd {
    /// The sequence number after the last one that it has sent.
    pub sent: u32,
    /// The last sequence number that it has acknowledged.
    pub acknowledged: u32,
    /// The largest window that it has offered, in bytes.
    pub window: u32,
    /// The shift of its windows (RFC 7323 section 2); `None`: its SYN had none, or was not seen.
    pub scale: Option<u8>,
    /// It has sent FIN.
    pub has_sent_fin: bool,
}

impl Tcp {
    /// Both ends.
    pub(crate) fn ends(&self) -> [TcpEnd; 2] {
        std::array::from_fn(|n| TcpEnd {
            sent: self.ends[n].end,
            acknowledged: self.ends[n].acknowledged,
            window: self.ends[n].window,
            scale: Some(self.scales[n]).filter(|scale| *scale != NO_SCALE),
            has_sent_fin: self.has_sent(n, Sent::FIN),
        })
    }

    /// Accepts segments outside of the windows from now on.
    pub(crate) const fn be_liberal(&mut self) {
        self.is_liberal = true;
    }
}
