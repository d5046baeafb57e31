// SPDX-License-Identifier: Apache-2.0
//! Rules, flows, MAC addresses and packet traces.

pub(super) mod connections;
pub(super) mod multicast;
pub(super) mod saved;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use netvm_api::{
    AddRule, AddressBytes, AddressInfo, CacheInfo, Done, FlowInfo, FlowMonitorInfo, FlowVerdict,
    FlowVerdictInfo, Flows, MAX_FLOWS, NameBytes, PolicyInfo, RuleInfo, TopQuery, TopTalkers, TraceReply,
    TraceRequest,
};
use netvm_engine::{FlowCounts, FlowView, Hypothetical, RuleCount, Step};
use netvm_flowmon::export::{Heaviest, NamedBytes, Talker};
use netvm_model::{Host, PortId, Rule};
use netvm_policy::Names;
use netvm_wire::ConnState;
use tokio::sync::oneshot;

use super::Failure;
use super::steps::{described, flow, role_name, steer_text};
use super::traffic::views;
use crate::daemon::Changed;
use crate::daemon::Daemon;
use crate::lookup::labels;
use crate::names::{port_labels, rule_name, rule_of};

type Answer<T> = Result<Json<T>, Failure>;

pub(super) async fn policy(State(daemon): State<Arc<Daemon>>) -> Answer<PolicyInfo> {
    let read = |engine: &mut netvm_engine::Engine| {
        (engine.shared_host(), engine.rule_counts(), engine.policy().memory())
    };
    let (host, counts, memory) = daemon.engine().call(read).await?;
    let info = |rule: &Rule| rule_info(&host, rule, counts.get(&rule.id).copied().unwrap_or_default());
    Ok(Json(PolicyInfo { rules: host.rules.iter().map(info).collect(), memory: memory as u64 }))
}

fn rule_info(host: &Host, rule: &Rule, count: RuleCount) -> RuleInfo {
    RuleInfo {
        id: rule.id.0,
        name: rule.name.clone(),
        text: format!("{}{} → {}", rule.named_match(host), rule.when().named(host), rule.actions.named(host)),
        active: rule.is_active(),
        problems: labels::problems_of(host, rule),
        packets: count.packets,
        bytes: count.bytes,
    }
}

pub(super) async fn add(
    State(daemon): State<Arc<Daemon>>,
    request: Result<Json<AddRule>, JsonRejection>,
) -> Answer<Done> {
    let Json(AddRule { toml, position }) = request?;
    let Changed { rule, warnings } = daemon.rules().add(&toml, &position).await?;
    let host = daemon.running().await?;
    Ok(with_warnings(format!("rule {} added: {}", rule.id, rule.named(&*host)), &warnings))
}

pub(super) async fn delete(
    State(daemon): State<Arc<Daemon>>,
    rule: Result<Path<String>, PathRejection>,
) -> Answer<Done> {
    let Path(name) = rule?;
    let Changed { rule, warnings } = daemon.rules().delete(&name).await?;
    let host = daemon.running().await?;
    Ok(with_warnings(format!("rule {} deleted: {}", rule.id, rule.named(&*host)), &warnings))
}

pub(super) fn unprocessable(message: String) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message)
}

/// The port that a request names.
pub(super) fn port_named(host: &Host, name: &str) -> Result<PortId, Failure> {
    host.port_named(name).map(|port| port.id).ok_or_else(|| {
        Failure::new(StatusCode::NOT_FOUND, format!("no port `{name}`: `netvm port` lists the ports"))
    })
}

fn with_warnings(mut message: String, warnings: &[String]) -> Json<Done> {
    for warning in warnings {
        message.push_str("\nwarning: ");
        message.push_str(warning);
    }
    Json(Done { message })
}

