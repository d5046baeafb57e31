// SPDX-License-Identifier: Apache-2.0
//! L2 switching, for packets whose action is `normal`.

use std::num::NonZeroU16;
use std::sync::Arc;

use netvm_model::{Action, Forward, Host, Output, PortConfig, SendsTo, VlanMode, VxlanConfig};
use netvm_policy::{Rule, Side};
use netvm_switch::{
    Bridge, BridgePort, Fdb, FdbOptions, StormControl, StormLimits, TICKS_PER_SECOND, VlanPort, VlanSet,
};
use netvm_wire::{MacAddr, VlanId};

use super::PolicyError;
use crate::ids::PortId;

/// The bridge's ports and its forwarding database.
#[derive(Clone, Debug)]
pub(crate) struct Switching {
    pub(crate) bridge: Arc<Bridge>,
    /// Kept from policy to policy.
    pub(crate) fdb: Arc<Fdb>,
    /// Whether any port is VLAN-aware.
    pub(crate) is_vlan_aware: bool,
    /// Ports that are interfaces of the bridge itself.
    pub(crate) interfaces: Box<[PortId]>,
    /// Kept from policy to policy.
    pub(crate) storm: Arc<StormControl>,
    /// The bridge's configuration.
    config: Arc<BridgeConfig>,
}

/// What a bridge is made of, to see whether it changes.
#[derive(Debug, PartialEq)]
struct BridgeConfig {
    ports: Vec<(u16, BridgePort)>,
    own: Vec<OwnAddress>,
    storm_limits: Vec<(u16, StormLimits)>,
    forwards_bpdus: bool,
}

/// An address of the bridge itself: packets to it are for the router of one of its interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnAddress {
    vlan: u16,
    mac: MacAddr,
    port: u16,
}

impl Switching {
    /// For a host; `rules` contains at least those that lead to `normal` or to a chain. `None` if no port is switched.
    pub(super) fn new(
        host: &Host,
        rules: &[Rule],
        before: Option<&Self>,
    ) -> Result<Option<Self>, PolicyError> {
        let ports: Vec<&PortConfig> =
            host.ports.iter().filter(|port| is_switched(host, rules, port)).collect();
        if ports.is_empty() {
            return Ok(None);
        }
        let mut groups: Vec<&String> =
            ports.iter().filter_map(|port| port.policy.split_horizon.as_ref()).collect();
        groups.sort_unstable();
        groups.dedup();
        let bridged = |port: &&PortConfig| {
            let group =
                port.policy.split_horizon.as_ref().and_then(|name| groups.iter().position(|g| *g == name));
            let group = group.and_then(|n| NonZeroU16::new(u16::try_from(n + 1).unwrap_or(u16::MAX)));
            let vlan = vlan_of(&port.policy.vlan);
            // What is behind other servers, EVPN says; packets do not.
            let is_evpn = port.kind.info().tunnel.is_some_and(VxlanConfig::is_evpn);
            let limit = Some(if is_evpn { 0 } else { port.policy.mac_limit });
            (port.id.0, BridgePort { vlan, group, limit, new_per_second: None })
        };
        let is_vlan_aware = ports.iter().any(|port| port.policy.vlan != VlanMode::Unaware);
        let limits = |port: &&PortConfig| {
            let limits = port.policy.storm_control;
            (port.id.0, [limits.broadcast, limits.multicast, limits.unknown_unicast])
        };
        let interfaces = ports.iter().filter(|port| is_interface(port)).map(|port| port.id).collect();
        let config = BridgeConfig {
            ports: ports.iter().map(bridged).collect(),
            own: own_addresses(host),
            storm_limits: ports.iter().map(limits).collect(),
            forwards_bpdus: host.switch.forward_bpdu,
        };
        let (bridge, config) = match before.filter(|before| *before.config == config) {
            Some(before) => (Arc::clone(&before.bridge), Arc::clone(&before.config)),
            None => {
                let bridge = Bridge::new(config.ports.iter().cloned())?.with_bpdus(config.forwards_bpdus);
                (Arc::new(bridge), Arc::new(config))
            }
        };
        let options = FdbOptions {
            max_age: host.switch.mac_age.saturating_mul(TICKS_PER_SECOND),
            hold: host.switch.mac_hold.saturating_mul(TICKS_PER_SECOND),
            ..FdbOptions::with_capacity(host.switch.macs)
        };
        let fdb = match before.filter(|before| *before.fdb.options() == options) {
            Some(before) => Arc::clone(&before.fdb),
            None => Arc::new(Fdb::new(options)?),
        };
        let storm = before.map(|before| Arc::clone(&before.storm)).unwrap_or_default();
        Ok(Some(Self { bridge, fdb, is_vlan_aware, interfaces, storm, config }))
    }

