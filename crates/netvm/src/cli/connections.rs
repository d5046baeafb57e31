// SPDX-License-Identifier: Apache-2.0
//! `netvm conn`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::complete::{Names, names};

/// `netvm conn`.
#[derive(Debug, Subcommand)]
pub enum ConnCommand {
    /// List connections, those with most bytes first
    List {
        /// Show at most this many connections
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Which
        #[command(flatten)]
        filter: ConnFilter,
    },
    /// Show connections in full: by the number that `list` shows, or those that options select
    Show {
        /// The connection's number
        #[arg(required_unless_present = "filter", conflicts_with = "filter")]
        id: Option<String>,
        /// Which
        #[command(flatten)]
        filter: ConnFilter,
    },
    /// Print openings and closings of connections as they come, until Ctrl-C
    Watch,
    /// Save connections in a file, for `load` after a restart of netvmd, on a standby or where a guest moves
    Save {
        /// The file; it is replaced only when the new one is whole
        file: PathBuf,
        /// Which; all without an option
        #[command(flatten)]
        filter: ConnFilter,
    },
    /// Restore saved connections, each as old as it is now
    Load {
        /// The file
        file: PathBuf,
    },
    /// End connections: the next packet of such a connection has the state `new`, or `invalid`
    Flush {
        /// Which
        #[command(flatten)]
        filter: ConnFilter,
        /// End all connections
        #[arg(long, required_unless_present = "filter", conflicts_with = "filter")]
        all: bool,
    },
    /// Show how many connections there are, have begun and have ended
    Stats,
    /// List the targets of NAT rules with `health`, and whether they answer
    Targets,
}

/// Selects connections.
#[derive(Debug, Default, Args)]
#[group(id = "filter", multiple = true)]
pub struct ConnFilter {
    /// Only those with an end in this address or prefix
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// Only those with this TCP, UDP or SCTP port, or ICMP identifier, at an end
    #[arg(long, value_name = "NUMBER")]
    pub l4_port: Option<u16>,
    /// Only those of this protocol: tcp, udp, icmp, icmpv6, sctp or a number
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<String>,
    /// Only those in this state, such as established, syn-sent, unreplied or replied
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Only those whose first packet this port received
    #[arg(long, value_name = "PORT", add = names(&[Names::Ports]))]
    pub port: Option<String>,
    /// Only those of this zone
    #[arg(long, value_name = "NUMBER")]
    pub zone: Option<u16>,
}
