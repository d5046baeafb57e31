// SPDX-License-Identifier: Apache-2.0
//! Counters of virtual routers.

/// What is counted of a virtual router.
#[macro_export]
macro_rules! router {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm router" ["router"] }
            netlib {}
            counted {
                {
                    forwarded: u64, Packets, "Packets that the engine forwarded by the router's FIB.";
                    metric Counter "netvm_router_forwarded_packets";
                    column 1 "FORWARDED";
                }
                {
                    punted: u64, Packets, "Packets passed to the router's kernel.";
                    metric Counter "netvm_router_punted_packets";
                    column 2 "PUNTED";
                }
                {
                    from_kernel: u64, Packets, "Packets from the router's kernel.";
                    metric Counter "netvm_router_from_kernel_packets";
                    column 3 "FROM KERNEL";
                }
            }
            derived {}
        }
    };
}

/// What is counted at an interface of a virtual router: what it receives and sends, forwarded or by the kernel.
#[macro_export]
macro_rules! interface {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm router show" ["router" "interface"] }
            netlib {}
            counted {
                {
                    #[serde(default)]
                    rx_packets: u64, Packets,
                        "Packets received by the interface of the router, including those dropped later. The \
                         kernel's own counters of the interface have only punted packets.";
                    metric Counter "netvm_router_interface_rx_packets";
                    column 1 "RX PACKETS";
                }
                {
                    #[serde(default)]
                    rx_bytes: u64, Bytes,
                        "Bytes of the packets that the router received by the interface, without FCS and tag.";
                    metric Counter "netvm_router_interface_rx_bytes";
                    column 2 "RX BYTES";
                }
                {
                    #[serde(default)]
                    rx_dropped: u64, Packets,
                        "Packets received by the interface that the router dropped, except those that exceeded the \
                         kernel's share.";
                    metric Counter "netvm_router_interface_rx_dropped_packets";
                    column 3 "RX DROPPED";
                }
                {
                    #[serde(default)]
                    tx_packets: u64, Packets, "Packets sent by the interface, forwarded or from the kernel.";
                    metric Counter "netvm_router_interface_tx_packets";
                    column 4 "TX PACKETS";
                }
                {
                    #[serde(default)]
                    tx_bytes: u64, Bytes,
                        "Bytes of the packets that the router sent by the interface, without FCS and tag.";
                    metric Counter "netvm_router_interface_tx_bytes";
                    column 5 "TX BYTES";
                }
            }
            derived {}
        }
    };
}

/// What is counted of a target of NAT rules that netvmd checks.
#[macro_export]
macro_rules! target {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm conn targets" ["router" "target"] }
            netlib {}
            counted {}
            derived {
                {
                    checks: u64, Number, "Attempts of netvmd to open a TCP connection to the target.";
                    metric Counter "netvm_nat_target_checks";
                    column 1 "CHECKS";
                }
                {
                    failed: u64, Number, "Attempts that the target refused or did not answer in time.";
                    metric Counter "netvm_nat_target_failed_checks";
                    column 2 "FAILED";
                }
            }
        }
    };
}

/// Packets for a router's kernel, by interface and reason.
#[macro_export]
macro_rules! punt {
    ($with:ident! $what:tt) => {
        $with! {
            $what
            table { "netvm router show" ["router" "interface" "class" "reason"] }
            netlib {}
            counted {}
            derived {
                {
                    punted: u64, Packets,
                        "Packets punted to the router's kernel from the interface, by reason.";
                    metric Counter "netvm_router_interface_punted_packets";
                    column 1 "PUNTED";
                }
                {
                    dropped: u64, Packets,
                        "Packets for the kernel that exceeded the share of their class, or the limit of their \
                         destination.";
                    metric Counter "netvm_router_interface_punt_dropped_packets";
                    column 2 "DROPPED";
                }
            }
        }
    };
}
