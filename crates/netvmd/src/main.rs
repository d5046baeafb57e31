//! The command line of netvmd.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use netvm_api::Diagnostic;
use netvm_config::ConfigError;
use netvm_daemon::{CutFrames, DaemonError, Options, Replay};

static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} ({})", env!("CARGO_PKG_VERSION"), dpdk::version()));

/// Run the engine and the NFs of a configuration file
#[derive(Debug, Parser)]
#[command(version, long_version = LONG_VERSION.as_str(), about, subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<OfflineCommand>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
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
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Info)]
    log: Level,
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<Level> for tracing::level_filters::LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = netvm_cpu::check() {
        eprintln!("netvmd: {error}");
        return ExitCode::FAILURE;
    }
    match &arguments.command {
        Some(OfflineCommand::KeepFiles { .. }) => {
            return helper(netvm_daemon::keep_files().map_err(Into::into));
        }
        Some(OfflineCommand::ExpediteExit { lock }) => return helper(netvm_daemon::expedite_exit(lock)),
        _ => {}
    }
    if arguments.command.is_none() {
        netvm_daemon::protect_new_files();
    }
    // A replay is a command, not a service: log only warnings.
    let log = if arguments.command.is_some() { Level::Warn } else { arguments.log };
    let _log = netvm_daemon::start_logging(log.into());
    // One thread, this one: NF processes die with the thread that started them.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("netvmd: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match arguments.command {
        None | Some(OfflineCommand::KeepFiles { .. } | OfflineCommand::ExpediteExit { .. }) => {}
        Some(OfflineCommand::Check { file }) => return check(&file),
        Some(OfflineCommand::Man) => return man(),
        Some(OfflineCommand::Replay { input, output, chain, cut_frames, json }) => {
            return replay(&runtime, &Replay { input, output, chain, cut_frames }, json);
        }
        Some(OfflineCommand::PolicyEval { classbench, trace }) => {
            return match netvm_daemon::policy_eval(&classbench, &trace) {
                Ok(_) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("netvmd: {error}");
                    ExitCode::FAILURE
                }
            };
        }
    }
    let Some(config) = arguments.config else { return ExitCode::from(2) };
    let options = Options {
        config,
        run_dir: arguments.run_dir,
        state_dir: arguments.state_dir,
        socket: arguments.socket,
        attach: arguments.attach,
    };
    match runtime.block_on(netvm_daemon::run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Ends a process that helps a netvmd, or the next one.
fn helper(outcome: std::io::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netvmd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the findings about a configuration file. Fails only if the file cannot be read.
fn check(file: &Path) -> ExitCode {
    let checked = netvm_daemon::check(file);
    let findings = match &checked {
        Ok(loaded) => &loaded.warnings[..],
        Err(error) => error.findings(),
    };
    let diagnostics: Vec<Diagnostic> = findings.iter().map(Diagnostic::from).collect();
    match (serde_json::to_string(&diagnostics), checked) {
        (_, Err(error @ ConfigError::Read { .. })) => {
            eprintln!("netvmd: {error}");
            ExitCode::FAILURE
        }
        (Err(error), _) => {
            eprintln!("netvmd: {error}");
            ExitCode::FAILURE
        }
        (Ok(text), _) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
    }
}

/// Prints the man page.
fn man() -> ExitCode {
    match clap_mangen::Man::new(Arguments::command()).section("8").render(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netvmd: standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

fn replay(runtime: &tokio::runtime::Runtime, replay: &Replay, json: bool) -> ExitCode {
    let reported = match runtime.block_on(netvm_daemon::replay(replay)) {
        Ok(report) if json => serde_json::to_string_pretty(&report).map_err(|error| error.to_string()),
        Ok(report) => Ok(report.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match reported {
        // Standard output carries the capture.
        Ok(text) if replay.output.as_os_str() == "-" => eprintln!("{text}"),
        Ok(text) => println!("{text}"),
        Err(error) => {
            eprintln!("netvmd: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn report(error: &DaemonError) {
    match error.configuration() {
        Some(error) => eprint!("{}", error.render(std::io::IsTerminal::is_terminal(&std::io::stderr()))),
        None => eprintln!("netvmd: {error}"),
    }
}
