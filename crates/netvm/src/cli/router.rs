// SPDX-License-Identifier: Apache-2.0
//! `netvm router`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::complete::{Names, names};

/// `netvm router`.
#[derive(Debug, Subcommand)]
pub enum RouterCommand {
    /// List routers: interfaces and route counts
    List,
    /// Show a router's interfaces and the engine's FIB for it
    Show {
        /// The router's name
        #[arg(add = names(&[Names::Routers]))]
        name: String,
        /// Show at most this many routes
        #[arg(long, value_name = "N", default_value_t = 50, conflicts_with = "all")]
        limit: usize,
        /// Show all routes
        #[arg(long)]
        all: bool,
        /// Show only routes of this address family
        #[arg(long, value_name = "4|6", value_parser = clap::value_parser!(u8).range(4..=6))]
        family: Option<u8>,
        /// Show only routes to this prefix and to prefixes in it
        #[arg(long, value_name = "PREFIX")]
        prefix: Option<String>,
        /// Show only the route that a packet to this address takes
        #[arg(long, value_name = "ADDRESS")]
        address: Option<String>,
    },
    /// List the neighbours whose MAC address the router's kernel has resolved
    Neigh {
        /// The router's name
        #[arg(add = names(&[Names::Routers]))]
        name: String,
    },
    /// Add a static route to a router's kernel, until you remove it; `routes` of a `[[router]]` are permanent
    Add(AddRouteArgs),
    /// Remove the static routes to a prefix, except routes of the configuration
    Del {
        /// The router's name
        #[arg(add = names(&[Names::Routers]))]
        name: String,
        /// The destination, such as 192.0.2.0/24
        prefix: String,
        /// Remove only the route with this metric
        #[arg(long)]
        metric: Option<u32>,
    },
    /// Print the longest matching prefix of each address or `-`, a line each; needs no daemon
    Lookup(LookupArgs),
}

/// `netvm router add`.
#[derive(Debug, Args)]
pub struct AddRouteArgs {
    /// The router's name
    #[arg(add = names(&[Names::Routers]))]
    pub name: String,
    /// The destination, such as 192.0.2.0/24
    pub prefix: String,
    /// Gateway; repeat it to spread flows over several
    #[arg(long, value_name = "ADDRESS")]
    pub via: Vec<std::net::IpAddr>,
    /// Interface of the gateways, or of the destination itself
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Metric; the route with the lowest is used
    #[arg(long)]
    pub metric: Option<u32>,
    /// Drop the packets
    #[arg(long)]
    pub blackhole: bool,
}

/// `netvm router lookup`.
#[derive(Debug, Args)]
pub struct LookupArgs {
    /// Prefixes of IPv4 and IPv6, a line each; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub prefixes: PathBuf,
    /// Addresses of IPv4 and IPv6, a line each; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub addresses: PathBuf,
}
