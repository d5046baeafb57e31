//! Programs in snapshots: where packets of a hop go, and which chain a packet continues that comes back.

use netvm_model::{Chain, NfConfig, OnFailure, PairHop, PairSide, WhileStarting};

use super::snapshot::View;
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, RoleId};
use crate::snapshot::{PairPorts, PairReturn, PairTarget, Target};

impl View<'_> {
    /// The programs at a hop; `None` if the role is not that of a program.
    pub(super) fn program(&self, chain: &Chain, role: RoleId, hop: u8) -> Option<Target> {
        let members = self.programs.get(&role)?;
        let enters = usize::from(chain.reverse.is_some());
        let ports: Box<[PortId]> = members.ports.iter().map(|ports| ports[enters]).collect();
        let is_there = !ports.is_empty();
        Some(if is_there {
            Target::Pair(PairTarget { hop, ports })
        } else {
            Target::Drop(DropReason::NfDown)
        })
    }

    /// Whether packets skip a hop of a chain that nothing serves.
    pub(super) fn is_bypassed(&self, chain: &Chain, role: RoleId) -> bool {
        match self.programs.get(&role).and_then(|members| members.while_starting) {
            Some(policy) => policy == WhileStarting::Bypass,
            None => chain.on_failure == OnFailure::Bypass,
        }
    }

    /// Whether packets pass a program of this role.
    pub(super) fn has_program(&self, role: RoleId) -> bool {
        self.programs.get(&role).is_some_and(|members| !members.ports.is_empty())
    }

    /// What comes back by the ports of all programs.
    pub(super) fn pair_ports(&self) -> PairPorts {
        let returns = |nf: &NfConfig| {
            let hops: Vec<PairHop> = self.host.pair_hops(nf).collect();
            let ports = nf.pair().map(|pair| pair.ports.clone()).unwrap_or_default();
            let role = nf.id;
            ports.into_iter().flat_map(move |ports| {
                let of = |(port, side): (PortId, PairSide)| {
                    let hop = hops.iter().find(|hop| hop.enters == side.other());
                    let passed = hop.map(|hop| (hop.chain, hop.hop as u8));
                    PairReturn {
                        port,
                        role,
                        passed,
                        from: hop.and_then(|hop| self.only_port_into(hop.chain)),
                    }
                };
                ports.into_iter().zip(PairSide::BOTH).map(of).collect::<Vec<_>>()
            })
        };
        PairPorts::new(self.host.nfs.iter().flat_map(returns).collect())
    }

    /// The port that receives all packets of a chain, if there is one such port.
    fn only_port_into(&self, chain: ChainId) -> Option<PortId> {
        let mut ports = self.host.ports_into(chain).map(|port| port.id);
        let first = ports.next()?;
        ports.all(|other| other == first).then_some(first)
    }
}
