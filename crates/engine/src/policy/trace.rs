//! Traces the path of a hypothetical packet through the tables that workers use.

use netvm_policy::{QueueId, RouterId, RuleId};
use netvm_switch::Forward;
use netvm_wire::{FlowKey, MacAddr, Malformed, VlanId};

use super::{Outcome, Policy};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::router::PuntReason;

/// A step of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The port receives it.
    In(PortId),
    /// The fields of the lookup.
    Key(Box<FlowKey>),
    /// Its headers cannot be parsed.
    Malformed(Malformed),
    /// These rules match, in order; the last one decides if `decided`.
    Rules {
        /// The rules.
        rules: Vec<RuleId>,
        /// Whether the last one has a terminal action.
        decided: bool,
    },
    /// No rule decides; the port's default applies.
    Default {
        /// Whether such packets are allowed.
        allowed: bool,
    },
    /// This many token buckets meter it and may drop it.
    Policed(usize),
    /// A rule changes its outer tag.
    Retagged,
    /// A rule chooses its queue at the ports that it leaves by.
    Queued(QueueId),
    /// A port gets a copy.
    Mirrored(PortId),
    /// L2 switching looks up its destination: the port, if known.
    Switched(Option<PortId>),
    /// It enters a chain.
    Chain(ChainId),
    /// It leaves the chain, if every NF passes it on unchanged.
    Passed,
    /// An NF of the chain must choose its port, because the chain has no output.
    NfDecides,
    /// It goes to a virtual router.
    Router(RouterId),
    /// The router sends it on, rewritten.
    NextHop {
        /// The port that it leaves by.
        port: PortId,
        /// With this tag.
        vlan: Option<VlanId>,
        /// To this neighbour.
        mac: MacAddr,
    },
    /// The router punts it to its kernel.
    Punted(PuntReason),
    /// It leaves by a port.
    Out(PortId),
    /// Its sender gets a TCP reset or an ICMP error.
    Answered,
    /// It is dropped.
    Dropped(DropReason),
}

impl Policy {
    /// The path of a packet of `length` bytes with these headers that `from` receives, until it leaves by a port,
    /// enters a chain or goes to a router.
    pub(crate) fn trace(&self, from: PortId, headers: &[u8], length: usize, tick: u32) -> Vec<Step> {
        let mut steps = vec![Step::In(from)];
        let Some(ingress) = self.ingress(from) else {
            steps.push(Step::Dropped(DropReason::NoRule));
            return steps;
        };
        if ingress.meter.is_some() {
            steps.push(Step::Policed(1));
        }
        let key = match (FlowKey::of_frame(headers, length), ingress.switched) {
            // Only the Ethernet header matters.
            (Err(_), Some(_)) => FlowKey::of_ethernet(headers, length),
            (key, _) => key,
        };
        let number = match (key, ingress.blanket) {
            (Ok(key), _) => {
                steps.push(Step::Key(Box::new(key)));
                let mut number = [0];
                ingress.lookup.decide(&[self.used.mask(key)], &mut number);
                number[0]
            }
            // The packet's content does not matter.
            (Err(_), Some(blanket)) => blanket,
            (Err(why), None) => {
                steps.extend([Step::Malformed(why), Step::Dropped(DropReason::Malformed)]);
                return steps;
            }
        };
        let spoofed = |guard: &netvm_switch::Guard| key.is_ok_and(|key| guard.check(&key).is_err());
        if ingress.guard.as_ref().is_some_and(spoofed) {
            steps.push(Step::Dropped(DropReason::Spoofed));
            return steps;
        }
        self.trace_rules(number, &mut steps);
        let outcome = self.decision(number).outcome;
        if outcome == Outcome::Undecided || number == ingress.lookup.otherwise {
            let denied = ingress.undecided == Outcome::Drop(DropReason::Denied);
            steps.push(Step::Default { allowed: !denied });
        }
        match outcome.resolved(ingress.forward, ingress.undecided) {
            Outcome::Drop(reason) => steps.push(Step::Dropped(reason)),
            Outcome::Reject => steps.extend([Step::Answered, Step::Dropped(DropReason::Rejected)]),
            Outcome::Chain(chain) => steps.push(Step::Chain(chain)),
            Outcome::Port(out) => self.trace_out(from, out, key, &mut steps),
            Outcome::Normal => self.trace_switched(from, key, tick, &mut steps),
            Outcome::Router(router) => steps.push(Step::Router(router)),
            Outcome::Allow | Outcome::Undecided => steps.push(Step::Dropped(DropReason::NoRule)),
        }
        steps
    }

    /// The rules of a decision and their actions.
    fn trace_rules(&self, number: u32, steps: &mut Vec<Step>) {
        let decision = self.decision(number);
        if !decision.rules.is_empty() {
            let decided = decision.outcome != Outcome::Undecided;
            steps.push(Step::Rules { rules: decision.rules.to_vec(), decided });
        }
        if let Some(extras) = &decision.extras {
            if !extras.meters.is_empty() {
                steps.push(Step::Policed(extras.meters.len()));
            }
            steps.extend(extras.set_vlan.iter().map(|_| Step::Retagged));
        }
        steps.extend(decision.queue.map(Step::Queued));
        if let Some(extras) = &decision.extras {
            steps.extend(extras.mirrors.iter().map(|port| Step::Mirrored(*port)));
        }
    }

    /// L2 switching, and the egress rules of the ports that it chooses.
    pub(crate) fn trace_switched(
        &self,
        from: PortId,
        key: Result<FlowKey, Malformed>,
        tick: u32,
        steps: &mut Vec<Step>,
    ) {
        let (Some(switching), Ok(fields)) = (&self.switching, key) else {
            steps.push(Step::Dropped(DropReason::Filtered));
            return;
        };
        let Some(Ok(vlan)) = switching.bridge.ingress(from.0, fields.vlan.map(netvm_wire::VlanId::get))
        else {
            steps.push(Step::Dropped(DropReason::WrongVlan));
            return;
        };
        let known = switching.fdb.lookup(vlan, fields.destination_mac, tick);
        steps.push(Step::Switched(known.map(PortId)));
        match switching.bridge.forward(from.0, vlan, fields.destination_mac, known) {
            Forward::Port(out) => self.trace_out(from, PortId(out), key, steps),
            Forward::Flood => {
                steps.extend(switching.bridge.flood(from.0, vlan).map(PortId).map(Step::Out));
            }
            Forward::Drop(_) => steps.push(Step::Dropped(DropReason::Filtered)),
        }
    }

    /// The egress rules of a port.
    pub(crate) fn trace_out(
        &self,
        from: PortId,
        out: PortId,
        key: Result<FlowKey, Malformed>,
        steps: &mut Vec<Step>,
    ) {
        if let Some(egress) = self.egress(out)
            && let (Some(lookup), Ok(key)) = (egress.lookup(from), key)
        {
            let mut number = [0];
            lookup.decide(&[key], &mut number);
            self.trace_rules(number[0], steps);
            let outcome = self.decision(number[0]).outcome;
            if outcome == Outcome::Undecided || number[0] == lookup.otherwise {
                let allowed = egress.undecided == Outcome::Allow;
                steps.push(Step::Default { allowed });
            }
            match outcome.resolved(Outcome::Allow, egress.undecided) {
                Outcome::Drop(reason) => return steps.push(Step::Dropped(reason)),
                Outcome::Reject => {
                    return steps.extend([Step::Answered, Step::Dropped(DropReason::Rejected)]);
                }
                _ => {}
            }
            if egress.meter.is_some() {
                steps.push(Step::Policed(1));
            }
        }
        steps.push(Step::Out(out));
    }
}
