//! What can be said on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// Looks at and changes what netvmd runs.
#[derive(Debug, Parser)]
#[command(
    name = "netvm",
    version,
    about,
    propagate_version = true,
    after_help = "Exit status: 0 done, 1 failed, 2 the command line is wrong.\n\
                  With --json the result is one JSON object on standard output, an error one on standard error."
)]
pub struct Cli {
    /// Print JSON for programs instead of tables for people
    #[arg(long, global = true)]
    pub json: bool,
    /// Socket of netvmd's API [default: $NETVM_API, else /run/netvm/api.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show netvmd, its workers, and what is not as it should be
    Status,
    /// Show ports: their driver, link and packets
    Port {
        /// Show this one only
        name: Option<String>,
    },
    /// Show NFs: their state, threads, restarts and counters
    Nf {
        /// Show this role only, with its threads and counters
        role: Option<String>,
    },
    /// Show chains: their hops, state and packets
    Chain {
        /// Show this one only
        name: Option<String>,
    },
    /// Show trust groups: their memory and who has its cells
    Group {
        /// Show this one only
        name: Option<String>,
    },
    /// Show what is counted
    Stats(StatsArgs),
    /// Show what applying a file would change, and whom that disturbs
    Plan {
        /// Configuration (TOML)
        file: PathBuf,
    },
    /// Show what a file changes, then make it so, live; when that fails, all stays as it was
    ///
    /// On a terminal it asks before it does anything. With --json, or without a terminal, it does not ask.
    Apply {
        /// Configuration (TOML)
        file: PathBuf,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Show the configuration that is being run
    Config {
        /// What to do with it
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Check a configuration file, without netvmd
    Check {
        /// Configuration (TOML)
        file: PathBuf,
    },
    /// Restart every instance of an NF
    Restart {
        /// Its role
        role: String,
    },
    /// End netvmd and the NFs it started
    Stop,
    /// Say what this machine can do, and the commands that would improve it
    ///
    /// Needs no netvmd and changes nothing. Nothing it complains of keeps netvm from running.
    Doctor,
    /// Run a capture through a chain of NF processes, without netvmd and without privileges
    ///
    /// Every packet of IN (pcap or pcapng, Ethernet) passes the NFs of the chain in order, each a process of its own as
    /// under netvmd, and what comes out is written to OUT. Says how many packets went in, came out, and were dropped for
    /// which reason. It is `netvmd replay`: the program netvmd is looked for beside this one, then in PATH.
    #[command(override_usage = "netvm replay [OPTIONS] --chain NF,NF,... IN OUT")]
    Replay(ReplayArgs),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: Shell,
    },
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print it as a TOML file with every key, defaults included
    Show,
}

/// What of the statistics, and how often.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Show what each stage of the packet path costs
    #[arg(long)]
    pub stages: bool,
    /// Show drops by place and reason
    #[arg(long)]
    pub drops: bool,
    /// Show it again every so many seconds, with rates, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true, value_parser = interval)]
    pub watch: Option<Duration>,
}

/// What to replay.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The capture to read
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The capture to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// NFs in order: names or paths of programs, such as `simple-forward,monitor`
    #[arg(long, required = true, value_delimiter = ',', value_name = "NF,NF,...")]
    pub chain: Vec<String>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("from 0.1 to 3600 seconds are possible".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}