pub(super) async fn trace(
    State(daemon): State<Arc<Daemon>>,
    request: Result<Json<TraceRequest>, JsonRejection>,
) -> Answer<TraceReply> {
    let Json(TraceRequest { port, frame, length, state }) = request?;
    let bytes = bytes_of(&frame).ok_or_else(|| {
        unprocessable("the frame is not hexadecimal: write two digits for each byte".to_owned())
    })?;
    let length = length.unwrap_or(bytes.len());
    if length < bytes.len() {
        return Err(unprocessable(format!("`length` is {length}, but {} bytes are given", bytes.len())));
    }
    let host = daemon.running().await?;
    let from = port_named(&host, &port)?;
    let state = state.map_or(Ok(ConnState::New), |name| state_at(&host, from, &name))?;
    let read = move |engine: &mut netvm_engine::Engine| {
        let packet = Hypothetical { from, headers: &bytes, length, state };
        (engine.trace(packet), engine.rule_counts())
    };
    let (steps, counts) = daemon.engine().call(read).await?;
    let steps = steps.map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    // A flooded packet may meet other rules at each port.
    let copies = steps.iter().filter(|step| matches!(step, Step::Flooded(_))).count();
    let common = steps.iter().take_while(|step| copies < 2 || !matches!(step, Step::Flooded(_)));
    let mut decides = common.filter_map(|step| match step {
        Step::Rules { rules, decided: true } => rules.last().copied(),
        _ => None,
    });
    let rule = decides.next().and_then(|id| rule_of(&host, id));
    let rule = rule.map(|rule| rule_info(&host, rule, counts.get(&rule.id).copied().unwrap_or_default()));
    let steps = steps.iter().flat_map(|step| described(&host, step, length)).map(|step| step.text).collect();
    Ok(Json(TraceReply { steps, rule }))
}

/// The state that a request names, at this port.
fn state_at(host: &Host, from: PortId, name: &str) -> Result<ConnState, Failure> {
    let state = ConnState::ALL.into_iter().find(|state| state.name() == name).ok_or_else(|| {
        let known = ConnState::ALL.map(ConnState::name).join(", ");
        unprocessable(format!("no packet has the state `{name}`: give one of {known}"))
    })?;
    let tracks = host.port(from).is_some_and(|port| host.tracks_port(port));
    if state != ConnState::Untracked && !tracks {
        return Err(unprocessable(format!(
            "port `{}` does not track connections, so no packet is `{name}` there: set `track = true` in its [[port]], \
             or leave the state out",
            Names::port(host, from)
        )));
    }
    Ok(state)
}

/// Time for which workers look packets up by flow before the first answer, if they did not before.
const WATCH: Duration = Duration::from_secs(1);

pub(super) async fn flows(State(daemon): State<Arc<Daemon>>) -> Answer<Flows> {
    let (mut flows, mut counts) = read_flows(&daemon).await?;
    if counts.iter().any(|counts| !counts.were_watched) {
        // The prefilter has handled packets without their flows; from now on, it does not.
        tokio::time::sleep(WATCH).await;
        (flows, counts) = read_flows(&daemon).await?;
    }
    let host = daemon.running().await?;
    flows.sort_by_key(|flow| core::cmp::Reverse(flow.packets));
    let caches = (0u8..).zip(&counts).map(|(worker, counts)| CacheInfo {
        worker,
        capacity: counts.capacity,
        hits: counts.counters.hits,
        misses: counts.counters.misses,
        evicted: counts.counters.evictions,
    });
    let flows: Vec<FlowInfo> = flows.iter().map(|flow| flow_info(&host, flow)).collect();
    let port_labels = port_labels(&host, flows.iter().map(|flow| flow.port.as_str()));
    Ok(Json(Flows { flows, caches: caches.collect(), port_labels }))
}

