// SPDX-License-Identifier: Apache-2.0
//! The metrics of `GET /metrics`: those of counters, from their tables, and others. netvmd takes names, kinds, labels
//! and help texts from here.

use std::sync::LazyLock;

use netvm_counters::{
    CHAIN, CONNECTIONS, GROUP, INTERFACE, MONITOR, Metric, MetricKind, NF, PORT, PUNT, ROUTER, SHARE, TARGET,
    THREAD, Table, WORKER,
};

macro_rules! metrics {
    ($($kind:ident $name:literal [$($label:literal)*]: $text:literal;)*) => {
        &[$(Metric { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], text: $text },)*]
    };
}

/// All metrics.
pub static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let mut metrics = Vec::new();
    for (tables, others) in PARTS {
        for metric in tables.iter().flat_map(|table| of(table)) {
            if metrics.iter().all(|known: &Metric| known.name != metric.name) {
                metrics.push(metric);
            }
        }
        metrics.extend_from_slice(others);
    }
    metrics
});

/// The metrics of a table.
fn of(table: &Table) -> impl Iterator<Item = Metric> {
    table.counters.iter().filter_map(|counter| Some(counter.metric?.metric))
}

/// Tables, and the metrics that follow theirs.
const PARTS: &[(&[&Table], &[Metric])] = &[
    (
        &[],
        metrics! {
            Gauge "netvm_info" ["version" "dpdk"]: "Always 1; the labels are the versions of netvmd and DPDK.";
            Gauge "netvm_uptime_seconds" []: "Seconds since netvmd started.";
            Gauge "netvm_problems" []: "Current problems, as `netvm status` lists them.";
            Counter "netvm_events" ["severity"]: "Events, as `netvm events` shows them.";
            Counter "netvm_events_lost" []: "Events that followers were too slow to read.";
            Counter "netvm_messages" ["outcome"]:
                "Messages of NFs to NFs, and of netvmd to NFs, for each receiver: `delivered`; `full`, if it was too slow \
                 to read; `refused`, of an NF that sent too many or too long ones; `unreceived`, if no NF of the role \
                 took messages.";
        },
    ),
    (
        &[&PORT, &SHARE],
        metrics! {
            Gauge "netvm_port_load_ratio" ["port" "worker"]:
                "Share of the last second that the worker spent on packets of the port, from 0 to 1.";
            Gauge "netvm_port_link_up" ["port"]: "Whether the link of the port is up.";
            Counter "netvm_dropped_packets" ["at" "name" "reason"]:
                "Packets dropped at a port, chain or NF, by reason.";
        },
    ),
    (
        &[&CHAIN],
        metrics! {
            Gauge "netvm_chain_up" ["chain"]: "1 if every hop has a running NF, else 0 (bypassed, or down).";
            Gauge "netvm_chain_hop" ["chain" "hop" "role"]:
                "Always 1; the labels map the hop, from 0, to its role, to join chains with NFs.";
        },
    ),
    (
        &[&NF],
        metrics! {
            Counter "netvm_nf_violations" ["role" "violation"]: "Actions that a correct NF does not take.";
            Counter "netvm_nf_own" ["role" "counter"]:
                "The counters that NFs themselves keep; characters other than letters, digits and -_.: are replaced.";
            Gauge "netvm_nf_running" ["role" "instance"]: "Whether the instance receives packets.";
            Counter "netvm_nf_restarts" ["role" "instance"]: "How often netvmd restarted the instance.";
        },
    ),
    (
        &[&THREAD],
        metrics! {
            Gauge "netvm_worker_busy_ratio" ["worker" "core"]:
                "Share of the last second that the worker spent on packets, from 0 to 1.";
            Gauge "netvm_worker_queues" ["worker"]:
                "Receive queues of the worker, without those of sinks and of virtual routers' interfaces.";
        },
    ),
    (
        &[&WORKER],
        metrics! {
            Gauge "netvm_stage_seconds" ["stage"]: "Time of a packet in a stage of the packet path.";
        },
    ),
    (
        &[&ROUTER, &INTERFACE, &PUNT, &TARGET],
        metrics! {
            Gauge "netvm_router_routes" ["router" "family"]: "Routes of the router's kernel.";
            Gauge "netvm_nat_target_up" ["router" "target"]:
                "Whether new connections may lead to a target of NAT rules that netvmd checks.";
            Gauge "netvm_router_neighbours" ["router"]: "Neighbours with a known MAC address.";
        },
    ),
    (
        &[&MONITOR, &CONNECTIONS],
        metrics! {
            Gauge "netvm_group_buffers" ["group" "node" "state"]:
                "Buffers of a trust group's memory: free, in the engine, or with NFs.";
            Gauge "netvm_group_buffer_bytes" ["group" "node"]:
                "Bytes of a buffer of the group, headroom and tailroom included.";
        },
    ),
    (&[&GROUP], &[]),
];

#[cfg(test)]
mod tests {
    use netvm_counters::TABLES;

    use super::*;

    #[test]
    fn every_counter_with_a_metric_is_among_them() {
        for metric in TABLES.into_iter().flat_map(of) {
            let known = METRICS.iter().filter(|known| known.name == metric.name).collect::<Vec<_>>();
            assert_eq!(known.len(), 1, "{}", metric.name);
            assert_eq!(known[0].labels, metric.labels, "{}", metric.name);
        }
    }
}
