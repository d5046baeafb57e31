// SPDX-License-Identifier: Apache-2.0
//! Requests for ports beside the configuration file.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use netvm_api::{AddPort, AddedPort, Done, LivePortInfo, RemovePort};

use super::Failure;
use crate::daemon::Daemon;

type Answer<T> = Result<Json<T>, Failure>;

pub(in crate::api) async fn list(State(daemon): State<Arc<Daemon>>) -> Answer<Vec<LivePortInfo>> {
    Ok(Json(daemon.live_ports().await?))
}

/// A client that goes away does not interrupt the change: [`super::super::serve::record`] runs it on a task.
pub(in crate::api) async fn add(
    State(daemon): State<Arc<Daemon>>,
    request: Result<Json<AddPort>, JsonRejection>,
) -> Answer<AddedPort> {
    let Json(request) = request?;
    let mut added = daemon.add_ports(vec![request]).await?;
    Ok(Json(added.pop().unwrap_or_default()))
}

pub(in crate::api) async fn add_several(
    State(daemon): State<Arc<Daemon>>,
    request: Result<Json<Vec<AddPort>>, JsonRejection>,
) -> Answer<Vec<AddedPort>> {
    let Json(request) = request?;
    Ok(Json(daemon.add_ports(request).await?))
}

pub(in crate::api) async fn remove(
    State(daemon): State<Arc<Daemon>>,
    which: Result<Query<RemovePort>, QueryRejection>,
) -> Answer<Done> {
    let Query(which) = which?;
    Ok(Json(Done { message: daemon.remove_port(which).await? }))
}
