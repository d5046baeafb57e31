// SPDX-License-Identifier: Apache-2.0
//! Requests that change something: plan, apply, restart, stop.

pub(super) mod live;

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection, StringRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use netvm_api::{
    ApplyHow, ApplyReply, ConfigReply, Done, FILE_HEADER, PlanReply, Revision, RevisionInfo, StopDaemon,
};

use super::{Failure, optional};
use crate::daemon::Daemon;
use crate::runtime::blocking;
use crate::telemetry;

/// Name of a configuration sent without a file name.
const NAMELESS: &str = "configuration";

pub(super) async fn config(State(daemon): State<Arc<Daemon>>) -> Result<Json<ConfigReply>, Failure> {
    let running = daemon.running().await?;
    let toml = daemon.configuration().live().all().file_text(&running);
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
    Ok(Json(daemon.plan(&file_name(&headers), &text?).await?))
}

pub(super) async fn apply(
    State(daemon): State<Arc<Daemon>>,
    how: Result<Query<ApplyHow>, QueryRejection>,
    headers: HeaderMap,
    text: Result<String, StringRejection>,
) -> Result<Json<ApplyReply>, Failure> {
    let (name, Query(how), text) = (file_name(&headers), how?, text?);
    // A separate task, so that a client that disconnects does not interrupt the change.
    let span = telemetry::change(&name, "apply");
    telemetry::continue_trace(&span, &headers);
    let change = tokio::spawn(async move {
        let work = daemon.apply(&name, &text, how, "apply");
        telemetry::within(span, work).await
    });
    let lost = |_| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the change failed unexpectedly: see netvmd's log")
    };
    Ok(Json(change.await.map_err(lost)??))
}

pub(super) async fn history(State(daemon): State<Arc<Daemon>>) -> Json<Vec<RevisionInfo>> {
    Json(blocking(move || daemon.configuration().history().all()).await)
}

pub(super) async fn revision(
    State(daemon): State<Arc<Daemon>>,
    number: Result<Path<u64>, PathRejection>,
) -> Result<Json<Revision>, Failure> {
    let Path(number) = number?;
    let missing = || {
        Failure::new(
            StatusCode::NOT_FOUND,
            format!("no revision {number}: `netvm config history` lists them"),
        )
    };
    blocking(move || daemon.configuration().history().get(number)).await.map(Json).ok_or_else(missing)
}

pub(super) async fn confirm(State(daemon): State<Arc<Daemon>>) -> Result<Json<Done>, Failure> {
    match blocking(move || daemon.configuration().confirm()).await {
        None => Err(nothing_waits()),
        Some(Ok(())) => Ok(Json(Done { message: "confirmed".to_owned() })),
        Some(Err(error)) => {
            Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("confirmed, but not saved: {error}")))
        }
    }
}

pub(super) async fn revert(State(daemon): State<Arc<Daemon>>) -> Result<Json<Done>, Failure> {
    match daemon.revert().await {
        None => Err(nothing_waits()),
        Some(undone) => {
            undone?;
            Ok(Json(Done { message: "restored the configuration before the last change".to_owned() }))
        }
    }
}

fn nothing_waits() -> Failure {
    Failure::new(StatusCode::CONFLICT, "no change waits for its confirmation: see `netvm config history`")
}

pub(super) async fn restart(
    State(daemon): State<Arc<Daemon>>,
    role: Result<Path<String>, PathRejection>,
) -> Result<Json<Done>, Failure> {
    let Path(role) = role?;
    let count = daemon.supervisor().count(&role);
    if count > 0 {
        let message = match count {
            1 => format!("nf {role}: restarted"),
            _ => format!("nf {role}: restarting {count} processes one after another"),
        };
        tokio::spawn(async move { daemon.restart(&role).await });
        return Ok(Json(Done { message }));
    }
    if daemon.programs().restart(&role) {
        return Ok(Json(Done { message: format!("nf {role}: restarted") }));
    }
    let externals = daemon.externals().into_iter().filter(|(_, external)| external.role == role);
    let externals: Vec<_> = externals.map(|(id, _)| id).collect();
    let known = daemon.running().await?.nf_named(&role).is_some();
    if !known {
        let message = format!("no role `{role}`: `netvm nf` lists the roles");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    let count = externals.len();
    daemon.engine().send(move |engine| externals.into_iter().for_each(|id| engine.dismiss(id)));
    let asked = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
    let message = format!("nf {role}: asked {asked} to end; netvmd does not start this role itself");
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

fn file_name(headers: &HeaderMap) -> String {
    let given = headers.get(FILE_HEADER).map(|value| netvm_api::file_name(value.as_bytes()));
    given.unwrap_or_else(|| NAMELESS.to_owned())
}
