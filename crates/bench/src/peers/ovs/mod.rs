// SPDX-License-Identifier: Apache-2.0
//! Open vSwitch with its DPDK datapath, as packaged by Debian and Ubuntu: a database, a switch with one PMD thread on
//! the engine's core and all other threads on the other core, and a bridge of two null devices. The first has the
//! [`Traffic`], the second drops it.
//!
//! Everything is in the sandbox (`crate::sandbox`): files in memory, interfaces in a network namespace. The daemons are
//! killed when this process ends or the [`Ovs`] is dropped.

mod configure;
mod control;
mod openflow;
mod ports;
mod process;
mod release;
mod tunnel;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Measured, Plan};
use crate::measure::window::CpuTime;
use crate::peers::guests::{Guests, Load, sockets};
use crate::setup::sandbox;
use crate::setup::traffic::{PLUGIN, Traffic};

pub use openflow::drops;
pub use release::Release;
pub use tunnel::{Tunnel, UNDERLAY};

use configure::{configure, vsctl};
use ports::Forwarded;
use process::{Daemon, feed, run, tool, wait_for};

const NAME: &str = "Open vSwitch";
const PACKAGE: &str = "openvswitch-switch-dpdk";
const BRIDGE: &str = "br0";
/// The bridge's input and output ports.
const IN: &str = "p0";
const OUT: &str = "p1";
/// Time limit for Open vSwitch to start, and to add its ports.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the rate to become stable, while caches and datapath fill.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The rate is stable if two consecutive readings differ by less than this.
const MAX_RATE_DIFFERENCE: f64 = 0.03;
/// A thread that waits for its core for less than this percentage waits for kernel housekeeping only.
const DISTURBED_PERCENT: f64 = 2.0;

/// The configuration of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup<'a> {
    /// Its flows, for `ovs-ofctl`.
    pub flows: &'a [String],
    /// Enable the signature match cache, which follows the exact match cache (off by default; experimental).
    pub signature_cache: bool,
    /// The flows track connections; closed ones time out after a second.
    pub tracks: bool,
    /// The ends of the traffic.
    pub ends: PortKinds,
}

/// The kind of both ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKinds {
    /// Null devices; the first has this traffic.
    Null(Traffic),
    /// vhost-user guests.
    Guests(Load),
    /// These interfaces, with TCP segmentation offload (`userspace-tso-enable`).
    Interfaces([&'static str; 2]),
    /// An interface and a tunnel.
    Tunnel(Tunnel),
}

impl PortKinds {
    fn release(self) -> Release {
        match self {
            Self::Tunnel(tunnel) => tunnel.release,
            Self::Null(_) | Self::Guests(_) | Self::Interfaces(_) => Release::latest(),
        }
    }

    /// Whether segments pass whole.
    fn have_tso(self) -> bool {
        match self {
            Self::Interfaces(_) => true,
            Self::Tunnel(tunnel) => tunnel.release == Release::Later,
            Self::Null(_) | Self::Guests(_) => false,
        }
    }
}

/// A flow that forwards from one port to the other.
pub const PORT_TO_PORT: &str = "in_port=1,actions=output:2";
/// A flow for L2 switching, at priority 1.
pub const NORMAL: &str = "priority=1,actions=normal";

/// The result of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Million packets sent per second of the PMD thread's CPU time; it polls.
    pub mpps: f64,
    /// Packets received but not sent, in percent.
    pub dropped_percent: f64,
}

/// A running switch.
#[derive(Debug)]
struct Ovs {
    folder: PathBuf,
    // Dropped before the switch.
    guests: Option<RefCell<Guests>>,
    switch: Daemon,
    // Dropped last.
    _database: Daemon,
}

/// Enters a sandbox for Open vSwitch, and returns its folder; `None` without peers.
///
/// # Errors
/// [`BenchError`] if Open vSwitch is missing, or this process may not create namespaces.
pub fn sandbox(skips_peers: bool) -> Result<Option<PathBuf>, BenchError> {
    if skips_peers {
        eprintln!("skipping peers (--skip-peers)");
        return Ok(None);
    }
    find()?;
    sandbox::enter().map(Some)
}

/// Checks that Open vSwitch is installed.
///
/// # Errors
/// [`BenchError::MissingPeer`] names the package.
pub fn find() -> Result<(), BenchError> {
    let have = Release::Installed.is_there();
    let tools = tool("ovs-vsctl").arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    if have && tools.is_ok() {
        eprintln!("peer: {}", Release::latest().version());
        Ok(())
    } else {
        Err(BenchError::MissingPeer { program: NAME, package: PACKAGE })
    }
}

