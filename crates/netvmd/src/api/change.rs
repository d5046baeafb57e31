//! Requests that change something: plan, apply, restart, stop.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, StringRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use netvm_api::{ApplyReply, ConfigReply, Done, FILE_HEADER, PlanReply, StopDaemon};

use super::{Failure, optional};
use crate::daemon::Daemon;

/// Name of a configuration sent without a file name.
const NAMELESS: &str = "configuration";

pub(super) async fn config(State(daemon): State<Arc<Daemon>>) -> Result<Json<ConfigReply>, Failure> {
    let toml = daemon.running().await?.to_toml();
    let config = toml::from_str(&toml).map_err(|error| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the running configuration as JSON: {error}"))
    })?;
    Ok(Json(ConfigReply { toml, config }))
}

pub(super) async fn plan(
    State(daemon): State<Arc<Daemon>>,
    headers: HeaderMap,
    text: Result<String, StringRejection>,
) -> Result<Json<PlanReply>, Failure> {
    Ok(Json(daemon.plan(file_name(&headers), &text?).await?))
}

pub(super) async fn apply(
    State(daemon): State<Arc<Daemon>>,
    headers: HeaderMap,
    text: Result<String, StringRejection>,
) -> Result<Json<ApplyReply>, Failure> {
    let (name, text) = (file_name(&headers).to_owned(), text?);
    // A separate task, so that a client that disconnects does not interrupt the change.
    let change = tokio::spawn(async move { daemon.apply(&name, &text).await });
    let lost = |_| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the change failed unexpectedly: see netvmd's log")
    };
    Ok(Json(change.await.map_err(lost)??))
}

pub(super) async fn restart(
    State(daemon): State<Arc<Daemon>>,
    role: Result<Path<String>, PathRejection>,
) -> Result<Json<Done>, Failure> {
    let Path(role) = role?;
    let count = daemon.supervisor.count(&role);
    if count > 0 {
        let message = match count {
            1 => format!("nf {role}: restarted"),
            _ => format!("nf {role}: restarting {count} processes one after another"),
        };
        tokio::spawn(async move {
            // Excludes applies, which may restart the same processes.
            let _changing = daemon.changing.lock().await;
            daemon.supervisor.restart(&role).await;
        });
        return Ok(Json(Done { message }));
    }
    let externals = daemon.externals().into_iter().filter(|(_, external)| external.role == role);
    let externals: Vec<_> = externals.map(|(id, _)| id).collect();
    let known = daemon.running().await?.nf_named(&role).is_some();
    if !known {
        let message = format!("no role `{role}`: `netvm nf` lists the roles");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    let count = externals.len();
    daemon.engine.send(move |engine| externals.into_iter().for_each(|id| engine.dismiss(id)));
    let asked = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
    let message = format!("nf {role}: asked {asked} to leave; netvmd does not start this role itself");
    Ok(Json(Done { message }))
}

pub(super) async fn stop(
    State(daemon): State<Arc<Daemon>>,
    how: Result<String, StringRejection>,
) -> Result<Json<Done>, Failure> {
    let StopDaemon { purge } = optional(&how?, "{\"purge\": true}")?;
    daemon.end(purge);
    Ok(Json(Done { message: "netvmd stops".to_owned() }))
}

fn file_name(headers: &HeaderMap) -> &str {
    headers.get(FILE_HEADER).and_then(|value| value.to_str().ok()).unwrap_or(NAMELESS)
}
