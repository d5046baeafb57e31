// SPDX-License-Identifier: Apache-2.0
//! Counters of chains and NFs.

/// What is counted of a chain.
#[macro_export]
macro_rules! chain {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm chain" ["chain"] }
            netlib {}
            counted {
                {
                    entered: u64, Packets, "Packets passed to the first hop of the chain.";
                    metric Counter "netvm_chain_entered_packets";
                    column 1 "ENTERED";
                }
                {
                    left: u64, Packets, "Packets that left the chain.";
                    metric Counter "netvm_chain_left_packets";
                    column 2 "LEFT";
                }
            }
            derived {
                {
                    dropped_at_entry: u64, Packets, "Packets dropped at the entry, before any NF.";
                    column 3 "DROPPED AT ENTRY":
                        "Packets dropped before any NF processed them: a ring of the chain was full (chain-full), or \
                         a hop has no NF (nf-down).";
                }
                {
                    dropped_inside: u64, Packets, "Packets dropped later.";
                    column 4 "DROPPED INSIDE":
                        "Packets dropped after they entered the chain, for any reason except an NF's verdict.";
                }
            }
        }
    };
}

/// What NF threads did with packets.
#[macro_export]
macro_rules! nf {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm nf" ["role"] }
            netlib {
                {
                    received: u64, Packets, "Packets received.";
                    netlib Received = 0;
                    metric Counter "netvm_nf_received_packets":
                        "Packets that the role's NFs received, over all instances, including those that have ended.";
                    column 1 "RECEIVED": "Packets that the NF received.";
                }
                {
                    next: u64, Packets, "Packets passed to the next hop.";
                    netlib Next = 1;
                    metric Counter "netvm_nf_passed_packets";
                    column 2 "NEXT": "Packets that the NF passed to the next hop of their chain.";
                }
                {
                    dropped: u64, Packets, "Packets dropped.";
                    netlib Dropped = 2;
                    metric Counter "netvm_nf_discarded_packets": "Packets that the NFs decided to drop.";
                    column 5 "DROPPED";
                }
                {
                    to_port: u64, Packets, "Packets sent out of a port.";
                    netlib Port = 3;
                    metric Counter "netvm_nf_to_port_packets": "Packets that the NFs sent out of a port.";
                    column 3 "PORT";
                }
                {
                    to_role: u64, Packets, "Packets sent to a role.";
                    netlib Role = 4;
                    metric Counter "netvm_nf_to_role_packets": "Packets that the NFs sent to another role.";
                    column 4 "ROLE";
                }
                {
                    detoured: u64, Packets, "Packets that went through the engine because a direct ring was full.";
                    netlib Detoured = 8;
                    metric Counter "netvm_nf_detoured_packets";
                    column 6 "DETOURED":
                        "Packets that went through the engine, because the direct ring to the next NF was full.";
                }
            }
            counted {
                {
                    flows_decided: u64, Packets,
                        "Packets with an accepted verdict on the rest of their flow (drop, or bypass this NF).";
                    column 7 "FLOWS DECIDED";
                }
                {
                    flows_refused: u64, Packets,
                        "Packets whose verdict on the flow the engine refused: not permitted by `flow_verdicts`, or \
                         the flow was no longer known.";
                    column 8 "REFUSED";
                }
            }
            derived {}
        }
    };
}

/// What else is counted of an NF thread.
#[macro_export]
macro_rules! thread {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm nf" ["role" "instance" "thread"] }
            netlib {}
            counted {}
            derived {
                {
                    cycles_per_packet: f64, Cycles, "Cycles per packet, of the NF's own code and netlib.";
                    column 1 "CYCLES/PACKET";
                }
                {
                    nf_cycles_per_packet: f64, Cycles, "Cycles per packet of the NF's own code alone.";
                    column 2 "OWN": "The part of CYCLES/PACKET that the NF's own code took, without netlib.";
                }
                {
                    bursts: u64, Number, "Bursts of up to 64 packets that the thread received.";
                    column 3 "BURSTS";
                }
                {
                    sleeps: u64, Number, "How often the thread slept.";
                    column 4 "SLEEPS";
                }
                {
                    #[serde(default)]
                    cycles: u64, Cycles,
                        "Cycles that the thread spent on bursts since it attached, the NF's own work included.";
                    metric Counter "netvm_nf_busy_cycles":
                        "Cycles that the thread spent on bursts since it attached.";
                }
                {
                    #[serde(default)]
                    ring_percent: f64, Percent,
                        "How full its fullest receive ring was at most in about the last second, in percent of the \
                         slots. The NF of a chain with the most is its bottleneck.";
                    metric Gauge "netvm_nf_ring_ratio":
                        "How full the thread's fullest receive ring was over the last second, from 0 to 1. Near 1, \
                         this NF is the bottleneck of its chains.";
                }
                {
                    #[serde(default)]
                    buffers: u32, Number, "Buffers that the thread holds.";
                    metric Gauge "netvm_nf_buffers";
                }
            }
        }
    };
}
