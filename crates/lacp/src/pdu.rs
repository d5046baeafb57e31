// SPDX-License-Identifier: Apache-2.0
//! LACPDUs and Markers as frames (802.1AX-2014, 6.4.2.3 and 6.5.3.3).
//!
//! ```text
//!  0  destination 01:80:c2:00:00:02, source, type 0x8809
//! 14  subtype 1, version 1
//! 16  TLV 1, length 20: actor    system priority, system, key, port priority, port, state, 3 reserved
//! 36  TLV 2, length 20: partner  the same
//! 56  TLV 3, length 16: collector's delay, 12 reserved
//! 72  TLV 0, length 0, 50 reserved
//! ```

use netvm_wire::MacAddr;

/// The destination of LACP's frames (Slow Protocols multicast). Bridges do not forward it.
pub const LACP_GROUP: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0x00, 0x00, 0x02]);
/// The EtherType of the Slow Protocols.
pub const SLOW_PROTOCOLS: u16 = 0x8809;
/// Bytes of a frame of LACP, without its check sequence.
pub const FRAME_LEN: usize = 124;

/// A frame of LACP.
pub type Frame = [u8; FRAME_LEN];

const HEADER: usize = 14;
const SUBTYPE_LACP: u8 = 1;
const SUBTYPE_MARKER: u8 = 2;
const MARKER_INFORMATION: u8 = 1;
const MARKER_RESPONSE: u8 = 2;
const ACTOR: usize = 16;
const PARTNER: usize = 36;
const COLLECTOR: usize = 56;
const PARTICIPANT_LEN: u8 = 20;

/// A system of the protocol: what aggregates links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct System {
    /// Its priority: the lower, the stronger.
    pub priority: u16,
    /// Its address.
    pub mac: [u8; 6],
}

/// One end of a link, as LACPDUs describe it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Participant {
    /// The system.
    pub system: System,
    /// Links of the system with one key can form one aggregation.
    pub key: u16,
    /// The port's priority.
    pub port_priority: u16,
    /// The port's number.
    pub port: u16,
    /// The state, as bits (6.4.2.3).
    pub state: u8,
}

/// Bits of [`Participant::state`] (6.4.2.3).
pub mod state {
    /// It sends LACPDUs unasked.
    pub const ACTIVITY: u8 = 1;
    /// It gives up a partner after 3 s, not 90 s, and wants an LACPDU each second.
    pub const TIMEOUT: u8 = 1 << 1;
    /// The link can be one of several.
    pub const AGGREGATION: u8 = 1 << 2;
    /// The link is in the aggregation that the system chose for it.
    pub const SYNCHRONIZATION: u8 = 1 << 3;
    /// It receives.
    pub const COLLECTING: u8 = 1 << 4;
    /// It sends.
    pub const DISTRIBUTING: u8 = 1 << 5;
    /// It has no word of a partner.
    pub const DEFAULTED: u8 = 1 << 6;
    /// It waits for the word of a partner that fell silent.
    pub const EXPIRED: u8 = 1 << 7;
}

impl Participant {
    pub(crate) const fn is(&self, bit: u8) -> bool {
        self.state & bit != 0
    }

    pub(crate) const fn set(&mut self, bit: u8, on: bool) {
        if on {
            self.state |= bit;
        } else {
            self.state &= !bit;
        }
    }

    /// Whether both are the same end of the same link.
    pub(crate) fn is_same_port(&self, other: &Self) -> bool {
        let Self { system, key, port_priority, port, state } = *self;
        let aggregates = state & self::state::AGGREGATION == other.state & self::state::AGGREGATION;
        (system, key, port_priority, port) == (other.system, other.key, other.port_priority, other.port)
            && aggregates
    }

    fn read(bytes: &[u8; PARTICIPANT_LEN as usize - 2]) -> Self {
        let [p0, p1, mac @ .., k0, k1, q0, q1, n0, n1, state, _, _, _] = *bytes;
        let word = |high, low| u16::from_be_bytes([high, low]);
        Self {
            system: System { priority: word(p0, p1), mac },
            key: word(k0, k1),
            port_priority: word(q0, q1),
            port: word(n0, n1),
            state,
        }
    }

    fn write(&self, to: &mut [u8]) {
        to[..2].copy_from_slice(&self.system.priority.to_be_bytes());
        to[2..8].copy_from_slice(&self.system.mac);
        to[8..10].copy_from_slice(&self.key.to_be_bytes());
        to[10..12].copy_from_slice(&self.port_priority.to_be_bytes());
        to[12..14].copy_from_slice(&self.port.to_be_bytes());
        to[14] = self.state;
    }
}

/// What a received frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// An LACPDU: its sender, and what the sender knows of the receiver.
    Lacpdu { actor: Participant, partner: Participant },
    /// A Marker, and its response without a source address.
    Marker(Frame),
}

