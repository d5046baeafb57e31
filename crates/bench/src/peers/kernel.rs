// SPDX-License-Identifier: Apache-2.0
//! The kernel's routing in a network namespace, with the traffic of `peer/traffic/frame.h`: from a source that costs
//! next to nothing to an interface that drops.
//!
//! ```text
//!  bpf/frames.c ──▶ receive function of `in` ──▶ routes, neighbours ──▶ `out`: a bridge without ports
//! ```
//!
//! All of it runs in the system call of one thread, on one core. The kernel builds an skb for each packet, as it does
//! for one of a NIC's driver that runs an XDP program.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::{ProgramError, TestRun, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use clap::Args;
use netvm_router::NextHopId;
use serde::{Deserialize, Serialize};

use super::run_itself;
use crate::error::BenchError;
use crate::machine::{pin, thread_time};
use crate::measure::harness::Plan;
use crate::measure::probe::ip;
use crate::setup::network;
use crate::setup::routes::{IpFamily, RouteTable, Size, destinations};

const NAME: &str = "the kernel's routing";
static PROGRAM: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/frames.o"));
/// Packets that the kernel receives at a time, as from a driver (`NAPI_POLL_WEIGHT`).
const BURST: u32 = 64;
/// Packets of a system call: some ten milliseconds.
const PACKETS: u32 = 256 * BURST;
/// Bytes of a frame (`NETVM_BENCH_FRAME` in `peer/traffic/frame.h`).
const FRAME: u32 = 60;

/// The namespace: it forwards, accepts any source address, and sends no packets itself. The bridge stays without a
/// carrier, which a route ignores.
const SETUP: &[&str] = &[
    "link add in address 02:00:00:00:00:01 type veth peer name end",
    "link add out type bridge mcast_snooping 0",
    "link set end up",
    "link set in arp off up",
    "link set out arp off up",
    "address add 10.100.0.1/24 dev in",
    "address add 10.101.0.1/24 dev out",
];

/// The commands of `nft` for masquerading.
const MASQUERADE: [&str; 3] = [
    "add table ip nat",
    "add chain ip nat post { type nat hook postrouting priority srcnat; }",
    "add rule ip nat post oifname out masquerade",
];

/// The measurement.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct KernelSpec {
    /// The core that routes.
    #[arg(long)]
    core: u32,
    /// Number of routes.
    #[arg(long)]
    routes: u32,
    /// Number of destinations.
    #[arg(long)]
    destinations: u32,
    #[arg(long)]
    prefixes: Option<PathBuf>,
    #[arg(long)]
    masquerade: bool,
    #[arg(long)]
    warm_up_millis: u32,
    #[arg(long)]
    window_millis: u32,
}

/// The result.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Packets per second of the thread's CPU time.
    pub rate: f64,
}

impl KernelSpec {
    /// A measurement on `core`.
    pub fn new(core: u32, routes: u32, destinations: u32, plan: &Plan) -> Self {
        let [warm_up_millis, window_millis] = [plan.warm_up, plan.window].map(|time| time.as_millis() as u32);
        Self { core, routes, destinations, prefixes: None, masquerade: false, warm_up_millis, window_millis }
    }

    /// With the prefixes of a file, if any.
    #[must_use]
    pub fn with_prefixes(mut self, prefixes: Option<PathBuf>) -> Self {
        self.prefixes = prefixes;
        self
    }

    /// With a connection for each destination, and masquerading.
    #[must_use]
    pub const fn with_masquerade(mut self) -> Self {
        self.masquerade = true;
        self
    }

    fn arguments(&self) -> Vec<String> {
        let mut list = vec![
            "kernel-peer".to_owned(),
            format!("--core={}", self.core),
            format!("--routes={}", self.routes),
            format!("--destinations={}", self.destinations),
            format!("--warm-up-millis={}", self.warm_up_millis),
            format!("--window-millis={}", self.window_millis),
        ];
        list.extend(self.masquerade.then(|| "--masquerade".to_owned()));
        list.extend(self.prefixes.iter().map(|path| format!("--prefixes={}", path.display())));
        list
    }
}

/// Measures in a child process, which enters namespaces.
///
/// # Errors
/// [`BenchError::Peer`] with its message.
pub fn measure(spec: &KernelSpec) -> Result<Outcome, BenchError> {
    run_itself(NAME, spec.arguments())
}

fn failed(error: impl std::error::Error) -> BenchError {
    let problem = format!(
        "{error}: running an XDP program on live frames needs root and Linux 5.18 with CONFIG_BPF_SYSCALL"
    );
    BenchError::Peer { peer: NAME, problem }
}

/// The source of packets.
struct FrameSource {
    loaded: Ebpf,
    context: Vec<u8>,
}

