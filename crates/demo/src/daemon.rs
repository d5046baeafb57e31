// SPDX-License-Identifier: Apache-2.0
//! Runs netvmd as an operator would: with a configuration file, a run directory and the API.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use netvm_api::{ApplyHow, Client, NfInfo, NfState, Stats, Status};

use crate::failure::{Failure, io};
use crate::host::interrupt::Interrupt;
use crate::host::names::{Names, Side};
use crate::host::process::{Process, Start};
use crate::traffic::{ALLOWED_PORT, FORBIDDEN_PORT};

/// netvm's programs that the demo starts, directly or through netvmd.
const PROGRAMS: [&str; 5] = ["netvmd", "netvm", "netvm-firewall", "netvm-monitor", "netvm-l3-forward"];
/// The roles of the chain.
pub const CHAIN: [&str; 3] = ["firewall", "monitor", "l3-forward"];
/// The name of the rule that forbids a connection.
pub const FORBIDDING: &str = "no-telnet";
/// The trust group of the NFs.
pub const GROUP: &str = "demo";
/// Limit for netvmd and its NFs to start.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Limit for netvmd to stop.
const STOP_LIMIT: Duration = Duration::from_secs(8);
/// Limit for all buffers to be free without ports.
const REMOVAL_LIMIT: Duration = Duration::from_secs(3);
/// Log lines shown with an error.
const LOG_LINES: usize = 15;

/// The kind of the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Packets carry offloads: a TCP segment passes the chain as one packet.
    AfPacket,
    /// The kernel writes packets into the buffers that NFs map, each of at most the MTU.
    AfXdp,
}

impl PortKind {
    const fn word(self) -> &'static str {
        match self {
            Self::AfXdp => "af_xdp",
            Self::AfPacket => "af_packet",
        }
    }
}

/// The folder of netvm's programs.
///
/// # Errors
/// [`Failure::NotBuilt`] names missing programs.
pub fn programs() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(io("cannot find this program"))?;
    let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|name| !folder.join(name).is_file()).collect();
    if missing.is_empty() {
        return Ok(folder);
    }
    Err(Failure::NotBuilt { programs: missing.join(", "), folder: folder.display().to_string() })
}

/// The firewall's rules. It denies all other packets except replies.
fn rules() -> String {
    let (client, server) = (Side::Client.subnet(), Side::Server.subnet());
    format!(
        "allow tcp  from {client} to {server} port {ALLOWED_PORT}\n\
         allow icmp from {client} to {server}\n\
         deny  tcp  from {client} to {server}  # and everything else\n"
    )
}

/// The configuration: the chain, and both ports that lead to it.
fn configuration(names: Names, kind: PortKind, folder: &Path) -> String {
    let port = |side: Side| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\ninterface = \"{interface}\"\n\n\
",
            name = side.name(),
            kind = kind.word(),
            interface = names.interface(side),
        )
    };
    [chain(folder), Side::BOTH.map(port).concat(), policy()].concat()
}

/// The configuration without ports and rules.
fn chain(folder: &Path) -> String {
    let folder = folder.display();
    let nf = |role: &str, arguments: &str| {
        format!("[[nf]]\nrole = \"{role}\"\ngroup = \"{GROUP}\"\ncommand = [\"netvm-{role}\"{arguments}]\n\n")
    };
    [
        format!("[engine]\nidle = \"adaptive\"\n\n[[group]]\nname = \"{GROUP}\"\n\n"),
        nf("firewall", &format!(", \"--rules\", \"{folder}/firewall.rules\", \"--stateful\"")),
        nf("monitor", ""),
        nf("l3-forward", &format!(", \"--routes\", \"{folder}/routes\", \"--proxy-arp\"")),
        format!("[[chain]]\nname = \"web\"\nhops = {CHAIN:?}\n\n"),
    ]
    .concat()
}

