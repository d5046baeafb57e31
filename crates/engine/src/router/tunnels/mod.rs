// SPDX-License-Identifier: Apache-2.0
//! Tunnels of a virtual router to other servers (VXLAN), in the workers' snapshot: the ports that they belong to, and
//! the remote VTEPs.
//!
//! Of a network with several remote VTEPs, a forwarding database says behind which of them a MAC address is: the one
//! that it has last sent from. One database is for all tunnels: its VLAN is the number of the port, and its port the
//! number of the VTEP, which all tunnels share and which a VTEP keeps as long as the configuration has it.
//!
//! Of a network with EVPN, a control plane says which VTEPs there are, and what is behind them ([`evpn`]): nothing is
//! learned from packets.

mod evpn;
mod hosts;
mod remotes;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use netvm_model::{Host, PortConfig, RouterId, VxlanConfig};
use netvm_switch::{Fdb, FdbOptions, MAX_PORTS, TICKS_PER_SECOND};
use netvm_wire::vxlan::{V4_HEADERS, V6_HEADERS, Vni};
use netvm_wire::{Address, FlowHasher};

use crate::ids::PortId;
pub use evpn::{EvpnUpdate, UnknownNetwork};
use evpn::{Networks, VtepSet};
pub(crate) use hosts::Hosts;
use remotes::Remotes;

/// Bytes of Ethernet's header.
const ETHERNET: u32 = 14;

/// Another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vtep {
    /// Its number in the database of addresses.
    pub(crate) number: u16,
    pub(crate) address: Address,
}

/// The tunnels of a port.
#[derive(Clone, Debug)]
pub(crate) struct Tunnel {
    pub(crate) port: PortId,
    pub(crate) vni: Vni,
    pub(crate) local: Address,
    /// In the order of the configuration; with EVPN, those that get floods first.
    pub(crate) remotes: Remotes,
    /// So many of them get floods.
    pub(crate) floods: usize,
    /// EVPN says what is behind them.
    pub(crate) is_evpn: bool,
    /// The hosts of a network with EVPN.
    pub(crate) hosts: Option<Arc<Hosts>>,
    /// Requests for their addresses are answered here.
    pub(crate) answers: bool,
    /// Addresses of this server's routers in the network.
    pub(crate) own: Box<[Address]>,
    pub(crate) udp_port: u16,
    pub(crate) ttl: u8,
    /// DSCP of the outer packet; `None`: the inner one's.
    pub(crate) dscp: Option<u8>,
    pub(crate) may_fragment: bool,
    /// Longest inner packet, without its Ethernet header.
    mtu: u32,
}

impl Tunnel {
    /// Longest inner frame that a packet of at most `outer_mtu` bytes can carry.
    pub(crate) const fn longest(&self, outer_mtu: u32) -> u32 {
        let headers = if self.local.is_v4() { V4_HEADERS } else { V6_HEADERS };
        let own = self.mtu + ETHERNET;
        let outer = outer_mtu.saturating_sub(headers as u32);
        if own < outer { own } else { outer }
    }

    /// The place of a VTEP among the remote ones.
    pub(crate) fn place_of(&self, number: u16) -> Option<u16> {
        self.remotes.place_of(number)
    }
}

/// What a received datagram is for.
pub(crate) type TunnelKey = (Address, u16, Vni);

/// The tunnels of a router.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tunnels {
    /// Sorted by port.
    all: Box<[Tunnel]>,
    /// Local addresses and UDP ports, each once; and, sorted, the tunnel of each network.
    ends: Box<[(Address, u16)]>,
    by_key: Box<[(TunnelKey, u16)]>,
    /// Which remote VTEP has an address.
    pub(crate) addresses: Option<Arc<Fdb>>,
}