impl FrameSource {
    /// Packets to these destinations, in network order, that this interface receives.
    fn load(to: &[u32], interface: u32) -> Result<Self, BenchError> {
        let count = to.len() as u32;
        let mut loader = EbpfLoader::new();
        loader.override_global("COUNT", &count, true).map_max_entries("DESTINATIONS", count);
        let mut loaded = loader.load(PROGRAM).map_err(failed)?;
        if let Some(map) = loaded.map_mut("DESTINATIONS") {
            let mut map = Array::<&mut MapData, u32>::try_from(map).map_err(failed)?;
            for (n, address) in (0..).zip(to) {
                map.set(n, *address, 0).map_err(failed)?;
            }
        }
        // struct xdp_md of include/uapi/linux/bpf.h: data, its end, metadata, ingress interface and queue, egress
        // interface.
        let context = [0, FRAME, 0, interface, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut frame_source = Self { loaded, context };
        frame_source.program().and_then(Xdp::load).map_err(failed)?;
        Ok(frame_source)
    }

    fn program(&mut self) -> Result<&mut Xdp, ProgramError> {
        self.loaded.program_mut("frames").ok_or(ProgramError::NotLoaded)?.try_into()
    }

    /// Passes [`PACKETS`] to the kernel, which routes them before this returns.
    fn send(&mut self) -> Result<(), BenchError> {
        let context = self.context.clone();
        let options = TestRunOptions {
            data_in: Some(&[0; FRAME as usize]),
            ctx_in: Some(&context),
            repeat: PACKETS,
            attrs: TestRunAttrs::new().xdp_live_frames(BURST),
            ..TestRunOptions::new()
        };
        self.program().and_then(|program| program.test_run(options)).map(drop).map_err(failed)
    }

    /// Sends for this much CPU time, and at least so many packets. Returns the packets that were forwarded, and the
    /// time.
    fn run(&mut self, time: Duration, least: u64) -> Result<(u64, Duration), BenchError> {
        let forwarded = || network::counter("out", "tx_packets");
        let (before, start, mut sent) = (forwarded(), thread_time(), 0);
        loop {
            self.send()?;
            sent += u64::from(PACKETS);
            let (forwarded, spent) = (forwarded() - before, thread_time() - start);
            if forwarded != sent {
                let problem = format!("{forwarded} of {sent} packets were forwarded");
                return Err(BenchError::Peer { peer: NAME, problem });
            }
            if spent >= time && sent >= least {
                return Ok((forwarded, spent));
            }
        }
    }
}

/// The routes, and a neighbour for each next hop.
fn routes(table: &RouteTable) -> String {
    let via = |id: NextHopId| format!("10.101.0.{}", 1 + id.0);
    let mut ids: Vec<_> = table.possible().map(|(_, id)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let neighbour = |id: NextHopId| {
        format!("neighbour replace {} lladdr 02:00:00:00:02:{:02x} dev out nud permanent\n", via(id), id.0)
    };
    let neighbours = ids.into_iter().map(neighbour);
    neighbours
        .chain(table.possible().map(|(net, id)| format!("route replace {net} via {}\n", via(*id))))
        .collect()
}

/// Runs commands of `ip`, a line each.
fn batch(lines: &str) -> Result<(), BenchError> {
    let file =
        tempfile::NamedTempFile::new().map_err(BenchError::system("cannot create a temporary file"))?;
    let path = file.path().display().to_string();
    std::fs::write(&path, lines).map_err(BenchError::system(format!("cannot write {path}")))?;
    ip(&["-batch", &path])
}

/// Masquerades what leaves by `out`.
fn masquerade() -> Result<(), BenchError> {
    for command in MASQUERADE {
        let output = Command::new("nft").args(command.split(' ')).stdin(Stdio::null()).output();
        let output = output.map_err(BenchError::system("cannot run nft (package nftables)"))?;
        if !output.status.success() {
            let problem = format!("nft {command}: {}", String::from_utf8_lossy(&output.stderr).trim());
            return Err(BenchError::Peer { peer: NAME, problem });
        }
    }
    Ok(())
}

/// Runs as the peer and prints the result.
///
/// # Errors
/// The kernel refuses a step, or did not forward every packet.
pub fn run(spec: &KernelSpec) -> Result<(), BenchError> {
    pin(spec.core).map_err(BenchError::system(format!("cannot pin to core {}", spec.core)))?;
    let table = RouteTable::load(IpFamily::V4, Size::Full, spec.prefixes.as_deref())?.some(spec.routes);
    network::enter()?;
    network::allow_routing()?;
    batch(&SETUP.join("\n"))?;
    batch(&routes(&table))?;
    if spec.masquerade {
        masquerade()?;
    }
    let to = destinations(&table, spec.destinations as usize);
    let mut frame_source = FrameSource::load(&to, network::index("in")?)?;
    let millis = |millis: u32| Duration::from_millis(millis.into());
    // Every connection begins before the measurement.
    let least = if spec.masquerade { u64::from(spec.destinations) } else { 0 };
    frame_source.run(millis(spec.warm_up_millis), least)?;
    let (forwarded, spent) = frame_source.run(millis(spec.window_millis), 0)?;
    println!("{}", serde_json::json!(Outcome { rate: forwarded as f64 / spent.as_secs_f64() }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use netvm_wire::IpNet;

    use super::*;

    #[test]
    fn arguments_round_trip() {
        let [warm_up, window] = [100, 300].map(Duration::from_millis);
        for prefixes in [None, Some("some/list".into())] {
            let plan = Plan { runs: 1, warm_up, window, limit: None };
            let spec = KernelSpec::new(3, 512, 7, &plan).with_prefixes(prefixes).with_masquerade();
            let arguments = ["netvm-bench".to_owned()].into_iter().chain(spec.arguments());
            let parsed = crate::cli::Cli::parse_from(arguments);
            assert!(matches!(parsed.command, crate::cli::Bench::KernelPeer(parsed) if parsed == spec));
        }
    }

    #[test]
    fn each_next_hop_has_a_neighbour_and_impossible_routes_are_left_out() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let route = |text, id| (net(text), NextHopId(id));
        let routes = vec![route("192.0.2.0/24", 17), route("127.0.0.0/8", 3), route("198.51.100.0/24", 17)];
        assert_eq!(
            super::routes(&RouteTable { routes }),
            "neighbour replace 10.101.0.18 lladdr 02:00:00:00:02:11 dev out nud permanent\n\
             route replace 192.0.2.0/24 via 10.101.0.18\n\
             route replace 198.51.100.0/24 via 10.101.0.18\n"
        );
    }
}
