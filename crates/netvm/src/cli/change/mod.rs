// SPDX-License-Identifier: Apache-2.0
//! `netvm config`, `netvm apply` and `netvm fleet`: changes of configurations.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use netvm_fleet::HostName;

/// `netvm config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration as TOML with every key, defaults included
    Show,
    /// List the configurations that netvmd has applied, the latest first
    History,
    /// Apply a configuration from the history again
    Rollback {
        /// Its number in the history [default: the one before the last]
        number: Option<u64>,
        /// How
        #[command(flatten)]
        how: ApplyArgs,
    },
    /// Keep the change that `apply --confirm` made
    Confirm,
    /// Undo the change that `apply --confirm` made, now
    Revert,
}

/// How a configuration is applied.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ApplyArgs {
    /// Do not ask before the change
    #[arg(long, short)]
    pub yes: bool,
    /// Also write it to the configuration file of netvmd, for its next start; with --confirm, when it is confirmed
    #[arg(long)]
    pub save: bool,
    /// Go back after this many seconds, unless `netvm config confirm` comes before
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub confirm: Option<u64>,
}

/// `netvm fleet`.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Show what each host runs, and what keeps it from running what etcd has for it
    Status,
    /// Show what an apply would change on each host, by what etcd has; changes nothing
    Plan {
        /// Folder with hosts/NAME.toml and fragments/NAME.toml, or the file NAME.toml of one host
        path: PathBuf,
    },
    /// Write configurations to etcd, in waves, and stop at the first host that is not healthy with its own
    ///
    /// Checks all files first. Hosts that are to change are held back until their wave comes: fragments that they share
    /// do not reach them earlier. A host that does not report gets its configuration after the last wave.
    Apply {
        /// Folder with hosts/NAME.toml and fragments/NAME.toml, or the file NAME.toml of one host
        path: PathBuf,
        /// How
        #[command(flatten)]
        how: FleetArgs,
    },
    /// Give up the name of a host whose machine is gone, so that another machine can take it
    Release {
        /// The host
        #[arg(value_name = "HOST")]
        name: HostName,
    },
}

/// How configurations are written to etcd.
#[derive(Clone, Copy, Debug, Args)]
pub struct FleetArgs {
    /// Hosts in the first wave
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub canary: u16,
    /// Hosts in each later wave
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub wave: u16,
    /// Seconds that the hosts of a wave have to become healthy
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub within: u64,
    /// Do not ask before the change
    #[arg(long, short)]
    pub yes: bool,
}
