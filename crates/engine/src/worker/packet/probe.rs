// SPDX-License-Identifier: Apache-2.0
//! Probes: frames of netvm's that pass a program with ports like packets, and show that it forwards.

use dpdk::Mbuf;
use netvm_wire::EtherType;

use crate::ids::PortId;

/// Local experimental EtherType 1 (IEEE 802).
const PROBE_TYPE: EtherType = EtherType(0x88b5);
/// What the payload of a probe begins with.
const PROBE_MAGIC: [u8; 8] = *b"nvmprobe";
/// The shortest frame of Ethernet without FCS.
const PROBE_BYTES: usize = 60;
/// Header and magic.
const PROBE_HEAD: usize = 14 + PROBE_MAGIC.len();

/// A probe to send through a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// The port by which it enters the program.
    pub(crate) enters: PortId,
    /// The port by which it should come back.
    pub(crate) leaves: PortId,
}

impl Probe {
    /// Its bytes. The addresses are local ones of the two ports, so that a program that learns addresses finds them.
    pub(crate) fn frame(self) -> [u8; PROBE_BYTES] {
        let mac = |port: PortId| {
            let [high, low] = port.0.to_be_bytes();
            [0x02, b'n', b'v', b'p', high, low]
        };
        let mut frame = [0; PROBE_BYTES];
        frame[..6].copy_from_slice(&mac(self.leaves));
        frame[6..12].copy_from_slice(&mac(self.enters));
        frame[12..14].copy_from_slice(&PROBE_TYPE.0.to_be_bytes());
        frame[14..PROBE_HEAD].copy_from_slice(&PROBE_MAGIC);
        frame
    }
}

#[inline]
pub(crate) fn is_probe(mbuf: &Mbuf) -> bool {
    let mut head = [0; PROBE_HEAD];
    mbuf.copy_first(&mut head) == PROBE_HEAD && begins_probe(&head)
}

/// Whether a frame that begins so is a probe.
#[inline]
fn begins_probe(head: &[u8; PROBE_HEAD]) -> bool {
    head[12..14] == PROBE_TYPE.0.to_be_bytes() && head[14..] == PROBE_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probes_are_probes() {
        let frame = Probe { enters: PortId(3), leaves: PortId(260) }.frame();
        let head = |frame: &[u8]| -> [u8; PROBE_HEAD] { frame[..PROBE_HEAD].try_into().unwrap() };
        assert!(begins_probe(&head(&frame)));
        assert_eq!(frame[..12], [2, b'n', b'v', b'p', 1, 4, 2, b'n', b'v', b'p', 0, 3]);
        for n in 12..PROBE_HEAD {
            let mut other = frame;
            other[n] ^= 1;
            assert!(!begins_probe(&head(&other)), "byte {n}");
        }
    }
}
