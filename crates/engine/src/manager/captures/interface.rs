// SPDX-License-Identifier: Apache-2.0
//! The points of a capture: each is an interface of the capture file. A capture stores their names, because the numbers
//! of ports, chains, NFs and routers change with the configuration.

use netvm_model::Host;
use netvm_model::words::nearest_names;

use super::{CaptureError, Numbering};
use crate::capture::points::CapturePoints;
use crate::ids::{ChainId, RoleId};
use crate::port_bits::PortBits;

/// A point at which packets are captured, by its names in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamedCapturePoint {
    /// Packets that a port receives and sends.
    Port(String),
    /// Packets that the NF of one hop of a chain gets and returns.
    Hop {
        /// The chain.
        chain: String,
        /// Position, from 0.
        hop: u8,
        /// The role there.
        role: String,
    },
    /// Drops in a chain.
    Chain(String),
    /// Packets that the NFs of a role get and return, in any chain.
    Nf(String),
    /// Packets that enter and leave a virtual router.
    Router(String),
}

impl NamedCapturePoint {
    /// Its name, in the form for `--at`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Port(name) | Self::Chain(name) | Self::Nf(name) | Self::Router(name) => name.clone(),
            Self::Hop { chain, hop, .. } => format!("{chain}:{}", hop + 1),
        }
    }

    /// A description for people.
    #[must_use]
    pub fn description(&self) -> String {
        match self {
            Self::Port(name) => format!("port {name}"),
            Self::Chain(name) => format!("chain {name}"),
            Self::Nf(role) => format!("NF {role}"),
            Self::Router(name) => format!("virtual router {name}"),
            Self::Hop { chain, hop, role } => format!("hop {} of chain {chain}: NF {role}", hop + 1),
        }
    }

    /// The chains whose hops are captured.
    pub(super) fn chains(&self, host: &Host) -> Vec<ChainId> {
        match self {
            Self::Hop { chain, .. } => host.chain_named(chain).map(|chain| chain.id).into_iter().collect(),
            Self::Nf(role) => {
                let Some(nf) = host.nf_named(role) else { return Vec::new() };
                let through = host.chains.iter().filter(|chain| chain.hops.contains(&nf.id));
                through.map(|chain| chain.id).collect()
            }
            Self::Port(_) | Self::Chain(_) | Self::Router(_) => Vec::new(),
        }
    }

    /// Adds the ports of whose packets workers have to see every one to `ports`. A chain's and an NF's packets pass
    /// workers or NFs anyway.
    pub(super) fn add_ports(&self, host: &Host, ports: &mut PortBits) {
        match self {
            Self::Port(name) => host.port_named(name).into_iter().for_each(|port| ports.add(port.id)),
            Self::Router(name) => {
                let interfaces = host.router_named(name).into_iter().flat_map(|router| &router.interfaces);
                interfaces.for_each(|interface| ports.add(interface.port));
            }
            Self::Hop { .. } | Self::Chain(_) | Self::Nf(_) => {}
        }
    }

    /// Adds its current numbers to `points`, as interface `number`.
    pub(super) fn add_to(&self, points: &mut CapturePoints, number: u16, numbering: Numbering<'_>) {
        let Numbering { host, shortened } = numbering;
        let with_short = |id: ChainId| {
            let variants = shortened.iter().filter(move |short| short.of == id);
            variants.map(|short| short.id).chain([id])
        };
        match self {
            Self::Port(name) => {
                if let Some(port) = host.port_named(name) {
                    points.add_port(port.id, number);
                }
            }
            Self::Chain(name) => {
                if let Some(chain) = host.chain_named(name) {
                    with_short(chain.id).for_each(|id| points.add_chain(id, number));
                }
            }
            Self::Hop { chain, hop, .. } => {
                if let Some(chain) = host.chain_named(chain) {
                    with_short(chain.id).for_each(|id| points.add_hop(id, *hop, number));
                }
            }
            Self::Nf(role) => {
                if let Some(nf) = host.nf_named(role) {
                    points.add_role(nf.id, number);
                }
            }
            Self::Router(name) => {
                if let Some(router) = host.router_named(name) {
                    points.add_router(router.id, number);
                }
            }
        }
    }
}

/// All ports.
pub(super) fn of_ports(host: &Host) -> Vec<NamedCapturePoint> {
    host.ports.iter().map(|port| NamedCapturePoint::Port(port.name.clone())).collect()
}

