//! Random connection tracking.

use netvm_model::{ConnectionsConfig, Host, PortId, Receives, Rule};
use netvm_wire::ConnState;
use proptest::collection::vec;
use proptest::prelude::*;

pub fn connections() -> impl Strategy<Value = ConnectionsConfig> {
    let count = || 0u32..=1 << 24;
    let limits = (64u32..=1 << 24, count(), count(), count());
    (limits, any::<bool>(), vec(1u32..=604_800, 13)).prop_map(|(limits, pick_up, seconds)| {
        let (limit, per_source, per_port, per_zone) = limits;
        let mut config =
            ConnectionsConfig { limit, pick_up, per_source, per_port, per_zone, ..Default::default() };
        config.timeouts.each().zip(seconds).for_each(|((_, timeout), seconds)| *timeout = seconds);
        config
    })
}

/// Leaves out zones and states that no packet has, and lets punt ports have the zones of their interfaces.
pub fn fill(host: &mut Host) {
    let zone = |host: &Host, port: PortId| host.port(port).map_or(0, |port| port.policy.zone);
    for n in 0..host.routers.len() {
        let interfaces = &host.routers[n].interfaces;
        host.routers[n].track &=
            interfaces.windows(2).all(|two| zone(host, two[0].port) == zone(host, two[1].port));
    }
    for n in 0..host.ports.len() {
        if !host.tracks_port(&host.ports[n]) {
            host.ports[n].policy.zone = 0;
        }
    }
    let punts: Vec<(PortId, PortId)> = host
        .routers
        .iter()
        .flat_map(|router| router.interfaces.iter().map(|interface| (interface.punt, interface.port)))
        .collect();
    for (punt, port) in punts {
        let zone = zone(host, port);
        host.ports.iter_mut().filter(|port| port.id == punt).for_each(|port| port.policy.zone = zone);
    }
    let mut rules = std::mem::take(&mut host.rules);
    rules.iter_mut().filter(|rule| !can_match(host, rule)).for_each(|rule| rule.matches.state.clear());
    host.rules = rules;
}

fn can_match(host: &Host, rule: &Rule) -> bool {
    let from = &rule.matches.from;
    let mut ports = host.ports.iter().filter(|port| {
        from.contains(&port.id) || (from.is_empty() && port.kind.info().receives == Receives::Packets)
    });
    rule.matches.state.contains(&ConnState::Untracked) || ports.any(|port| host.tracks_port(port))
}
