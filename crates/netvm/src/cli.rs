//! The command line of `netvm`: commands, options and their help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use netvm_capture_client::Files;

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
    /// netvmd's API socket [default: $NETVM_API, else /run/netvm/api.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The command
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The top-level commands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Show netvmd, its workers and current problems
    Status,
    /// Show ports: driver, link state and packet counts
    Port {
        /// Show only this port
        name: Option<String>,
    },
    /// Show NFs: state, threads, restarts and counters
    #[command(args_conflicts_with_subcommands = true)]
    Nf {
        /// Show only this role, with its threads and counters
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
        name: Option<String>,
    },
    /// Show trust groups: memory, and how many buffers are free, in the engine and in NFs
    Group {
        /// Show only this group
        name: Option<String>,
    },
    /// Show statistics
    Stats(StatsArgs),
    /// Live view of ports, chains, NFs, workers and drops, with the slowest NF of each chain
    ///
    /// Keys: q ends, Tab changes the part that is shown large, arrows scroll, p pauses, ? explains.
    Top(TopArgs),
    /// Show what netvmd noticed: NFs that came, went or hang, buffers taken back, links, configurations applied
    Events {
        /// Go on with events as they happen
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
    /// Check a configuration file, and look up on this machine what it names; needs no running netvmd
    ///
    /// Looks up interfaces, devices, cores, programs, users, files and folders as netvmd does before it applies the file.
    /// Run it as the user and in the network namespace of netvmd. Executes `netvmd check`; finds the program netvmd beside
    /// netvm, else in PATH.
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
        /// Check the file alone, such as on another machine than the one it is for
        #[arg(long)]
        offline: bool,
    },
    /// Show, change, trace and import policy rules
    Policy {
        /// The command
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Show the flows in the workers' caches
    Flow {
        /// The command
        #[command(subcommand)]
        command: FlowCommand,
    },
    /// Show the MAC addresses that the L2 switch has learned
    Mac,
    /// Capture packets at ports, hops of chains, NFs and routers, or those that are dropped
    ///
    /// Writes pcapng for Wireshark, tshark and tcpdump, with a place's name as interface, and chain, hop, verdict and drop
    /// reason as comments; without -w, a line of text for each packet. FILTER is in libpcap's language, as tcpdump's:
    /// `netvm capture --at uplink -w uplink.pcapng tcp port 443`, `netvm capture --dropped -w - | tcpdump -r -`.
    Capture(CaptureArgs),
    /// Restart every instance of an NF
    Restart {
        /// The NF's role
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
    Doctor,
    /// Run a capture through a chain of NF processes; needs neither a running netvmd nor privileges
    ///
    /// Sends every packet of IN (pcap or pcapng; Ethernet, Linux cooked or raw IP) through the NFs in order, each in its own process as under
    /// netvmd,
    /// and writes the packets that come out to OUT. Prints the number of packets in, out and dropped, by drop reason, and
    /// the counters of each NF.
    /// Executes `netvmd replay`; finds the program netvmd beside netvm, else in PATH.
    #[command(override_usage = "netvm replay [OPTIONS] --chain NF,NF,... IN OUT")]
    Replay(ReplayArgs),
    /// Say what a drop reason, a violation or a column of a table means; needs no netvmd
    ///
    /// Such as `netvm explain chain-full` or `netvm explain 'dropped at entry'`. Without a name, lists all.
    Explain {
        /// Drop reason, violation or column, in any case
        name: Option<String>,
        /// Print all as a Markdown page (docs/reference/counters.md)
        #[arg(long, conflicts_with = "name")]
        markdown: bool,
    },
    /// Make the project of an NF of your own, with a test; needs no netvmd
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
    /// Show the packets that the NF of a role had taken and not passed on when it ended last
    LastWords {
        /// The role
        role: String,
        /// Write pcapng to FILE, `-` for standard output
        #[arg(long, short, value_name = "FILE")]
        write: Option<PathBuf>,
    },
}

/// `netvm capture`.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Capture here: a port, a chain's hop by number or role, an NF or a router; repeat it for several [default: all ports]
    #[arg(long, value_name = "PORT|CHAIN:HOP|NF|ROUTER")]
    pub at: Vec<String>,
    /// Capture packets that are dropped, instead of those that pass
    #[arg(long)]
    pub dropped: bool,
    /// Only drops for this reason; repeat it for several
    #[arg(long, value_name = "REASON", requires = "dropped")]
    pub reason: Vec<String>,
    /// Write pcapng to FILE, `-` for standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// End after N packets
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Copy at most N bytes of each packet; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub snaplen: u32,
    /// Write FILES files of SIZE bytes (or K, M, G) that take turns
    #[arg(long, value_name = "FILES,SIZE", value_parser = files, requires = "write")]
    pub ring: Option<Files>,
    /// MiB of packets that may wait to be written, for each worker
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub buffer: u64,
    /// Filter in libpcap's language
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

/// `10,100M`: how many files, and bytes of each.
fn files(text: &str) -> Result<Files, String> {
    let parse = || {
        let (count, size) = text.split_once(',')?;
        let (number, unit) = match size.strip_suffix(['K', 'M', 'G', 'k', 'm', 'g']) {
            Some(number) => (number, size.chars().last()?.to_ascii_uppercase()),
            None => (size, ' '),
        };
        let shift = match unit {
            'K' => 10,
            'M' => 20,
            'G' => 30,
            _ => 0,
        };
        let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
        Some(Files { count: count.parse().ok()?, bytes })
    };
    let files = parse().filter(|files| files.count >= 2 && files.bytes >= 1 << 16);
    files.ok_or_else(|| "give at least 2 files and 64K, such as 10,100M".to_owned())
}

/// `netvm config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration as TOML with every key, defaults included
    Show,
    /// List the configurations that were in force, the last one first
    History,
    /// Apply a configuration that was in force
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
        rule: String,
    },
    /// Show step by step how netvmd would handle a packet, without sending it
    ///
    /// Describe the packet by fields, by its bytes, or by its number in a capture:
    /// `netvm policy trace --from client protocol=tcp source=10.0.0.2 destination=10.0.1.2 destination_port=23 flags=syn`.
    Trace(TraceArgs),
    /// Convert ClassBench, iptables or nftables rules to `[[rule]]` tables; needs no netvmd
    ///
    /// Reports everything without an equivalent on standard error, with its line number.
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
}

