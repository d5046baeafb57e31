//! Hops that are programs with two ports. In: packets for such a hop, and packets that a program's port has received.
//! Out: by the program's port; and to the hop after it. The position in the chain is a property of the port, so a
//! packet that comes back carries nothing. A program's own packets go the same way.
//!
//! Probes are frames of netvm's that pass a program like packets. They end here, and are counted.
//!
//! Cost: one cache line of each packet that comes back, which later stages read, too. Several programs: a key per
//! packet on the way in.

use dpdk::{Batch, Mbuf, PortNumber};
use netvm_wire::EtherType;

use super::hop::Hop;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::snapshot::{PairTarget, Target};
use crate::worker::next::{ChainHop, Dispatch, Next, PairEntry, Position, Step};
use crate::worker::packet::keys::symmetric_hash_of;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;

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
fn is_probe(mbuf: &Mbuf) -> bool {
    let mut head = [0; PROBE_HEAD];
    mbuf.copy_first(&mut head) == PROBE_HEAD && begins_probe(&head)
}

/// Whether a frame that begins so is a probe.
#[inline]
fn begins_probe(head: &[u8; PROBE_HEAD]) -> bool {
    head[12..14] == PROBE_TYPE.0.to_be_bytes() && head[14..] == PROBE_MAGIC
}

/// Sends packets to the only program of a hop, or to one for each flow.
pub(crate) fn choose(cx: Context<'_>, hop: Hop) -> Next {
    let Hop { chain, position } = hop;
    match hop.target(cx.snapshot) {
        Some(Target::Pair(target)) if target.ports.len() == 1 => {
            Next::IntoPair(entry(target, hop, target.ports[0]))
        }
        _ => Next::PairOfFlow(chain, position),
    }
}

const fn entry(target: &PairTarget, hop: Hop, port: PortId) -> PairEntry {
    let at = ChainHop { chain: hop.chain, hop: target.hop };
    PairEntry { port, at, from: hop.position.entered_from() }
}

/// Chooses the program for each packet by its flow.
pub(crate) fn choose_each(burst: &mut Dispatch<'_>, hop: Hop) -> Step {
    let Dispatch { cx, batch, split, .. } = burst;
    let Some(Target::Pair(target)) = hop.target(cx.snapshot) else {
        return Step::All(Next::drop_in(hop.chain, DropReason::NfDown));
    };
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
        let nth = symmetric_hash_of(mbuf) % target.ports.len() as u64;
        *next = Next::IntoPair(entry(target, hop, target.ports[nth as usize]));
    }
    Step::Each
}

/// What a program's port has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// Where it goes.
    pub(crate) next: Next,
    /// The hop that it has passed.
    pub(crate) passed: Option<ChainHop>,
}

/// Takes probes out of what a program's port has received. The rest goes to the hop after the program.
pub(crate) fn take_back(dp: &Datapath, cx: Context<'_>, port: PortId, batch: &mut Batch) -> Returned {
    let counters = dp.counters.ports.get(port.index());
    if batch.as_slice().iter().any(is_probe) {
        let probes = batch.partition(|mbuf| !is_probe(mbuf));
        if let Some(counters) = counters {
            counters.probes.add(probes.len() as u64);
        }
    }
    let back = cx.snapshot.pairs.of(port);
    let Some((chain, hop)) = back.and_then(|back| back.passed) else {
        return Returned { next: Next::drop_at(port, DropReason::NotOfHop), passed: None };
    };
    if let Some(counters) = counters {
        counters.from_hop.add(batch.len() as u64);
    }
    if let Some(from) = back.and_then(|back| back.from) {
        batch.as_mut_slice().iter_mut().for_each(|mbuf| mbuf.set_port(PortNumber(from.0)));
    }
    let passed = Some(ChainHop { chain, hop });
    Returned { next: Next::Hop(chain, Position::Inside(hop + 1)), passed }
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