/// The engine's rules, which drop forbidden packets before the chain.
fn policy() -> String {
    format!(
        "[[rule]]\nname = \"{FORBIDDING}\"\nfrom = \"{client}\"\n\
         match = {{ protocol = \"tcp\", destination = \"{server}\", destination_ports = {FORBIDDEN_PORT} }}\ndrop = true\n\n\
         [[rule]]\nname = \"web\"\nchain = \"web\"\n\n",
        client = Side::Client.name(),
        server = Side::Server.subnet(),
    )
}

/// A running netvmd; stopped on drop.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    client: Client,
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
    folder: PathBuf,
    configuration: String,
    log: PathBuf,
}

impl Daemon {
    /// Writes the configuration, starts netvmd and waits until every NF runs.
    ///
    /// # Errors
    /// [`Failure::DaemonEnded`] or [`Failure::NotReady`], with the end of the log.
    pub fn start(
        names: Names,
        kind: PortKind,
        folder: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let netvmd = programs()?.join("netvmd");
        let run_dir = folder.join("run");
        let socket = run_dir.join("api.sock");
        let (config, log) = (folder.join("netvm.toml"), folder.join("netvmd.log"));
        let configuration = configuration(names, kind, folder);
        for (path, text) in [
            (&config, &configuration),
            (&folder.join("firewall.rules"), &rules()),
            (&folder.join("routes"), &routes()),
        ] {
            fs::write(path, text).map_err(io(format!("cannot write {}", path.display())))?;
        }
        let words = [
            netvmd.as_os_str(),
            "--config".as_ref(),
            config.as_os_str(),
            "--run-dir".as_ref(),
            run_dir.as_os_str(),
        ];
        let process = Start::new("netvmd", "TERM", words).into_file(&log)?.spawn()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let mut daemon = Self {
            process,
            client: Client::new(Some(&socket)),
            socket,
            runtime: runtime.map_err(io("cannot start netvmd's client"))?,
            folder: folder.to_owned(),
            configuration,
            log,
        };
        let came_up = interrupt.wait_for("the start of netvmd and its NFs", START_LIMIT, || daemon.is_up());
        match came_up {
            Ok(()) => Ok(daemon),
            Err(Failure::TooLate { seconds, .. }) => {
                Err(Failure::NotReady { seconds, log: daemon.end_of_log() })
            }
            Err(error) => Err(error),
        }
    }

    fn is_up(&mut self) -> Result<Option<()>, Failure> {
        if let Some(status) = self.process.ended()? {
            return Err(Failure::DaemonEnded { status, log: self.end_of_log() });
        }
        // netvmd serves its API once its NFs have attached or failed.
        let Ok(nfs) = self.runtime.block_on(self.client.nfs()) else { return Ok(None) };
        let runs = |role: &str| nfs.iter().any(|nf| nf.role == role && nf.state == NfState::Running);
        Ok(CHAIN.into_iter().all(runs).then_some(()))
    }

