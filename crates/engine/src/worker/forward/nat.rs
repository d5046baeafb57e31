// SPDX-License-Identifier: Apache-2.0
//! Translation of sources, as packets leave by a port. In: packets that the rules of the port allow. Out: to the rate
//! of the port, with what stands for their source.
//!
//! Destinations are translated when packets arrive ([`per_connection`](crate::worker::classify::per_connection)), so
//! that rules and routes see where packets really go; the rules of this port still see the source itself. What stands
//! for the source of a connection is decided by its first packet that comes here. The kernel of a router gets packets
//! with the source itself: it may send them on, and then they come here.
//!
//! Cost, only where there are NAT rules: a load for each packet; for those of connections that are translated, the
//! connection, a copy of the headers, and writing them back.

use dpdk::Mbuf;
use netvm_conntrack::Half;

use crate::ids::PortId;
use crate::memory::mark::connection_of;
use crate::snapshot::Snapshot;
use crate::worker::next::{Dispatch, Next, Step};
use crate::worker::packet::keys::ethernet_key_of;
use crate::worker::record::{PacketEvent, Recorder, Visit};
use crate::worker::state::connections::Passage;
use crate::worker::trace::{self, Translated};

/// Translates the sources of packets whose connections ask for it.
pub(crate) fn translate(burst: &mut Dispatch<'_>, out: PortId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let then = Next::EgressRate(out);
    let (Some(nat), Some(connections)) = (&cx.snapshot.nat, &mut dp.connections) else {
        return Step::All(then);
    };
    if nat.is_to_kernel(out) {
        return Step::All(then);
    }
    split.nexts.fill(then);
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        let Some(of) = connection_of(mbuf) else { continue };
        match (connections.translate_source(nat, out, of, mbuf), &dp.recorder) {
            (Err(reason), _) => *next = Next::drop_at(out, reason),
            (Ok(()), None) => {}
            (Ok(()), Some(recorder)) => {
                let vlan = ethernet_key_of(mbuf).ok().and_then(|key| key.vlan);
                let at = Passage { half: Half::Source, port: out, of, vlan };
                let translated = connections.translated(nat, at);
                note(recorder, cx.snapshot, mbuf, translated);
            }
        }
    }
    Step::Each
}

/// Notes what has become of a packet.
#[cold]
fn note(recorder: &Recorder, snapshot: &Snapshot, mbuf: &Mbuf, translated: Option<Translated>) {
    let packets = std::slice::from_ref(mbuf);
    let visit =
        Visit { snapshot: Some(snapshot.number), packets, is_mirror: false, is_end: false, comes_back: None };
    let step = translated.map(|translated| PacketEvent::Step(trace::Step::Translated(translated)));
    recorder.visited(&visit, |_| step.clone());
}
