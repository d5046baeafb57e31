// SPDX-License-Identifier: Apache-2.0
//! The command line of `netvm`: commands, options and their help texts.

mod capture;
mod cert;
mod change;
mod connections;
mod policy;
mod port;
mod router;
mod trace;
mod vm;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use netvm_api::ServerArgs;
use netvm_fleet::EtcdArgs;

use crate::complete::{Names, names};

pub use capture::CaptureArgs;
pub use cert::{CertCommand, DoctorArgs, PasswdArgs};
pub use change::{ApplyArgs, ConfigCommand, FleetArgs, FleetCommand};
pub use connections::{ConnCommand, ConnFilter};
pub use policy::{FlowCommand, ImportArgs, ImportFormat, PolicyCommand, TraceArgs};
pub use port::{DockerArgs, PortCommand};
pub use router::{AddRouteArgs, LookupArgs, RouterCommand};
pub use trace::LiveTraceArgs;
pub use vm::VmCommand;

/// Inspect and control netvmd
#[derive(Debug, Parser)]
#[command(
    name = "netvm",
    version,
    about,
    propagate_version = true,
    after_help = "Exit status: 0 success, 1 failure, 2 invalid command line.\n\
                  With --json, results and errors are JSON objects, on standard output and standard error."
)]
pub struct Cli {
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,
    /// Which netvmd
    #[command(flatten)]
    pub server: ServerArgs,
    /// The command
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The top-level commands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Show netvmd, its workers and current problems
    Status {
        /// Wait until netvmd serves requests and the NFs that it starts for chains run, at most SECONDS
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "30")]
        wait: Option<u64>,
    },
    /// Show ports: driver, link state and packet counts; add and delete single ports
    #[command(args_conflicts_with_subcommands = true)]
    Port {
        /// Show only this port
        #[arg(add = names(&[Names::Ports]))]
        name: Option<String>,
        /// The command [default: show]
        #[command(subcommand)]
        command: Option<PortCommand>,
    },
    /// Show NFs: state, threads, restarts and counters
    #[command(args_conflicts_with_subcommands = true)]
    Nf {
        /// Show only this role, with its threads and counters
        #[arg(add = names(&[Names::Roles]))]
        role: Option<String>,
        /// The command [default: list]
        #[command(subcommand)]
        command: Option<NfCommand>,
    },
    /// List, start and stop virtual machines; attach to a console
    Vm {
        /// The command
        #[command(subcommand)]
        command: VmCommand,
    },
    /// Show virtual routers, their interfaces and routes
    Router {
        /// The command [default: list]
        #[command(subcommand)]
        command: Option<RouterCommand>,
    },
    /// Show chains: hops, state and packet counts
    Chain {
        /// Show only this chain
        #[arg(add = names(&[Names::Chains]))]
        name: Option<String>,
    },
    /// Show trust groups: memory, and buffers that are free, in the engine and in NFs
    Group {
        /// Show only this group
        #[arg(add = names(&[Names::Groups]))]
        name: Option<String>,
    },
    /// Show statistics
    Stats(StatsArgs),
    /// Live view of ports, chains, NFs, workers and drops, with the slowest NF of each chain
    ///
    /// Keys: q quits, Tab enlarges the next part, arrows scroll, p pauses, ? explains.
    Top(TopArgs),
    /// Show events: NFs that attach, end or hang, buffers taken back, link changes, configurations applied
    Events {
        /// Continue with new events as they happen
        #[arg(long, short)]
        follow: bool,
        /// Only events with a higher number
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        after: u64,
    },
    /// Show what applying a file would change and disturb
    Plan {
        /// Configuration file (TOML)
        file: PathBuf,
    },
    /// Apply a configuration file to the running netvmd; if a change fails, netvmd undoes them all
    ///
    /// Prints the changes first, and on a terminal asks for confirmation. With --json, or without a terminal, it does
    /// not ask.
    Apply {
        /// Configuration file (TOML)
        file: PathBuf,
        /// How
        #[command(flatten)]
        how: ApplyArgs,
    },
    /// Show the running configuration
    Config {
        /// The command
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Show and change the configurations of many hosts in etcd; needs no netvmd on this machine
    Fleet {
        /// How etcd is reached
        #[command(flatten)]
        etcd: EtcdArgs,
        /// The command
        #[command(subcommand)]
        command: FleetCommand,
    },
    /// Check a configuration file, and that this machine has what it names; needs no running netvmd
    ///
    /// Looks up interfaces, devices, cores, programs, users, files and folders as netvmd does before it applies the
    /// file. Run it as the user and in the network namespace of netvmd. Executes `netvmd check`; finds the program
    /// netvmd beside netvm, else in PATH.
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
        /// Check the file alone, for example on another machine than its own
        #[arg(long)]
        offline: bool,
    },
    /// Show, change, trace and import policy rules
    Policy {
        /// The command
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Show the flows in the workers' caches, and top talkers
    Flow {
        /// The command
        #[command(subcommand)]
        command: FlowCommand,
    },
    /// Show, count and end tracked connections
    Conn {
        /// The command
        #[command(subcommand)]
        command: ConnCommand,
    },
    /// Show the MAC addresses that the L2 switch has learned
    Mac,
    /// Show the multicast groups that the L2 switch has learned, with queriers and routers
    Mdb,
    /// Capture packets at ports, hops of chains, NFs and routers, or dropped packets
    ///
    /// Writes pcapng for Wireshark, tshark and tcpdump, with the capture point as interface, and chain, hop, verdict
    /// and drop reason as comments; without -w, a line of text for each packet. FILTER is in libpcap's language, as
    /// tcpdump's: `netvm capture --at uplink -w uplink.pcapng tcp port 443`, `netvm capture --dropped -w - | tcpdump -r
    /// -`.
    Capture(CaptureArgs),
    /// Follow packets of traffic through ports, rules, NFs, routers and drops, with the time of each step
    ///
    /// Follows a few packets at a time on each worker, from reception until they are sent or dropped, and prints their
    /// steps: `netvm trace -n 3 tcp port 443`. `netvm policy trace` says the same of a packet that is not sent. Costs
    /// nothing while it does not run.
    Trace(LiveTraceArgs),
    /// Serve as a network driver of Docker: containers get ports of netvmd, until a signal ends it
    ///
    /// `docker network create -d netvm --subnet 10.78.0.0/24 --gateway 10.78.0.1 shop` then makes a network whose
    /// containers are on netvmd's switch.
    Docker(DockerArgs),
    /// Restart every instance of an NF
    Restart {
        /// The NF's role
        #[arg(add = names(&[Names::Roles]))]
        role: String,
    },
    /// Stop netvmd and the NFs it started, and wait until they have ended
    ///
    /// On a terminal, asks for confirmation first. Ordinary guests keep running, and the namespaces of virtual routers
    /// stay for the next netvmd.
    Stop {
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
        /// Also remove the namespaces of virtual routers, with their routes
        #[arg(long)]
        purge: bool,
    },
    /// Check this machine's readiness, and print commands that improve it
    ///
    /// Needs no netvmd and changes nothing. netvm runs despite any warning.
    Doctor(DoctorArgs),
    /// Run a capture through a chain of NF processes; needs neither a running netvmd nor privileges
    ///
    /// Sends every packet of IN (pcap or pcapng; Ethernet, Linux cooked or raw IP) through the NFs in order, each in
    /// its own process as under netvmd, and writes the packets that come out to OUT. Prints the number of packets in,
    /// out and dropped, by drop reason, and the counters of each NF. Skips frames that cannot be read or are longer
    /// than a buffer, and says how many, which and why. Executes `netvmd replay`; finds the program netvmd beside
    /// netvm, else in PATH.
    #[command(override_usage = "netvm replay [OPTIONS] --chain NF,NF,... IN OUT")]
    Replay(ReplayArgs),
    /// Explain a drop reason, a violation or a column of a table; needs no netvmd
    ///
    /// Such as `netvm explain chain-full` or `netvm explain 'dropped at entry'`. Without a name, lists all.
    Explain {
        /// Drop reason, violation or column, in any case
        #[arg(add = names(&[Names::Explanations]))]
        name: Option<String>,
        /// Print all as a Markdown page (docs/reference/counters.md)
        #[arg(long, conflicts_with = "name")]
        markdown: bool,
    },
    /// Make certificates for netvmd's API and its clients on other machines; needs no netvmd
    Cert {
        /// The command
        #[command(subcommand)]
        command: CertCommand,
    },
    /// Set the password of a user of the web page on other machines; needs no netvmd
    ///
    /// Asks for it twice, or reads it from standard input if that is no terminal.
    Passwd(PasswdArgs),
    /// Create a project for a new NF, with a test; needs no netvmd
    NewNf(NewNfArgs),
    /// Print the HTTP API as OpenAPI 3.1, for code generators; needs no netvmd
    Openapi {
        /// Print its operations as a Markdown page (docs/reference/api.md)
        #[arg(long)]
        markdown: bool,
    },
    /// Print a completion script for a shell
    Completion {
        /// Shell to print it for
        shell: Shell,
    },
    /// Write the man pages of every command into a folder
    #[command(hide = true)]
    Man {
        /// An existing folder
        folder: PathBuf,
    },
}

