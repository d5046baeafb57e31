// SPDX-License-Identifier: Apache-2.0
//! netvm as the compare: imported rules by the reference of policies, connections and their translation by this crate.

use std::time::Instant;

use netvm_conntrack::{
    Config, Connections, Half, Origin, Packet, Pool, Rewrite, Target, Tracked, Translation, Zone,
};
use netvm_model::{NatAction, NatAddresses};
use netvm_policy::{Action, PortId, Rule, RuleId, RuleParts, decide};
use netvm_policy_import::{Imported, ImportedNat};
use netvm_wire::{Address, ConnState, FlowKey, IpNet, parse};

use super::super::router::Sides;

/// Bytes that translation reads.
const FRONT: usize = 256;

/// A router with imported rules.
pub struct Netvm {
    rules: Vec<Rule>,
    nat: Vec<ImportedNat>,
    table: Connections,
    routers: [Address; 2],
    networks: [IpNet; 2],
    begin: Instant,
}

impl Netvm {
    pub fn new(sides: &Sides, imported: &Imported) -> Self {
        let numbered = (0u32..).map(RuleId).zip(&imported.rules);
        let rules = numbered.map(|(id, rule)| {
            let (matches, actions) = (rule.matches.clone(), rule.actions);
            Rule::from(RuleParts { id, name: rule.name.clone(), matches, actions })
        });
        let parts = sides.addresses.map(|text| text.split_once('/').unwrap());
        let config = Config { mappings: 65_536, ..Config::default() };
        Self {
            rules: rules.collect(),
            nat: imported.nat.clone(),
            table: Connections::new(&config).unwrap(),
            routers: parts.map(|(address, _)| super::address(address)),
            networks: parts.map(|(address, length)| {
                let address: std::net::Ipv4Addr = address.parse().unwrap();
                netvm_wire::Ipv4Net::containing(address, length.parse().unwrap()).unwrap().into()
            }),
            begin: Instant::now(),
        }
    }

    /// What leaves by the other side for a frame of this side.
    pub fn forwarded(&mut self, from: usize, frame: &[u8]) -> Option<Vec<u8>> {
        let now = (self.begin.elapsed().as_millis() / 100) as u32;
        let mut key = *parse(frame).unwrap().key();
        let packet = Packet {
            key: &key.clone(),
            zone: Zone(0),
            front: &frame[..frame.len().min(FRONT)],
            length: frame.len(),
        };
        let mut tracked = [Tracked::default()];
        self.table.track(&[packet], now, &mut tracked);
        let [Tracked { state, connection, is_reply, is_translated, .. }] = tracked;
        let mut frame = frame.to_vec();
        let begins = connection.is_none() && state == ConnState::New;
        let destination = if begins { self.destination(from, &key) } else { None };
        if let Some(Target { address, port }) = destination {
            (key.destination, key.destination_port) = (address, port.unwrap_or(key.destination_port));
        }
        if is_translated {
            let connection = *self.table.get(connection?).unwrap();
            rewrite(&connection.change(Half::Destination, is_reply), &mut frame);
            key = *parse(&frame).unwrap().key();
        }
        key.state = state;
        if !self.passes(from, &key) {
            return None;
        }
        let id = match connection {
            Some(id) => Some(id),
            None if begins => {
                let translation = Translation { sources: &[], destination };
                let id = self.table.confirm_translated(&packet, Origin::default(), now, translation).unwrap();
                let sources = self.sources(from, &key);
                self.table.settle_source(id, &sources).unwrap();
                Some(id)
            }
            None => None,
        };
        if let Some(connection) = id.and_then(|id| self.table.get(id)).copied() {
            for half in [Half::Destination, Half::Source] {
                rewrite(&connection.change(half, is_reply), &mut frame);
            }
        }
        Some(frame)
    }

    /// Whether the router has a route to the other side for a packet, and rules accept it.
    fn passes(&self, from: usize, key: &FlowKey) -> bool {
        let is_routed =
            self.networks[1 - from].contains(key.destination) && !self.routers.contains(&key.destination);
        let leaves = self.rules.iter().any(|rule| rule.matches.is_egress());
        let to = leaves.then(|| PortId(1 - from as u16));
        is_routed && decide(&self.rules, PortId(from as u16), to, key).actions.terminal == Some(Action::Allow)
    }

    /// The NAT rule of a side that takes the first packet of a connection.
    fn rule(&self, from: usize, to: Option<PortId>, key: &FlowKey) -> Option<&NatAction> {
        let is_local = self.routers.contains(&key.destination);
        let takes = |nat: &&ImportedNat| {
            nat.matches.is_egress() == to.is_some()
                && (is_local || !nat.is_local)
                && nat.matches.fits(PortId(from as u16), to, key)
        };
        self.nat.iter().find(takes).map(|nat| &nat.action)
    }

    fn destination(&self, from: usize, key: &FlowKey) -> Option<Target> {
        let Some(NatAction::Destination(destination)) = self.rule(from, None, key) else { return None };
        let target = destination.targets[0];
        let address = target.address.unwrap_or(self.routers[from]);
        Some(Target { address, port: target.port })
    }

    fn sources(&self, from: usize, key: &FlowKey) -> Vec<Pool> {
        let to = 1 - from;
        let Some(NatAction::Source(source)) = self.rule(from, Some(PortId(to as u16)), key) else {
            return vec![];
        };
        let pool = |first, last| Pool::new(first, last, source.ports);
        match &source.addresses {
            NatAddresses::Interface => vec![pool(self.routers[to], self.routers[to])],
            NatAddresses::Ranges(ranges) => {
                ranges.iter().map(|range| pool(range.first, range.last)).collect()
            }
        }
    }
}

fn rewrite(change: &netvm_conntrack::Change, frame: &mut [u8]) {
    let (length, end) = (frame.len(), frame.len().min(FRONT));
    let mut packet = Rewrite { front: &mut frame[..end], length, is_partial: false };
    change.apply(&mut packet).unwrap();
}
