//! Rules, flows, MAC addresses and packet traces.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use netvm_api::{
    AddRule, AddressBytes, AddressInfo, CacheInfo, Done, FlowInfo, FlowVerdict, FlowVerdictInfo, Flows,
    MOST_FLOWS, NameBytes, PolicyInfo, RuleInfo, TopQuery, TopTalkers, TraceReply, TraceRequest,
};
use netvm_engine::{FlowCounts, FlowView, Lost, NfVerdict, RuleCount, Step};
use netvm_flowmon::export::{NamedBytes, Talker};
use netvm_model::{Host, RoleId, Rule, RuleId};
use netvm_policy::Names;
use netvm_wire::{Address, FiveTuple, FlowKey, Malformed};
use tokio::sync::oneshot;

use super::Failure;
use super::traffic::views;
use crate::daemon::Changed;
use crate::daemon::Daemon;

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

fn with_warnings(mut message: String, warnings: &[String]) -> Json<Done> {
    for doubt in warnings {
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
        unprocessable("the frame is not hexadecimal: write two digits for each byte".to_owned())
    })?;
    let length = length.unwrap_or(bytes.len());
    if length < bytes.len() {
        return Err(unprocessable(format!("`length` is {length}, but {} bytes are given", bytes.len())));
    }
    let host = daemon.running().await?;
    let Some(from) = host.port_named(&port).map(|port| port.id) else {
        let message = format!("no port `{port}`: `netvm port` lists the ports");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    };
    let read =
        move |engine: &mut netvm_engine::Engine| (engine.trace(from, &bytes, length), engine.rule_counts());
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
    let steps = steps.iter().flat_map(|step| lines(&host, step, length)).collect();
    Ok(Json(TraceReply { steps, rule }))
}

/// A step as text, with a line for each rule.
pub(super) fn lines(host: &Host, step: &Step, length: usize) -> Vec<String> {
    let line = match step {
        Step::In(port) => format!("received on port {}", Names::port(host, *port)),
        Step::Key(key) => format!("packet {}, {length} bytes", described(key)),
        Step::Malformed(why) => malformed(*why),
        Step::Rules { rules, decided } => {
            let last = rules.len().saturating_sub(1);
            let line = |(n, id): (usize, &RuleId)| {
                let text = rule_of(host, *id).map_or_else(String::new, |rule| rule.named(host).to_string());
                let role = if *decided && n == last { "decides" } else { "matches" };
                format!("rule {id} {role}: {text}")
            };
            return rules.iter().enumerate().map(line).collect();
        }
        Step::Default { allowed: true } => "no rule decides: allowed by the port's default".to_owned(),
        Step::Default { allowed: false } => "no rule decides: denied by the port's default".to_owned(),
        Step::Policed(1) => "policed: dropped if it exceeds the rate".to_owned(),
        Step::Policed(count) => format!("policed by {count} rates: dropped if it exceeds one"),
        Step::Retagged => "VLAN tag changed".to_owned(),
        Step::TagPushed(tag) => format!("VLAN tag {tag} pushed"),
        Step::TagPopped(tag) => format!("VLAN tag {tag} popped"),
        Step::Queued(queue) => {
            format!("assigned to queue {}, at ports that have it", Names::queue(host, *queue))
        }
        Step::Mirrored(port) => format!("mirrored to port {}", Names::port(host, *port)),
        Step::Switched(Some(port)) => {
            format!("L2 switch: destination on port {}", Names::port(host, *port))
        }
        Step::Switched(None) => "L2 switch: destination unknown".to_owned(),
        Step::Flooded(port) => format!("flooded to port {}:", Names::port(host, *port)),
        Step::Chain(chain) => match host.chain(*chain) {
            Some(chain) => {
                let roles = chain.hops.iter().filter_map(|role| host.nf(*role)).map(|nf| nf.role.as_str());
                format!("enters chain {}: {}", chain.name, roles.collect::<Vec<_>>().join(" → "))
            }
            None => format!("enters chain {chain}"),
        },
        Step::Passed => "leaves the chain, if every NF passes it on unchanged".to_owned(),
        Step::NfDecides => "an NF of the chain chooses the port, as the chain has no output".to_owned(),
        Step::ToNf { role, hop } => format!("passed to NF {}, hop {}", role_name(host, *role), hop + 1),
        Step::FromNf { role, hop, verdict } => {
            let (role, verdict) = (role_name(host, *role), verdict_text(host, *verdict));
            format!("returned by NF {role}, hop {}: verdict {verdict}", hop + 1)
        }
        Step::Rewritten(key) => format!("rewritten: {}", described(key)),
        Step::Left => "leaves the chain".to_owned(),
        Step::Router(router) => format!("enters router {}", Names::router(host, *router)),
        Step::NextHop { port, vlan, mac } => {
            let vlan = vlan.map(|vlan| format!(" with VLAN {}", vlan.get())).unwrap_or_default();
            format!("routed to {mac} on port {}{vlan}", Names::port(host, *port))
        }
        Step::Punted(reason) => format!("punted to the router's kernel: {}", reason.name()),
        Step::Out(port) => format!("sent on port {}", Names::port(host, *port)),
        Step::HandedOver(worker) => format!("handed over to worker {worker}"),
        Step::Cut(packets) => format!("cut into {packets} packets, of which the first is followed"),
        Step::Answered => "answered with an ICMP error".to_owned(),
        Step::Dropped(reason) => format!("dropped: {}", reason.name()),
        Step::Lost(Lost::Held) => "not followed any longer: it has stayed there for 5 s".to_owned(),
        Step::Lost(Lost::Freed) => {
            "not followed any longer: its buffer was freed, as by an NF that ended".to_owned()
        }
        Step::Lost(Lost::TooLong) => "not shown any longer: it takes too many steps".to_owned(),
        Step::Lost(Lost::Elsewhere) => "not followed there".to_owned(),
        Step::Lost(Lost::Forgotten) => {
            "not shown any longer: the configuration has changed too often".to_owned()
        }
    };
    vec![line]
}