/// `netvm nf`.
#[derive(Debug, Subcommand)]
pub enum NfCommand {
    /// Show the packets that the last NF of a role to end had taken and not passed on
    HeldPackets {
        /// The role
        #[arg(add = names(&[Names::Roles]))]
        role: String,
        /// Write pcapng to FILE, `-` for standard output
        #[arg(long, short, value_name = "FILE")]
        write: Option<PathBuf>,
    },
}

/// `netvm stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Show the cost of each stage of the packet path
    #[arg(long)]
    pub stages: bool,
    /// Show drops by port, chain or NF, and reason
    #[arg(long)]
    pub drops: bool,
    /// Show how long packets take, by ports, chain and hop
    #[arg(long, conflicts_with_all = ["stages", "drops"])]
    pub latency: bool,
    /// Repeat every SECONDS, with rates, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true, value_parser = interval)]
    pub watch: Option<Duration>,
}

/// `netvm top`.
#[derive(Clone, Copy, Debug, Args)]
pub struct TopArgs {
    /// Print one view, over the interval, and exit; also without a terminal
    #[arg(long)]
    pub once: bool,
    /// Interval between readings in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
}

/// `netvm replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Capture to read, `-` for standard input
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Capture to write, `-` for standard output; an existing file is replaced when the replay has succeeded
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// NF programs in order, by name or path, and their arguments, quoted as for a shell, such as
    /// `"firewall --rules 'my rules',monitor"`
    #[arg(long, value_name = "NF,NF,...")]
    pub chain: String,
    /// Frames of which the capture has only the beginning: play what there is, pad it with zeros to the length on the
    /// wire, or skip them
    #[arg(long, value_name = "WHAT", value_parser = ["play", "pad", "skip"], default_value = "play")]
    pub cut_frames: String,
}

/// `netvm new-nf`.
#[derive(Debug, Args)]
pub struct NewNfArgs {
    /// Language of the project
    #[arg(long, value_enum)]
    pub lang: Language,
    /// Name of the NF, of its role and of the new folder: a-z, 0-9 and `-`
    pub name: String,
    /// Create the project's folder in FOLDER
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub into: PathBuf,
    /// netvm's sources, for Rust and Go [default: this program's checkout, else those of package libnetlib-dev]
    #[arg(long, value_name = "FOLDER")]
    pub sources: Option<PathBuf>,
}

/// The languages of `netvm new-nf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// netlib
    Rust,
    /// libnetlib
    C,
    /// The package netvm, over libnetlib
    Python,
    /// The module netlib, over libnetlib and cgo
    Go,
}

impl std::fmt::Display for Language {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rust => "Rust",
            Self::C => "C",
            Self::Python => "Python",
            Self::Go => "Go",
        })
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("must be from 0.1 to 3600 seconds".to_owned()),
    }
}