    /// Whether both use the same bridge and FDB.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bridge, &other.bridge) && Arc::ptr_eq(&self.fdb, &other.fdb)
    }

    /// Puts it into force in place of `before`: sets limits, forgets addresses of ports that are no longer switched,
    /// and binds the bridge's own.
    pub(crate) fn adopt(&self, before: Option<&Self>) {
        self.bridge.set_limits(&self.fdb);
        self.fdb.retain_ports(|port| self.bridge.has(port));
        self.bridge.set_limits(&self.fdb);
        for (port, limits) in &self.config.storm_limits {
            self.storm.set(*port, *limits);
        }
        let before = before.filter(|before| Arc::ptr_eq(&before.fdb, &self.fdb));
        let gone = before.into_iter().flat_map(|before| &before.config.own);
        for OwnAddress { vlan, mac, .. } in gone.filter(|own| !self.config.own.contains(own)) {
            self.fdb.remove_static(*vlan, *mac);
        }
        for OwnAddress { vlan, mac, port } in &self.config.own {
            // Without room for it, it is learned like those of hosts.
            let _ = self.fdb.add_static(*vlan, *mac, *port);
        }
    }

    /// The VLAN of packets without a tag that a port receives; `None`: it is not in the bridge, or refuses them.
    pub(crate) fn vlan_of(&self, port: PortId) -> Option<u16> {
        self.bridge.ingress(port.0, None)?.ok()
    }

    /// The numbers of the bridge's ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.config.ports.iter().map(|(port, _)| *port)
    }
}

/// Whether packets of the port can be switched: by its `forward`, by an ingress rule, or at the end of a chain. Such
/// ports are members of the bridge, as its own interfaces are.
fn is_switched(host: &Host, rules: &[Rule], port: &PortConfig) -> bool {
    let side = Side::Ingress { from: port.id };
    let leads = |rule: &Rule| rule.actions.terminal == Some(Action::Normal) && side.takes(&rule.matches);
    if host.pair_end(port.id).is_some() {
        return false;
    }
    port.policy.forward == Forward::Normal
        || is_interface(port)
        || rules.iter().any(leads)
        || host.chains_by(rules, port).any(|chain| chain.output == Output::Normal)
}

/// Whether a port is an interface of the bridge itself.
fn is_interface(port: &PortConfig) -> bool {
    port.kind.info().sends_to == Some(SendsTo::Bridge)
}

/// The addresses of routers at the bridge's interfaces.
fn own_addresses(host: &Host) -> Vec<OwnAddress> {
    let mut own = Vec::new();
    for interface in host.routers.iter().flat_map(|router| &router.interfaces) {
        let Some(port) = host.port(interface.port).filter(|port| is_interface(port)) else { continue };
        let tag = interface.vlan.map(VlanId::get);
        // Packets of another VLAN do not reach it.
        if let Ok(vlan) = vlan_of(&port.policy.vlan).ingress(tag) {
            own.push(OwnAddress { vlan, mac: interface.mac, port: port.id.0 });
        }
    }
    own
}

fn vlan_of(mode: &VlanMode) -> VlanPort {
    match mode {
        VlanMode::Unaware => VlanPort::Unaware,
        VlanMode::Access(vlan) => VlanPort::Access(*vlan),
        VlanMode::Trunk { vlans, native } => {
            let mut allowed = VlanSet::new();
            for vlan in vlans.iter().flat_map(|span| span.first..=span.last) {
                // The configuration checked the range.
                if let Ok(vlan) = VlanId::new(vlan) {
                    allowed.insert(vlan);
                }
            }
            VlanPort::Trunk { allowed, native: *native }
        }
    }
}
