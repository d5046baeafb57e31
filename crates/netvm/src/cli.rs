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
    /// Virtual machines: show, start and stop them, attach to their console
    Vm {
        /// What to do with them
        #[command(subcommand)]
        command: VmCommand,
    },
    /// Show virtual routers: their interfaces and routes
    Router {
        /// What of them [default: list them]
        #[command(subcommand)]
        command: Option<RouterCommand>,
    },
    /// Show chains: their hops, state and packets
    Chain {
        /// Show this one only
        name: Option<String>,
    },
    /// Show trust groups: their memory and who has its buffers
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
    /// Show and change the rules, and see what they make of a packet
    Policy {
        /// What to do with them
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Show the flows that workers know
    Flow {
        /// What of them
        #[command(subcommand)]
        command: FlowCommand,
    },
    /// Show the MAC addresses that L2 switching knows
    Mac,
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

/// What to do with the rules.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show the rules in their order, and how often each matched
    Show,
    /// Add a rule; it acts at once, and is gone when netvmd starts anew from its file
    ///
    /// The rule is given as the lines of a `[[rule]]` in the configuration, such as
    /// `netvm policy add 'from = "client"' 'match = { protocol = "tcp", destination_ports = 23 }' 'drop = true'`.
    Add {
        /// Lines of the rule
        #[arg(required = true, value_name = "LINE")]
        lines: Vec<String>,
        /// Behind all other rules, in place of before them
        #[arg(long, group = "place")]
        last: bool,
        /// Before the rule of this name or number
        #[arg(long, group = "place", value_name = "RULE")]
        before: Option<String>,
        /// Behind the rule of this name or number
        #[arg(long, group = "place", value_name = "RULE")]
        after: Option<String>,
    },
    /// Take a rule away; it acts no more at once
    Del {
        /// Its name or number
        rule: String,
    },
    /// Say what would become of a packet, step by step, without sending it
    ///
    /// The packet is given by fields, by its bytes, or by its place in a capture:
    /// `netvm policy trace --from client protocol=tcp source=10.0.0.2 destination=10.0.1.2 destination_port=23 flags=syn`.
    Trace(TraceArgs),
    /// Print the rules of a ClassBench filter set, of iptables or of nftables as `[[rule]]` tables; needs no netvmd
    ///
    /// What has no equivalent is said on standard error, with its line.
    Import(ImportArgs),
    /// Print the number of the first rule of a filter set that matches, or `-`, a line for each header; needs no netvmd
    ///
    /// It is `netvmd policy-eval`: the program netvmd is looked for beside this one, then in PATH.
    Eval {
        /// The filter set (ClassBench)
        #[arg(long, value_name = "RULES")]
        classbench: PathBuf,
        /// A header a line: source, destination, source port, destination port, protocol, in decimal
        #[arg(long, value_name = "HEADERS")]
        trace: PathBuf,
    },
}

/// Rules to be imported.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What the file is
    #[arg(long, value_enum)]
    pub format: ImportFormat,
    /// The file
    pub file: PathBuf,
    /// An interface that the file names, and the port that it is, if that has another name; give all of them
    #[arg(long = "interface", value_name = "NAME[=PORT]")]
    pub interfaces: Vec<String>,
}

/// What rules of others are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ImportFormat {
    /// A ClassBench filter set, of rules that drop
    Classbench,
    /// What `iptables-save` or `ip6tables-save` prints
    Iptables,
    /// What `nft -j list ruleset` prints
    Nft,
}

/// What to do with virtual machines.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// List them: their state, ports and restarts
    List,
    /// Start one that does not run
    Start {
        /// Its name
        name: String,
    },
    /// Shut one down, as its power button does; after 20 s its plug is pulled. It stays down until it is started
    Stop {
        /// Its name
        name: String,
        /// Pull the plug at once
        #[arg(long)]
        force: bool,
    },
    /// Attach this terminal to a guest's serial console; ^] leaves
    Console {
        /// Its name
        name: String,
    },
    /// Print QEMU's command line, to run the machine by hand
    Args {
        /// Its name
        name: String,
    },
    /// Print the machine as a libvirt domain, for `virsh define`
    LibvirtXml {
        /// Its name
        name: String,
    },
}

/// What of virtual routers.
#[derive(Debug, Subcommand)]
pub enum RouterCommand {
    /// List them: their interfaces, and how many routes they have
    List,
    /// Show one: its interfaces, and its routes as the engine has them
    Show {
        /// Its name
        name: String,
        /// Most routes that are shown
        #[arg(long, default_value_t = 50)]
        most: usize,
    },
}

/// What of the flows.
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// List them, those with most packets first
    List {
        /// Most flows that are listed
        #[arg(long, default_value_t = 50)]
        most: usize,
    },
}

/// A packet, and where it comes in.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The port that it comes in by
    #[arg(long, value_name = "PORT")]
    pub from: String,
    /// Its bytes without FCS, in hexadecimal
    #[arg(long, value_name = "HEX", conflicts_with_all = ["pcap", "fields"])]
    pub frame: Option<String>,
    /// A capture that it is in
    #[arg(long, value_name = "FILE", conflicts_with = "fields")]
    pub pcap: Option<PathBuf>,
    /// Which packet of the capture, from 1
    #[arg(long, value_name = "N", default_value_t = 1, requires = "pcap")]
    pub packet: u64,
    /// Fields: source_mac, destination_mac, vlan, ether_type, source, destination, protocol, source_port, destination_port,
    /// flags (such as syn,ack), dscp, length
    #[arg(value_name = "FIELD=VALUE")]
    pub fields: Vec<String>,
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
