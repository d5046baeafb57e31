//! Traces a packet through a virtual router, with the tables that the workers use.

use netvm_config::model::RouterId;
use netvm_router::{NextHop, NextHopId};
use netvm_wire::FlowKey;

use super::super::Engine;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::Step;
use crate::worker::{Class, Head, Source, V4, V6, flow_hash, judge_source};

impl Engine {
    /// Appends the steps of a packet that reaches a router.
    pub(crate) fn trace_routed(
        &self,
        router: RouterId,
        from: PortId,
        headers: &[u8],
        length: usize,
        steps: &mut Vec<Step>,
    ) {
        let dropped = Step::Dropped(DropReason::NoRouterInterface);
        let Some(router) = self.routers.paths.get(router.index()).and_then(Option::as_deref) else {
            return steps.push(dropped);
        };
        let key = FlowKey::of_frame(headers, length);
        if let Some(interface) = router.punted_by(from) {
            return self.rules.policy.trace_out(from, interface.port, key, steps);
        }
        let (mut head, frame_length) = (Head::of(headers), length);
        let (header, length, next_hop) = match head.classify(router, router.on(from), length as u32) {
            Class::V4 { destination, length } => {
                let mut found = [NextHopId::PUNT];
                router.tables.lookup_v4(&[destination], &mut found);
                (V4, length, router.tables.next_hop(found[0]))
            }
            Class::V6 { destination, length } => {
                let mut found = [NextHopId::PUNT];
                router.tables.lookup_v6(&[destination], &mut found);
                (V6, length, router.tables.next_hop(found[0]))
            }
            Class::Punt(_) => (V4, 0, &NextHop::Punt),
            Class::Drop(reason) => return steps.push(Step::Dropped(reason)),
        };
        let is_checked = length > 0 && router.checks_sources;
        let source = if is_checked { judge_source(router, &head, header) } else { Source::Believed };
        if source == Source::Forged {
            return steps.push(Step::Dropped(DropReason::Urpf));
        }
        if *next_hop == NextHop::Blackhole {
            return steps.push(Step::Dropped(DropReason::Blackhole));
        }
        let hop = next_hop.choose(flow_hash(key.ok()));
        let out = hop.and_then(|hop| Some((router.interface(hop.interface)?, hop.mac)));
        let is_known = source == Source::Believed;
        let Some((out, mac)) = out.filter(|(out, _)| is_known && length <= out.mtu) else {
            steps.push(Step::Punted);
            let punt = router.interface(head.interface()).map(|interface| interface.punt);
            return match punt {
                Some(punt) => self.rules.policy.trace_out(from, punt, key, steps),
                None => steps.push(dropped),
            };
        };
        steps.push(Step::NextHop { port: out.port, vlan: out.vlan, mac });
        let old = usize::from(head.old(header));
        let key = match head.forward(out, mac, header) {
            Some(new) => {
                let packet = [new, headers.get(old..).unwrap_or_default()].concat();
                FlowKey::of_frame(&packet, new.len() + frame_length.saturating_sub(old))
            }
            None => key,
        };
        self.rules.policy.trace_out(from, out.port, key, steps);
    }
}
