// SPDX-License-Identifier: Apache-2.0
//! Compiles what ports do with rule lists: their defaults, guards, token buckets and shortcuts.

use std::sync::Arc;

use netvm_model::{AclDefault, PortConfig, RouterConfig};
use netvm_policy::{Flat, Rule, Side, egress_classes};
use netvm_region::MAX_PORTS;
use netvm_switch::{Guard, GuardOptions};

use super::compilation::Compilation;
use super::{Built, Stop};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, put};
use crate::policy::decision::{ALLOW, DENY, Outcome};
use crate::policy::port::{FIRST_EGRESS, Lookup, Shortcut, Tracking};
use crate::policy::{EgressPolicy, IngressPolicy, MeterOf, Share};

impl<F: FnMut(Option<&Lookup>, &Arc<[Arc<Flat>]>) -> Result<Built, Stop>> Compilation<'_, F> {
    pub(super) fn ingress(
        &mut self,
        port: &PortConfig,
        leading: &[Rule],
        lookup: Lookup,
        everything: bool,
    ) -> Result<IngressPolicy, Stop> {
        let policy = &port.policy;
        let forward = Outcome::from(policy.forward);
        let (otherwise, undecided) = match policy.acl_in {
            AclDefault::Allow => (ALLOW, forward),
            AclDefault::Deny => (DENY, Outcome::Drop(DropReason::Denied)),
        };
        let guarded = policy.guard.as_ref().map(|guard| GuardOptions {
            macs: guard.macs.clone(),
            addresses: guard.addresses.clone(),
            ..GuardOptions::default()
        });
        let guard = guarded.map(Guard::new).transpose()?;
        let meter =
            policy.police_in.map(|police| self.meter(MeterOf::PortIn(port.id), police)).transpose()?;
        let prefilter = match &lookup.table {
            // A guard checks addresses even without rules.
            None if guard.is_some() => self.prefilter_of_nothing(),
            _ => lookup.prefilter.clone(),
        };
        let only = match &lookup.table {
            None => Some(otherwise),
            Some(_) => everything.then_some(lookup.base),
        };
        let is_from_kernel = self.host.punted_by(port.id).is_some();
        let tracking = Tracking { zone: policy.zone, is_from_kernel };
        let tracking = self.host.tracks_port(port).then_some(tracking);
        let only = only.filter(|_| guard.is_none() && tracking.is_none());
        let is_switched = |number: &u32| {
            let outcome = self.decisions[*number as usize].outcome;
            outcome.resolved(forward, undecided) == Outcome::Normal
        };
        let lookup = Lookup { otherwise, ..lookup };
        let shortcut = prefilter.filter(|_| tracking.is_none()).map(|prefilter| {
            let decision = lookup.unmatched(&prefilter);
            Shortcut { prefilter, decision, is_switched: is_switched(&decision) }
        });
        let switched = only.filter(is_switched);
        let blanket = only.filter(|number| !is_switched(number));
        let chains: Box<[ChainId]> = self.host.chains_by(leading, port).map(|chain| chain.id).collect();
        Ok(IngressPolicy {
            lookup,
            blanket,
            switched,
            shortcut,
            forward,
            undecided,
            guard,
            meter,
            chains,
            tracking,
            is_monitored: policy.monitor,
            share: Share { weight: policy.weight, reserve: policy.reserve },
            router_share: self.host.sharing_router(port.id).map(|router| {
                let RouterConfig { id, weight, reserve, .. } = *router;
                (id, Share { weight, reserve })
            }),
        })
    }

    pub(super) fn egress(
        &mut self,
        leading: &[Rule],
        ports: &[PortId],
    ) -> Result<Vec<Option<EgressPolicy>>, Stop> {
        let classes = egress_classes(leading, ports);
        let mut class_of = vec![0; MAX_PORTS];
        for (n, class) in classes.from.iter().enumerate() {
            class.iter().for_each(|port| class_of[port.index()] = n as u16);
        }
        let class_of: Arc<[u16]> = class_of.into();
        let mut egress = Vec::new();
        let mut cached = Some(FIRST_EGRESS);
        for to in &classes.to {
            let mut lookups = Vec::new();
            for from in &classes.from {
                let (Some(from), Some(to)) = (from.first(), to.first()) else { continue };
                lookups.push(self.lookup(Side::Egress { from: *from, to: *to })?.0);
            }
            for port in self.host.ports.iter().filter(|port| to.contains(&port.id)) {
                if let Some(policy) = self.egress_of(port, &lookups, &class_of)? {
                    let next = cached.and_then(|first| first.checked_add(lookups.len() as u16));
                    let cached = std::mem::replace(&mut cached, next).filter(|_| next.is_some());
                    put(&mut egress, port.id.index(), EgressPolicy { cached, ..policy });
                }
            }
        }
        Ok(egress)
    }

    fn egress_of(
        &mut self,
        port: &PortConfig,
        lookups: &[Lookup],
        classes: &Arc<[u16]>,
    ) -> Result<Option<EgressPolicy>, Stop> {
        let (otherwise, undecided) = match port.policy.acl_out {
            AclDefault::Allow => (ALLOW, Outcome::Allow),
            AclDefault::Deny => (DENY, Outcome::Drop(DropReason::Denied)),
        };
        let police = port.policy.police_out;
        let meter = police.map(|police| self.meter(MeterOf::PortOut(port.id), police)).transpose()?;
        let looks = otherwise == DENY || lookups.iter().any(|lookup| lookup.table.is_some());
        if !looks && meter.is_none() {
            return Ok(None);
        }
        let lookups = lookups.iter().map(|lookup| Lookup { otherwise, ..lookup.clone() }).collect();
        Ok(Some(EgressPolicy {
            lookups,
            classes: Arc::clone(classes),
            cached: None,
            meter,
            undecided,
            looks,
        }))
    }
}
