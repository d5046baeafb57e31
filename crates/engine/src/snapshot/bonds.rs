// SPDX-License-Identifier: Apache-2.0
//! Bonds as workers see them: which member sends a flow, and whose packets a bond receives.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use netvm_lacp::{FRAME_LEN, Frame};

use crate::ids::PortId;
use crate::port_bits::PortBits;

/// Places among which a bond's flows are spread, a power of two. The flows of a member that leaves are spread over the
/// others, whose own flows stay.
const PLACES: usize = 64;

/// A frame of the manager's, or for it.
pub(crate) type ControlFrame = arrayvec::ArrayVec<u8, FRAME_LEN>;

/// Frames that a member exchanges with the manager. The worker never waits for a lock: a frame that comes while the
/// manager looks is lost, and the other end sends it again.
#[derive(Debug, Default)]
pub(crate) struct ControlFrames {
    /// The last one received.
    received: Mutex<Option<ControlFrame>>,
    to_send: Mutex<VecDeque<ControlFrame>>,
}

impl ControlFrames {
    /// The frame that came last, once.
    pub(crate) fn take_received(&self) -> Option<ControlFrame> {
        self.received.lock().ok()?.take()
    }

    /// Adds frames to send, which a command then sends.
    pub(crate) fn send(&self, frames: impl IntoIterator<Item = ControlFrame>) {
        if let Ok(mut queue) = self.to_send.lock() {
            queue.extend(frames);
        }
    }

    pub(crate) fn put_received(&self, frame: Frame) {
        if let Ok(mut received) = self.received.try_lock() {
            *received = Some(frame.into());
        }
    }

    pub(crate) fn next_to_send(&self) -> Option<ControlFrame> {
        self.to_send.try_lock().ok()?.pop_front()
    }
}

/// A port that is a member of a bond.
#[derive(Clone, Debug)]
pub(crate) struct BondMember {
    pub(crate) port: PortId,
    pub(crate) bond: PortId,
    /// Whether the bond receives its packets.
    pub(crate) collects: bool,
    /// Whether the bond speaks LACP, whose frames the member takes out of its packets.
    pub(crate) has_lacp: bool,
    /// Frames from the manager and to it.
    pub(crate) frames: Arc<ControlFrames>,
}

/// The members by which a bond sends.
#[derive(Clone, Debug)]
struct Senders {
    bond: PortId,
    /// Empty: none does.
    places: Box<[PortId]>,
}

/// All bonds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bonds {
    all_members: PortBits,
    /// By port.
    members: Box<[BondMember]>,
    /// By bond.
    senders: Box<[Senders]>,
}

impl Bonds {
    /// Adds a bond with its members, in the order of the configuration, and whether each one sends.
    pub(crate) fn add(&mut self, bond: PortId, members: Vec<(BondMember, bool)>) {
        let places = places(&members.iter().map(|(member, sends)| (member.port, *sends)).collect::<Vec<_>>());
        let mut senders = std::mem::take(&mut self.senders).into_vec();
        senders.push(Senders { bond, places });
        senders.sort_unstable_by_key(|one| one.bond);
        self.senders = senders.into();
        let mut all = std::mem::take(&mut self.members).into_vec();
        for (member, _) in members {
            self.all_members.add(member.port);
            all.push(member);
        }
        all.sort_unstable_by_key(|one| one.port);
        self.members = all.into();
    }

    /// Whether this port is a member.
    #[inline(always)]
    pub(crate) fn has_member(&self, port: PortId) -> bool {
        self.all_members.has(port)
    }

    pub(crate) fn member(&self, port: PortId) -> Option<&BondMember> {
        let n = self.members.binary_search_by_key(&port, |one| one.port).ok()?;
        self.members.get(n)
    }

    /// The members by which a bond sends, one for each place of a flow's hash.
    pub(crate) fn senders(&self, bond: PortId) -> &[PortId] {
        let n = self.senders.binary_search_by_key(&bond, |one| one.bond);
        n.ok().and_then(|n| self.senders.get(n)).map_or(&[], |one| &one.places)
    }
}

/// The member of each place: one of all in turn, as long as it sends, else one of those that do. A single sender needs
/// one place.
fn places(members: &[(PortId, bool)]) -> Box<[PortId]> {
    let senders: Vec<PortId> = members.iter().filter(|(_, sends)| *sends).map(|(port, _)| *port).collect();
    match senders.len() {
        0 | 1 => senders.into(),
        count => {
            let place = |n: usize| match members[n % members.len()] {
                (port, true) => port,
                _ => senders[n / members.len() % count],
            };
            (0..PLACES).map(place).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_leaves_changes_no_place_of_the_others() {
        let all = |left: &[u16]| -> Vec<(PortId, bool)> {
            (0..4).map(|port| (PortId(port), !left.contains(&port))).collect()
        };
        let before = places(&all(&[]));
        assert_eq!(before.len(), PLACES);
        for left in [&[1][..], &[0, 3]] {
            let after = places(&all(left));
            for (was, is) in before.iter().zip(&after) {
                assert!(was == is || left.contains(&was.0), "{was:?} became {is:?}");
                assert!(!left.contains(&is.0));
            }
            let of = |port: u16| after.iter().filter(|other| other.0 == port).count();
            let counts: Vec<usize> = (0..4).filter(|port| !left.contains(port)).map(of).collect();
            assert!(counts.iter().all(|count| *count >= PLACES / 4), "{counts:?}");
        }
        assert_eq!(*places(&all(&[0, 1, 3])), [PortId(2)]);
        assert!(places(&all(&[0, 1, 2, 3])).is_empty());
    }
}