/// Everything that drops packets.
pub(super) fn of_everything(host: &Host) -> Vec<NamedCapturePoint> {
    let chains = host.chains.iter().map(|chain| NamedCapturePoint::Chain(chain.name.clone()));
    let nfs = host.nfs.iter().map(|nf| NamedCapturePoint::Nf(nf.role.clone()));
    of_ports(host).into_iter().chain(nfs).chain(chains).collect()
}

/// The interfaces that a name stands for: `PORT`, `NF`, `ROUTER`, `CHAIN` or `CHAIN:HOP`, or one of these after
/// `port:`, `nf:`, `router:` or `chain:`.
pub(super) fn of_point(host: &Host, name: &str, drops: bool) -> Result<Vec<NamedCapturePoint>, CaptureError> {
    let kinds = ["port", "nf", "router", "chain"];
    let (kind, rest) = match name.split_once(':') {
        Some((kind, rest)) if kinds.contains(&kind) && host.chain_named(kind).is_none() => (Some(kind), rest),
        _ => (None, name),
    };
    let mut found: Vec<(&str, Vec<NamedCapturePoint>)> = Vec::new();
    let is_kind = |this: &str| kind.is_none_or(|kind| kind == this);
    if is_kind("port") && host.port_named(rest).is_some() {
        found.push(("port", vec![NamedCapturePoint::Port(rest.to_owned())]));
    }
    if is_kind("nf") && host.nf_named(rest).is_some() {
        found.push(("nf", vec![NamedCapturePoint::Nf(rest.to_owned())]));
    }
    if is_kind("router") && host.router_named(rest).is_some() {
        found.push(("router", vec![NamedCapturePoint::Router(rest.to_owned())]));
    }
    if is_kind("chain")
        && let Some(interfaces) = of_chain(host, rest, drops)?
    {
        found.push(("chain", interfaces));
    }
    if found.len() > 1 {
        let what: Vec<&str> = found.iter().map(|(kind, _)| *kind).collect();
        let remedy: Vec<String> = what.iter().map(|kind| format!("{kind}:{rest}")).collect();
        let (what, remedy) = (what.join(" and "), remedy.join(" or "));
        return Err(CaptureError::Ambiguous { name: name.to_owned(), what, remedy });
    }
    found.pop().map(|(_, interfaces)| interfaces).ok_or_else(|| {
        let ports = host.ports.iter().map(|port| port.name.as_str());
        let chains = host.chains.iter().map(|chain| chain.name.as_str());
        let nfs = host.nfs.iter().map(|nf| nf.role.as_str());
        let routers = host.routers.iter().map(|router| router.name.as_str());
        let near = nearest_names(rest, ports.chain(chains).chain(nfs).chain(routers));
        CaptureError::UnknownPoint { name: name.to_owned(), near }
    })
}

/// One hop of a chain, by position from 1 or by role, or all hops. For drops of a whole chain, also the chain itself.
fn of_chain(host: &Host, name: &str, drops: bool) -> Result<Option<Vec<NamedCapturePoint>>, CaptureError> {
    let (name, wanted) = match host.chain_named(name) {
        Some(_) => (name, None),
        None => match name.rsplit_once(':') {
            Some((chain, hop)) => (chain, Some(hop)),
            None => return Ok(None),
        },
    };
    let Some(chain) = host.chain_named(name) else { return Ok(None) };
    let role = |id: &RoleId| host.nf(*id).map_or_else(String::new, |nf| nf.role.clone());
    let hops = (0u8..).zip(&chain.hops).map(|(hop, id)| {
        let chain = chain.name.clone();
        NamedCapturePoint::Hop { chain, hop, role: role(id) }
    });
    let Some(wanted) = wanted else {
        let whole = drops.then(|| NamedCapturePoint::Chain(chain.name.clone()));
        return Ok(Some(hops.chain(whole).collect()));
    };
    let is_wanted = |point: &NamedCapturePoint| match point {
        NamedCapturePoint::Hop { hop, role, .. } => {
            wanted == role || wanted.parse() == Ok(u16::from(*hop) + 1)
        }
        _ => false,
    };
    let chosen: Vec<NamedCapturePoint> = hops.filter(is_wanted).collect();
    if chosen.is_empty() {
        let named = |(n, id): (usize, &RoleId)| format!("{} ({})", n + 1, role(id));
        let all: Vec<String> = chain.hops.iter().enumerate().map(named).collect();
        let (chain, hop) = (chain.name.clone(), wanted.to_owned());
        return Err(CaptureError::UnknownHop { chain, hop, hops: all.join(", ") });
    }
    Ok(Some(chosen))
}
