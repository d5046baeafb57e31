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

use crate::ids::PortId;
use crate::worker::next::{Dispatch, Next, Step};
use crate::worker::packet::mark::connection_of;

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
        if let Err(reason) = connections.translate_source(nat, out, of, mbuf) {
            *next = Next::drop_at(out, reason);
        }
    }
    Step::Each
}
