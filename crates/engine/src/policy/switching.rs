//! L2 switching, for packets whose verdict is `normal`.

use std::num::NonZeroU8;
use std::sync::Arc;

use netvm_config::model::{Forward, Host, Output, PortConfig, Verdict, VlanMode};
use netvm_switch::{Bridge, BridgePort, Fdb, FdbOptions, TICKS_PER_SECOND, VlanPort, VlanSet};
use netvm_wire::VlanId;

use super::PolicyError;

/// Which ports there are, and what is known of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Switching {
    pub(crate) bridge: Arc<Bridge>,
    /// Lives on from policy to policy.
    pub(crate) fdb: Arc<Fdb>,
    /// Whether tags matter to any port.
    pub(crate) is_vlan_aware: bool,
}

impl Switching {
    /// That of a host; `None` where nothing is switched.
    pub(super) fn new(host: &Host, before: Option<&Self>) -> Result<Option<Self>, PolicyError> {
        let ports: Vec<&PortConfig> = host.ports.iter().filter(|port| is_switched(host, port)).collect();
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
            let group = group.and_then(|n| NonZeroU8::new(u8::try_from(n + 1).unwrap_or(u8::MAX)));
            let vlan = vlan_of(&port.policy.vlan);
            (port.id.0, BridgePort { vlan, group, limit: Some(port.policy.mac_limit), new_per_second: None })
        };
        let bridge = Bridge::new(ports.iter().map(bridged))?;
        let options = FdbOptions {
            max_age: host.switch.mac_age.saturating_mul(TICKS_PER_SECOND),
            ..FdbOptions::with_capacity(host.switch.macs)
        };
        let fdb = match before.filter(|before| *before.fdb.options() == options) {
            Some(before) => Arc::clone(&before.fdb),
            None => Arc::new(Fdb::new(options)?),
        };
        let is_vlan_aware = ports.iter().any(|port| port.policy.vlan != VlanMode::Unaware);
        Ok(Some(Self { bridge: Arc::new(bridge), fdb, is_vlan_aware }))
    }

    /// It comes into force: limits hold, and what was learnt from ports that are no longer switched is forgotten.
    pub(crate) fn adopt(&self) {
        self.bridge.set_limits(&self.fdb);
        for port in
            (0..netvm_region::MAX_PORTS as u16).filter(|port| self.bridge.ingress(*port, None).is_none())
        {
            self.fdb.remove_port(port);
        }
        self.bridge.set_limits(&self.fdb);
    }
}

/// Whether packets of the port can be switched: by its `forward`, by a rule for what comes in by it, or at the end of a chain
/// that they pass. Such ports get switched packets, too.
fn is_switched(host: &Host, port: &PortConfig) -> bool {
    let mut rules = host.rules_from(port.id);
    port.policy.forward == Forward::Normal
        || rules.any(|rule| rule.actions.verdict == Some(Verdict::Normal))
        || host.chains_from(port).any(|chain| chain.output == Output::Normal)
}

fn vlan_of(mode: &VlanMode) -> VlanPort {
    match mode {
        VlanMode::Unaware => VlanPort::Unaware,
        VlanMode::Access(vlan) => VlanPort::Access(*vlan),
        VlanMode::Trunk { vlans, native } => {
            let mut allowed = VlanSet::new();
            for vlan in vlans.iter().flat_map(|span| span.first..=span.last) {
                // The configuration has checked that each is a VLAN.
                if let Ok(vlan) = VlanId::new(vlan) {
                    allowed.insert(vlan);
                }
            }
            VlanPort::Trunk { allowed, native: *native }
        }
    }
}
