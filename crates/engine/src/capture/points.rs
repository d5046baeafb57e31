// SPDX-License-Identifier: Apache-2.0
//! The points of one capture, by number.

use netvm_capture_ring::NONE_U16;
use netvm_model::{MAX_ROLES, MAX_ROUTERS};
use netvm_region::{MAX_CHAINS, MAX_HOPS, MAX_PORTS};

use super::{CaptureMeta, CapturePoint};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, RoleId, RouterId};

const _: () = assert!(DropReason::COUNT <= DropReasons::BITS as usize);

/// A bit for each drop reason.
pub(crate) type DropReasons = u128;

/// For each point, the number of its interface in the capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CapturePoints {
    /// If set, captures drops for these reasons (bit mask) instead of packets that pass.
    dropped: Option<DropReasons>,
    ports: [u16; MAX_PORTS],
    hops: [[u16; MAX_HOPS]; MAX_CHAINS],
    chains: [u16; MAX_CHAINS],
    roles: [u16; MAX_ROLES],
    routers: [u16; MAX_ROUTERS],
}

impl CapturePoints {
    /// No point yet.
    pub(crate) fn new(dropped: Option<DropReasons>) -> Box<Self> {
        Box::new(Self {
            dropped,
            ports: [NONE_U16; MAX_PORTS],
            hops: [[NONE_U16; MAX_HOPS]; MAX_CHAINS],
            chains: [NONE_U16; MAX_CHAINS],
            roles: [NONE_U16; MAX_ROLES],
            routers: [NONE_U16; MAX_ROUTERS],
        })
    }

    pub(crate) fn add_port(&mut self, port: PortId, interface: u16) {
        set(&mut self.ports, port.index(), interface);
    }

    pub(crate) fn add_hop(&mut self, chain: ChainId, hop: u8, interface: u16) {
        if let Some(hops) = self.hops.get_mut(chain.index()) {
            set(hops, hop.into(), interface);
        }
    }

    pub(crate) fn add_chain(&mut self, chain: ChainId, interface: u16) {
        set(&mut self.chains, chain.index(), interface);
    }

    pub(crate) fn add_role(&mut self, role: RoleId, interface: u16) {
        set(&mut self.roles, role.index(), interface);
    }

    pub(crate) fn add_router(&mut self, router: RouterId, interface: u16) {
        set(&mut self.routers, router.index(), interface);
    }

    /// The interface of packets at a point, if the capture includes them.
    #[inline]
    pub(crate) fn interface(&self, meta: &CaptureMeta) -> Option<u16> {
        match (self.dropped, meta.reason) {
            (None, None) => {}
            (Some(reasons), Some(reason)) if reasons >> reason as u8 & 1 == 1 => {}
            _ => return None,
        }
        let known = |number: Option<&u16>| number.copied().filter(|number| *number != NONE_U16);
        match meta.point {
            CapturePoint::Port(port) => known(self.ports.get(port.index())),
            CapturePoint::Hop { chain, hop, role } => {
                let hops = self.hops.get(chain.index());
                known(hops.and_then(|hops| hops.get(usize::from(hop))))
                    .or_else(|| known(self.roles.get(role.index())))
                    .or_else(|| known(self.chains.get(chain.index())).filter(|_| self.dropped.is_some()))
            }
            CapturePoint::Chain(chain) => known(self.chains.get(chain.index())),
            CapturePoint::Router(router) => known(self.routers.get(router.index())),
        }
    }
}

fn set(list: &mut [u16], index: usize, interface: u16) {
    if let Some(number) = list.get_mut(index) {
        *number = interface;
    }
}