impl Tunnels {
    /// The tunnels of a router. `vteps`: of all routers.
    fn of(host: &Host, router: RouterId, vteps: &Vteps) -> Self {
        let own = |port: &PortConfig| {
            let config = port.kind.info().tunnel.filter(|config| config.router == router)?;
            let at = host.routed_at(port).flat_map(|(_, interface)| &interface.addresses);
            let own = at.map(|own| Address::from(own.address)).collect();
            Some(Tunnel { own, ..vteps.tunnel(port, config)? })
        };
        let mut all: Box<[Tunnel]> = host.ports.iter().filter_map(own).collect();
        all.sort_unstable_by_key(|tunnel| tunnel.port);
        let key = |tunnel: &Tunnel| (tunnel.local, tunnel.udp_port, tunnel.vni);
        let mut by_key: Box<[_]> = all.iter().map(key).zip(0..).collect();
        by_key.sort_unstable();
        let mut ends: Vec<(Address, u16)> =
            all.iter().map(|tunnel| (tunnel.local, tunnel.udp_port)).collect();
        ends.sort_unstable();
        ends.dedup();
        Self { all, ends: ends.into(), by_key, addresses: vteps.addresses.clone() }
    }

    /// Whether there is any.
    #[inline(always)]
    pub(crate) const fn are_there(&self) -> bool {
        !self.all.is_empty()
    }

    /// The tunnels of a port.
    pub(crate) fn of_port(&self, port: PortId) -> Option<&Tunnel> {
        self.all.binary_search_by_key(&port, |tunnel| tunnel.port).ok().map(|n| &self.all[n])
    }

    /// Whether datagrams to this address and port are for one of them.
    #[inline(always)]
    pub(crate) fn end_at(&self, local: Address, udp_port: u16) -> bool {
        match &*self.ends {
            [only] => *only == (local, udp_port),
            ends => ends.contains(&(local, udp_port)),
        }
    }

    /// The tunnels that a datagram is for.
    pub(crate) fn find(&self, key: TunnelKey) -> Option<&Tunnel> {
        let n = self.by_key.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.all.get(usize::from(self.by_key[n].1))
    }
}

/// The hash that spreads inner flows over source ports, which everybody on the way sees: by a key of its own, so that
/// nothing is learned about other tables.
pub(crate) fn source_hasher() -> &'static FlowHasher {
    static HASHER: OnceLock<FlowHasher> = OnceLock::new();
    HASHER.get_or_init(FlowHasher::new)
}

/// The remote VTEPs of all routers, and the database of addresses behind them.
#[derive(Debug, Default)]
pub(crate) struct Vteps {
    numbers: BTreeMap<Address, u16>,
    /// Made with the first tunnel.
    addresses: Option<Arc<Fdb>>,
    tunnels: BTreeMap<RouterId, Arc<Tunnels>>,
    /// What EVPN says of networks.
    networks: Networks,
}

impl Vteps {
    /// Follows a new host: VTEPs that it has no longer lose their numbers and addresses.
    pub(crate) fn follow(&mut self, host: &Host) {
        self.networks.follow(host);
        self.number(host);
        let options = FdbOptions {
            max_age: host.switch.mac_age.saturating_mul(TICKS_PER_SECOND),
            // The switch holds down addresses that move to and from its ports.
            hold: 0,
            ..FdbOptions::with_capacity(host.switch.macs)
        };
        if tunnels_of(host).next().is_none() {
            self.addresses = None;
        } else if self.addresses.as_ref().is_none_or(|addresses| *addresses.options() != options) {
            // The configuration has checked the options: those of the switch.
            self.addresses = Fdb::new(options).ok().map(Arc::new);
            if let Some(addresses) = &self.addresses {
                self.networks.restore(addresses, &self.numbers);
            }
        }
        self.make_tunnels(host);
    }

    /// Follows EVPN. Returns whether snapshots have to follow.
    ///
    /// # Errors
    /// [`UnknownNetwork`]; nothing is changed.
    pub(crate) fn update(&mut self, update: &EvpnUpdate, host: &Host) -> Result<bool, UnknownNetwork> {
        let vteps = self.networks.apply(update)?;
        if vteps == VtepSet::Changed {
            self.number(host);
        }
        if let Some(addresses) = &self.addresses {
            self.networks.bind(addresses, &self.numbers, update);
        }
        if vteps == VtepSet::Changed {
            self.make_tunnels(host);
        }
        Ok(vteps == VtepSet::Changed)
    }

