// SPDX-License-Identifier: Apache-2.0
//! Saves connections in a file of the client, and restores them. The file is a line of JSON with the names of ports and
//! rules, whose numbers may be others after a restart, and then a file of `netvm-conntrack`. Both are passed on in
//! parts, so that any number of connections needs little memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use netvm_api::{ConnectionQuery, RestoredConnections};
use netvm_conntrack::{LoadError, Origin, SaveReader, SaveWriter, SavedConnection, TICKS_PER_SECOND};
use netvm_engine::{ConnectionFilter, Engine, Restored, rule_number};
use netvm_model::Host;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::connections::{filter, tracking};
use super::unprocessable;
use crate::api::Failure;
use crate::daemon::Daemon;
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::runtime::blocking;

/// Bytes of a part of the file.
const CHUNK: usize = 256 << 10;
/// Parts that wait for a slow client.
const WAITING: usize = 4;
/// Longest line of names.
const MAX_NAMES: u64 = 64 << 20;
/// Names of ports in an answer.
const MAX_PORTS: usize = 20;

type Chunk = io::Result<Bytes>;

/// The line before the connections.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Names {
    /// Ports by number.
    ports: BTreeMap<u16, String>,
    /// Rules by number.
    rules: BTreeMap<u32, String>,
}

impl Names {
    fn of(host: &Host) -> Self {
        let ports = host.ports.iter().map(|port| (port.id.0, port.name.clone())).collect();
        let rule = |rule: &netvm_model::Rule| (rule_number(rule.id), rule.named(host).to_string());
        Self { ports, rules: host.rules.iter().map(rule).collect() }
    }

    /// For each number here the one in another configuration.
    fn renumber<T: Copy + Ord>(
        &self,
        now: &Self,
        of: impl Fn(&Self) -> &BTreeMap<T, String>,
    ) -> BTreeMap<T, T> {
        let by_name: BTreeMap<&str, T> = of(now).iter().map(|(number, name)| (&**name, *number)).collect();
        let found = |(number, name): (&T, &String)| Some((*number, *by_name.get(&**name)?));
        of(self).iter().filter_map(found).collect()
    }
}

pub(in crate::api) async fn save(
    State(daemon): State<Arc<Daemon>>,
    query: Result<Query<ConnectionQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(query) = query?;
    if query.id.is_some() || query.limit.is_some() {
        return Err(unprocessable(
            "`id` and `limit` select no connections to save; give `address`".to_owned(),
        ));
    }
    let host = tracking(&daemon).await?;
    let filter = filter(&host, &query)?;
    let engine = daemon.engine().clone();
    let (sender, chunks) = channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let to = BufWriter::with_capacity(CHUNK, ToClient(sender.clone()));
        if let Err(error) = write(to, &host, &engine, &filter) {
            // Aborts the reply, so that the client notices the failure, if it is still there.
            let _ = sender.blocking_send(Err(error));
        }
    });
    let head = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"connections.netvm\""),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((head, Body::from_stream(ReceiverStream::new(chunks))).into_response())
}