/// `netvm vm`.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// List VMs: state, ports and restarts
    List,
    /// Start a stopped VM
    Start {
        /// The VM's name
        name: String,
    },
    /// Press a VM's power button; power it off after 20 s. It stays down until it is started
    Stop {
        /// The VM's name
        name: String,
        /// Power off at once
        #[arg(long)]
        force: bool,
    },
    /// Attach this terminal to a VM's serial console; ^] detaches
    Console {
        /// The VM's name
        name: String,
    },
    /// Print QEMU's command line, to run the VM by hand
    Args {
        /// The VM's name
        name: String,
    },
    /// Print the VM as a libvirt domain, for `virsh define`
    LibvirtXml {
        /// The VM's name
        name: String,
    },
}

/// `netvm router`.
#[derive(Debug, Subcommand)]
pub enum RouterCommand {
    /// List routers: interfaces and route counts
    List,
    /// Show a router's interfaces and the engine's FIB for it
    Show {
        /// The router's name
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
    /// List the neighbours whose MAC address a router's kernel knows
    Neigh {
        /// The router's name
        name: String,
    },
    /// Add a static route to a router's kernel, until it is removed; `routes` of a `[[router]]` are for ever
    Add(AddRouteArgs),
    /// Remove the static routes to a prefix, but for those of the configuration
    Del {
        /// The router's name
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
    pub name: String,
    /// The destination, such as 192.0.2.0/24
    pub prefix: String,
    /// Gateway; several share the flows
    #[arg(long, value_name = "ADDRESS")]
    pub via: Vec<std::net::IpAddr>,
    /// Interface of the gateways, or of the destination itself
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Metric, the lower the better
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

/// `netvm flow`.
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// List flows, busiest first
    List {
        /// Show at most this many flows
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
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
    /// Fields: source_mac, destination_mac, vlan, ether_type, source, destination, protocol, source_port, destination_port,
    /// flags (such as syn,ack), dscp, length
    #[arg(value_name = "FIELD=VALUE")]
    pub fields: Vec<String>,
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
    /// Print one view, over the interval, and end; also without a terminal
    #[arg(long)]
    pub once: bool,
    /// Interval of readings in seconds
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
}

/// `netvm new-nf`.
#[derive(Debug, Args)]
pub struct NewNfArgs {
    /// Language of the project
    #[arg(long, value_enum)]
    pub lang: Language,
    /// Name of the NF, of its role and of the new folder: a-z, 0-9 and `-`
    pub name: String,
    /// Make the folder in this one
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub into: PathBuf,
    /// netvm's sources, for Rust and Go [default: the checkout of this program, else those of the package libnetlib-dev]
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
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("must be from 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}
