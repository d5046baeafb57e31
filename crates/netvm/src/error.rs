// SPDX-License-Identifier: Apache-2.0
//! Errors of commands, as the user sees them.

mod docker;
mod fleet;
mod import;
mod new_nf;

use std::io;
use std::path::PathBuf;

use netvm_api::{ApiError, ClientError, Diagnostic};
use netvm_config::ConfigError;
use netvm_wire::{BuildError, NetError};

pub use docker::DockerError;
pub use fleet::FleetError;
pub use import::ImportError;
pub use new_nf::NewNfError;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// `NETVM_CPU` is not usable.
    #[error(transparent)]
    Cpu(#[from] netvm_cpu::LevelError),
    /// Addresses cannot be looked up.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// netvmd refused, or cannot be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The configuration file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No object has this name.
    #[error("no {what} `{name}`; {}", list(.known))]
    Unknown {
        /// The kind of object.
        what: &'static str,
        /// The name given.
        name: String,
        /// The names of this kind.
        known: Vec<String>,
    },
    /// A live view needs a terminal.
    #[error("standard output is not a terminal: use `netvm top --once`, or --json")]
    NoTerminal,
    /// No explanation has this name.
    #[error("nothing is called `{name}`{}; `netvm explain` lists all names", near(.like))]
    NotExplained {
        /// The name given.
        name: String,
        /// Names that resemble it.
        like: Vec<&'static str>,
    },
    /// The packet to trace is not described correctly.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// No packet came for a trace.
    #[error(
        "no packet within {0} s that the filter accepts when a port receives it: `netvm port` shows what ports receive"
    )]
    NothingTraced(u64),
    /// netvmd has ended a trace early.
    #[error("netvmd has ended the trace after {0} packets: see its log")]
    TraceEnded(u64),
    /// A capture's filter does not compile.
    #[error(transparent)]
    Filter(#[from] netvm_capture_client::FilterError),
    /// A capture does not start.
    #[error(transparent)]
    Session(#[from] netvm_capture_client::SessionError),
    /// A capture ended early.
    #[error(transparent)]
    Capture(Box<netvm_capture_client::CaptureError>),
    /// The capture cannot be written.
    #[error("the capture cannot be written: {0}")]
    CaptureTarget(io::Error),
    /// Packets from another machine are only written to a file.
    #[error(
        "with --host, packets are written to a file, for at most 1,000,000 packets or 600 seconds: give --write FILE, and no --device, --ring or --buffer"
    )]
    RemoteCapture,
    /// Docker is not served.
    #[error(transparent)]
    Docker(#[from] DockerError),
    /// A certificate was not made.
    #[error(transparent)]
    Cert(#[from] netvm_tls::IssueError),
    /// A password was not set or removed.
    #[error(transparent)]
    Passwords(#[from] netvm_passwords::PasswordsError),
    /// A password was typed in two ways.
    #[error("the passwords differ: nothing is changed")]
    Retyped,
    /// The configurations of a fleet were not changed, or not all of them.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The guest's console cannot be used.
    #[error(transparent)]
    Console(#[from] ConsoleError),
    /// The rules cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The plan holds changes that need a restart.
    #[error(
        "the file changes settings that need a restart. Install the file where netvmd reads it and restart netvmd, or leave those settings unchanged"
    )]
    NeedsRestart,
    /// The user declined.
    #[error("not applied")]
    Declined,
    /// The project cannot be created.
    #[error(transparent)]
    NewNf(#[from] NewNfError),
    /// A file of connections cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    ReadSaved {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Not all connections of a file were loaded.
    #[error("{0}")]
    PartlyLoaded(String),
    /// No connection is selected.
    #[error("no connection fits, or it has ended: see `netvm conn list`")]
    NoConnection,
    /// There is no earlier configuration.
    #[error("there is no configuration before this one: see `netvm config history`")]
    NoRevision,
    /// The user declined to stop netvmd.
    #[error("not stopped")]
    NotStopped,
    /// netvmd has not ended.
    #[error(
        "netvmd has not ended within {0} s: see its log, or kill it (NFs end with it; the kernel frees everything)"
    )]
    StillThere(u64),
    /// The program netvmd is not installed.
    #[error("no program netvmd in {beside} or in PATH: install it, or build it with `cargo build -p netvmd`")]
    NoDaemon {
        /// The folder of this program.
        beside: String,
    },
    /// No program netvmd can check the file against this machine.
    #[error("{0}. `netvm check --offline` checks the file alone")]
    NoLookUp(Box<CliError>),
    /// `netvmd check` failed.
    #[error(
        "`{program} check` failed: {error}. Does it have the version of this program ({})? `netvm check --offline` checks the file alone",
        env!("CARGO_PKG_VERSION")
    )]
    LookUp {
        /// The program.
        program: String,
        /// Its message.
        error: String,
    },
    /// This machine lacks something that the file names.
    #[error("{file} names {} that this machine does not have; `netvm check --offline` checks the file alone", things(diagnostics.len()))]
    Missing {
        /// The file.
        file: String,
        /// The missing things.
        diagnostics: Vec<Diagnostic>,
    },
    /// The program netvmd cannot be executed.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The event loop cannot be created.
    #[error("cannot create an event loop: {0}")]
    Runtime(io::Error),
    /// Standard output or input failed.
    #[error("standard input or output: {0}")]
    Output(#[from] io::Error),
    /// A value cannot be written as JSON.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl CliError {
    /// Whether the reader of standard output has closed it.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The error in the API's form.
    pub fn to_api(&self) -> ApiError {
        match self {
            Self::Client(ClientError::Refused { error, .. }) => error.clone(),
            Self::Config(error) => ApiError::of_config(error),
            Self::Missing { diagnostics, .. } => {
                ApiError { message: self.to_string(), diagnostics: diagnostics.clone() }
            }
            other => ApiError::new(other.to_string()),
        }
    }
}