    fn end_of_log(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// The API's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// netvmd's status.
    ///
    /// # Errors
    /// [`Failure::Api`].
    pub fn status(&self) -> Result<Status, Failure> {
        self.runtime.block_on(self.client.status()).map_err(Failure::from)
    }

    /// netvmd's statistics.
    ///
    /// # Errors
    /// [`Failure::Api`].
    pub fn stats(&self) -> Result<Stats, Failure> {
        self.runtime.block_on(self.client.stats()).map_err(Failure::from)
    }

    /// Packets that a rule matched.
    ///
    /// # Errors
    /// [`Failure::Api`].
    pub fn matched(&self, rule: &str) -> Result<u64, Failure> {
        let policy = self.runtime.block_on(self.client.policy()).map_err(Failure::from)?;
        Ok(policy.rules.iter().filter(|info| info.name == rule).map(|info| info.packets).sum())
    }

    /// The command line and output of `netvm policy trace`.
    ///
    /// # Errors
    /// [`Failure::Io`] if it cannot be started.
    pub fn trace(&self, packet: &[String]) -> Result<String, Failure> {
        let mut command = Command::new(programs()?.join("netvm"));
        command.arg("--socket").arg(self.socket()).args(["policy", "trace"]).args(packet);
        let output = command.output().map_err(io("cannot start netvm"))?;
        let output = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(format!("$ netvm policy trace {}\n{}", packet.join(" "), output.concat().trim_end()))
    }

    /// The statistics once no NF holds a packet, or after a timeout.
    ///
    /// # Errors
    /// [`Failure::Api`], [`Failure::Interrupted`].
    pub fn stats_at_rest(&self, interrupt: &Interrupt) -> Result<Stats, Failure> {
        let mut last = self.stats()?;
        for _ in 0..30 {
            interrupt.sleep(Duration::from_millis(50))?;
            let next = self.stats()?;
            let quiet =
                |stats: &Stats| stats.ports.iter().map(|port| port.rx_packets + port.tx_packets).sum::<u64>();
            let rests = buffers_in_nfs(&next) == 0 && quiet(&next) == quiet(&last);
            last = next;
            if rests {
                break;
            }
        }
        Ok(last)
    }

    /// Removes ports and rules. Returns the statistics once every buffer is free, or after a timeout.
    ///
    /// # Errors
    /// [`Failure::Api`], [`Failure::Interrupted`].
    pub fn remove_ports(&self, interrupt: &Interrupt) -> Result<Stats, Failure> {
        self.apply("no-ports.toml", &chain(&self.folder))?;
        let mut stats = self.stats()?;
        let until = Instant::now() + REMOVAL_LIMIT;
        while lost_buffers(&stats) > 0 && Instant::now() < until {
            interrupt.sleep(Duration::from_millis(20))?;
            stats = self.stats()?;
        }
        Ok(stats)
    }

    /// Applies the configuration of the start again.
    ///
    /// # Errors
    /// [`Failure::Api`].
    pub fn restore(&self) -> Result<(), Failure> {
        self.apply("netvm.toml", &self.configuration)
    }

    fn apply(&self, file: &str, text: &str) -> Result<(), Failure> {
        let applied = self.runtime.block_on(self.client.apply(file, text, ApplyHow::default()));
        applied.map(drop).map_err(Failure::from)
    }

    /// Stops netvmd; false if it had to be killed.
    pub fn end(&mut self) -> bool {
        self.process.end(STOP_LIMIT)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// Buffers that NFs hold.
pub fn buffers_in_nfs(stats: &Stats) -> u32 {
    stats.groups.iter().flat_map(|group| &group.regions).map(|region| region.in_nfs).sum()
}

/// Buffers that are not free.
pub fn lost_buffers(stats: &Stats) -> u32 {
    let regions = stats.groups.iter().flat_map(|group| &group.regions);
    regions.map(|region| region.buffers - region.free).sum()
}

/// The instance of a role.
pub fn nf<'a>(stats: &'a Stats, role: &str) -> Option<&'a NfInfo> {
    stats.nfs.iter().find(|nf| nf.role == role)
}

/// The routes of l3-forward: each subnet has one host. Its MAC address belongs to no interface, so no kernel on the
/// path accepts these packets as its own.
fn routes() -> String {
    Side::BOTH.map(|side| format!("{} {} {}\n", side.subnet(), side.mac(), side.name())).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_no_errors_or_warnings() {
        for kind in [PortKind::AfXdp, PortKind::AfPacket] {
            let text = configuration(Names(4_194_304), kind, Path::new("/tmp/netvm-demo-1"));
            let loaded =
                netvm_config::parse("demo.toml", &text).unwrap_or_else(|e| panic!("{}", e.render(false)));
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            assert_eq!(loaded.host.chains[0].hops.len(), CHAIN.len());
        }
    }
}
