// SPDX-License-Identifier: Apache-2.0
//! Programs in snapshots: where packets of a hop go, and which chain a packet continues that comes back.

use std::sync::Arc;

use netvm_model::{Chain, NfConfig, OnFailure, PairConfig, PairEnd, PairHop, PairSide, WhileStarting};

use super::snapshot::View;
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, RoleId};
use crate::manager::pairs::PairMembers;
use crate::snapshot::{PairPorts, PairReturn, PairTarget, Passed, Target};

/// An instance of a program.
#[derive(Clone, Copy)]
struct Instance<'a> {
    nf: &'a NfConfig,
    pair: &'a PairConfig,
    instance: u16,
    ports: [PortId; 2],
}

impl View<'_> {
    /// The programs at a hop; `None` if the role is not that of a program.
    pub(super) fn program(&self, chain: &Chain, role: RoleId, hop: u8) -> Option<Target> {
        let members = self.programs.get(&role)?;
        let enters = usize::from(chain.reverse.is_some());
        let ports: Box<[PortId]> = members.ports.iter().map(|ports| ports[enters]).collect();
        Some(match ports.is_empty() {
            false => {
                let routes =
                    self.host.nf(role).and_then(NfConfig::pair).is_some_and(|pair| pair.rewrite_macs);
                Target::Pair(PairTarget { hop, side: enters as u8, routes, ports })
            }
            true if members.while_starting == Some(WhileStarting::Hold) => Target::Start(role),
            true => Target::Drop(DropReason::NfDown),
        })
    }

    /// Whether packets skip a hop of a chain that nothing serves.
    pub(super) fn is_bypassed(&self, chain: &Chain, role: RoleId) -> bool {
        match self.programs.get(&role).and_then(|members| members.while_starting) {
            Some(policy) => policy == WhileStarting::Bypass,
            None => chain.on_failure == OnFailure::Bypass,
        }
    }

    /// Whether packets pass a program of this role, or wait for it.
    pub(super) fn has_program(&self, role: RoleId) -> bool {
        self.programs.get(&role).is_some_and(|members| {
            !members.ports.is_empty() || members.while_starting == Some(WhileStarting::Hold)
        })
    }

    /// What comes back by the ports of all programs.
    pub(super) fn pair_ports(&self) -> PairPorts {
        let mut returns = Vec::new();
        for nf in &self.host.nfs {
            let Some(pair) = nf.pair() else { continue };
            let hops: Vec<PairHop> = self.host.pair_hops(nf).collect();
            for (instance, ports) in (0..).zip(&pair.ports) {
                let of = Instance { nf, pair, instance, ports: *ports };
                returns.extend((0..2).map(|side| self.pair_return(of, &hops, side)));
            }
        }
        PairPorts::new(returns)
    }

    /// What comes back by the port of one side of an instance: its only port, or the one on that side.
    fn pair_return(&self, of: Instance<'_>, hops: &[PairHop], side: usize) -> PairReturn {
        let Instance { nf, pair, instance, ports } = of;
        let (port, other) = (ports[side], ports[1 - side]);
        let passed = PairSide::BOTH.map(|entered| {
            let hop = hops.iter().find(|hop| hop.enters == entered)?;
            let comes_back_here = port == other || entered != PairSide::BOTH[side];
            let from = self.only_port_into(hop.chain);
            comes_back_here.then_some(Passed { chain: hop.chain, hop: hop.hop as u8, from })
        });
        let of_port = |members: &PairMembers| {
            members.flows.iter().find(|(of, _)| *of == ports).map(|(_, flows)| Arc::clone(flows))
        };
        let end = PairEnd { role: &nf.role, instance, side: pair.sides()[side.min(pair.sides().len() - 1)] };
        PairReturn {
            port,
            other,
            passed,
            is_up: self
                .programs
                .get(&nf.id)
                .is_some_and(|members| members.ports.contains(&ports) && !members.leaving.contains(&ports)),
            flows: self.programs.get(&nf.id).and_then(of_port),
            mac: pair.rewrite_macs.then(|| end.mac()),
            raises_ttl: pair.restore_ttl,
        }
    }

    /// The port that receives all packets of a chain, if there is one such port.
    fn only_port_into(&self, chain: ChainId) -> Option<PortId> {
        let mut ports = self.host.ports_into(chain).map(|port| port.id);
        let first = ports.next()?;
        ports.all(|other| other == first).then_some(first)
    }
}
