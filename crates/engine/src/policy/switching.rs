//! L2 switching, for packets whose verdict is `normal`.

use std::sync::Arc;

use netvm_config::model::{Forward, Host, Verdict};
use netvm_switch::{Fdb, FdbOptions, TICKS_PER_SECOND};

use super::PolicyError;
use super::bridge::Bridge;

/// Which ports there are, and what is known of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Switching {
    pub(crate) bridge: Arc<Bridge>,
    /// Lives on from policy to policy.
    pub(crate) fdb: Arc<Fdb>,
}

impl Switching {
    /// That of a host; `None` where nothing is switched.
    pub(super) fn new(host: &Host, before: Option<&Self>) -> Result<Option<Self>, PolicyError> {
        let by_rule = host.rules.iter().any(|rule| rule.actions.verdict == Some(Verdict::Normal));
        if !by_rule && host.ports.iter().all(|port| port.policy.forward != Forward::Normal) {
            return Ok(None);
        }
        let options = FdbOptions {
            max_age: host.switch.mac_age.saturating_mul(TICKS_PER_SECOND),
            ..FdbOptions::with_capacity(host.switch.macs)
        };
        let fdb = match before.filter(|before| *before.fdb.options() == options) {
            Some(before) => Arc::clone(&before.fdb),
            None => Arc::new(Fdb::new(options)?),
        };
        Ok(Some(Self { bridge: Arc::new(Bridge::new(host)), fdb }))
    }

    /// It comes into force.
    pub(crate) fn adopt(&self, host: &Host) {
        for port in &host.ports {
            self.fdb.set_limit(port.id.0, port.policy.mac_limit);
        }
        for number in 0..netvm_region::MAX_PORTS as u16 {
            if host.port(crate::ids::PortId(number)).is_none() {
                self.fdb.remove_port(number);
            }
        }
    }
}
