// SPDX-License-Identifier: Apache-2.0
//! Tracked connections: list them, end them, count them.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use netvm_api::{
    ConnectionEvent, ConnectionInfo, ConnectionList, ConnectionQuery, FlushedConnections, MAX_CONNECTIONS,
    TcpEndInfo,
};
use netvm_conntrack::{ConnectionId, ConnectionState, TcpEnd};
use netvm_engine::{ConnectionFilter, ConnectionView, Engine, WorkerId};
use netvm_model::Host;
use netvm_policy::Names;
use netvm_wire::IpProto;
use tokio::sync::oneshot;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

use super::{port_named, unprocessable};
use crate::api::Failure;
use crate::api::traffic::connection_counts;
use crate::daemon::Daemon;
use crate::names::{Ends, port_labels, rule_name};

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
    let log = daemon.statistics().connections().clone();
    let read = move |engine: &mut Engine| {
        // The caller may have been cancelled.
        engine.connections().read(filter, most, move |found| drop(sender.send(found)));
        connection_counts(engine, &log)
    };
    let counts = daemon.engine().call(read).await?.unwrap_or_default();
    let mut found = found.await.map_err(engine_ended)?;
    found.sort_by_key(|view| Reverse(view.bytes.iter().sum::<u64>()));
    found.truncate(limit);
    let connections: Vec<ConnectionInfo> = found.iter().map(|view| info(&host, view)).collect();
    let port_labels = port_labels(&host, connections.iter().map(|one| one.port.as_str()));
    Ok(Json(ConnectionList { counts, connections, port_labels }))
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
        engine.connections().flush(filter, move |ended| _ = sender.send(ended));
    };
    daemon.engine().call(flush).await?;
    Ok(Json(FlushedConnections { ended: ended.await.map_err(engine_ended)? }))
}

/// The running configuration, if connections are tracked.
pub(super) async fn tracking(daemon: &Daemon) -> Result<Arc<Host>, Failure> {
    let host = daemon.running().await?;
    let message = "no port tracks connections: set `track = true` in a [[port]] or [[router]]";
    if host.tracks() { Ok(host) } else { Err(Failure::new(StatusCode::NOT_FOUND, message)) }
}

pub(super) fn filter(host: &Host, query: &ConnectionQuery) -> Result<ConnectionFilter, Failure> {
    let address = query.address.as_deref().map(str::parse).transpose();
    let protocol = query.protocol.as_deref().map(str::parse::<IpProto>).transpose();
    Ok(ConnectionFilter {
        id: query.id.as_deref().map(numbered).transpose()?,
        address: address.map_err(|error: netvm_wire::NetError| unprocessable(error.to_string()))?,
        l4_port: query.l4_port,
        protocol: protocol.map_err(|error| unprocessable(error.to_string()))?,
        state: query.state.as_deref().map(state_named).transpose()?,
        port: query.port.as_deref().map(|name| port_named(host, name)).transpose()?,
        zone: query.zone.map(|zone| known_zone(host, zone)).transpose()?,
    })
}

/// A zone that a port has which tracks connections.
fn known_zone(host: &Host, zone: u16) -> Result<u16, Failure> {
    let tracking = host.ports.iter().filter(|port| host.tracks_port(port));
    let zones: BTreeSet<u16> = tracking.map(|port| port.policy.zone).collect();
    if zones.contains(&zone) {
        return Ok(zone);
    }
    let known: Vec<String> = zones.iter().map(ToString::to_string).collect();
    Err(unprocessable(format!("no port is in zone {zone}: give one of {}", known.join(", "))))
}

/// The number of a connection: worker, slot and use of the slot.
fn numbered(text: &str) -> Result<(WorkerId, ConnectionId), Failure> {
    parts_of(text).ok_or_else(|| {
        unprocessable(format!(
            "`{text}` is not the number of a connection: `netvm conn list` shows them, such as 0-17-3"
        ))
    })
}

fn parts_of(text: &str) -> Option<(WorkerId, ConnectionId)> {
    let mut parts = text.splitn(3, '-');
    let worker = parts.next()?.parse().ok()?;
    let id = ConnectionId::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((WorkerId(worker), id))
}

fn state_named(name: &str) -> Result<&'static str, Failure> {
    ConnectionState::names().find(|state| *state == name).ok_or_else(|| {
        let known: Vec<_> = ConnectionState::names().collect();
        unprocessable(format!("no connection has the state `{name}`: give one of {}", known.join(", ")))
    })
}

fn info(host: &Host, view: &ConnectionView) -> ConnectionInfo {
    let ([packets, reply_packets], [bytes, reply_bytes]) = (view.packets, view.bytes);
    let Ends { source, destination, translated_source, translated_destination } =
        Ends::of(&view.original, &view.reply);
    ConnectionInfo {
        id: format!("{}-{}-{}", view.worker.0, view.id.slot(), view.id.serial()),
        worker: view.worker.0,
        port: Names::port(host, view.port).into_owned(),
        rule: view.rule.map(|id| rule_name(host, id)),
        zone: view.original.zone.0,
        protocol: view.original.protocol.to_string(),
        source,
        destination,
        translated_source,
        translated_destination,
        state: view.state.to_owned(),
        answered: view.is_answered,
        assured: view.is_assured,
        tcp: view.tcp.iter().flatten().map(tcp_end).collect(),
        packets,
        bytes,
        reply_packets,
        reply_bytes,
        age_s: view.age.as_secs_f64(),
        left_s: view.left.as_secs_f64(),
    }
}

fn tcp_end(end: &TcpEnd) -> TcpEndInfo {
    let TcpEnd { sent, acknowledged, window, scale, has_sent_fin } = *end;
    TcpEndInfo { sent, acknowledged, window, scale, fin: has_sent_fin }
}

/// What happens to connections from now on, one JSON object a line.
pub(in crate::api) async fn events(State(daemon): State<Arc<Daemon>>) -> Result<Response, Failure> {
    tracking(&daemon).await?;
    let coming = BroadcastStream::new(daemon.statistics().connections().watch());
    let lines = coming.map(|line| match line {
        Ok(line) => Ok(line),
        Err(BroadcastStreamRecvError::Lagged(events)) => {
            let mut line = serde_json::to_vec(&ConnectionEvent::Lost { events })?;
            line.push(b'\n');
            Ok::<_, serde_json::Error>(Bytes::from(line))
        }
    });
    let head = [(header::CONTENT_TYPE, "application/jsonl"), (header::CACHE_CONTROL, "no-store")];
    Ok((head, Body::from_stream(lines)).into_response())
}

fn engine_ended(_: oneshot::error::RecvError) -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_zone_is_refused_with_those_that_there_are() {
        let port = |name: &str, keys: &str| {
            format!("[[port]]\nname = {name:?}\nkind = \"sink\"\nforward = {{ normal = true }}\n{keys}\n")
        };
        let text = port("a", "track = true") + &port("b", "track = true\nzone = 7") + &port("c", "");
        let host =
            netvm_config::parse("zones", &text).unwrap_or_else(|error| panic!("{}", error.render(false)));
        let of = |zone| ConnectionQuery { zone: Some(zone), ..ConnectionQuery::default() };
        assert_eq!(filter(&host.host, &of(7)).ok().unwrap().zone, Some(7));
        let Err(refused) = filter(&host.host, &of(8)) else { panic!() };
        assert_eq!(refused.error.message, "no port is in zone 8: give one of 0, 7");
    }
}