    /// The hosts of each network with EVPN.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (PortId, &Arc<Hosts>)> {
        self.networks.hosts()
    }

    /// What EVPN says of networks.
    pub(crate) const fn networks_mut(&mut self) -> &mut Networks {
        &mut self.networks
    }

    /// The remote VTEPs of a port.
    pub(crate) fn remotes_of(&self, port: &PortConfig) -> Vec<IpAddr> {
        match port.kind.info().tunnel {
            Some(config) if config.is_evpn() => {
                let known = self.networks.of(port.id).into_iter().flat_map(evpn::Network::vteps);
                known.map(|(vtep, _)| vtep.to_ip()).collect()
            }
            Some(config) => config.remotes.clone(),
            None => Vec::new(),
        }
    }

    /// Gives the VTEPs that there are now numbers, and takes those of others.
    fn number(&mut self, host: &Host) {
        let configured = tunnels_of(host).flat_map(|tunnel| &tunnel.remotes);
        let configured = configured.map(|remote| Address::from(*remote));
        let all: BTreeSet<Address> = configured.chain(self.networks.vteps()).collect();
        let before = self.numbers.len();
        self.numbers.retain(|address, _| all.contains(address));
        let mut used: BTreeSet<u16> = self.numbers.values().copied().collect();
        if before > self.numbers.len()
            && let Some(addresses) = &self.addresses
        {
            addresses.retain_ports(|number| used.contains(&number));
        }
        for address in all {
            if let Entry::Vacant(place) = self.numbers.entry(address) {
                // Further ones have no number, and no tunnel to them.
                let Some(number) = (0..MAX_PORTS as u16).find(|number| !used.contains(number)) else { break };
                used.insert(number);
                place.insert(number);
            }
        }
    }

    fn make_tunnels(&mut self, host: &Host) {
        let of = |id: RouterId| (id, Arc::new(Tunnels::of(host, id, self)));
        let tunnels = host.routers.iter().map(|router| of(router.id)).collect();
        self.tunnels = tunnels;
    }

    /// The tunnels of a router.
    pub(crate) fn tunnels_of(&self, router: RouterId) -> Arc<Tunnels> {
        self.tunnels.get(&router).map(Arc::clone).unwrap_or_default()
    }

    /// Removes addresses that were not seen for long; called often.
    pub(crate) fn age(&self, tick: u32) {
        if let Some(addresses) = &self.addresses {
            addresses.age(tick, addresses.buckets() / 64 + 1);
        }
    }

    fn tunnel(&self, port: &PortConfig, config: &VxlanConfig) -> Option<Tunnel> {
        let vtep = |address: Address| Some(Vtep { number: *self.numbers.get(&address)?, address });
        let remotes: Remotes = match self.networks.of(port.id) {
            Some(network) => network.vteps().filter_map(|(address, _)| vtep(address)).collect(),
            None => config.remotes.iter().filter_map(|remote| vtep((*remote).into())).collect(),
        };
        let floods = match self.networks.of(port.id) {
            Some(network) => {
                network.vteps().filter(|(address, floods)| *floods && vtep(*address).is_some()).count()
            }
            None => remotes.len(),
        };
        Some(Tunnel {
            port: port.id,
            vni: Vni::new(config.vni)?,
            local: config.local.into(),
            remotes,
            floods,
            is_evpn: config.is_evpn(),
            hosts: self.networks.of(port.id).map(|network| Arc::clone(network.hosts())),
            answers: config.neigh_suppress,
            own: Box::default(),
            udp_port: u16::try_from(config.udp_port).ok()?,
            ttl: u8::try_from(config.ttl).ok()?,
            dscp: config.dscp.and_then(|dscp| u8::try_from(dscp).ok()),
            may_fragment: !config.df,
            mtu: port.mtu.into(),
        })
    }
}

fn tunnels_of(host: &Host) -> impl Iterator<Item = &VxlanConfig> {
    host.ports.iter().filter_map(|port| port.kind.info().tunnel)
}
