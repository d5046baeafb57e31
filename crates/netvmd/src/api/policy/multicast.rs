// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping, for display.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use netvm_api::{MulticastDomain, MulticastGroup, MulticastInfo, MulticastMember, MulticastPort};
use netvm_engine::{DomainView, MulticastView, PortMulticast};
use netvm_model::{Host, PortId};
use netvm_policy::Names;

use crate::api::Failure;
use crate::daemon::Daemon;

pub(in crate::api) async fn multicast(
    State(daemon): State<Arc<Daemon>>,
) -> Result<Json<MulticastInfo>, Failure> {
    let host = daemon.running().await?;
    let known = daemon.engine().call(|engine| engine.multicast()).await?;
    let known = match known {
        Some(known) => known,
        // No port is switched.
        None if host.switch.multicast.snooping => MulticastView::default(),
        None => {
            let message =
                "L2 switching does not snoop: set `mcast_snooping = true` in [switch], and apply it";
            return Err(Failure::new(StatusCode::NOT_FOUND, message));
        }
    };
    let port = |port: PortMulticast| MulticastPort {
        port: name(&host, port.port.0),
        groups: port.groups,
        messages: port.messages,
        refused: port.refused,
        over_limit: port.over_limit,
    };
    let domains = known.domains.into_iter().map(|domain| info(&host, domain)).collect();
    Ok(Json(MulticastInfo { domains, ports: known.ports.into_iter().map(port).collect() }))
}

fn info(host: &Host, domain: DomainView) -> MulticastDomain {
    let members = |ports: Vec<(u16, Option<Duration>)>| {
        let member = |(port, left): (u16, Option<Duration>)| MulticastMember {
            port: name(host, port),
            left_s: left.map(|left| left.as_secs()),
        };
        ports.into_iter().map(member).collect()
    };
    let address = domain.querier.and_then(|querier| querier.address);
    let groups = domain.groups.into_iter();
    MulticastDomain {
        vlan: domain.vlan,
        protocol: if domain.is_v4 { "igmp" } else { "mld" }.to_owned(),
        querier: address.map(|address| address.to_ip().to_string()),
        querier_port: domain.querier.and_then(|querier| querier.port).map(|port| name(host, port)),
        has_querier: domain.querier.is_some(),
        pruned: domain.is_pruned,
        routers: members(domain.routers),
        groups: groups
            .map(|(group, ports)| MulticastGroup { group: group.to_ip().to_string(), ports: members(ports) })
            .collect(),
    }
}

fn name(host: &Host, port: u16) -> String {
    Names::port(host, PortId(port)).into_owned()
}
