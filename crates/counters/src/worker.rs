// SPDX-License-Identifier: Apache-2.0
//! Counters of workers, of their flow monitors and connections, and of trust groups.

/// What is counted of a worker.
#[macro_export]
macro_rules! worker {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm status" ["worker"] }
            netlib {}
            counted {
                {
                    sleeps: u64, Number, "How often the worker slept.";
                    metric Counter "netvm_worker_sleeps";
                    column 1 "SLEEPS";
                }
                {
                    copies: u64, Packets,
                        "Packets that the worker copied from one trust group's memory into another's.";
                    metric Counter "netvm_worker_copied_packets";
                    column 2 "COPIES";
                }
                {
                    copied_bytes: u64, Bytes,
                        "Bytes that the worker copied from one trust group's memory into another's.";
                    metric Counter "netvm_worker_copied_bytes";
                    column 3 "COPIED";
                }
            }
            derived {
                {
                    longest_turn_us: f64, Microseconds,
                        "Longest iteration of its loop without sleep, in microseconds.";
                    metric Gauge "netvm_worker_longest_turn_seconds":
                        "Longest turn of the worker's loop since its start, without sleep.";
                    column 4 "LONGEST TURN":
                        "The longest turn of the worker's loop since its start, without sleep: the longest time that \
                         a packet waited for the worker.";
                }
            }
        }
    };
}

/// What the flow monitor counts.
#[macro_export]
macro_rules! monitor {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm flow top" [] }
            netlib {}
            counted {
                {
                    packets: u64, Packets,
                        "Packets that the engine's flow monitor has received, sampled or not.";
                    metric Counter "netvm_flow_monitor_packets";
                }
                {
                    flows: u64, Number, "Flows in the tables of the flow monitor.";
                    metric Gauge "netvm_flow_monitor_flows";
                }
                {
                    records: u64, Number, "Records of flows that ended, or that exceeded the active timeout.";
                    metric Counter "netvm_flow_monitor_records";
                }
                {
                    evicted: u64, Number, "Flows evicted because a table was full.";
                    metric Counter "netvm_flow_monitor_evicted_flows";
                }
                {
                    lost_records: u64, Number, "Records lost because the exporter was too slow.";
                    metric Counter "netvm_flow_monitor_lost_records" ["at" = "ring"]:
                        "Records lost: `ring`, because the exporter was too slow; `collector`, because it was \
                         unreachable.";
                }
            }
            derived {
                {
                    exported: u64, Number, "Records sent to the collector.";
                    metric Counter "netvm_flow_monitor_exported_records";
                }
                {
                    unexported: u64, Number, "Records lost because the collector was unreachable.";
                    metric Counter "netvm_flow_monitor_lost_records" ["at" = "collector"];
                }
            }
        }
    };
}

/// What is counted of tracked connections.
#[macro_export]
macro_rules! connections {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm conn stats" [] }
            netlib {}
            counted {
                {
                    connections: u64, Number, "Connections in the tables of the workers.";
                    metric Gauge "netvm_connections";
                }
                {
                    unanswered: u64, Number,
                        "Connections that have had no answer, or of which the handshake is not complete.";
                    metric Gauge "netvm_connections_unanswered";
                }
                {
                    begun: u64, Number, "Connections that began since netvmd started.";
                    metric Counter "netvm_connections_begun";
                }
                {
                    expired: u64, Number, "Connections that ended by a time-out.";
                    metric Counter "netvm_connections_ended" ["by" = "timeout"]:
                        "Connections that ended: by a time-out, evicted from a full table before they had an answer \
                         or a complete handshake, by `netvm conn flush`, or as NAT could not translate their first packet.";
                }
                {
                    evicted: u64, Number,
                        "Connections that were evicted for new ones from a full table, before they had an answer \
                         or a complete handshake.";
                    metric Counter "netvm_connections_ended" ["by" = "eviction"];
                }
                {
                    flushed: u64, Number, "Connections that `netvm conn flush` has ended.";
                    metric Counter "netvm_connections_ended" ["by" = "flush"];
                }
                {
                    #[serde(default)]
                    refused: u64, Number,
                        "Connections that ended with their first packet, because NAT had no port for its source, or \
                         cannot translate it.";
                    metric Counter "netvm_connections_ended" ["by" = "nat"];
                }
                {
                    invalid: u64, Packets, "Packets with the state `invalid`.";
                    metric Counter "netvm_connections_invalid_packets";
                }
                {
                    #[serde(default)]
                    decided: u64, Packets,
                        "Packets whose connection had the decision on them: neither the flow cache nor rules were \
                         asked.";
                    metric Counter "netvm_connections_decided_packets";
                }
                {
                    #[serde(default)]
                    events_lost: u64, Number,
                        "Openings and closings of connections that the log and readers have missed, because there were \
                         too many for them at a time.";
                    metric Counter "netvm_connections_lost_events";
                }
                {
                    cookies_sent: u64, Number, "SYN cookies that rules with `syn_proxy` have sent to clients.";
                    metric Counter "netvm_syn_cookies" ["event" = "sent"]:
                        "SYN cookies: sent to clients, accepted as their acknowledgments, and wrong ones, which are \
                         packets of TCP that belong to no connection and acknowledge no cookie.";
                }
                {
                    cookies_accepted: u64, Number,
                        "SYN cookies that clients have acknowledged, so that their connections could begin.";
                    metric Counter "netvm_syn_cookies" ["event" = "accepted"];
                }
                {
                    cookies_wrong: u64, Number,
                        "Packets of TCP that belonged to no connection and acknowledged no SYN cookie, although their \
                         rule has `syn_proxy`.";
                    metric Counter "netvm_syn_cookies" ["event" = "wrong"];
                }
            }
            derived {
                {
                    #[serde(default)]
                    log_lines: u64, Number, "Lines that were written to the log of connections.";
                    metric Counter "netvm_connections_log_lines";
                }
                {
                    #[serde(default)]
                    log_lost: u64, Number,
                        "Lines that the log of connections has not got, because the disk was full or too slow.";
                    metric Counter "netvm_connections_log_lost_lines";
                }
                {
                    #[serde(default)]
                    nat_events: u64, Number,
                        "Events of NAT (RFC 8158) that were sent to the collector of the log of connections.";
                    metric Counter "netvm_nat_exported_events";
                }
                {
                    #[serde(default)]
                    nat_events_lost: u64, Number,
                        "Events of NAT that the collector of the log of connections has not got, because it was away \
                         or too slow.";
                    metric Counter "netvm_nat_lost_events";
                }
            }
        }
    };
}

/// What is counted of a trust group.
#[macro_export]
macro_rules! group {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm group" ["group"] }
            netlib {}
            counted {}
            derived {
                {
                    reclaimed_total: u64, Number, "Buffers taken back from NFs that died or left.";
                    metric Counter "netvm_group_reclaimed_buffers";
                    column 1 "RECLAIMED": "Buffers taken back from NFs that ended, since netvmd started.";
                }
                {
                    longest_reclaim_ms: f64, Milliseconds,
                        "The longest time that it took to reclaim them, in milliseconds.";
                    column 2 "LONGEST RECLAIM": "The longest time from an NF's end until its buffers were back.";
                }
            }
        }
    };
}
