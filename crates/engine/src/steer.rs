//! Static steering: the rules of a port, the first that matches decides.

use netvm_config::model::{Match, SteerAction};
use netvm_wire::{Headers, parse_prefix};

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};

/// Bytes of a packet that are copied before they are parsed: the longest run of headers that steering looks at.
pub(crate) const HEADER_BYTES: usize = 256;

/// What is done with a packet that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steering {
    Chain(ChainId),
    Port(PortId),
    Drop(DropReason),
}

/// The rules of one port.
#[derive(Clone, Debug)]
pub(crate) struct PortRules {
    rules: Box<[(Match, Steering)]>,
    /// The first rule matches everything: no packet need be looked at.
    blanket: Option<Steering>,
}

impl PortRules {
    pub(crate) fn new(rules: impl IntoIterator<Item = (Match, SteerAction)>) -> Self {
        let steering = |action| match action {
            SteerAction::Chain(chain) => Steering::Chain(chain),
            SteerAction::Port(port) => Steering::Port(port),
            SteerAction::Drop => Steering::Drop(DropReason::Steered),
        };
        let rules: Box<[_]> =
            rules.into_iter().map(|(matches, action)| (matches, steering(action))).collect();
        let blanket = match rules.first() {
            None => Some(Steering::Drop(DropReason::NoRule)),
            Some((matches, steering)) if matches.is_any() => Some(*steering),
            Some(_) => None,
        };
        Self { rules, blanket }
    }

    /// The way of every packet, where it depends on none of them.
    #[inline(always)]
    pub(crate) const fn blanket(&self) -> Option<Steering> {
        self.blanket
    }

    /// The chains that packets may take from here, for ports that wait for room.
    pub(crate) fn chains(&self) -> impl Iterator<Item = ChainId> + '_ {
        self.rules.iter().filter_map(|(_, steering)| match steering {
            Steering::Chain(chain) => Some(*chain),
            _ => None,
        })
    }

    /// The way of one packet of `length` bytes, by a private copy of its first bytes.
    pub(crate) fn steer(&self, headers: &[u8], length: usize) -> Steering {
        let parsed = parse_prefix(headers, length).ok();
        for (matches, steering) in &self.rules {
            if matches.is_any() || parsed.as_ref().is_some_and(|headers| fits(matches, headers)) {
                return *steering;
            }
        }
        Steering::Drop(if parsed.is_none() { DropReason::Malformed } else { DropReason::NoRule })
    }
}

fn fits(matches: &Match, headers: &Headers) -> bool {
    let tuple = headers.five_tuple();
    let vlan = matches.vlan.is_none_or(|vlan| headers.vlan() == Some(vlan));
    let source = matches.source.is_none_or(|net| tuple.is_some_and(|tuple| net.contains(tuple.source)));
    let destination =
        matches.destination.is_none_or(|net| tuple.is_some_and(|tuple| net.contains(tuple.destination)));
    let protocol =
        matches.protocol.is_none_or(|protocol| tuple.is_some_and(|tuple| tuple.protocol == protocol));
    let from =
        matches.source_ports.is_none_or(|ports| tuple.is_some_and(|tuple| ports.contains(tuple.source_port)));
    let to = matches
        .destination_ports
        .is_none_or(|ports| tuple.is_some_and(|t| ports.contains(t.destination_port)));
    vlan && source && destination && protocol && from && to
}

/// Eight bits of the hash of a packet's flow, the same for both directions; 0 for what has none.
pub(crate) fn flow_hash(headers: &Headers) -> u8 {
    headers.five_tuple().map_or(0, |tuple| tuple.symmetric_hash() as u8)
}