/// The command line does not describe a packet.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// Neither fields, nor a frame, nor a capture was given.
    #[error(
        "describe the packet: fields such as `protocol=tcp source=10.0.0.2 destination=10.0.1.2 destination_port=23`, --frame HEX, or --pcap FILE"
    )]
    Nothing,
    /// An argument is not FIELD=VALUE, or the field is unknown.
    #[error(
        "`{0}` is not a field: write FIELD=VALUE with one of source_mac, destination_mac, vlan, ether_type, source, destination, protocol, source_port, destination_port, flags, dscp, length"
    )]
    Field(String),
    /// The field cannot have this value.
    #[error("`{field}={value}`: {why}")]
    Value {
        /// The field.
        field: String,
        /// The value given.
        value: String,
        /// What is wrong.
        why: String,
    },
    /// Only one address was given.
    #[error("source and destination go together: give both or neither")]
    OneAddress,
    /// The protocol needs IP addresses.
    #[error("`protocol` needs IP addresses: give source and destination, too")]
    NoAddresses,
    /// The frame cannot be built.
    #[error("no frame has these fields: {0}")]
    Build(#[from] BuildError),
    /// The capture cannot be opened.
    #[error(transparent)]
    Open(#[from] netvm_capture::OpenError),
    /// The capture cannot be read to its end.
    #[error(transparent)]
    Read(#[from] netvm_capture::ReadError),
    /// The capture has fewer packets.
    #[error("{} has no packet {want}: it has {have} packets", path.display())]
    NoSuchPacket {
        /// The file.
        path: PathBuf,
        /// Packets in it.
        have: u64,
        /// The packet's number as given.
        want: u64,
    },
}

/// The console of a VM cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// The console's socket refuses the connection.
    #[error("cannot connect to the console of VM {vm} at {}: {source} (it exists while the VM runs: see `netvm vm list`)", path.display())]
    Connect {
        /// The VM.
        vm: String,
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The terminal or the connected socket failed.
    #[error("console: {0}")]
    Stream(#[from] io::Error),
}

fn things(count: usize) -> String {
    if count == 1 { "a thing".to_owned() } else { format!("{count} things") }
}

/// Suggests similar names.
fn near(names: &[&str]) -> String {
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(", ")) }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none exist".to_owned() } else { format!("known: {}", names.join(", ")) }
}

/// The prefixes or addresses cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// Both files are standard input.
    #[error("prefixes and addresses cannot both come by standard input: name a file for one of them")]
    StdinTwice,
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file is compressed.
    #[error("{} is compressed: unpack it, as by `zcat {} | netvm router lookup …` with `-` in place of the file", .0.display(), .0.display())]
    Compressed(PathBuf),
    /// A line is not a prefix.
    #[error("{}, line {line}: `{text}` is not a prefix such as 10.0.0.0/8 or 2001:db8::/32: {source}", .path.display())]
    Prefix {
        /// The file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
        /// Its text.
        text: String,
        /// Why.
        source: NetError,
    },
    /// A line is not an address.
    #[error("{}, line {line}: `{text}` is not an IPv4 or IPv6 address", .path.display())]
    Address {
        /// The file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
        /// Its text.
        text: String,
    },
}
