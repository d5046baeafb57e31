//! Notes what the stages do with a hypothetical packet. In: the packet before each stage. Out: the steps that a user sees. The stages
//! are those of every packet; only the ends are not: the packet reaches no device, no NF and no kernel.

use dpdk::Mbuf;

use crate::drop_reason::{DropReason, reason_of_malformed};
use crate::ids::PortId;
use crate::policy::{Decision, Outcome};
use crate::snapshot::Target;
use crate::worker::classify::l2_lookup::tag_of;
use crate::worker::next::{CountedAt, Next, Position, Side};
use crate::worker::packet::keys::{ethernet_key_of, key_of};
use crate::worker::state::burst::Context;
use crate::worker::trace::{Recorder, Step};

/// The last of a decision's mirrors is behind it.
const NO_MIRROR: u8 = u8::MAX;

impl Recorder {
    /// Notes that a port receives the packet, and whether it has a rate.
    pub(crate) fn receive(&mut self, port: PortId, is_metered: bool) {
        self.steps.push(Step::In(port));
        if is_metered {
            self.steps.push(Step::Policed(1));
        }
    }

    /// Notes that the packet goes to a stage. Returns the stage that it goes to instead, if this is an end.
    pub(crate) fn go(&mut self, cx: Context<'_>, at: Next, mbuf: &Mbuf, tick: u32) -> Next {
        let policy = &cx.snapshot.policy;
        match at {
            Next::Decision(side, action) => {
                if let Side::Ingress(port) = side {
                    self.note_key(cx, port, mbuf);
                }
                self.note_decision(cx, side, action.decision, mbuf);
                return at;
            }
            // The steps name them; their copies go nowhere.
            Next::Mirror(side, action, _) => return Next::Mirror(side, action, NO_MIRROR),
            Next::Bridge { from, .. } => self.note_switched(cx, from, mbuf, tick),
            Next::Flood { from, vlan, first } => {
                let ports = policy.switching.iter();
                let mut ports = ports.flat_map(|switching| switching.bridge.flood_from(from.0, vlan, first));
                self.steps.extend(ports.next().map(|port| Step::Flooded(PortId(port))));
            }
            Next::Router { router, .. } => self.steps.push(Step::Router(router)),
            Next::Forwarded { out, .. } => self.note_next_hop(out, mbuf),
            Next::Kernel { reason, .. } => self.steps.push(Step::Punted(reason)),
            Next::Chain(entering) => {
                self.steps.push(Step::Chain(entering.chain));
                // As if every NF passed it on unchanged.
                let targets =
                    cx.snapshot.chain(entering.chain).map(|path| &path.targets[..]).unwrap_or_default();
                return match targets.split_last() {
                    None | Some((Target::Drop(_), _)) => {
                        self.steps.push(Step::NfDecides);
                        Next::Discard
                    }
                    Some((_, hops)) => {
                        self.steps.push(Step::Passed);
                        Next::Hop(entering.chain, Position::Inside(hops.len() as u8))
                    }
                };
            }
            Next::EgressRate(out) if policy.egress(out).is_some_and(|egress| egress.meter.is_some()) => {
                self.steps.push(Step::Policed(1));
            }
            Next::Tx(port) => {
                self.steps.push(Step::Out(port));
                if cx.snapshot.sends_to(port).is_none() {
                    return Next::Discard;
                }
            }
            Next::Reject { .. } => {
                self.steps.extend([Step::Answered, Step::Dropped(DropReason::Rejected)]);
                return Next::Discard;
            }
            Next::MalformedAt(_) => {
                let why = key_of(mbuf).err();
                self.steps.extend(why.map(Step::Malformed));
                self.steps.push(Step::Dropped(why.map_or(DropReason::Malformed, reason_of_malformed)));
                return Next::Discard;
            }
            Next::Drop(CountedAt::Port(_) | CountedAt::Chain(_), reason) => {
                self.steps.push(Step::Dropped(reason));
                return Next::Discard;
            }
            _ => {}
        }
        at
    }

    /// The fields that rules see; of a port that switches everything, the Ethernet header is enough.
    fn note_key(&mut self, cx: Context<'_>, port: PortId, mbuf: &Mbuf) {
        let is_switched =
            || cx.snapshot.policy.ingress(port).is_some_and(|ingress| ingress.switched.is_some());
        let key = key_of(mbuf).or_else(|why| if is_switched() { ethernet_key_of(mbuf) } else { Err(why) });
        self.steps.extend(key.map(|key| Step::Key(Box::new(key))));
    }

    /// The rules of a decision and their actions.
    fn note_decision(&mut self, cx: Context<'_>, side: Side, number: u32, mbuf: &Mbuf) {
        let policy = &cx.snapshot.policy;
        let decision = policy.decision(number);
        self.note_actions(decision);
        let (undecided, otherwise) = match side {
            Side::Ingress(port) => {
                let Some(ingress) = policy.ingress(port) else { return };
                (ingress.undecided, ingress.lookup.otherwise)
            }
            Side::Egress(port) => {
                let Some(egress) = policy.egress(port) else { return };
                let Some(lookup) = egress.lookup(PortId(mbuf.port().0)) else { return };
                (egress.undecided, lookup.otherwise)
            }
        };
        if decision.outcome == Outcome::Undecided || number == otherwise {
            let denied = undecided == Outcome::Drop(DropReason::Denied);
            self.steps.push(Step::Default { allowed: !denied });
        }
    }

    fn note_actions(&mut self, decision: &Decision) {
        if !decision.rules.is_empty() {
            let decided = decision.outcome != Outcome::Undecided;
            self.steps.push(Step::Rules { rules: decision.rules.to_vec(), decided });
        }
        if let Some(extras) = &decision.extras {
            if !extras.meters.is_empty() {
                self.steps.push(Step::Policed(extras.meters.len()));
            }
            self.steps.extend(extras.set_vlan.iter().map(|_| Step::Retagged));
        }
        self.steps.extend(decision.queue.map(Step::Queued));
        if let Some(extras) = &decision.extras {
            self.steps.extend(extras.mirrors.iter().map(|port| Step::Mirrored(*port)));
        }
    }

    /// The port that L2 switching knows for the destination.
    fn note_switched(&mut self, cx: Context<'_>, from: PortId, mbuf: &Mbuf, tick: u32) {
        let (Some(switching), Ok(key)) = (&cx.snapshot.policy.switching, ethernet_key_of(mbuf)) else {
            return;
        };
        if let Some(Ok(vlan)) = switching.bridge.ingress(from.0, tag_of(&key)) {
            let known = switching.fdb.lookup(vlan, key.destination_mac, tick);
            self.steps.push(Step::Switched(known.map(PortId)));
        }
    }

    /// The next hop of a packet that a router has rewritten.
    fn note_next_hop(&mut self, port: PortId, mbuf: &Mbuf) {
        if let Ok(key) = ethernet_key_of(mbuf) {
            self.steps.push(Step::NextHop { port, vlan: key.vlan, mac: key.destination_mac });
        }
    }
}
