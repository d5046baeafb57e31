// SPDX-License-Identifier: Apache-2.0
//! `netvm policy`, `netvm flow`, `netvm mac` and `netvm mdb`.

mod import;
mod multicast;
mod packet;

use netvm_api::{
    AddRule, Client, FlowVerdict, FlowVerdictInfo, Flows, PolicyInfo, Position, TopTalkers, TraceReply,
};

use super::stats;
use crate::cli::PolicyCommand;
use crate::daemon;
use crate::error::CliError;
use crate::format::{bytes, count, duration, labels, or_dash};
use crate::output::{Output, lines};

pub use import::import;
pub use multicast::multicast;

/// Runs a `policy` command.
pub async fn policy(client: &Client, output: &Output, command: PolicyCommand) -> Result<(), CliError> {
    match command {
        PolicyCommand::Show => {
            let policy = client.policy().await?;
            if output.json { output.value(&policy) } else { output.text(&draw_rules(&policy, output)) }
        }
        PolicyCommand::Add { lines, last, before, after } => {
            let position = match (before, after) {
                (Some(rule), _) => Position::Before(rule),
                (None, Some(rule)) => Position::After(rule),
                (None, None) if last => Position::Last,
                (None, None) => Position::First,
            };
            output.done(&client.add_rule(&AddRule { toml: lines.join("\n"), position }).await?)
        }
        PolicyCommand::Del { rule } => output.done(&client.delete_rule(&rule).await?),
        PolicyCommand::Trace(arguments) => {
            let routers = client.routers().await?;
            let reply = client.trace(&packet::read(&arguments, &routers)?).await?;
            if output.json { output.value(&reply) } else { output.text(&draw_steps(&reply)) }
        }
        PolicyCommand::Eval { classbench, trace } => daemon::policy_eval(&classbench, &trace),
        PolicyCommand::Import(arguments) => import(output, &arguments),
    }
}

fn draw_rules(policy: &PolicyInfo, output: &Output) -> String {
    if policy.rules.is_empty() {
        return "no rules: each port follows its `forward` key\n".to_owned();
    }
    let mut table = output.table(&[">RULE", "NAME", "MATCH AND ACTION", ">PACKETS", ">BYTES"]);
    for rule in &policy.rules {
        let row = [
            rule.id.to_string(),
            rule.name.clone(),
            if rule.active { rule.text.clone() } else { format!("(not now) {}", rule.text) },
            count(rule.packets),
            bytes(rule.bytes),
        ];
        table.add_row(row);
    }
    let problems = policy.rules.iter().flat_map(|rule| {
        let named = if rule.name.is_empty() { rule.id.to_string() } else { rule.name.clone() };
        rule.problems.iter().map(move |problem| format!("rule {named}, {problem}\n"))
    });
    lines(table) + &problems.collect::<String>()
}

fn draw_steps(reply: &TraceReply) -> String {
    reply.steps.iter().map(|step| format!("{step}\n")).collect()
}

/// Prints the flows in the workers' caches.
pub async fn flows(client: &Client, output: &Output, limit: usize) -> Result<(), CliError> {
    let mut flows = client.flows().await?;
    flows.flows.truncate(limit);
    let Flows { flows: shown, port_labels, .. } = &mut flows;
    port_labels.retain(|port, _| shown.iter().any(|flow| flow.port == *port));
    if output.json { output.value(&flows) } else { output.text(&draw_flows(&flows, output)) }
}

/// Prints the addresses and names with the most bytes.
pub async fn top_talkers(client: &Client, output: &Output, most: usize) -> Result<(), CliError> {
    let top = client.top_talkers(most).await?;
    if output.json { output.value(&top) } else { output.text(&draw_top(&top, output)) }
}

fn draw_top(top: &TopTalkers, output: &Output) -> String {
    let mut addresses = output.table(&["ADDRESS", ">BYTES", ">AT MOST TOO HIGH BY"]);
    for it in &top.addresses {
        addresses.add_row([it.address.clone(), bytes(it.bytes), bytes(it.error)]);
    }
    let mut names = output.table(&["NAME", "SEEN IN", ">BYTES", ">AT MOST TOO HIGH BY"]);
    for it in &top.names {
        names.add_row([it.name.clone(), it.kind.clone(), bytes(it.bytes), bytes(it.error)]);
    }
    if let Some(connections) = top.connections {
        return format!("{}\nlive connections: {}\n", lines(addresses), count(connections));
    }
    let monitor = stats::monitor(&top.monitor);
    format!("{}\n{}\nflow monitor: {monitor}", lines(addresses), lines(names))
}

fn draw_flows(flows: &Flows, output: &Output) -> String {
    let mut head =
        vec!["PORT", "FLOW", "RULE", ">PACKETS", ">BYTES", ">IDLE", ">AGE", ">WORKER", "NF VERDICTS"];
    let has_labels = !flows.port_labels.is_empty();
    head.extend(has_labels.then_some("PORT LABELS"));
    let mut table = output.table(&head);
    for flow in &flows.flows {
        let mut row = vec![
            flow.port.clone(),
            flow.flow.clone(),
            flow.rule.clone().unwrap_or_else(|| "-".to_owned()),
            count(flow.packets),
            bytes(flow.bytes),
            duration(flow.idle_s),
            duration(flow.age_s),
            if flow.by_kernel { "kernel flow table".to_owned() } else { flow.worker.to_string() },
            flow.verdicts.iter().map(draw_verdict).collect::<Vec<_>>().join(", "),
        ];
        let labels_of = || or_dash(flows.port_labels.get(&flow.port).map(labels).unwrap_or_default());
        row.extend(has_labels.then(labels_of));
        table.add_row(row);
    }
    let caches = flows.caches.iter().map(|cache| {
        let lookups = (cache.hits + cache.misses).max(1);
        format!(
            "worker {}: cache of {} flows, {:.1} % hits, {} evictions\n",
            cache.worker,
            count(cache.capacity),
            cache.hits as f64 / lookups as f64 * 100.0,
            count(cache.evicted),
        )
    });
    lines(table) + &caches.collect::<String>()
}

/// A per-flow verdict, such as `scan: skip for 58 s`.
fn draw_verdict(verdict: &FlowVerdictInfo) -> String {
    let what = match verdict.verdict {
        FlowVerdict::Drop => "drop".to_owned(),
        FlowVerdict::Skip => "skip".to_owned(),
        FlowVerdict::Steer => format!("to {}", verdict.to.as_deref().unwrap_or("another way")),
    };
    format!("{}: {what} for {}", verdict.role, duration(verdict.left_s))
}

/// Prints the MAC addresses that the L2 switch has learned.
pub async fn addresses(client: &Client, output: &Output) -> Result<(), CliError> {
    let addresses = client.addresses().await?;
    if output.json {
        return output.value(&addresses);
    }
    let mut table = output.table(&["MAC", ">VLAN", "PORT"]);
    for address in addresses {
        table.add_row([address.mac, address.vlan.to_string(), address.port]);
    }
    output.text(&lines(table))
}
