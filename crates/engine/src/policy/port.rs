//! What is looked up at a port.

use std::sync::Arc;

use netvm_classifier::{NONE, Prefilter, Table};
use netvm_policy::{Flat, FlatList};
use netvm_switch::{Guard, Meter};
use netvm_wire::FlowKey;

use super::decision::Outcome;
use crate::ids::{ChainId, PortId};

/// The rules of one side, and where their decisions begin.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    /// The rules as they are looked up.
    pub(crate) list: FlatList,
    /// `None`: no rule is for this side.
    pub(crate) table: Option<Arc<Table<Flat>>>,
    /// What proves that packets are not in the table.
    pub(crate) prefilter: Option<Arc<Prefilter>>,
    /// Number of the decision of the table's first element.
    pub(crate) base: u32,
    /// Number of the decision where none matches.
    pub(crate) otherwise: u32,
}

impl Lookup {
    /// The number of the decision for packets that the prefilter excludes.
    pub(crate) fn unmatched(&self, prefilter: &Prefilter) -> u32 {
        match prefilter.otherwise() {
            NONE => self.otherwise,
            entry => self.base + entry,
        }
    }

    /// The numbers of the decisions for some keys, at most a burst.
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

/// The short way for packets that no rule matches but one that takes all, if there is one.
#[derive(Debug)]
pub(crate) struct Shortcut {
    /// What proves that it is so.
    pub(crate) prefilter: Arc<Prefilter>,
    /// Number of the decision for them.
    pub(crate) decision: u32,
    /// It is to switch them.
    pub(crate) is_switched: bool,
}

/// Of packets that come in.
#[derive(Debug)]
pub(crate) struct IngressPolicy {
    pub(crate) lookup: Lookup,
    /// The decision, where it is the same for every packet whatever is in it.
    pub(crate) blanket: Option<u32>,
    /// The decision, where it is the same for every packet and is to switch it: only Ethernet's header matters then.
    pub(crate) switched: Option<u32>,
    /// For most packets, where there is such a way.
    pub(crate) shortcut: Option<Shortcut>,
    /// Where allowed packets go.
    pub(crate) forward: Outcome,
    /// Where packets go that no rule decides on.
    pub(crate) undecided: Outcome,
    /// Anti-spoofing.
    pub(crate) guard: Option<Guard>,
    pub(crate) meter: Option<Arc<Meter>>,
    /// The chains that packets may take, for ports that wait for room.
    pub(crate) chains: Box<[ChainId]>,
}

/// Of packets that leave.
#[derive(Debug)]
pub(crate) struct EgressPolicy {
    /// By class of the port that packets came in by.
    pub(crate) lookups: Box<[Lookup]>,
    /// By [`PortId`] of that port: its class.
    pub(crate) classes: Box<[u8]>,
    pub(crate) meter: Option<Arc<Meter>>,
    /// What happens to packets that no rule decides on.
    pub(crate) undecided: Outcome,
    /// Whether there is anything to look up, for any class.
    pub(crate) looks: bool,
}

impl EgressPolicy {
    /// The class of a port that packets came in by.
    pub(crate) fn class(&self, from: PortId) -> u8 {
        self.classes.get(from.index()).copied().unwrap_or(0)
    }

    pub(crate) fn lookup(&self, from: PortId) -> Option<&Lookup> {
        self.lookups.get(usize::from(self.class(from)))
    }
}
