// SPDX-License-Identifier: Apache-2.0
//! Whether the kernel can do what happens to a packet. In: the events of a hypothetical packet. Out: where it goes, if
//! that is all that happens.

use netvm_kernel_flows::Key;
use netvm_policy::RuleId;
use netvm_switch::TagChange;

use super::route::{Routed, route};
use crate::ids::{ChainId, PortId};
use crate::snapshot::{ChainPath, Snapshot, Target};
use crate::worker::Keeps;
use crate::worker::record::{Events, PacketEvent};
use crate::worker::trace::Step;

/// What the kernel is to do with a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    /// The port that its packets leave by.
    pub(super) to: PortId,
    /// The rules that its packets match.
    pub(super) rules: Box<[RuleId]>,
    /// The VLAN in which L2 switching has looked up its addresses, if it has.
    pub(super) vlan: Option<u16>,
    /// How they leave the router that they pass, if they do.
    pub(super) routed: Option<Routed>,
    /// What workers keep of them, which decides, too.
    pub(super) keeps: Keeps,
}

impl Decided {
    /// If its flows are monitored, they are kept.
    pub(super) fn kept(self, monitored: bool) -> Self {
        Self { keeps: Keeps { monitored, ..self.keeps }, ..self }
    }
}

/// Where a packet of a key goes that a port has received, of an open connection if connections are tracked, and if NFs
/// release its flow; `None` if anything else happens to it: it is dropped, rejected, metered, copied, queued, flooded,
/// changed otherwise than by one router, or passes an NF.
pub(super) fn decide(events: &Events, from: PortId, key: &Key, snapshot: &Snapshot) -> Option<Decided> {
    let (mut rules, mut to, mut switched) = (Vec::new(), None, None);
    let (mut router, mut next_hop, mut chain) = (None, None, None);
    for event in events.list() {
        match &event.what {
            PacketEvent::Step(Step::In(port)) if *port == from => {}
            PacketEvent::Ingress { port, decision, translated: None, .. } if *port == from => {
                rules.extend(plain(snapshot, *decision)?);
            }
            PacketEvent::Egress { from: port, decision, .. } if *port == from => {
                rules.extend(plain(snapshot, *decision)?);
            }
            PacketEvent::Step(Step::Switched(Some(out))) if switched.is_none() && router.is_none() => {
                switched = Some(*out);
            }
            PacketEvent::Step(Step::Router(by)) if switched.is_none() && router.is_none() => {
                router = Some(*by);
            }
            PacketEvent::Step(Step::Chain(entered)) if chain.is_none() && is_open(snapshot, *entered) => {
                chain = Some(*entered);
            }
            PacketEvent::Step(Step::Passed) if chain.is_some() => {}
            PacketEvent::Step(Step::NextHop { port, vlan: None, mac }) if next_hop.is_none() => {
                next_hop = Some((*port, *mac));
            }
            PacketEvent::Step(Step::Out(out)) if to.is_none() => to = Some(*out),
            _ => return None,
        }
    }
    let to = to.filter(|to| *to != from && switched.is_none_or(|out| out == *to))?;
    let vlan = match switched {
        Some(_) => Some(untagged_vlan(snapshot, from, to)?),
        None => None,
    };
    let routed = match router {
        Some(router) => Some(route(snapshot.router(router)?, from, key)?),
        None => None,
    };
    let leaves_so = routed.is_none_or(|routed| next_hop == Some((to, routed.macs[0])) && routed.to == to);
    let keeps = Keeps { connection: snapshot.tracks(from), chain, ..Keeps::NOTHING };
    leaves_so.then_some(Decided { to, rules: rules.into(), vlan, routed, keeps })
}

/// Whether a chain lets packets in, and its NFs may release flows.
fn is_open(snapshot: &Snapshot, chain: ChainId) -> bool {
    let may_be = |path: &ChainPath| {
        !matches!(path.entry, Target::Drop(_)) && path.longest.iter().all(|seconds| *seconds > 0)
    };
    snapshot.chain(chain).is_some_and(may_be)
}

/// The rules of a decision after which packets go on as they are.
fn plain(snapshot: &Snapshot, decision: u32) -> Option<&[RuleId]> {
    let decision = snapshot.policy.decision(decision);
    (decision.is_plain() && !decision.syn_proxy).then_some(&*decision.rules)
}

/// The VLAN of packets without a tag, if they leave without one, too.
fn untagged_vlan(snapshot: &Snapshot, from: PortId, to: PortId) -> Option<u16> {
    let switching = snapshot.policy.switching.as_ref()?;
    let vlan = switching.vlan_of(from)?;
    let tagging = switching.bridge.egress(to.0, vlan)?;
    (TagChange::new(None, vlan, tagging) == TagChange::Keep).then_some(vlan)
}
