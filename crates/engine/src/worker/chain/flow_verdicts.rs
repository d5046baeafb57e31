//! Records per-flow verdicts of NFs. In: packets that an NF returned with such a verdict. Out: entries in
//! [`FlowVerdicts`](crate::worker::state::flow_verdicts::FlowVerdicts), which apply to the next packets of these flows.
//!
//! Cost: an entry of the flow cache and one of the verdicts, two cache lines that usually miss, once per flow.

use dpdk::Batch;

use crate::ids::{LinkId, PortId};
use crate::snapshot::{ChainPath, Snapshot};
use crate::worker::state::Datapath;
use crate::worker::state::flow_verdicts::NewVerdict;

/// An NF's verdict on the flows of some packets.
#[derive(Clone, Copy)]
pub(crate) struct FlowVerdict<'a> {
    pub(crate) link: LinkId,
    /// The chain.
    pub(crate) path: &'a ChainPath,
    pub(crate) hop: u8,
    /// Drop the rest of the flow; otherwise skip this NF.
    pub(crate) drops: bool,
    /// The verdict expires after this many seconds without a packet.
    pub(crate) seconds: u16,
}

/// Records a verdict for each packet whose flow is known, if the NF is at this hop of the chain and the configuration
/// permits it.
#[cold]
pub(crate) fn record(dp: &mut Datapath, snapshot: &Snapshot, verdict: FlowVerdict<'_>, run: &Batch) {
    let FlowVerdict { link: id, path, hop, drops, seconds } = verdict;
    let Datapath { nfs, flows, counters, clock, .. } = dp;
    let Some(link) = nfs.get(id) else { return };
    let counters = &counters.links[id.index()];
    let is_its_own = path.roles.get(usize::from(hop)) == Some(&link.role.0);
    let longest = path.longest.get(usize::from(hop)).copied().unwrap_or(0);
    if !is_its_own || longest == 0 {
        counters.flows_refused.add(run.len() as u64);
        return;
    }
    let new = NewVerdict { drops, role: link.role, hop, link: id, seconds: seconds.min(longest) };
    for mbuf in run.as_slice() {
        let port = PortId(mbuf.port().0);
        let [slot, serial] = mbuf.user_data();
        let may_have = snapshot.flow_verdict_ports.has(port);
        let entry = may_have.then(|| flows.cache.entry_of(slot, serial)).flatten();
        let key = entry.filter(|entry| entry.port() == port.0).map(netvm_flow::Entry::key);
        let recorded = key.is_some_and(|key| flows.verdicts.record(port, &key, new, clock.tick));
        if recorded { counters.flows_decided.add(1) } else { counters.flows_refused.add(1) }
    }
}
