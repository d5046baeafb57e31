//! Rules, flows, and what would become of a packet.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use netvm_api::{
    AddRule, AddressInfo, CacheInfo, Done, FlowInfo, FlowVerdict, FlowVerdictInfo, Flows, MOST_FLOWS,
    PolicyInfo, RuleInfo, TraceReply, TraceRequest,
};
use netvm_config::model::{Host, Rule, RuleId};
use netvm_engine::{FlowView, RuleCount, Step};
use netvm_policy::Names;
use netvm_wire::{FlowKey, Malformed};
use tokio::sync::oneshot;

use super::Failure;
use crate::daemon::Daemon;
use crate::policy::Changed;

type Answer<T> = Result<Json<T>, Failure>;

pub(super) async fn policy(State(daemon): State<Arc<Daemon>>) -> Answer<PolicyInfo> {
    let read = |engine: &mut netvm_engine::Engine| {
        (engine.shared_host(), engine.rule_counts(), engine.policy().memory())
    };
    let (host, counts, memory) = daemon.engine.call(read).await?;
    let info = |rule: &Rule| rule_info(&host, rule, counts.get(&rule.id).copied().unwrap_or_default());
    Ok(Json(PolicyInfo { rules: host.rules.iter().map(info).collect(), memory: memory as u64 }))
}

fn rule_info(host: &Host, rule: &Rule, count: RuleCount) -> RuleInfo {
    RuleInfo {
        id: rule.id.0,
        name: rule.name.clone(),
        text: format!("{} → {}", rule.matches.named(host), rule.actions.named(host)),
        packets: count.packets,
        bytes: count.bytes,
    }
}

pub(super) async fn add(
    State(daemon): State<Arc<Daemon>>,
    request: Result<Json<AddRule>, JsonRejection>,
) -> Answer<Done> {
    let Json(AddRule { toml, position }) = request?;
    let Changed { rule, doubts } = daemon.add_rule(&toml, &position).await?;
    let host = daemon.running().await?;
    Ok(with_doubts(format!("rule {} acts: {}", rule.id, rule.named(&*host)), &doubts))
}

pub(super) async fn delete(
    State(daemon): State<Arc<Daemon>>,
    rule: Result<Path<String>, PathRejection>,
) -> Answer<Done> {
    let Path(name) = rule?;
    let Changed { rule, doubts } = daemon.delete_rule(&name).await?;
    let host = daemon.running().await?;
    Ok(with_doubts(format!("rule {} is gone: {}", rule.id, rule.named(&*host)), &doubts))
}

fn with_doubts(mut message: String, doubts: &[String]) -> Json<Done> {
    for doubt in doubts {
        message.push_str("\nwarning: ");
        message.push_str(doubt);
    }
    Json(Done { message })
}

pub(super) async fn trace(
    State(daemon): State<Arc<Daemon>>,
    request: Result<Json<TraceRequest>, JsonRejection>,
) -> Answer<TraceReply> {
    let Json(TraceRequest { port, frame, length }) = request?;
    let unprocessable = |message: String| Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message);
    let bytes = bytes_of(&frame).ok_or_else(|| {
        unprocessable("the frame is not in hexadecimal: two digits for each byte are wanted".to_owned())
    })?;
    let length = length.unwrap_or(bytes.len());
    if length < bytes.len() {
        return Err(unprocessable(format!("a frame of {length} bytes cannot begin with {}", bytes.len())));
    }
    let host = daemon.running().await?;
    let Some(from) = host.port_named(&port).map(|port| port.id) else {
        let message = format!("there is no port `{port}`: `netvm port` lists them");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    };
    let read =
        move |engine: &mut netvm_engine::Engine| (engine.trace(from, &bytes, length), engine.rule_counts());
    let (steps, counts) = daemon.engine.call(read).await?;
    let decides = steps.iter().find_map(|step| match step {
        Step::Rules { rules, decided: true } => rules.last().copied(),
        _ => None,
    });
    let rule = decides.and_then(|id| rule_of(&host, id));
    let rule = rule.map(|rule| rule_info(&host, rule, counts.get(&rule.id).copied().unwrap_or_default()));
    let steps = steps.iter().flat_map(|step| lines(&host, step, length)).collect();
    Ok(Json(TraceReply { steps, rule }))
}

