//! What changes something.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, StringRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use netvm_api::{ApplyReply, ConfigReply, Done, FILE_HEADER, PlanReply};

use super::Failure;
use crate::daemon::Daemon;

/// The name of a file that came without one.
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
    // Of its own: a client that goes away does not leave a change half done.
    let change = tokio::spawn(async move { daemon.apply(&name, &text).await });
    let lost =
        |_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the change ended early: see netvmd's log");
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
            1 => format!("nf {role}: started anew"),
            _ => format!("nf {role}: {count} processes are started anew, one after another"),
        };
        tokio::spawn(async move {
            // Not while a configuration is applied, which may be about the same processes.
            let _changing = daemon.changing.lock().await;
            daemon.supervisor.restart(&role).await;
        });
        return Ok(Json(Done { message }));
    }
    let externals = daemon.externals().into_iter().filter(|(_, external)| external.role == role);
    let externals: Vec<_> = externals.map(|(id, _)| id).collect();
    let known = daemon.running().await?.nf_named(&role).is_some();
    if !known {
        let message = format!("there is no role `{role}`: `netvm nf` lists them");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    let count = externals.len();
    daemon.engine.tell(move |engine| externals.into_iter().for_each(|id| engine.dismiss(id)));
    let asked = if count == 1 { "1 process was".to_owned() } else { format!("{count} processes were") };
    let message = format!("nf {role}: {asked} asked to leave; netvmd does not start this role itself");
    Ok(Json(Done { message }))
}

pub(super) async fn stop(State(daemon): State<Arc<Daemon>>) -> Json<Done> {
    daemon.end();
    Json(Done { message: "netvmd ends".to_owned() })
}

fn file_name(headers: &HeaderMap) -> &str {
    headers.get(FILE_HEADER).and_then(|value| value.to_str().ok()).unwrap_or(NAMELESS)
}
