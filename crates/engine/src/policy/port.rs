// SPDX-License-Identifier: Apache-2.0
//! Rule lookups of a port.

use std::sync::Arc;

use netvm_classifier::{NONE, Prefilter, Table};
use netvm_model::RouterId;
use netvm_policy::{Flat, FlatList};
use netvm_switch::{Guard, Meter};
use netvm_wire::FlowKey;

use super::decision::Outcome;
use crate::ids::{ChainId, PortId};

/// The first port number in the flow cache that means egress: one number for each egress port and class of ingress
/// ports. Entries of received packets have the [`PortId`] of the ingress port.
pub(crate) const FIRST_EGRESS: u16 = netvm_region::MAX_PORTS as u16;

/// The compiled rules of one side, and where their decisions begin.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    /// The flattened rules.
    pub(crate) list: FlatList,
    /// `None` if no rule applies to this side.
    pub(crate) table: Option<Arc<Table<Flat>>>,
    /// Proves for most packets that no rule matches.
    pub(crate) prefilter: Option<Arc<Prefilter>>,
    /// Decision number of the table's first element.
    pub(crate) base: u32,
    /// Decision number if no rule matches.
    pub(crate) otherwise: u32,
}

impl Lookup {
    /// Decision number for packets that the prefilter excludes.
    pub(crate) fn unmatched(&self, prefilter: &Prefilter) -> u32 {
        match prefilter.otherwise() {
            NONE => self.otherwise,
            entry => self.base + entry,
        }
    }

    /// Decision numbers for at most a burst of keys.
    #[inline]
    pub(crate) fn decide(&self, keys: &[FlowKey], decisions: &mut [u32]) {
        match &self.table {
            None => decisions.fill(self.otherwise),
            Some(table) => {
                table.classify(keys, decisions);
                for decision in decisions {
                    *decision = if *decision == NONE { self.otherwise } else { self.base + *decision };
                }
            }
        }
    }
}

/// Shortcut for packets that match no rule, or only a catch-all.
#[derive(Debug)]
pub(crate) struct Shortcut {
    /// Proves that the shortcut applies.
    pub(crate) prefilter: Arc<Prefilter>,
    /// Decision number for them.
    pub(crate) decision: u32,
    /// Whether the decision is L2 switching.
    pub(crate) is_switched: bool,
}

/// A port's share of each worker that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Its weight in the time that is not reserved.
    pub(crate) weight: u16,
    /// Its reserve in percent of the worker's time.
    pub(crate) reserve: u8,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, reserve: 0 }
    }
}

/// How the connections of packets that a port receives are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tracking {
    /// Their zone.
    pub(crate) zone: u16,
    /// The packets come from the kernel of a router, which may have forwarded them.
    pub(crate) is_from_kernel: bool,
}

/// Policy for received packets.
#[derive(Debug)]
pub(crate) struct IngressPolicy {
    pub(crate) lookup: Lookup,
    /// The decision, if it is the same for every packet.
    pub(crate) blanket: Option<u32>,
    /// The decision, if it is L2 switching for every packet: only the Ethernet header matters.
    pub(crate) switched: Option<u32>,
    /// Shortcut for most packets, if there is one.
    pub(crate) shortcut: Option<Shortcut>,
    /// Where allowed packets go.
    pub(crate) forward: Outcome,
    /// Where packets without a matching rule go.
    pub(crate) undecided: Outcome,
    /// Anti-spoofing.
    pub(crate) guard: Option<Guard>,
    pub(crate) meter: Option<Arc<Meter>>,
    /// Chains that packets may enter, for ports that wait for room.
    pub(crate) chains: Box<[ChainId]>,
    /// How the connections of its packets are tracked; `None`: they are not.
    pub(crate) tracking: Option<Tracking>,
    /// Whether the flow monitor counts its packets.
    pub(crate) is_monitored: bool,
    /// Its share of its workers.
    pub(crate) share: Share,
    /// If its share is a part of a router's share: the router, and the router's share.
    pub(crate) router_share: Option<(RouterId, Share)>,
}

/// Policy for packets to send.
#[derive(Debug)]
pub(crate) struct EgressPolicy {
    /// By class of the ingress port.
    pub(crate) lookups: Box<[Lookup]>,
    /// Class of each ingress port, by [`PortId`]; all egress ports share it.
    pub(crate) classes: Arc<[u16]>,
    /// The number in the flow cache for packets whose ingress port has the first class; other classes have the
    /// following numbers. `None` if no numbers were left: then each packet is looked up in the rules.
    pub(crate) cached: Option<u16>,
    pub(crate) meter: Option<Arc<Meter>>,
    /// Outcome for packets without a matching rule.
    pub(crate) undecided: Outcome,
    /// Whether any class has rules.
    pub(crate) looks: bool,
}

impl EgressPolicy {
    /// The class of an ingress port.
    pub(crate) fn class(&self, from: PortId) -> u16 {
        self.classes.get(from.index()).copied().unwrap_or(0)
    }

    pub(crate) fn lookup(&self, from: PortId) -> Option<&Lookup> {
        self.lookups.get(usize::from(self.class(from)))
    }
}