fn role_name(host: &Host, role: RoleId) -> String {
    host.nf(role).map_or_else(|| role.to_string(), |nf| nf.role.clone())
}

fn verdict_text(host: &Host, verdict: NfVerdict) -> String {
    match verdict {
        NfVerdict::Next => "next".to_owned(),
        NfVerdict::Port(port) => format!("port {}", Names::port(host, port)),
        NfVerdict::Role(role) => format!("role {}", role_name(host, role)),
        NfVerdict::Drop => "drop".to_owned(),
        NfVerdict::DropFlow => "drop-flow".to_owned(),
        NfVerdict::SkipFlow => "skip-flow".to_owned(),
        NfVerdict::Invalid(number) => format!("{number}, which is none"),
    }
}

fn malformed(why: Malformed) -> String {
    format!("cannot parse its headers: {why}")
}

fn rule_of(host: &Host, id: RuleId) -> Option<&Rule> {
    host.rules.iter().find(|rule| rule.id == id)
}

/// A flow as text: addresses, ports and protocol. For a packet without IP, and for a flow that is only switched (lookups
/// ignore its other fields): MAC addresses and EtherType.
fn described(key: &FlowKey) -> String {
    let vlan = key.vlan.map_or_else(String::new, |vlan| format!(" vlan {vlan}"));
    let is_ignored = |tuple: &FiveTuple| {
        [tuple.source, tuple.destination].iter().all(|address| *address == Address::default())
            && (tuple.source_port, tuple.destination_port) == (0, 0)
    };
    let what: Cow<'_, str> = match key.five_tuple().filter(|tuple| !is_ignored(tuple)) {
        Some(tuple) => tuple.to_string().into(),
        None => format!("{} > {} {}", key.source_mac, key.destination_mac, key.ether_type).into(),
    };
    let flags: String =
        key.tcp_flags.iter_names().map(|(name, _)| format!(" {}", name.to_lowercase())).collect();
    format!("{what}{flags}{vlan}")
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
    Ok(Json(Flows {
        flows: flows.iter().map(|flow| flow_info(&host, flow)).collect(),
        caches: caches.collect(),
    }))
}

async fn read_flows(daemon: &Daemon) -> Result<(Vec<FlowView>, Vec<FlowCounts>), Failure> {
    let (sender, reply) = oneshot::channel();
    let read = move |engine: &mut netvm_engine::Engine| {
        // The caller may have been cancelled.
        engine.read_flows(MOST_FLOWS, move |flows, counts| drop(sender.send((flows, counts))));
    };
    daemon.engine().call(read).await?;
    reply.await.map_err(|_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended"))
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
        verdicts: flow.verdicts.iter().map(|verdict| verdict_info(host, *verdict)).collect(),
    }
}

fn verdict_info(host: &Host, word: netvm_engine::FlowVerdict) -> FlowVerdictInfo {
    FlowVerdictInfo {
        role: role_name(host, word.role),
        verdict: if word.drops { FlowVerdict::Drop } else { FlowVerdict::Skip },
        left_s: word.left,
    }
}

/// The addresses and names with the most traffic, in the records of the flow monitor and in flows that run.
pub(super) async fn top(
    State(daemon): State<Arc<Daemon>>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Answer<TopTalkers> {
    let Query(TopQuery { count }) = query?;
    let (Some(monitor), Some(exporter)) = (views(&daemon).await?.monitor, daemon.statistics().flows()) else {
        let message =
            "netvmd does not count flows: configure `flow_monitor = {}` in [engine], and restart netvmd";
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    };
    let address =
        |it: Talker| AddressBytes { address: it.address.to_string(), bytes: it.bytes, error: it.error };
    let name = |it: NamedBytes| NameBytes {
        name: it.name,
        kind: it.kind.to_owned(),
        bytes: it.bytes,
        error: it.error,
    };
    // Records first: what is recorded in between counts once at most.
    let mut heaviest = exporter.heaviest();
    let (sender, running) = oneshot::channel();
    // The caller may have been cancelled.
    daemon.engine().call(|engine| engine.read_running(move |running| drop(sender.send(running)))).await?;
    let gone = |_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended");
    heaviest.merge(&running.await.map_err(gone)?);
    Ok(Json(TopTalkers {
        monitor,
        addresses: heaviest.talkers(count).into_iter().map(address).collect(),
        names: heaviest.names(count).into_iter().map(name).collect(),
    }))
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

#[cfg(test)]
mod tests {
    use netvm_wire::{EtherType, IpProto, MacAddr};

    use super::*;

    #[test]
    fn a_flow_that_is_only_switched_is_described_by_its_addresses() {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let switched = FlowKey {
            source_mac: mac(1),
            destination_mac: mac(2),
            ether_type: EtherType::IPV4,
            ..FlowKey::default()
        };
        assert_eq!(described(&switched), "02:00:00:00:00:01 > 02:00:00:00:00:02 ipv4");
        let routed = FlowKey {
            source: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
            protocol: IpProto::UDP,
            ..switched
        };
        assert!(described(&routed).starts_with("10.0.0.1:0 > "), "{}", described(&routed));
    }
}
