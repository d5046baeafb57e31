// SPDX-License-Identifier: Apache-2.0
//! Headers that many packets have in common.

use super::{HEADER, Outer, UDP, V4, V4_HEADERS};
use crate::checksum::fold;

/// The headers of an [`Outer`] over IPv4, made once for many packets: a packet's own fields are written into a copy,
/// and added to the checksum.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    headers: [u8; V4_HEADERS],
    /// The sum of the IP header's words (RFC 1071), carries not folded.
    sum: u64,
}

impl Template {
    /// `None` over IPv6. The source port and DSCP and ECN of `outer` are those of no packet.
    #[must_use]
    pub fn new(outer: &Outer) -> Option<Self> {
        let common = Outer { ports: [0, outer.ports[1]], tos: 0, ..*outer };
        let mut headers = [0; V4_HEADERS];
        common.write(0, &mut headers)?;
        for lengths_and_sum in [2..4, 10..12, V4 + 4..V4 + 6] {
            headers[lengths_and_sum].fill(0);
        }
        let words = headers[..V4].chunks_exact(2).map(|word| u64::from(word[0]) << 8 | u64::from(word[1]));
        Some(Self { headers, sum: words.sum() })
    }

    /// The headers, from the IP header on, before an inner frame of `inner` bytes, with this DSCP and ECN, and source
    /// port: those of [`Outer::write`]. `None` if the IP packet would be too long.
    #[inline]
    #[must_use]
    pub fn with(&self, tos: u8, port: u16, inner: u16) -> Option<[u8; V4_HEADERS]> {
        let datagram = inner.checked_add((UDP + HEADER) as u16)?;
        let total = datagram.checked_add(V4 as u16)?;
        let mut headers = self.headers;
        headers[1] = tos;
        headers[2..4].copy_from_slice(&total.to_be_bytes());
        headers[4..6].copy_from_slice(&port.to_be_bytes());
        let sum = !fold(self.sum + u64::from(tos) + u64::from(total) + u64::from(port));
        headers[10..12].copy_from_slice(&sum.to_be_bytes());
        headers[V4..V4 + 2].copy_from_slice(&port.to_be_bytes());
        headers[V4 + 4..V4 + 6].copy_from_slice(&datagram.to_be_bytes());
        Some(headers)
    }
}