/// Starts the switch below `sandbox`, waits until its rate is stable, measures, and stops it.
///
/// # Errors
/// [`BenchError::Peer`] with its message.
pub fn measure(sandbox: &Path, setup: Setup<'_>, cores: Cores, plan: &Plan) -> Result<Outcome, BenchError> {
    let ovs = Ovs::start(sandbox, setup, cores)?;
    ovs.settle(plan)?;
    let start = ovs.forwarded()?;
    let end = loop {
        sleep(plan.window);
        let now = ovs.forwarded()?;
        if plan.is_over(now.at.duration_since(start.at), now.cpu_time(&start)) {
            break now;
        }
    };
    let seconds = end.at.duration_since(start.at).as_secs_f64();
    let percent = end.cpu.since(start.cpu).waiting as f64 * 1e-9 / seconds * 100.0;
    if percent > DISTURBED_PERCENT {
        eprintln!(
            "{NAME}: other processes used its core {percent:.0} % of the time: the figures are too low"
        );
    }
    end.since(&start).ok_or(BenchError::Nothing { what: NAME.to_owned(), seconds })
}

/// Runs `work` with guests between which Open vSwitch switches.
///
/// # Errors
/// [`BenchError::Peer`] with its message.
pub fn over(sandbox: &Path, load: Load, cores: Cores, work: impl FnOnce(&Guests) -> Measured) -> Measured {
    let setup = Setup {
        flows: &[NORMAL.to_owned()],
        signature_cache: false,
        tracks: false,
        ends: PortKinds::Guests(load),
    };
    let ovs = Ovs::start(sandbox, setup, cores)?;
    let guests = ovs.guests.as_ref().map(RefCell::borrow);
    guests.map_or_else(|| Ok(Vec::new()), |guests| work(&guests))
}

