// SPDX-License-Identifier: Apache-2.0
//! `netvm policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::complete::{Names, names};

/// `netvm policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show the rules in order, with their match counts
    Show,
    /// Add a rule; it takes effect at once and lasts until netvmd restarts
    ///
    /// Give the rule as the lines of a `[[rule]]` table of the configuration, such as
    /// `netvm policy add 'from = "client"' 'match = { protocol = "tcp", destination_ports = 23 }' 'drop = true'`.
    Add {
        /// Lines of the rule
        #[arg(required = true, value_name = "LINE")]
        lines: Vec<String>,
        /// Add it after all other rules instead of before them
        #[arg(long, group = "position")]
        last: bool,
        /// Add it before the rule with this name or number
        #[arg(long, group = "position", value_name = "RULE")]
        before: Option<String>,
        /// Add it after the rule with this name or number
        #[arg(long, group = "position", value_name = "RULE")]
        after: Option<String>,
    },
    /// Delete a rule, with immediate effect
    Del {
        /// The rule's name or number
        #[arg(add = names(&[Names::Rules]))]
        rule: String,
    },
    /// Show step by step how netvmd would handle a packet, without sending it
    ///
    /// Describe the packet by fields, by its bytes, or by its number in a capture: `netvm policy trace --from client
    /// protocol=tcp source=10.0.0.2 destination=10.0.1.2 destination_port=23 flags=syn`.
    Trace(TraceArgs),
    /// Convert ClassBench, iptables or nftables rules, or policies of Kubernetes, to `[[rule]]` tables; needs no netvmd
    ///
    /// Reports everything without an equivalent on standard error, with its line number. Prints no rules, and fails, if
    /// they would pass packets that the file drops, or, without `--stricter`, drop packets that it passes.
    Import(ImportArgs),
    /// Print for each header, on a line, the number of the first matching rule or `-`; needs no running netvmd
    ///
    /// Executes `netvmd policy-eval`; finds the program netvmd beside netvm, else in PATH.
    Eval {
        /// Filter set (ClassBench)
        #[arg(long, value_name = "RULES")]
        classbench: PathBuf,
        /// One header a line: source, destination, source port, destination port, protocol, in decimal
        #[arg(long, value_name = "HEADERS")]
        trace: PathBuf,
    },
}

/// `netvm policy import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file's format
    #[arg(long, value_enum)]
    pub format: ImportFormat,
    /// The file
    pub file: PathBuf,
    /// An interface that the file names and, if its name differs, the port; give all of them
    #[arg(long = "interface", value_name = "NAME[=PORT]")]
    pub interfaces: Vec<String>,
    /// Interfaces that no --interface names are no ports of netvm: leave out rules for them
    #[arg(long)]
    pub ignore_other_interfaces: bool,
    /// The router that translates, if the file translates destinations that are the machine's own addresses
    #[arg(long, value_name = "ROUTER")]
    pub router: Option<String>,
    /// Leave out rules without an equivalent if the others then only drop more than the file, such as rules that allow
    /// connections of a user
    #[arg(long)]
    pub stricter: bool,
}

/// The formats that `netvm policy import` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ImportFormat {
    /// A ClassBench filter set; its rules become rules that drop
    Classbench,
    /// Output of `iptables-save` or `ip6tables-save`
    Iptables,
    /// Output of `nft -j list ruleset`
    Nft,
    /// Network policies of Kubernetes, as YAML or JSON: ports of pods by their labels
    Kubernetes,
}

/// `netvm policy trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Port on which the packet arrives
    #[arg(long, value_name = "PORT")]
    pub from: String,
    /// The packet's bytes without FCS, in hexadecimal
    #[arg(long, value_name = "HEX", conflicts_with_all = ["pcap", "fields"])]
    pub frame: Option<String>,
    /// Capture that holds the packet
    #[arg(long, value_name = "FILE", conflicts_with = "fields")]
    pub pcap: Option<PathBuf>,
    /// Number of the packet in the capture, from 1
    #[arg(long, value_name = "N", default_value_t = 1, requires = "pcap")]
    pub packet: u64,
    /// What connection tracking finds of the packet, at ports that track: whether it begins a connection or belongs to
    /// one
    #[arg(long, value_name = "STATE", value_parser = ["new", "established", "related", "invalid", "untracked"])]
    pub state: Option<String>,
    /// Fields: source_mac, destination_mac, vlan, ether_type, source, destination, protocol, source_port,
    /// destination_port, flags (such as syn,ack), dscp, length; the names of rules (destination_ports, tcp_flags) do as
    /// well
    #[arg(value_name = "FIELD=VALUE")]
    pub fields: Vec<String>,
}

/// `netvm flow`.
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// List flows, busiest first
    List {
        /// Show at most this many flows
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show the addresses and names with the most bytes, as counted by the engine's flow monitor
    /// (`flow_monitor` in `[engine]`)
    Top {
        /// Show at most this many of each
        #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
        count: usize,
    },
}
