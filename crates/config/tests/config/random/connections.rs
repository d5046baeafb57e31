// SPDX-License-Identifier: Apache-2.0
//! Random connection tracking.

use netvm_model::{ConnectionLog, ConnectionsConfig, Host, LogSubject, PortConfig, PortId, Receives, Rule};
use netvm_wire::ConnState;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

pub fn connections() -> impl Strategy<Value = ConnectionsConfig> {
    let count = || 0u32..=1 << 24;
    let limits = (64u32..=1 << 24, count(), count(), count());
    let translated = (count(), count(), option::of(64u32..=1 << 24), option::of(log()));
    (limits, any::<bool>(), vec(1u32..=604_800, 13), translated).prop_map(
        |(limits, pick_up, seconds, rest)| {
            let (limit, per_source, per_port, per_zone) = limits;
            let (half_open_per_source, half_open_per_port, mappings, log) = rest;
            let mut config = ConnectionsConfig {
                limit,
                pick_up,
                per_source,
                per_port,
                per_zone,
                half_open_per_source,
                half_open_per_port,
                mappings,
                log,
                ..Default::default()
            };
            config.timeouts.each().zip(seconds).for_each(|((_, timeout), seconds)| *timeout = seconds);
            config
        },
    )
}

fn log() -> impl Strategy<Value = ConnectionLog> {
    let what = select(vec![
        vec![LogSubject::Translations],
        vec![LogSubject::Connections],
        vec![LogSubject::Connections, LogSubject::Translations],
    ]);
    (0u8..3, what).prop_map(|(to, what)| ConnectionLog {
        file: (to != 0).then(|| "/var/log/netvm/connections".into()),
        collector: (to != 1).then(|| "[2001:db8::1]:4739".parse().unwrap()),
        what,
    })
}

/// Leaves out zones and states that no packet has, and lets punt ports have the zones of their interfaces.
pub fn fill(host: &mut Host) {
    let zone = |host: &Host, port: PortId| host.port(port).map_or(0, |port| port.policy.zone);
    for n in 0..host.routers.len() {
        let interfaces = &host.routers[n].interfaces;
        let is_in_one = interfaces.windows(2).all(|two| zone(host, two[0].port) == zone(host, two[1].port));
        let router = &mut host.routers[n];
        if !is_in_one {
            (router.track, router.nat64) = (false, None);
            router.interfaces.iter_mut().for_each(|interface| interface.snat = None);
        }
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
    for rule in &mut rules {
        if !can_match(host, rule) {
            rule.matches.state.clear();
        }
        let can_be_proxied = ports_of(host, rule).all(|port| host.tracks_port(port));
        rule.actions.syn_proxy &= can_be_proxied;
    }
    host.rules = rules;
}

fn can_match(host: &Host, rule: &Rule) -> bool {
    rule.matches.state.contains(&ConnState::Untracked)
        || ports_of(host, rule).any(|port| host.tracks_port(port))
}

fn ports_of<'a>(host: &'a Host, rule: &'a Rule) -> impl Iterator<Item = &'a PortConfig> {
    let from = &rule.matches.from;
    host.ports.iter().filter(move |port| {
        from.contains(&port.id) || (from.is_empty() && port.kind.info().receives == Receives::Packets)
    })
}