/// A switch between two interfaces; stopped when dropped.
#[derive(Debug)]
pub struct Switch(#[expect(dead_code, reason = "stops the switch when dropped")] Ovs);

impl Switch {
    /// Starts the switch below `sandbox`, with L2 switching.
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its message.
    pub fn between(sandbox: &Path, interfaces: [&'static str; 2], cores: Cores) -> Result<Self, BenchError> {
        let flows = &[NORMAL.to_owned()];
        let setup =
            Setup { flows, signature_cache: false, tracks: false, ends: PortKinds::Interfaces(interfaces) };
        Ovs::start(sandbox, setup, cores).map(Self)
    }
}

impl Ovs {
    fn start(sandbox: &Path, setup: Setup<'_>, cores: Cores) -> Result<Self, BenchError> {
        let folder = sandbox.join("ovs");
        // A failed start may have left it.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(BenchError::system(format!("cannot create {}", folder.display())))?;
        let plugin = folder.join("traffic.so");
        fs::write(&plugin, PLUGIN)
            .map_err(BenchError::system(format!("cannot write {}", plugin.display())))?;
        run(tool("ovsdb-tool").arg("create").arg(folder.join("conf.db")).arg(setup.ends.release().schema()))?;
        let mut database = tool("ovsdb-server");
        database.arg(folder.join("conf.db")).arg(format!("--remote=punix:{}/db.sock", folder.display()));
        let database = Daemon::spawn(&mut database, &folder, "database", cores.nf)?;
        wait_for(&folder.join("db.sock"))?;
        configure(&folder, setup, cores)?;
        let mut switch = setup.ends.release().switch();
        switch.arg(format!("unix:{}/db.sock", folder.display()));
        if let PortKinds::Null(traffic) = setup.ends {
            traffic.describe(&mut switch, &folder.join("ready"));
        }
        let switch = Daemon::spawn(&mut switch, &folder, "switch", cores.nf)?;
        let mut ovs = Self { folder, guests: None, switch, _database: database };
        ovs.connect(setup).map_err(|error| ovs.explain(error))?;
        if let PortKinds::Guests(load) = setup.ends {
            ovs.guests = Some(RefCell::new(Guests::start(&ovs.folder, load, cores.nf)?));
            ovs.await_traffic()?;
        }
        Ok(ovs)
    }

    /// Sets up the bridge, ports, flows and the MAC address on the second port.
    fn connect(&self, setup: Setup<'_>) -> Result<(), BenchError> {
        if let PortKinds::Tunnel(tunnel) = setup.ends {
            return self.connect_tunnel(&tunnel, setup.flows);
        }
        let bridge = format!(
            "add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type=netdev fail-mode=secure \
             other-config:disable-in-band=true"
        );
        self.configured(&bridge)?;
        if setup.tracks {
            self.shorten_timeouts()?;
        }
        let [input, output] = match setup.ends {
            PortKinds::Interfaces(names) => names,
            _ => [IN, OUT],
        };
        for (port, number, device) in
            [(input, 1, "net_null0,size=60"), (output, 2, "net_null1,size=60,no-rx=1")]
        {
            let kind = match setup.ends {
                PortKinds::Guests(_) => "type=dpdkvhostuser".to_owned(),
                PortKinds::Null(_) => format!("type=dpdk options:dpdk-devargs={device}"),
                _ => "type=system".to_owned(),
            };
            self.configured(&format!(
                "add-port {BRIDGE} {port} -- set interface {port} ofport_request={number} {kind}"
            ))?;
        }
        match setup.ends {
            PortKinds::Guests(_) => sockets(&self.folder).iter().try_for_each(|socket| wait_for(socket))?,
            PortKinds::Null(_) => wait_for(&self.folder.join("ready"))?,
            _ => {}
        }
        let mut command = tool("ovs-ofctl");
        command.args(["add-flows", BRIDGE, "-"]).env("OVS_RUNDIR", &self.folder);
        feed(&mut command, &setup.flows.join("\n"))?;
        if let PortKinds::Interfaces(_) = setup.ends {
            return Ok(());
        }
        // The second port never sends, so without this entry every packet would be flooded.
        self.ask("fdb/add", &[BRIDGE, OUT, "0", "02:00:00:00:00:01"]).map(drop)
    }

    /// Shortens the time-outs of closed connections.
    fn shorten_timeouts(&self) -> Result<(), BenchError> {
        self.configured(
            "-- --id=@it create Datapath datapath_version=0 -- set Open_vSwitch . datapaths:netdev=@it",
        )?;
        self.configured(
            "add-zone-tp netdev zone=0 tcp_fin_wait=1 tcp_close_wait=1 tcp_last_ack=1 tcp_time_wait=1 tcp_close=1",
        )
    }

    fn configured(&self, words: &str) -> Result<(), BenchError> {
        run(vsctl(&self.folder)
            .arg(format!("--timeout={}", TIMEOUT.as_secs()))
            .args(words.split_whitespace()))
    }

    fn ask(&self, method: &str, parameters: &[&str]) -> Result<String, BenchError> {
        control::call(&self.folder.join("switch.ctl"), method, parameters)
            .map_err(BenchError::system(format!("cannot call {NAME}")))
    }

    fn forwarded(&self) -> Result<Forwarded, BenchError> {
        if let Some(guests) = &self.guests {
            // Open vSwitch's vhost ports have no counters.
            let sent = guests.borrow_mut().received()?;
            let cpu = CpuTime::of_threads(self.switch.0.id(), "pmd-");
            return Ok(Forwarded::of_guest(sent, Instant::now(), cpu));
        }
        let before = Instant::now();
        let text = self.ask("dpctl/show", &["-s"])?;
        // The switch read its counters at some time between the call and the answer.
        let at = before + before.elapsed() / 2;
        let cpu = CpuTime::of_threads(self.switch.0.id(), "pmd-");
        Forwarded::parse(&text, at, cpu, [IN, OUT])
            .ok_or_else(|| BenchError::Peer { peer: NAME, problem: format!("no counters in: {text}") })
    }

    /// Waits until packets pass: Open vSwitch allocates a pool of mbufs after a guest connects.
    fn await_traffic(&self) -> Result<(), BenchError> {
        let (start, first) = (Instant::now(), self.forwarded()?);
        while self.forwarded()?.since(&first).is_none_or(|outcome| outcome.mpps < 0.01) {
            if start.elapsed() > TIMEOUT {
                let seconds = start.elapsed().as_secs_f64();
                return Err(BenchError::Nothing { what: NAME.to_owned(), seconds });
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Runs until the rate is stable, or for [`SETTLE_TIMEOUT`].
    fn settle(&self, plan: &Plan) -> Result<(), BenchError> {
        let start = Instant::now();
        sleep(plan.warm_up);
        let (mut last, mut rate) = (self.forwarded()?, 0.0);
        while start.elapsed() < SETTLE_TIMEOUT {
            sleep(plan.warm_up);
            let now = self.forwarded()?;
            let new = now.since(&last).map_or(0.0, |outcome| outcome.mpps);
            if new > 0.0 && (new / rate - 1.0).abs() < MAX_RATE_DIFFERENCE {
                break;
            }
            (last, rate) = (now, new);
        }
        Ok(())
    }

    /// Adds the switch's log to an error.
    fn explain(&self, error: BenchError) -> BenchError {
        let log = fs::read_to_string(self.folder.join("switch.log")).unwrap_or_default();
        let message = log.lines().rev().find(|line| line.contains("|EMER|") || line.contains("|ERR|"));
        match message {
            Some(message) => BenchError::Peer { peer: NAME, problem: format!("{error}; {message}") },
            None => error,
        }
    }
}
