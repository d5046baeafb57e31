// SPDX-License-Identifier: Apache-2.0
//! Records per-flow verdicts of NFs. In: packets that an NF returned with such a verdict. Out: entries in
//! [`FlowVerdicts`](crate::worker::state::flow_verdicts::FlowVerdicts), which apply to the next packets of these flows.
//!
//! Packets of a flow that an NF has steered may still be with it, or with other NFs of its role: they go where the flow
//! goes when these pass them on. So NFs that may steer pass packets on through the engine.
//!
//! Cost: an entry of the flow cache and one of the verdicts, two cache lines that usually miss, once per flow; for NFs
//! that have steered flows, once per packet.

use dpdk::{Batch, Mbuf};
use netvm_model::SteerTo;
use netvm_ring::VerdictKind;

use super::entry::AtRole;
use crate::ids::{ChainId, LinkId, PortId, RoleId};
use crate::snapshot::{ChainPath, FlowRights, Snapshot};
use crate::worker::next::{Entering, Exit, Next, Position};
use crate::worker::state::flow_verdicts::{Flow, FlowAction, NewVerdict};
use crate::worker::state::{BURST, Datapath};

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
    let Some(link) = dp.nfs.get(id) else { return };
    let role = link.role;
    let is_its_own = path.roles.get(usize::from(hop)) == Some(&role.0);
    let longest = path.longest.get(usize::from(hop)).copied().unwrap_or(0);
    if !is_its_own || longest == 0 {
        dp.counters.links[id.index()].flows_refused.add(run.len() as u64);
        return;
    }
    let action = if drops { FlowAction::Drop } else { FlowAction::Skip };
    let new = NewVerdict { action, role, hop, link: id, seconds: seconds.min(longest) };
    for mbuf in run.as_slice() {
        let flow = flow_of(dp, snapshot, mbuf);
        note(dp, flow, new);
    }
}

/// The flow of a packet, as it came in; `None` if the flow cache no longer has it.
fn flow_of(dp: &Datapath, snapshot: &Snapshot, mbuf: &Mbuf) -> Option<Flow> {
    let port = PortId(mbuf.port().0);
    let [slot, serial] = mbuf.user_data();
    let may_have = snapshot.flow_verdict_ports.has(port);
    let entry = may_have.then(|| dp.flows.cache.entry_of(slot, serial)).flatten();
    entry.filter(|entry| entry.port() == port.0).map(|entry| Flow { port, key: entry.key() })
}

/// Records a verdict on a flow, and counts whether that was possible.
fn note(dp: &mut Datapath, flow: Option<Flow>, new: NewVerdict) {
    let tick = dp.clock.tick;
    let recorded = flow.is_some_and(|flow| dp.flows.verdicts.record(&flow, new, tick));
    let counters = &dp.counters.links[new.link.index()];
    if recorded { counters.flows_decided.add(1) } else { counters.flows_refused.add(1) }
}

/// An NF that passes packets on, and perhaps steers the rest of their flows.
#[derive(Clone, Copy)]
pub(crate) struct Steerer<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) link: LinkId,
    pub(crate) role: RoleId,
    pub(crate) chain: ChainId,
    pub(crate) path: &'a ChainPath,
    pub(crate) hop: u8,
}

/// What an NF says of the rest of a flow that it steers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steered {
    To(SteerTo),
    Back,
}

impl Steered {
    /// The verdict with this number, if it steers.
    #[inline(always)]
    pub(crate) const fn of(kind: Option<VerdictKind>, argument: u16) -> Option<Self> {
        Some(match kind {
            Some(VerdictKind::SteerChain) => Self::To(SteerTo::Chain(ChainId(argument))),
            Some(VerdictKind::SteerRole) => Self::To(SteerTo::Role(RoleId(argument))),
            Some(VerdictKind::SteerPort) => Self::To(SteerTo::Port(PortId(argument))),
            Some(VerdictKind::SteerBack) => Self::Back,
            _ => return None,
        })
    }
}

impl<'a> Steerer<'a> {
    /// What it may say of whole flows; `None` if it may not steer them so.
    pub(crate) fn rights(&self, steered: Steered) -> Option<&'a FlowRights> {
        let rights = self.snapshot.flow_rights(self.role)?;
        let is_its_own = || self.path.roles.get(usize::from(self.hop)) == Some(&self.role.0);
        let may = match steered {
            Steered::To(to) => rights.steer.contains(&to) && is_its_own(),
            Steered::Back => true,
        };
        may.then_some(rights)
    }

    /// Whether it may have steered flows whose packets it passes on now.
    #[inline(always)]
    pub(crate) fn may_have_steered(&self, dp: &Datapath) -> bool {
        dp.flows.verdicts.any()
            && self.snapshot.flow_rights(self.role).is_some_and(|rights| !rights.steer.is_empty())
    }

    /// Sends each packet that the NF passes on to the destination that an NF of its role has chosen for the flow, and
    /// the others to `on`. Then records the destination that the NF chooses with this verdict, if it steers the flow.
    #[cold]
    pub(crate) fn pass_on(
        &self,
        dp: &mut Datapath,
        steered: Option<Steered>,
        run: &Batch,
        on: Next,
    ) -> [Next; BURST] {
        let mut nexts = [on; BURST];
        let new = steered.and_then(|steered| Some((steered, self.rights(steered)?.longest)));
        for (next, mbuf) in nexts.iter_mut().zip(run.as_slice()) {
            let flow = flow_of(dp, self.snapshot, mbuf);
            let tick = dp.clock.tick;
            let before =
                flow.as_ref().and_then(|flow| dp.flows.verdicts.steered(flow, self.role, self.hop, tick));
            if let Some(to) = before {
                *next = self.next_to(to, PortId(mbuf.port().0));
            }
            match new {
                None => {}
                Some((Steered::To(to), seconds)) => {
                    let Self { link, role, hop, .. } = *self;
                    note(dp, flow, NewVerdict { action: FlowAction::Steer(to), role, hop, link, seconds });
                }
                Some((Steered::Back, _)) => {
                    flow.iter().for_each(|flow| dp.flows.verdicts.end_steering(flow));
                    let counters = &dp.counters.links[self.link.index()];
                    if flow.is_some() { counters.flows_decided.add(1) } else { counters.flows_refused.add(1) }
                }
            }
        }
        nexts
    }

    /// Where a packet goes whose flow has been steered, from this NF.
    fn next_to(&self, to: SteerTo, from: PortId) -> Next {
        let Self { chain, hop, .. } = *self;
        match to {
            SteerTo::Chain(chain) => Next::Chain(Entering { from, chain, skipped: 0 }),
            SteerTo::Port(port) => Next::LeaveChain { chain, to: Exit::Port(port), entered: false },
            SteerTo::Role(role) => {
                let later = AtRole { role, hop }.later_in(self.path);
                let aside = Position::Aside { role: role.0, hop, from: None };
                Next::Hop(chain, later.map_or(aside, Position::Inside))
            }
        }
    }
}
