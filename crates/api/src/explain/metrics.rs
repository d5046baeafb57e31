//! The metrics of `GET /metrics`. netvmd takes names, kinds, labels and help texts from here.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the `_total` that exposition adds to counters.
    pub name: &'static str,
    /// Whether it only rises.
    pub kind: MetricKind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// What it shows.
    pub text: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only rises; it starts again when what it counts is removed or netvmd restarts.
    Counter,
    /// It rises and falls.
    Gauge,
}

impl MetricKind {
    /// As exposition calls it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

macro_rules! metrics {
    ($($kind:ident $name:literal [$($label:literal)*]: $text:literal;)*) => {
        &[$(Metric { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], text: $text },)*]
    };
}

/// All metrics.
pub const METRICS: &[Metric] = metrics! {
    Gauge "netvm_info" ["version" "dpdk"]: "Always 1; the labels are the versions of netvmd and DPDK.";
    Gauge "netvm_uptime_seconds" []: "Seconds since netvmd started.";
    Gauge "netvm_problems" []: "Current problems, as `netvm status` lists them.";
    Counter "netvm_events" ["severity"]: "Events, as `netvm events` shows them.";
    Counter "netvm_events_lost" []: "Events that followers were too slow to read.";

    Counter "netvm_port_rx_packets" ["port"]: "Packets received from the port.";
    Counter "netvm_port_rx_bytes" ["port"]: "Bytes of the packets that the engine received from the port, without FCS.";
    Counter "netvm_port_rx_coalesced_packets" ["port"]: "Packets that GRO (`gro`) joined to the packet before them; not in `netvm_port_rx_packets`.";
    Counter "netvm_port_tx_packets" ["port"]: "Packets sent out of the port.";
    Counter "netvm_port_tx_bytes" ["port"]: "Bytes of the packets that the engine sent out of the port, without FCS.";
    Counter "netvm_port_rx_missed_packets" ["port"]: "Packets that the device or the kernel dropped before the engine received them, since the port was opened.";
    Counter "netvm_port_mac_moves" ["port"]: "MAC addresses that moved to the port from another port.";
    Counter "netvm_port_mac_moves_held" ["port"]: "Packets from the port whose source address another port kept, because the address had moved there less than `mac_hold` ago.";
    Counter "netvm_port_worker_seconds" ["port"]: "Time that workers spent on packets from the port; counted if a port has `weight` or `reserve`.";
    Counter "netvm_port_waited_turns" ["port"]: "Turns of the worker's loop that skipped the port, because it had used its share of the worker.";
    Gauge "netvm_port_load_ratio" ["port" "worker"]: "Share of the last second that the worker spent on packets of the port, from 0 to 1.";
    Gauge "netvm_port_link_up" ["port"]: "Whether the link of the port is up.";

    Counter "netvm_dropped_packets" ["at" "name" "reason"]: "Packets dropped at a port, chain or NF, by reason.";

    Counter "netvm_chain_entered_packets" ["chain"]: "Packets passed to the first hop of the chain.";
    Counter "netvm_chain_left_packets" ["chain"]: "Packets that left the chain.";
    Gauge "netvm_chain_up" ["chain"]: "1 if every hop has a running NF, else 0 (bypassed, or down).";
    Gauge "netvm_chain_hop" ["chain" "hop" "role"]: "Always 1; the labels map the hop, from 0, to its role, to join chains with NFs.";

    Counter "netvm_nf_received_packets" ["role"]: "Packets that the role's NFs received, over all instances, including those that have ended.";
    Counter "netvm_nf_passed_packets" ["role"]: "Packets passed to the next hop.";
    Counter "netvm_nf_discarded_packets" ["role"]: "Packets that the NFs decided to drop.";
    Counter "netvm_nf_to_port_packets" ["role"]: "Packets that the NFs sent out of a port.";
    Counter "netvm_nf_to_role_packets" ["role"]: "Packets that the NFs sent to another role.";
    Counter "netvm_nf_detoured_packets" ["role"]: "Packets that went through the engine because a direct ring was full.";
    Counter "netvm_nf_violations" ["role" "violation"]: "Actions that a correct NF does not take.";
    Counter "netvm_nf_own" ["role" "counter"]: "The counters that NFs themselves keep; characters other than letters, digits and -_.: are replaced.";
    Gauge "netvm_nf_running" ["role" "instance"]: "Whether the instance receives packets.";
    Counter "netvm_nf_restarts" ["role" "instance"]: "How often netvmd restarted the instance.";
    Counter "netvm_nf_busy_cycles" ["role" "instance" "thread"]: "Cycles that the thread spent on bursts since it attached.";
    Gauge "netvm_nf_ring_ratio" ["role" "instance" "thread"]: "How full the thread's fullest receive ring was over the last second, from 0 to 1. Near 1, this NF is the bottleneck of its chains.";
    Gauge "netvm_nf_buffers" ["role" "instance" "thread"]: "Buffers that the thread holds.";

    Gauge "netvm_worker_busy_ratio" ["worker" "core"]: "Share of the last second that the worker spent on packets, from 0 to 1.";
    Gauge "netvm_worker_queues" ["worker"]: "Receive queues of the worker, without those of sinks and of virtual routers' interfaces.";
    Counter "netvm_worker_sleeps" ["worker"]: "How often the worker slept.";
    Counter "netvm_worker_copied_packets" ["worker"]: "Packets that the worker copied from one trust group's memory into another's.";
    Counter "netvm_worker_copied_bytes" ["worker"]: "Bytes that the worker copied from one trust group's memory into another's.";
    Gauge "netvm_worker_longest_turn_seconds" ["worker"]: "Longest turn of the worker's loop since its start, without sleep.";
    Gauge "netvm_stage_seconds" ["stage"]: "Time of a packet in a stage of the packet path.";

    Counter "netvm_router_forwarded_packets" ["router"]: "Packets that the engine forwarded by the router's FIB.";
    Counter "netvm_router_punted_packets" ["router"]: "Packets passed to the router's kernel.";
    Counter "netvm_router_from_kernel_packets" ["router"]: "Packets from the router's kernel.";
    Counter "netvm_router_interface_rx_packets" ["router" "interface"]: "Packets received by the interface of the router, including those dropped later. The kernel's own counters of the interface have only punted packets.";
    Counter "netvm_router_interface_rx_bytes" ["router" "interface"]: "Bytes of the packets that the router received by the interface, without FCS and tag.";
    Counter "netvm_router_interface_rx_dropped_packets" ["router" "interface"]: "Packets received by the interface that the router dropped, except those that exceeded the kernel's share.";
    Counter "netvm_router_interface_tx_packets" ["router" "interface"]: "Packets sent by the interface, forwarded or from the kernel.";
    Counter "netvm_router_interface_tx_bytes" ["router" "interface"]: "Bytes of the packets that the router sent by the interface, without FCS and tag.";
    Counter "netvm_router_interface_punted_packets" ["router" "interface" "class" "reason"]: "Packets punted to the router's kernel from the interface, by reason.";
    Counter "netvm_router_interface_punt_dropped_packets" ["router" "interface" "class" "reason"]: "Packets for the kernel that exceeded the share of their class, or the limit of their destination.";
    Gauge "netvm_router_routes" ["router" "family"]: "Routes of the router's kernel.";
    Gauge "netvm_router_neighbours" ["router"]: "Neighbours with a known MAC address.";

    Counter "netvm_flow_monitor_packets" []: "Packets that the engine's flow monitor has received, sampled or not.";
    Gauge "netvm_flow_monitor_flows" []: "Flows in the tables of the flow monitor.";
    Counter "netvm_flow_monitor_records" []: "Records of flows that ended, or that exceeded the active timeout.";
    Counter "netvm_flow_monitor_evicted_flows" []: "Flows evicted because a table was full.";
    Counter "netvm_flow_monitor_lost_records" ["at"]: "Records lost: `ring`, because the exporter was too slow; `collector`, because it was unreachable.";
    Counter "netvm_flow_monitor_exported_records" []: "Records sent to the collector.";

    Gauge "netvm_group_buffers" ["group" "node" "state"]: "Buffers of a trust group's memory: free, in the engine, or with NFs.";
    Gauge "netvm_group_buffer_bytes" ["group" "node"]: "Bytes of a buffer of the group, headroom and tailroom included.";
    Counter "netvm_group_reclaimed_buffers" ["group"]: "Buffers taken back from NFs that died or left.";
};
