// SPDX-License-Identifier: Apache-2.0
//! The command line of netvmd.

use std::error::Error;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, Subcommand};
use netvm_api::Diagnostic;
use netvm_config::ConfigError;
use netvm_daemon::{CutFrames, DaemonError, FleetOptions, Options, Replay};
use netvm_fleet::{EtcdArgs, HostName};
use tracing::level_filters::LevelFilter;

static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} ({})", env!("CARGO_PKG_VERSION"), dpdk::version()));

/// Run the engine and the NFs of a configuration file
#[derive(Debug, Parser)]
#[command(version, long_version = LONG_VERSION.as_str(), about, subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<OfflineCommand>,
    /// Configuration file (TOML); with --host, the last good configuration [default then: etcd.toml in the state
    /// directory]
    #[arg(long, value_name = "FILE", required_unless_present = "host")]
    config: Option<PathBuf>,
    /// This host's name in etcd, whose configuration there netvmd follows
    #[arg(long, value_name = "NAME")]
    host: Option<HostName>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Folder of the lock and the sockets; one daemon at a time can use it
    #[arg(long, value_name = "DIR", default_value = "/run/netvm")]
    run_dir: PathBuf,
    /// Folder of the history [default: $STATE_DIRECTORY, else `state` in the run directory]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Socket of the HTTP API [default: api.sock in the run directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Socket for NFs that netvmd does not start [default: attach.sock in the run directory]
    #[arg(long, value_name = "PATH")]
    attach: Option<PathBuf>,
    /// Lowest level of log lines
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = level())]
    log: LevelFilter,
}

#[derive(Debug, Subcommand)]
enum OfflineCommand {
    /// Run a capture through a chain of NFs; needs neither a daemon nor privileges
    Replay {
        /// Capture to read (pcap or pcapng); `-` for standard input
        input: PathBuf,
        /// Capture to write; `-` for standard output
        output: PathBuf,
        /// NF programs in order, separated by commas: name or path, and arguments, quoted as for a shell
        #[arg(long, value_name = "NF,NF,...")]
        chain: String,
        /// What to do with frames of which the capture has only the beginning
        #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
        cut_frames: CutFrames,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Check a configuration file and look up on this machine what it names; prints a JSON list of what it finds
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
    },
    /// Print for each header, on a line, the number of the first matching rule or `-`; needs no daemon
    PolicyEval {
        /// Filter set (ClassBench)
        #[arg(long, value_name = "RULES")]
        classbench: PathBuf,
        /// One header a line: source, destination, source port, destination port, protocol, in decimal
        #[arg(long, value_name = "HEADERS")]
        trace: PathBuf,
    },
    /// Print the man page
    #[command(hide = true)]
    Man,
    /// Keep files for the next netvmd; netvmd starts this with a listening socket on standard input
    #[command(hide = true)]
    KeepFiles {
        /// The socket's path, which shows whose process it is
        socket: PathBuf,
    },
    /// Speed up the end of a netvmd that is killed; netvmd starts this with a pidfd of itself on standard input
    #[command(hide = true)]
    ExpediteExit {
        /// The file that this netvmd has locked
        lock: PathBuf,
    },
}

fn level() -> impl TypedValueParser<Value = LevelFilter> {
    let words = PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]);
    words.try_map(|word| word.parse::<LevelFilter>())
}

fn main() -> ExitCode {
    let Err(error) = execute(Arguments::parse()) else { return ExitCode::SUCCESS };
    match error.downcast_ref::<DaemonError>().and_then(DaemonError::configuration) {
        Some(error) => eprint!("{}", error.render(io::stderr().is_terminal())),
        None => eprintln!("netvmd: {error}"),
    }
    ExitCode::FAILURE
}

fn execute(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    netvm_cpu::check()?;
    match &arguments.command {
        Some(OfflineCommand::KeepFiles { .. }) => return Ok(netvm_daemon::keep_files()?),
        Some(OfflineCommand::ExpediteExit { lock }) => return Ok(netvm_daemon::expedite_exit(lock)?),
        Some(_) => {}
        None => netvm_daemon::protect_new_files(),
    }
    // A replay is a command, not a service: log only warnings.
    let log = if arguments.command.is_some() { LevelFilter::WARN } else { arguments.log };
    let _log = netvm_daemon::start_logging(log);
    // One thread, this one: NF processes die with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| described("cannot start", &error))?;
    match arguments.command {
        Some(OfflineCommand::Check { file }) => check(&file),
        Some(OfflineCommand::Man) => man(),
        Some(OfflineCommand::Replay { input, output, chain, cut_frames, json }) => {
            replay(&runtime, &Replay { input, output, chain, cut_frames }, json)
        }
        Some(OfflineCommand::PolicyEval { classbench, trace }) => {
            Ok(netvm_daemon::policy_eval(&classbench, &trace).map(drop)?)
        }
        None | Some(OfflineCommand::KeepFiles { .. } | OfflineCommand::ExpediteExit { .. }) => {
            let has_etcd = arguments.etcd != EtcdArgs::default();
            if has_etcd && arguments.host.is_none() {
                return Err("--etcd is for a host that follows etcd: give its name with --host".into());
            }
            let etcd = arguments.etcd;
            let mut options = Options {
                // Only commands and hosts of a fleet may leave it out.
                config: arguments.config.unwrap_or_default(),
                fleet: arguments.host.map(|host| FleetOptions { etcd, host }),
                run_dir: arguments.run_dir,
                state_dir: arguments.state_dir,
                socket: arguments.socket,
                attach: arguments.attach,
            };
            if options.config.as_os_str().is_empty() {
                options.config = options.last_good();
            }
            Ok(runtime.block_on(netvm_daemon::run(options))?)
        }
    }
}

/// An error with what failed.
fn described(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Prints the findings about a configuration file. Fails only if the file cannot be read.
fn check(file: &Path) -> Result<(), Box<dyn Error>> {
    let checked = netvm_daemon::check(file);
    let findings = match &checked {
        Ok(loaded) => &loaded.warnings[..],
        Err(error) => error.findings(),
    };
    let diagnostics: Vec<Diagnostic> = findings.iter().map(Diagnostic::from).collect();
    if let Err(error @ ConfigError::Read { .. }) = checked {
        return Err(error.into());
    }
    println!("{}", serde_json::to_string(&diagnostics)?);
    Ok(())
}

/// Prints the man page.
fn man() -> Result<(), Box<dyn Error>> {
    let printed = clap_mangen::Man::new(Arguments::command()).section("8").render(&mut io::stdout());
    Ok(printed.map_err(|error| described("standard output", &error))?)
}

fn replay(runtime: &tokio::runtime::Runtime, replay: &Replay, json: bool) -> Result<(), Box<dyn Error>> {
    let report = runtime.block_on(netvm_daemon::replay(replay))?;
    let text = if json { serde_json::to_string_pretty(&report)? } else { report.to_string() };
    // Standard output may carry the capture.
    if replay.output.as_os_str() == "-" {
        eprintln!("{text}");
    } else {
        println!("{text}");
    }
    Ok(())
}
