// SPDX-License-Identifier: Apache-2.0
//! The ports of programs that are hops.

use netvm_ids::{ChainId, PortId};

use super::Host;
use crate::nf::{Attach, Chain, NfConfig, NfStart, PairConfig, PairEnd, PairSide};
use crate::port::{
    ContainerConfig, MemifConfig, PortConfig, PortKind, PortPolicy, SocketRights, VhostDma, VhostMode,
};

/// The port of a program, as [`Host::pair_end`] finds it.
#[derive(Clone, Copy, Debug)]
pub struct PairPort<'a> {
    /// The NF.
    pub nf: &'a NfConfig,
    /// How it is attached.
    pub pair: &'a PairConfig,
    /// The number of the instance.
    pub instance: u16,
    /// The side.
    pub side: PairSide,
}

/// A hop of a chain by which packets pass a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairHop {
    /// The chain.
    pub chain: ChainId,
    /// The position in it.
    pub hop: usize,
    /// The side by which packets enter.
    pub enters: PairSide,
}

/// What the port of one side is: one row for each way to attach a program.
fn kind_of(pair: &PairConfig, end: &PairEnd<'_>) -> PortKind {
    match pair.attach {
        Attach::Veth => PortKind::AfPacket { interface: end.outer_name() },
        Attach::AfXdp => PortKind::AfXdp { interface: end.outer_name(), generic: false },
        Attach::TapDevice => PortKind::Container(ContainerConfig {
            namespace: end.namespace(),
            interface: end.side.word().to_owned(),
            offloads: pair.offloads,
            mac: pair.rewrite_macs.then(|| end.mac()),
            ..ContainerConfig::default()
        }),
        Attach::VhostUser => PortKind::VhostUser {
            path: end.socket(&pair.sockets),
            mode: VhostMode::Server,
            dma: VhostDma::default(),
        },
        Attach::Memif => {
            PortKind::Memif(MemifConfig { path: end.socket(&pair.sockets), ..MemifConfig::default() })
        }
    }
}

impl Host {
    /// Adds the ports of all programs after those of the file and the punt ports. They receive packets into the memory
    /// of the NF's group.
    pub fn add_pair_ports(&mut self) {
        let mut numbers = (self.ports.len() as u16..).map(PortId);
        let mut ports = Vec::new();
        for nf in &mut self.nfs {
            let NfStart::Ports(pair) = &mut nf.start else { continue };
            pair.ports.clear();
            for instance in 0..pair.instances() {
                let end = |side| PairEnd { role: &nf.role, instance, side };
                let sides = pair.sides().iter().map(|side| (end(*side), numbers.next().unwrap_or_default()));
                let sides: Vec<_> = sides.collect();
                // The only one twice.
                let (Some((_, first)), Some((_, last))) = (sides.first(), sides.last()) else { continue };
                pair.ports.push([*first, *last]);
                for (end, number) in sides {
                    let owner = (pair.user != "root").then(|| pair.user.clone());
                    ports.push(PortConfig {
                        mtu: pair.mtu,
                        group: Some(nf.group),
                        socket: SocketRights { owner, ..SocketRights::default() },
                        policy: PortPolicy { monitor: false, ..PortPolicy::default() },
                        ..PortConfig::new(number, end.port_name(), kind_of(pair, &end))
                    });
                }
            }
        }
        self.ports.extend(ports);
    }

    /// The program whose port this is.
    #[must_use]
    pub fn pair_end(&self, port: PortId) -> Option<PairPort<'_>> {
        self.nfs.iter().find_map(|nf| {
            let pair = nf.pair()?;
            let instance = pair.ports.iter().position(|ports| ports.contains(&port))?;
            let side = match pair.ports[instance] {
                [left, right] if left == right => PairSide::Only,
                [left, _] if left == port => PairSide::Left,
                _ => PairSide::Right,
            };
            Some(PairPort { nf, pair, instance: instance as u16, side })
        })
    }

    /// Whether netvm adds a port for something that the configuration names: an interface of a router, or a program.
    #[must_use]
    pub fn is_implied(&self, port: PortId) -> bool {
        self.punted_by(port).is_some() || self.pair_end(port).is_some()
    }

    /// The hops at which packets pass a program, at most one of each direction.
    pub fn pair_hops<'a>(&'a self, nf: &'a NfConfig) -> impl Iterator<Item = PairHop> + 'a {
        self.chains.iter().flat_map(move |chain: &Chain| {
            let enters = if chain.reverse.is_some() { PairSide::Right } else { PairSide::Left };
            let hops = chain.hops.iter().enumerate().filter(|(_, role)| **role == nf.id);
            hops.map(move |(hop, _)| PairHop { chain: chain.id, hop, enters })
        })
    }

    /// The ports whose packets may enter a chain, without those that netvm adds.
    pub fn ports_into(&self, chain: ChainId) -> impl Iterator<Item = &PortConfig> {
        let leads = move |port: &&PortConfig| {
            !self.is_implied(port.id) && self.chains_from(port).any(|led| led.id == chain)
        };
        self.ports.iter().filter(leads)
    }
}
