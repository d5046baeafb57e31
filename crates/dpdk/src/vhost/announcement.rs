// SPDX-License-Identifier: Apache-2.0
//! Announces a guest that has moved: a RARP packet in its name, from which switches learn where it is (vhost-user,
//! `VHOST_USER_SEND_RARP`). Guests that announce themselves (`VIRTIO_NET_F_GUEST_ANNOUNCE`) do not need it.
//!
//! The packet takes the way of the guest's own packets, with all rules of its port.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Batch, Pool};

/// Bytes of an Ethernet frame without its checksum at least.
const FRAME: usize = 60;
/// Marks a stored address.
const PENDING: u64 = 1 << 63;

/// The address to announce.
#[derive(Debug, Default)]
pub(super) struct Announcement(AtomicU64);

impl Announcement {
    /// Asks for an announcement.
    pub(super) fn request(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.0.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | PENDING, Ordering::Relaxed);
    }

    /// Takes what is to be announced.
    pub(super) fn take(&self) -> Option<[u8; 6]> {
        let pending = self.0.swap(0, Ordering::Relaxed);
        let [_, _, a, b, c, d, e, f] = pending.to_be_bytes();
        (pending & PENDING != 0).then_some([a, b, c, d, e, f])
    }
}

/// A reverse request for one's own address (RFC 903), to all.
fn frame(mac: [u8; 6]) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    // RARP; Ethernet, IPv4, lengths of their addresses; reverse request.
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}

/// Adds the packet to those of the guest; nothing if buffers have run out.
#[cold]
pub(super) fn add(pool: &Pool, batch: &mut Batch, mac: [u8; 6]) {
    if pool.alloc_into(batch, 1) == 1
        && let Some(packet) = batch.as_mut_slice().last_mut()
    {
        // A buffer has room for the shortest frame.
        let _ = packet.copy_from(&frame(mac));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_taken_once() {
        let announcement = Announcement::default();
        assert_eq!(announcement.take(), None);
        announcement.request([2, 0, 0, 0, 0, 7]);
        assert_eq!(announcement.take(), Some([2, 0, 0, 0, 0, 7]));
        assert_eq!(announcement.take(), None);
    }

    #[test]
    fn the_frame_is_that_of_rfc_903() {
        let frame = frame([2, 3, 4, 5, 6, 7]);
        let whole = "ffffffffffff020304050607803500010800060400030203040506070000000002030405060700000000";
        let hex: String = frame[..42].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, whole);
        assert!(frame[42..].iter().all(|byte| *byte == 0));
    }
}