/// Reads a frame; `None`: it is malformed, or of another Slow Protocol. Later versions of LACPDUs have the same front.
pub(crate) fn read(frame: &[u8]) -> Option<Received> {
    let frame: &Frame = frame.get(..FRAME_LEN)?.try_into().ok()?;
    if frame[..6] != LACP_GROUP.0 || frame[12..HEADER] != SLOW_PROTOCOLS.to_be_bytes() {
        return None;
    }
    let participant = |at: usize, kind: u8| {
        let tlv = &frame[at..at + usize::from(PARTICIPANT_LEN)];
        let is_there = tlv[..2] == [kind, PARTICIPANT_LEN];
        is_there.then(|| tlv[2..].try_into().ok().map(Participant::read)).flatten()
    };
    match frame[HEADER] {
        SUBTYPE_LACP => {
            let (actor, partner) = (participant(ACTOR, 1)?, participant(PARTNER, 2)?);
            Some(Received::Lacpdu { actor, partner })
        }
        SUBTYPE_MARKER if frame[ACTOR] == MARKER_INFORMATION => {
            let mut response = *frame;
            response[ACTOR] = MARKER_RESPONSE;
            Some(Received::Marker(response))
        }
        _ => None,
    }
}

/// The LACPDU of `actor`.
pub(crate) fn write(source: [u8; 6], actor: &Participant, partner: &Participant) -> Frame {
    let mut frame = [0; FRAME_LEN];
    frame[..6].copy_from_slice(&LACP_GROUP.0);
    frame[6..12].copy_from_slice(&source);
    frame[12..HEADER].copy_from_slice(&SLOW_PROTOCOLS.to_be_bytes());
    frame[HEADER..ACTOR].copy_from_slice(&[SUBTYPE_LACP, 1]);
    for (at, kind, participant) in [(ACTOR, 1, actor), (PARTNER, 2, partner)] {
        frame[at..at + 2].copy_from_slice(&[kind, PARTICIPANT_LEN]);
        participant.write(&mut frame[at + 2..at + usize::from(PARTICIPANT_LEN)]);
    }
    frame[COLLECTOR..COLLECTOR + 2].copy_from_slice(&[3, 16]);
    frame
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn participant() -> impl Strategy<Value = Participant> {
        (any::<u16>(), any::<[u8; 6]>(), any::<[u16; 3]>(), any::<u8>()).prop_map(
            |(priority, mac, [key, port_priority, port], state)| Participant {
                system: System { priority, mac },
                key,
                port_priority,
                port,
                state,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(actor in participant(), partner in participant()) {
            let frame = write([2, 0, 0, 0, 0, 1], &actor, &partner);
            prop_assert_eq!(read(&frame), Some(Received::Lacpdu { actor, partner }));
            prop_assert_eq!(read(&frame[..FRAME_LEN - 1]), None);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), begins in any::<bool>()) {
            let mut bytes = bytes;
            let front = write([0; 6], &Participant::default(), &Participant::default());
            if begins {
                bytes.splice(..bytes.len().min(16), front[..16].iter().copied());
            }
            let _ = read(&bytes);
        }
    }

    /// As Linux 6.1 sends it: the example of its documentation's capture, by hand.
    #[test]
    fn an_lacpdu_of_the_standard_is_understood() {
        let mut frame = [0; FRAME_LEN];
        frame[..16]
            .copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 2, 0x52, 0x54, 0, 0xaa, 0xbb, 1, 0x88, 9, 1, 1]);
        frame[16..36].copy_from_slice(&[
            1, 20, 0xff, 0xff, 0x52, 0x54, 0, 0xaa, 0xbb, 1, 0, 9, 0, 0xff, 0, 1, 0x3d, 0, 0, 0,
        ]);
        frame[36..56]
            .copy_from_slice(&[2, 20, 0x80, 0, 2, 0, 0, 0, 0, 7, 0, 1, 0x80, 0, 0, 2, 0x3f, 0, 0, 0]);
        let Some(Received::Lacpdu { actor, partner }) = read(&frame) else { panic!("not understood") };
        assert_eq!((actor.system.priority, actor.key, actor.port_priority, actor.port), (0xffff, 9, 0xff, 1));
        assert!(actor.is(state::DISTRIBUTING) && !actor.is(state::TIMEOUT));
        assert_eq!((partner.system.mac, partner.port), ([2, 0, 0, 0, 0, 7], 2));
        assert!(partner.is(state::TIMEOUT));
    }

    #[test]
    fn a_marker_is_answered_with_its_own_words() {
        let mut frame = [0; FRAME_LEN];
        frame[..16].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 9, 2, 1]);
        frame[16..20].copy_from_slice(&[1, 16, 0, 7]);
        let Some(Received::Marker(response)) = read(&frame) else { panic!("no marker") };
        let differing: Vec<usize> = (0..FRAME_LEN).filter(|n| frame[*n] != response[*n]).collect();
        assert_eq!((differing, response[16]), (vec![16], 2));
        assert_eq!(read(&response), None);
    }
}
