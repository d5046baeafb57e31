// SPDX-License-Identifier: Apache-2.0
//! Counters of ports.

/// What is counted at a port.
#[macro_export]
macro_rules! port {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm port" ["port"] }
            netlib {}
            counted {
                {
                    rx_packets: u64, Packets, "Packets received from the port.";
                    metric Counter "netvm_port_rx_packets";
                    column 1 "RX PACKETS";
                }
                {
                    rx_bytes: u64, Bytes,
                        "Bytes of the packets that the engine received from the port, without FCS.";
                    metric Counter "netvm_port_rx_bytes";
                    column 2 "RX BYTES";
                }
                {
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    rx_coalesced: Option<u64>, Packets,
                        "Packets that GRO joined to the packet before them, which `rx_packets` does not count; \
                         `None`: the port has no `gro`.";
                    metric Counter "netvm_port_rx_coalesced_packets":
                        "Packets that GRO (`gro`) joined to the packet before them; not in `netvm_port_rx_packets`.";
                    column 9 "RX COALESCED":
                        "Packets that GRO joined to the packet before them, so RX PACKETS does not count them; `-` \
                         for a port without `gro`. The column is shown if a port has `gro`.";
                }
                {
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    rx_by_kernel: Option<u64>, Packets,
                        "Packets received that the kernel's flow table forwarded without netvm, which `rx_packets` \
                         counts, too; `None`: the port has no fast path.";
                    metric Counter "netvm_port_rx_by_kernel_packets":
                        "Packets that the kernel's flow table forwarded without netvm; `netvm_port_rx_packets` \
                         counts them, too.";
                    column 10 "RX BY KERNEL":
                        "Packets that the kernel's flow table forwarded without netvm: its hits. RX PACKETS counts \
                         them, too, so the difference are its misses; `-` for a port without `fast_path`. The column \
                         is shown if a port has one.";
                }
                {
                    tx_packets: u64, Packets, "Packets sent out of the port.";
                    metric Counter "netvm_port_tx_packets";
                    column 3 "TX PACKETS";
                }
                {
                    tx_bytes: u64, Bytes,
                        "Bytes of the packets that the engine sent out of the port, without FCS.";
                    metric Counter "netvm_port_tx_bytes";
                    column 4 "TX BYTES";
                }
                {
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    neigh_answered: Option<u64>, Packets,
                        "ARP requests and neighbour solicitations that the port answered in place of hosts behind \
                         other servers, as EVPN says who they are; `None`: it has no `control = \"evpn\"`.";
                    metric Counter "netvm_port_neigh_answered_packets":
                        "ARP requests and neighbour solicitations that the port answered in place of hosts behind \
                         other servers.";
                    column 11 "ANSWERED":
                        "ARP requests and neighbour solicitations that the port answered in place of hosts behind \
                         other servers, so that they did not go there; `-` for a port without EVPN. The column is \
                         shown if a port has `control = \"evpn\"`.";
                }
            }
            derived {
                {
                    rx_dropped: u64, Packets,
                        "Packets that the device or the kernel dropped for lack of buffers, if it reports them; of a \
                         source with a rate, packets that were due and not sent in time. Since the port was opened.";
                    metric Counter "netvm_port_rx_missed_packets":
                        "Packets that the device or the kernel dropped before the engine received them, since the \
                         port was opened.";
                    column 5 "RX DROPPED";
                }
                {
                    tx_dropped: u64, Packets, "Packets that could not be sent.";
                    column 6 "TX DROPPED":
                        "Packets that the port could not send: its transmit queue was full, no guest was connected, \
                         it was down, or the kernel refused them.";
                }
                {
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    policed: Option<u64>, Packets,
                        "Packets that exceeded a rate limit of the port or of a rule for it; `None`: none did, and \
                         the port has no rate limit.";
                    column 7 "POLICED":
                        "Packets that exceeded a rate limit of the port (`police_in`, `police_out`) or of a rule; \
                         `-` for a port without either. The column is shown if a port has a rate limit or lost \
                         packets to one.";
                }
                {
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    spoofed: Option<u64>, Packets,
                        "Packets whose source its `guard` does not list; `None`: it has no `guard`.";
                    column 8 "SPOOFED":
                        "Packets whose source address the port's `guard` does not list; `-` for a port without \
                         `guard`. The column is shown if a port has one.";
                }
                {
                    #[serde(default)]
                    mac_moves: u64, Number, "MAC addresses that moved to the port from another port.";
                    metric Counter "netvm_port_mac_moves";
                }
                {
                    #[serde(default)]
                    mac_moves_held: u64, Number,
                        "Packets from the port whose source address another port kept, because the address had moved \
                         there less than `mac_hold` ago.";
                    metric Counter "netvm_port_mac_moves_held";
                }
            }
        }
    };
}

/// A port's share of its worker.
#[macro_export]
macro_rules! share {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm port" ["port"] }
            netlib {}
            counted {}
            derived {
                {
                    worker_s: f64, Seconds, "Seconds that the worker spent on its packets.";
                    metric Counter "netvm_port_worker_seconds":
                        "Time that workers spent on packets from the port; counted if a port has `weight` or \
                         `reserve`.";
                    column 1 "WORKER S":
                        "Seconds that the worker spent on packets from the port, from receiving until an NF or \
                         another port has them.";
                }
                {
                    waited: u64, Number,
                        "Turns of the worker's loop that skipped the port, because it had used its share of the \
                         worker.";
                    metric Counter "netvm_port_waited_turns";
                    column 2 "WAITED":
                        "Turns of the worker's loop that skipped the port, because it had used its share while other \
                         ports had packets. The device or the kernel then drops the excess (RX DROPPED).";
                }
            }
        }
    };
}

/// What is counted at a queue of a port's shaper.
#[macro_export]
macro_rules! queue {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm port" ["port" "queue"] }
            netlib {}
            counted {
                {
                    packets: u64, Packets, "Packets sent.";
                    column 1 "TX PACKETS";
                }
                {
                    bytes: u64, Bytes, "Bytes of the packets sent.";
                    column 2 "TX BYTES";
                }
                {
                    dropped_full: u64, Packets, "Packets dropped because the queue was full.";
                    column 5 "QUEUE FULL": "Packets that were dropped because the shaper's queue was full.";
                }
                {
                    dropped_codel: u64, Packets,
                        "Packets that CoDel dropped, because they had waited too long in a standing queue.";
                    column 6 "CODEL": "Packets that CoDel dropped, because they had waited too long (RFC 8289).";
                }
                {
                    waiting_packets: u64, Packets, "Packets that wait now.";
                    column 3 "WAITING": "Packets that wait in the shaper's queue now.";
                }
                {
                    waiting_bytes: u64, Bytes, "Bytes of the packets that wait now.";
                    column 4 "WAITING BYTES": "Bytes of the packets that wait in the queue now.";
                }
            }
            derived {}
        }
    };
}
