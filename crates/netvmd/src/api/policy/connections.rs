//! Tracked connections: list them, end them, count them.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use netvm_api::{ConnectionInfo, ConnectionList, ConnectionQuery, FlushedConnections, MAX_CONNECTIONS};
use netvm_engine::{ConnectionFilter, ConnectionView, Engine};
use netvm_model::Host;
use netvm_policy::Names;
use netvm_wire::{Address, IpProto};
use tokio::sync::oneshot;

use super::{port_named, unprocessable};
use crate::api::Failure;
use crate::api::traffic::connection_counts;
use crate::daemon::Daemon;

type Answer<T> = Result<Json<T>, Failure>;

pub(in crate::api) async fn list(
    State(daemon): State<Arc<Daemon>>,
    query: Result<Query<ConnectionQuery>, QueryRejection>,
) -> Answer<ConnectionList> {
    let Query(query) = query?;
    let host = tracking(&daemon).await?;
    let filter = filter(&host, &query)?;
    let limit = query.limit.unwrap_or(MAX_CONNECTIONS).min(MAX_CONNECTIONS);
    // The largest may be in any table, so a short list needs all of them, too.
    let most = if limit == 0 { 0 } else { MAX_CONNECTIONS };
    let (sender, found) = oneshot::channel();
    let read = move |engine: &mut Engine| {
        // The caller may have been cancelled.
        engine.read_connections(filter, most, move |found| drop(sender.send(found)));
        connection_counts(engine)
    };
    let counts = daemon.engine().call(read).await?.unwrap_or_default();
    let mut found = found.await.map_err(engine_ended)?;
    found.sort_by_key(|view| Reverse(view.bytes.iter().sum::<u64>()));
    found.truncate(limit);
    let connections = found.iter().map(|view| info(&host, view)).collect();
    Ok(Json(ConnectionList { counts, connections }))
}

pub(in crate::api) async fn flush(
    State(daemon): State<Arc<Daemon>>,
    query: Result<Query<ConnectionQuery>, QueryRejection>,
) -> Answer<FlushedConnections> {
    let Query(query) = query?;
    if query.limit.is_some() {
        return Err(unprocessable("`limit` only limits a list; name the connections to end".to_owned()));
    }
    let host = tracking(&daemon).await?;
    let filter = filter(&host, &query)?;
    let (sender, ended) = oneshot::channel();
    let flush = move |engine: &mut Engine| {
        // The caller may have been cancelled.
        engine.flush_connections(filter, move |ended| _ = sender.send(ended));
    };
    daemon.engine().call(flush).await?;
    Ok(Json(FlushedConnections { ended: ended.await.map_err(engine_ended)? }))
}

/// The running configuration, if connections are tracked.
async fn tracking(daemon: &Daemon) -> Result<Arc<Host>, Failure> {
    let host = daemon.running().await?;
    let message = "no port tracks connections: set `track = true` in a [[port]] or [[router]]";
    if host.tracks() { Ok(host) } else { Err(Failure::new(StatusCode::NOT_FOUND, message)) }
}

fn filter(host: &Host, query: &ConnectionQuery) -> Result<ConnectionFilter, Failure> {
    let address = query.address.as_deref().map(str::parse).transpose();
    let protocol = query.protocol.as_deref().map(str::parse::<IpProto>).transpose();
    Ok(ConnectionFilter {
        address: address.map_err(|error: netvm_wire::NetError| unprocessable(error.to_string()))?,
        l4_port: query.l4_port,
        protocol: protocol.map_err(|error| unprocessable(error.to_string()))?,
        port: query.port.as_deref().map(|name| port_named(host, name)).transpose()?,
        zone: query.zone,
    })
}

fn info(host: &Host, view: &ConnectionView) -> ConnectionInfo {
    let ([packets, reply_packets], [bytes, reply_bytes]) = (view.packets, view.bytes);
    ConnectionInfo {
        worker: view.worker.0,
        port: Names::port(host, view.port).into_owned(),
        zone: view.zone,
        protocol: view.protocol.to_string(),
        source: end(view.source.0, view.source.1),
        destination: end(view.destination.0, view.destination.1),
        state: view.state.to_owned(),
        packets,
        bytes,
        reply_packets,
        reply_bytes,
        age_s: view.age.as_secs_f64(),
        left_s: view.left.as_secs_f64(),
    }
}

/// An end of a connection, as `192.0.2.1:80` or `[2001:db8::1]:80`.
fn end(address: Address, port: u16) -> String {
    std::net::SocketAddr::new(address.to_ip(), port).to_string()
}

fn engine_ended(_: oneshot::error::RecvError) -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended")
}