/// Writes the connections that a filter accepts.
fn write(
    mut to: impl Write,
    host: &Host,
    engine: &EngineHandle,
    filter: &ConnectionFilter,
) -> io::Result<()> {
    serde_json::to_writer(&mut to, &Names::of(host))?;
    to.write_all(b"\n")?;
    let mut file = SaveWriter::new(to, unix_seconds())?;
    let workers = |engine: &mut Engine| engine.workers().map(|worker| worker.id).collect::<Vec<_>>();
    for worker in engine.call_blocking(workers).map_err(io::Error::other)? {
        let mut next = Some(0);
        while let Some(first) = next {
            let save = move |engine: &mut Engine| engine.connections().save(worker, first);
            let mut part = engine.call_blocking(save).map_err(io::Error::other)?;
            part.connections.retain(|saved| filter.accepts_saved(saved));
            file.write(&part.connections)?;
            next = part.next;
        }
    }
    file.finish().map(drop)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Sends what is written to the client.
struct ToClient(Sender<Chunk>);

impl Write for ToClient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(in crate::api) async fn load(
    State(daemon): State<Arc<Daemon>>,
    body: Body,
) -> Result<Json<RestoredConnections>, Failure> {
    let host = tracking(&daemon).await?;
    let engine = daemon.engine().clone();
    let (sender, chunks) = channel(WAITING);
    let receive = async move {
        let mut body = body.into_data_stream();
        while let Some(chunk) = body.next().await {
            // What the reader does not want is received nevertheless, so that the client reads the answer.
            let _ = sender.send(chunk.map_err(io::Error::other)).await;
        }
    };
    let from = BufReader::with_capacity(CHUNK, FromClient { chunks, rest: Bytes::new() });
    let (outcome, ()) = tokio::join!(blocking(move || read(from, &host, &engine)), receive);
    Ok(Json(outcome?))
}

/// Reads what the client sends.
struct FromClient {
    chunks: Receiver<Chunk>,
    rest: Bytes,
}

impl Read for FromClient {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.chunks.blocking_recv() {
                None => return Ok(0),
                Some(chunk) => self.rest = chunk?,
            }
        }
        let count = bytes.len().min(self.rest.len());
        bytes[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// Restores the connections of a file, as far as it can be read.
fn read(mut from: impl BufRead, host: &Host, engine: &EngineHandle) -> Result<RestoredConnections, Failure> {
    let other_file = |error: &LoadError| unprocessable(format!("the file {error}"));
    let mut line = Vec::new();
    let has_line = Read::take(&mut from, MAX_NAMES).read_until(b'\n', &mut line).is_ok();
    let names: Names = match serde_json::from_slice(&line) {
        Ok(names) if has_line => names,
        _ => return Err(other_file(&LoadError::OtherFile)),
    };
    let mut file = SaveReader::new(from).map_err(|error| other_file(&error))?;
    let now = Names::of(host);
    let mut restoring = Restoring {
        ports: names.renumber(&now, |names| &names.ports),
        rules: names.renumber(&now, |names| &names.rules),
        names,
        ticks: ticks_since(file.saved_at()),
        unknown: BTreeSet::new(),
        reply: RestoredConnections::default(),
    };
    let mut part = Vec::new();
    loop {
        match file.read(&mut part) {
            Ok(true) => restoring.restore(std::mem::take(&mut part), engine)?,
            Ok(false) => break,
            Err(error) => {
                restoring.reply.problem = Some(format!("the file {error}"));
                break;
            }
        }
    }
    restoring.reply.unknown_ports = restoring.unknown.into_iter().collect();
    Ok(restoring.reply)
}

fn ticks_since(saved_at: u64) -> u32 {
    let ticks = unix_seconds().saturating_sub(saved_at).saturating_mul(TICKS_PER_SECOND.into());
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// What is known of a file.
struct Restoring {
    names: Names,
    /// Numbers of ports and rules now, by those in the file.
    ports: BTreeMap<u16, u16>,
    rules: BTreeMap<u32, u32>,
    /// Since the connections were saved.
    ticks: u32,
    unknown: BTreeSet<String>,
    reply: RestoredConnections,
}

impl Restoring {
    fn restore(&mut self, mut part: Vec<SavedConnection>, engine: &EngineHandle) -> Result<(), EngineGone> {
        part.retain_mut(|saved| self.is_wanted(saved));
        let restored = engine.call_blocking(|engine| engine.connections().restore(part))?;
        let Restored { restored, no_room, over_quota, taken } = restored;
        let reply = &mut self.reply;
        reply.restored += restored;
        reply.no_room += no_room;
        reply.over_quota += over_quota;
        reply.taken += taken;
        Ok(())
    }

    /// Whether a connection lives and its port exists. Gives it the numbers of now.
    fn is_wanted(&mut self, saved: &mut SavedConnection) -> bool {
        if !saved.grow_older(self.ticks) {
            self.reply.expired += 1;
            return false;
        }
        let Origin { port, rule } = saved.connection().origin();
        let Some(port) = self.ports.get(&port).copied() else {
            self.reply.of_unknown_ports += 1;
            let name = self.names.ports.get(&port).cloned().unwrap_or_else(|| format!("number {port}"));
            if self.unknown.len() < MAX_PORTS {
                self.unknown.insert(name);
            }
            return false;
        };
        let rule = self.rules.get(&rule).copied().unwrap_or_default();
        saved.set_origin(Origin { port, rule });
        saved.be_liberal();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_rules_are_known_by_name() {
        let names = |ports: &[(u16, &str)]| Names {
            ports: ports.iter().map(|(number, name)| (*number, (*name).to_owned())).collect(),
            rules: BTreeMap::from([(u32::from(ports[0].0), "r".to_owned())]),
        };
        let (before, now) = (names(&[(0, "a"), (1, "b"), (2, "c")]), names(&[(5, "c"), (0, "b")]));
        assert_eq!(before.renumber(&now, |names| &names.ports), BTreeMap::from([(1, 0), (2, 5)]));
        assert_eq!(before.renumber(&now, |names| &names.rules), BTreeMap::from([(0, 5)]));
    }
}
