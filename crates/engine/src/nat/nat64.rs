// SPDX-License-Identifier: Apache-2.0
//! NAT64 of routers, as workers use it.

use std::sync::Arc;

use netvm_conntrack::nat64::Prefix;
use netvm_conntrack::{Nat64, Pool};
use netvm_model::Host;
use netvm_wire::{Address, FlowKey};

use super::rules;
use crate::ids::put;

/// NAT64 of a router.
#[derive(Debug)]
pub(crate) struct Nat64Path {
    pub(crate) prefix: Prefix,
    pools: Box<[Pool]>,
}

impl Nat64Path {
    fn new(nat64: &netvm_model::Nat64) -> Option<Self> {
        let filtering = rules::filtering(nat64.filtering);
        let pool = |range: &netvm_model::AddressRange| Pool {
            filtering,
            ..Pool::new(range.first, range.last, nat64.ports)
        };
        let pools = nat64.addresses.iter().map(pool).collect();
        Some(Self { prefix: Prefix::new(nat64.prefix).ok()?, pools })
    }

    pub(crate) fn parts(&self) -> Nat64<'_> {
        Nat64 { prefix: self.prefix, pools: &self.pools }
    }

    /// Whether a new packet of an IPv6 host leads to an IPv4 host.
    pub(crate) fn takes(&self, key: &FlowKey) -> bool {
        self.prefix.contains(key.destination)
    }

    /// Whether an address stands for IPv6 hosts.
    pub(crate) fn has(&self, address: Address) -> bool {
        self.pools.iter().any(|pool| (pool.first..=pool.last).contains(&address))
    }
}

/// NAT64 by the ports of the routers that have it.
pub(super) fn by_port(host: &Host) -> Vec<Option<Arc<Nat64Path>>> {
    let mut by_port = Vec::new();
    for router in &host.routers {
        let Some(path) = router.nat64.as_ref().and_then(Nat64Path::new).map(Arc::new) else { continue };
        for port in router.ports() {
            put(&mut by_port, port.index(), Arc::clone(&path));
        }
    }
    by_port
}