async fn read_flows(daemon: &Daemon) -> Result<(Vec<FlowView>, Vec<FlowCounts>), Failure> {
    let (sender, reply) = oneshot::channel();
    let read = move |engine: &mut netvm_engine::Engine| {
        // The caller may have been cancelled.
        engine.read_flows(MAX_FLOWS, move |flows, counts| drop(sender.send((flows, counts))));
    };
    daemon.engine().call(read).await?;
    reply.await.map_err(|_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended"))
}

fn flow_info(host: &Host, view: &FlowView) -> FlowInfo {
    FlowInfo {
        worker: view.worker.0,
        port: Names::port(host, view.port).into_owned(),
        flow: flow(&view.key),
        rule: view.rules.last().map(|id| rule_name(host, *id)),
        packets: view.packets,
        bytes: view.bytes,
        idle_s: view.idle,
        age_s: view.age,
        verdicts: view.verdicts.iter().map(|verdict| verdict_info(host, *verdict)).collect(),
        by_kernel: view.by_kernel,
    }
}

fn verdict_info(host: &Host, word: netvm_engine::FlowVerdict) -> FlowVerdictInfo {
    FlowVerdictInfo {
        role: role_name(host, word.role),
        verdict: match word.steers {
            _ if word.drops => FlowVerdict::Drop,
            Some(_) => FlowVerdict::Steer,
            None => FlowVerdict::Skip,
        },
        to: word.steers.map(|to| steer_text(host, to)),
        left_s: word.left,
    }
}

/// The addresses and names with the most traffic, in the records of the flow monitor and in flows that run.
pub(super) async fn top(
    State(daemon): State<Arc<Daemon>>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Answer<TopTalkers> {
    let Query(TopQuery { count }) = query?;
    let address =
        |it: Talker| AddressBytes { address: it.address.to_string(), bytes: it.bytes, error: it.error };
    let name = |it: NamedBytes| NameBytes {
        name: it.name,
        kind: it.kind.to_owned(),
        bytes: it.bytes,
        error: it.error,
    };
    let (monitor, connections, heaviest) = match (views(&daemon).await?.monitor, daemon.statistics().flows())
    {
        (Some(monitor), Some(exporter)) => (monitor, None, with_running(&daemon, exporter.heaviest()).await?),
        _ => {
            let (heaviest, connections) = of_connections(&daemon).await?;
            (FlowMonitorInfo::default(), Some(connections), heaviest)
        }
    };
    Ok(Json(TopTalkers {
        monitor,
        connections,
        addresses: heaviest.talkers(count).into_iter().map(address).collect(),
        names: heaviest.names(count).into_iter().map(name).collect(),
    }))
}

/// Those of records, which were read before, and of flows that run: what is recorded in between counts once at most.
async fn with_running(daemon: &Daemon, mut heaviest: Heaviest) -> Result<Heaviest, Failure> {
    let (sender, running) = oneshot::channel();
    // The caller may have been cancelled.
    daemon.engine().call(|engine| engine.read_running(move |running| drop(sender.send(running)))).await?;
    heaviest.merge(&running.await.map_err(ended)?);
    Ok(heaviest)
}

/// Those of live connections, and the number of these.
async fn of_connections(daemon: &Daemon) -> Result<(Heaviest, u64), Failure> {
    let (sender, sums) = oneshot::channel();
    let read = |engine: &mut netvm_engine::Engine| {
        let tracks = engine.host().tracks();
        if tracks {
            engine.connections().sum_up(move |heaviest, count| drop(sender.send((heaviest, count))));
        }
        tracks
    };
    if !daemon.engine().call(read).await? {
        let message = "netvmd counts no flows, and tracks no connections: configure `flow_monitor = {}` in [engine], and \
                       restart netvmd, or set `track = true` for ports or routers";
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    sums.await.map_err(ended)
}

fn ended(_: oneshot::error::RecvError) -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended")
}

pub(super) async fn addresses(State(daemon): State<Arc<Daemon>>) -> Answer<Vec<AddressInfo>> {
    let host = daemon.running().await?;
    let known = daemon.engine().call(|engine| engine.addresses()).await?;
    let info = |address: netvm_engine::Address| AddressInfo {
        vlan: address.vlan,
        mac: address.mac.to_string(),
        port: Names::port(&*host, address.port).into_owned(),
    };
    Ok(Json(known.into_iter().map(info).collect()))
}

/// Parses hexadecimal bytes; skips blanks, colons and line ends.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|c| !c.is_whitespace() && *c != ':')
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
