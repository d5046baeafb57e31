//! Traces the path of a hypothetical packet through the tables that workers use.

use netvm_model::SetVlan;
use netvm_policy::{QueueId, RouterId, RuleId};
use netvm_switch::{Forward, TagChange};
use netvm_wire::{EtherType, FlowKey, MacAddr, Malformed, VlanId, rewrite};

use super::{IngressPolicy, Outcome, Policy, Switching};
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
    /// A copy of it, for this port of its VLAN; the steps that follow are the copy's.
    Flooded(PortId),
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

/// A hypothetical packet: its first bytes, as rules and switching have changed them, and its length.
#[derive(Clone, Debug)]
pub(crate) struct TracedPacket {
    pub(crate) headers: Vec<u8>,
    pub(crate) length: usize,
}

impl TracedPacket {
    pub(crate) fn key(&self) -> Result<FlowKey, Malformed> {
        FlowKey::of_frame(&self.headers, self.length)
    }

    fn ethernet_key(&self) -> Result<FlowKey, Malformed> {
        FlowKey::of_ethernet(&self.headers, self.length)
    }

    /// Whether the first EtherType is a VLAN tag.
    fn has_tag(&self) -> bool {
        let ether_type = self.headers.get(12..14).and_then(<[u8]>::first_chunk);
        ether_type.is_some_and(|bytes| EtherType(u16::from_be_bytes(*bytes)).is_vlan())
    }

    /// Changes the outer tag, as the worker does.
    fn retag(&mut self, change: impl Fn(&mut [u8], usize) -> Result<usize, rewrite::VlanError>) {
        const TAG: usize = 4;
        let mut buffer = [&[0; TAG], &self.headers[..]].concat();
        let Ok(start) = change(&mut buffer, TAG) else { return };
        self.length = self.length + TAG - start;
        self.headers = buffer.split_off(start);
    }

    fn push_vlan(&mut self, vlan: VlanId) {
        self.retag(|bytes, at| rewrite::push_vlan(bytes, at, EtherType::VLAN, vlan));
    }

    fn set_vlan(&mut self, vlan: VlanId) {
        self.retag(|bytes, at| rewrite::set_vlan(bytes, at, vlan));
    }

    fn strip_vlan(&mut self) {
        self.retag(rewrite::strip_vlan);
    }
}

