// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/events`: the history, with `follow` also new events; one JSON object per line.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use netvm_api::{Event, EventQuery};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

use super::super::Failure;
use crate::daemon::Daemon;

pub(in crate::api) async fn events(
    State(daemon): State<Arc<Daemon>>,
    query: Result<Query<EventQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(EventQuery { after, follow }) = query?;
    if !follow {
        return Ok(Json(daemon.engine().events().after(after)).into_response());
    }
    let (history, coming) = daemon.engine().events().follow(after);
    let coming = BroadcastStream::new(coming).map(move |event| match event {
        Ok(event) => event,
        Err(BroadcastStreamRecvError::Lagged(count)) => daemon.engine().events().lost(count),
    });
    let lines = tokio_stream::iter(history).chain(coming).map(|event| line(&event));
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], Body::from_stream(lines)).into_response())
}

fn line(event: &Event) -> Result<Bytes, serde_json::Error> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line.into())
}