/// A step in words, a line for each rule.
fn lines(host: &Host, step: &Step, length: usize) -> Vec<String> {
    let line = match step {
        Step::In(port) => format!("in by port {}", Names::port(host, *port)),
        Step::Key(key) => format!("is {}, {length} bytes", described(key)),
        Step::Malformed(why) => malformed(*why),
        Step::Rules { rules, decided } => {
            let last = rules.len().saturating_sub(1);
            let told = |(n, id): (usize, &RuleId)| {
                let text = rule_of(host, *id).map_or_else(String::new, |rule| rule.named(host).to_string());
                let role = if *decided && n == last { "decides" } else { "matches" };
                format!("rule {id} {role}: {text}")
            };
            return rules.iter().enumerate().map(told).collect();
        }
        Step::Default { allowed: true } => "no rule decides: allowed, as the port says".to_owned(),
        Step::Default { allowed: false } => "no rule decides: denied, as the port says".to_owned(),
        Step::Policed(1) => "is measured: what exceeds the rate is dropped".to_owned(),
        Step::Policed(count) => format!("is measured by {count} rates: what exceeds one is dropped"),
        Step::Retagged => "gets another VLAN tag".to_owned(),
        Step::Mirrored(port) => format!("a copy leaves by port {}", Names::port(host, *port)),
        Step::Switched(Some(port)) => {
            format!("L2 switching: the destination is behind port {}", Names::port(host, *port))
        }
        Step::Switched(None) => "L2 switching: the destination is not known".to_owned(),
        Step::Chain(chain) => match host.chain(*chain) {
            Some(chain) => {
                let roles = chain.hops.iter().filter_map(|role| host.nf(*role)).map(|nf| nf.role.as_str());
                format!("enters chain {}: {}", chain.name, roles.collect::<Vec<_>>().join(" → "))
            }
            None => format!("enters chain {chain}"),
        },
        Step::Router(router) => format!("goes to router {}", Names::router(host, *router)),
        Step::NextHop { port, vlan, mac } => {
            let vlan = vlan.map(|vlan| format!(" with VLAN {}", vlan.get())).unwrap_or_default();
            format!("is routed to {mac} behind port {}{vlan}", Names::port(host, *port))
        }
        Step::Punted => "the router's kernel gets it".to_owned(),
        Step::Out(port) => format!("leaves by port {}", Names::port(host, *port)),
        Step::Answered => "its sender is told".to_owned(),
        Step::Dropped(reason) => format!("is dropped: {}", reason.name()),
    };
    vec![line]
}

fn malformed(why: Malformed) -> String {
    format!("its headers cannot be parsed: {why}")
}

fn rule_of(host: &Host, id: RuleId) -> Option<&Rule> {
    host.rules.iter().find(|rule| rule.id == id)
}

/// Addresses, ports and protocol, or what there is instead.
fn described(key: &FlowKey) -> String {
    let vlan = key.vlan.map_or_else(String::new, |vlan| format!(" vlan {vlan}"));
    let what: Cow<'_, str> = match key.five_tuple() {
        Some(tuple) => tuple.to_string().into(),
        None => format!("{} > {} {}", key.source_mac, key.destination_mac, key.ether_type).into(),
    };
    let flags: String =
        key.tcp_flags.iter_names().map(|(name, _)| format!(" {}", name.to_lowercase())).collect();
    format!("{what}{flags}{vlan}")
}

pub(super) async fn flows(State(daemon): State<Arc<Daemon>>) -> Answer<Flows> {
    let (tell, told) = oneshot::channel();
    let read = move |engine: &mut netvm_engine::Engine| {
        // Nobody listens any more when the client has gone.
        engine.read_flows(MOST_FLOWS, move |flows, counts| drop(tell.send((flows, counts))));
    };
    daemon.engine.call(read).await?;
    let gone = |_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the engine ended meanwhile");
    let (mut flows, counts) = told.await.map_err(gone)?;
    let host = daemon.running().await?;
    flows.sort_by_key(|flow| core::cmp::Reverse(flow.packets));
    let caches = (0u8..).zip(&counts).map(|(worker, counts)| CacheInfo {
        worker,
        capacity: counts.capacity,
        hits: counts.counters.hits,
        misses: counts.counters.misses,
        evicted: counts.counters.evictions,
    });
    Ok(Json(Flows {
        flows: flows.iter().map(|flow| flow_info(&host, flow)).collect(),
        caches: caches.collect(),
    }))
}

fn flow_info(host: &Host, flow: &FlowView) -> FlowInfo {
    let rule = flow.rules.last().map(|id| match rule_of(host, *id) {
        Some(rule) if !rule.name.is_empty() => rule.name.clone(),
        _ => id.to_string(),
    });
    FlowInfo {
        worker: flow.worker.0,
        port: Names::port(host, flow.port).into_owned(),
        flow: described(&flow.key),
        rule,
        packets: flow.packets,
        bytes: flow.bytes,
        idle_s: flow.idle,
        age_s: flow.age,
        verdicts: flow.words.iter().map(|word| verdict_info(host, *word)).collect(),
    }
}

fn verdict_info(host: &Host, word: netvm_engine::FlowVerdict) -> FlowVerdictInfo {
    FlowVerdictInfo {
        role: host.nf(word.role).map_or_else(|| word.role.to_string(), |nf| nf.role.clone()),
        verdict: if word.drops { FlowVerdict::Drop } else { FlowVerdict::Skip },
        left_s: word.left,
    }
}

pub(super) async fn addresses(State(daemon): State<Arc<Daemon>>) -> Answer<Vec<AddressInfo>> {
    let host = daemon.running().await?;
    let known = daemon.engine.call(|engine| engine.addresses()).await?;
    let info = |address: netvm_engine::Address| AddressInfo {
        vlan: address.vlan,
        mac: address.mac.to_string(),
        port: Names::port(&*host, address.port).into_owned(),
    };
    Ok(Json(known.into_iter().map(info).collect()))
}

/// Bytes of a text in hexadecimal; blanks, colons and line ends are skipped.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|c| !c.is_whitespace() && *c != ':')
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
