// SPDX-License-Identifier: Apache-2.0
//! Latency of packets, by port, chain and hop.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use netvm_api::LatencyInfo;
use netvm_engine::{ChainId, Engine, LatencyView, PortId, Span};
use netvm_model::Host;

use crate::api::Failure;
use crate::api::steps::role_name;
use crate::daemon::Daemon;

pub(crate) async fn latency(State(daemon): State<Arc<Daemon>>) -> Result<Json<Vec<LatencyInfo>>, Failure> {
    let read = |engine: &mut Engine| (engine.shared_host(), engine.latencies());
    let (host, views) = daemon.engine().call(read).await?;
    Ok(Json(views.iter().map(|view| info(&host, view)).collect()))
}

fn info(host: &Host, view: &LatencyView) -> LatencyInfo {
    let (of, name) = match view.span {
        Span::Ports(from, to) => ("port", format!("{} > {}", port(host, from), port(host, to))),
        Span::Made(role, to) => ("nf", format!("{} > {}", role_name(host, role), port(host, to))),
        Span::Chain(chain) => ("chain", chain_name(host, chain)),
        Span::Hops(chain, first, last) => {
            let roles: Vec<_> = (first..=last).map(|hop| role(host, chain, hop)).collect();
            ("hop", format!("{}: {}", chain_name(host, chain), roles.join(" > ")))
        }
    };
    let micros = |share| view.quantile(share).as_secs_f64() * 1e6;
    LatencyInfo {
        of: of.to_owned(),
        name,
        samples: view.histogram.len(),
        mean_us: Duration::from_nanos(view.histogram.mean() as u64).as_secs_f64() * 1e6,
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        max_us: micros(1.0),
    }
}

fn port(host: &Host, id: PortId) -> String {
    host.port(id).map_or_else(|| format!("(former port {id})"), |port| port.name.clone())
}

/// The name of a chain. Flows that skip NFs take a variant of their chain without these hops, which has no name.
fn chain_name(host: &Host, id: ChainId) -> String {
    host.chains
        .iter()
        .find(|chain| chain.id == id)
        .map_or_else(|| format!("({id})"), |chain| chain.name.clone())
}

fn role(host: &Host, chain: ChainId, hop: u8) -> String {
    let chain = host.chains.iter().find(|other| other.id == chain);
    let role = chain.and_then(|chain| chain.hops.get(usize::from(hop)));
    role.and_then(|role| host.nf(*role)).map_or_else(|| format!("(hop {hop})"), |nf| nf.role.clone())
}
