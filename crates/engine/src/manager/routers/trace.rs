//! Traces a packet through a virtual router, with the tables that the workers use.

use netvm_model::RouterId;
use netvm_router::{NextHop, NextHopId};

use super::super::Engine;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::{Step, TracedPacket};
use crate::router::{PuntReason, RouterPath};
use crate::worker::{
    Class, Head, PuntCause, RouteVerdict, Source, V4, V6, flow_hash, forged, judge_source, reason_of,
};

impl Engine {
    /// Appends the steps of a packet that reaches a router.
    pub(crate) fn trace_routed(
        &self,
        router: RouterId,
        from: PortId,
        packet: &mut TracedPacket,
        steps: &mut Vec<Step>,
    ) {
        let dropped = Step::Dropped(DropReason::NoRouterInterface);
        let Some(router) = self.routers.paths.get(router.index()).and_then(Option::as_deref) else {
            return steps.push(dropped);
        };
        if let Some(interface) = router.punted_by(from) {
            return self.rules.policy.trace_out(from, interface.port, packet, steps);
        }
        let (mut head, frame_length) = (Head::of(&packet.headers), packet.length);
        let mut found = [NextHopId::PUNT];
        let (header, length) = match head.classify(router, router.on(from), frame_length as u32) {
            Class::V4 { destination, length } => {
                router.tables.lookup_v4(&[destination], &mut found);
                (V4, length)
            }
            Class::V6 { destination, length } => {
                router.tables.lookup_v6(&[destination], &mut found);
                (V6, length)
            }
            Class::Punt(reason) => {
                return self.trace_punted(router, (from, packet), &head, PuntCause::Headers(reason), steps);
            }
            Class::Martian => {
                let verdict = forged(router, &head, DropReason::Martian);
                return self.trace_forged(router, (from, packet), &head, verdict, steps);
            }
            Class::Drop(reason) => return steps.push(Step::Dropped(reason)),
        };
        let next_hop = router.tables.next_hop(found[0]);
        let is_checked = router.checks_sources[usize::from(header != V4)];
        let source = if is_checked { judge_source(router, &head, header) } else { Source::Believed };
        if source == Source::Forged {
            let verdict = forged(router, &head, DropReason::Urpf);
            return self.trace_forged(router, (from, packet), &head, verdict, steps);
        }
        if *next_hop == NextHop::Blackhole {
            return steps.push(Step::Dropped(DropReason::Blackhole));
        }
        let hop = next_hop.choose(flow_hash(packet.key().ok()));
        let out = hop.and_then(|hop| Some((router.interface(hop.interface)?, hop.mac)));
        let way = match (next_hop, out) {
            _ if source == Source::Unknown => Err(PuntCause::Of(PuntReason::KernelRoute)),
            (NextHop::Punt | NextHop::Glean(_), _) => Err(PuntCause::of(next_hop, found[0])),
            (_, None) => Err(PuntCause::Of(PuntReason::KernelRoute)),
            (_, Some((out, _))) if length > out.mtu(header == V4) => {
                Err(PuntCause::Of(PuntReason::ExceedsMtu))
            }
            (_, Some(way)) => Ok(way),
        };
        let (out, mac) = match way {
            Ok(way) => way,
            Err(cause) => return self.trace_punted(router, (from, packet), &head, cause, steps),
        };
        let old = usize::from(head.old(header));
        let Some(new) = head.forward(out, mac, header) else {
            let cause = PuntCause::Of(PuntReason::Expired);
            return self.trace_punted(router, (from, packet), &head, cause, steps);
        };
        steps.push(Step::NextHop { port: out.port, vlan: out.vlan, mac });
        packet.headers = [new, packet.headers.get(old..).unwrap_or_default()].concat();
        packet.length = new.len() + frame_length.saturating_sub(old);
        self.rules.policy.trace_out(from, out.port, packet, steps);
    }

    /// Appends the steps of a packet whose source is forged.
    fn trace_forged(
        &self,
        router: &RouterPath,
        of: (PortId, &mut TracedPacket),
        head: &Head,
        verdict: RouteVerdict,
        steps: &mut Vec<Step>,
    ) {
        match verdict {
            RouteVerdict::Punt { cause, .. } => self.trace_punted(router, of, head, cause, steps),
            RouteVerdict::Drop(reason) => steps.push(Step::Dropped(reason)),
            RouteVerdict::Out { .. } => {}
        }
    }

    /// Appends the steps of a packet that the router punts to its kernel.
    fn trace_punted(
        &self,
        router: &RouterPath,
        (from, packet): (PortId, &mut TracedPacket),
        head: &Head,
        cause: PuntCause,
        steps: &mut Vec<Step>,
    ) {
        steps.push(Step::Punted(reason_of(cause, || packet.key().ok(), &router.tables)));
        match router.interface(head.interface()) {
            Some(interface) => self.rules.policy.trace_out(from, interface.punt, packet, steps),
            None => steps.push(Step::Dropped(DropReason::NoRouterInterface)),
        }
    }
}