impl Policy {
    /// Appends the path of a packet that `from` receives, until it leaves by a port, enters a chain or goes to a router.
    pub(crate) fn trace(&self, from: PortId, packet: &mut TracedPacket, tick: u32, steps: &mut Vec<Step>) {
        steps.push(Step::In(from));
        let Some(ingress) = self.ingress(from) else {
            return steps.push(Step::Dropped(DropReason::NoRule));
        };
        if ingress.meter.is_some() {
            steps.push(Step::Policed(1));
        }
        let key = match (packet.key(), ingress.switched) {
            // Only the Ethernet header matters.
            (Err(_), Some(_)) => packet.ethernet_key(),
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
                return steps.extend([Step::Malformed(why), Step::Dropped(why.into())]);
            }
        };
        if key.is_ok_and(|key| is_spoofed(ingress, &key, packet)) {
            return steps.push(Step::Dropped(DropReason::Spoofed));
        }
        self.trace_rules(number, packet, steps);
        let outcome = self.decision(number).outcome;
        if outcome == Outcome::Undecided || number == ingress.lookup.otherwise {
            let denied = ingress.undecided == Outcome::Drop(DropReason::Denied);
            steps.push(Step::Default { allowed: !denied });
        }
        match outcome.resolved(ingress.forward, ingress.undecided) {
            Outcome::Drop(reason) => steps.push(Step::Dropped(reason)),
            Outcome::Reject => steps.extend([Step::Answered, Step::Dropped(DropReason::Rejected)]),
            Outcome::Chain(chain) => steps.push(Step::Chain(chain)),
            Outcome::Port(out) => self.trace_out(from, out, packet, steps),
            Outcome::Normal => self.trace_switched(from, packet, tick, steps),
            Outcome::Router(router) => steps.push(Step::Router(router)),
            Outcome::Allow | Outcome::Undecided => steps.push(Step::Dropped(DropReason::NoRule)),
        }
    }

    /// The rules of a decision and their actions, which may change the packet's tag.
    fn trace_rules(&self, number: u32, packet: &mut TracedPacket, steps: &mut Vec<Step>) {
        let decision = self.decision(number);
        if !decision.rules.is_empty() {
            let decided = decision.outcome != Outcome::Undecided;
            steps.push(Step::Rules { rules: decision.rules.to_vec(), decided });
        }
        if let Some(extras) = &decision.extras {
            if !extras.meters.is_empty() {
                steps.push(Step::Policed(extras.meters.len()));
            }
            for change in &extras.set_vlan {
                match change {
                    SetVlan::Tag(vlan) => packet.set_vlan(*vlan),
                    SetVlan::Strip => packet.strip_vlan(),
                }
                steps.push(Step::Retagged);
            }
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
        packet: &mut TracedPacket,
        tick: u32,
        steps: &mut Vec<Step>,
    ) {
        let (Some(switching), Ok(fields)) = (&self.switching, packet.ethernet_key()) else {
            return steps.push(Step::Dropped(DropReason::Filtered));
        };
        let Some(Ok(vlan)) = switching.bridge.ingress(from.0, fields.vlan.map(VlanId::get)) else {
            return steps.push(Step::Dropped(DropReason::WrongVlan));
        };
        let known = switching.fdb.lookup(vlan, fields.destination_mac, tick);
        steps.push(Step::Switched(known.map(PortId)));
        match switching.bridge.forward(from.0, vlan, fields.destination_mac, known) {
            Forward::Port(out) => self.trace_egress(switching, (from, PortId(out), vlan), packet, steps),
            Forward::Flood => {
                let mut is_sent = false;
                for out in switching.bridge.flood(from.0, vlan).map(PortId) {
                    is_sent = true;
                    steps.push(Step::Flooded(out));
                    self.trace_egress(switching, (from, out, vlan), &mut packet.clone(), steps);
                }
                if !is_sent {
                    steps.push(Step::Dropped(DropReason::Filtered));
                }
            }
            Forward::Drop(netvm_switch::NotForwarded::NotMember) => {
                steps.push(Step::Dropped(DropReason::WrongVlan));
            }
            Forward::Drop(_) => steps.push(Step::Dropped(DropReason::Filtered)),
        }
    }

    /// Gives a switched packet of a VLAN the tag that the port `out` expects, and continues with its egress rules.
    fn trace_egress(
        &self,
        switching: &Switching,
        (from, out, vlan): (PortId, PortId, u16),
        packet: &mut TracedPacket,
        steps: &mut Vec<Step>,
    ) {
        if switching.is_vlan_aware {
            let tag = packet.ethernet_key().ok().and_then(|key| key.vlan).map(VlanId::get);
            let tag = tag.or_else(|| packet.has_tag().then_some(0));
            let Some(tagging) = switching.bridge.egress(out.0, vlan) else {
                return steps.push(Step::Dropped(DropReason::WrongVlan));
            };
            match TagChange::new(tag, vlan, tagging) {
                TagChange::Keep => {}
                TagChange::Pop => packet.strip_vlan(),
                TagChange::Set(vlan) => packet.set_vlan(vlan),
                TagChange::Push(vlan) => packet.push_vlan(vlan),
            }
        }
        self.trace_out(from, out, packet, steps);
    }

    /// The egress rules of a port.
    pub(crate) fn trace_out(
        &self,
        from: PortId,
        out: PortId,
        packet: &mut TracedPacket,
        steps: &mut Vec<Step>,
    ) {
        let Some(egress) = self.egress(out) else { return steps.push(Step::Out(out)) };
        if egress.looks {
            let key = match packet.key() {
                Ok(key) => key,
                Err(why) => return steps.extend([Step::Malformed(why), Step::Dropped(why.into())]),
            };
            let Some(lookup) = egress.lookup(from) else {
                return steps.push(Step::Dropped(DropReason::Denied));
            };
            let mut number = [0];
            lookup.decide(&[self.used.mask(key)], &mut number);
            self.trace_rules(number[0], packet, steps);
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
        }
        if egress.meter.is_some() {
            steps.push(Step::Policed(1));
        }
        steps.push(Step::Out(out));
    }
}

/// Whether the port's guest may not send the packet.
fn is_spoofed(ingress: &IngressPolicy, key: &FlowKey, packet: &TracedPacket) -> bool {
    ingress.guard.as_ref().is_some_and(|guard| {
        guard.check(key).is_err()
            || (guard.needs_inspection(key) && guard.inspect(&packet.headers, packet.length).is_err())
    })
}
