// SPDX-License-Identifier: Apache-2.0
//! Methods and monitors, as options of this program and of `netvm-bench receive`, which starts it and includes this
//! file.

use clap::ValueEnum;

/// A method of receiving packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// libpcap
    Libpcap,
    /// The mapped ring of a packet socket, version 3
    TpacketV3,
    /// An AF_XDP socket
    AfXdp,
    /// Counted in the kernel by an XDP program
    Xdp,
    /// An NF of netvm
    NetvmNf,
}

/// What is done with each packet: the monitors of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MonitorKind {
    /// Counts packets and bytes
    Null,
    /// Also enters each into a table of flows
    Flow,
}
