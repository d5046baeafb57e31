//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::compare::CompareArgs;
use crate::error::BenchError;
use crate::harness::Plan;
use crate::machine::allowed_cores;
use crate::nf::NfSpec;
use crate::peers::fib::FibSpec;
use crate::peers::guests::Rings;
use crate::peers::ring::RingSpec;

/// netvm's benchmarks.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "netvm-bench", version, about)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Command {
    /// One engine core and one NF process on another core, against DPDK's rings and testpmd
    Hop(BenchArgs),
    /// Chains of 1, 2, 4 and 8 NFs of one trust group
    Chain(BenchArgs),
    /// A chain within one trust group against one whose packets are copied into another group
    Copy(BenchArgs),
    /// A chain with a slow NF, offered up to ten times what it can carry
    Overload(BenchArgs),
    /// Processor time without traffic, and the delay of the first packet after that
    Idle(BenchArgs),
    /// How fast the buffers of a killed NF are back
    Reclaim(BenchArgs),
    /// Forwarding by policy on one core, against Open vSwitch with DPDK on the same flows
    Policy(PolicyArgs),
    /// Longest-prefix match over the Internet's routes, against DPDK's rte_fib
    Route(RouteArgs),
    /// An NF in a VM against the same program as a process
    Vm(VmArgs),
    /// L2 switching between two guests on vhost-user, against Open vSwitch with DPDK and against the copies alone
    Vhost(VhostArgs),
    /// One benchmark of this build and of another build, in turns
    Compare(CompareArgs),
    /// Is an NF of a benchmark
    #[command(hide = true)]
    Nf(NfSpec),
    /// Is the DPDK program that netvm is compared with
    #[command(hide = true)]
    RingPeer(RingSpec),
    /// Is the routing table that netvm's is compared with
    #[command(hide = true)]
    FibPeer(FibSpec),
}

/// How a benchmark is run and shown.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct BenchArgs {
    /// Print one JSON object in place of a table
    #[arg(long)]
    pub json: bool,
    /// Three short runs, for a first look
    #[arg(long)]
    pub quick: bool,
    /// Runs of each case [default: 5; with --quick: 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub runs: Option<u16>,
    /// Seconds over which each figure is taken [default: 2; with --quick: 0.3]
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// The cores to use: the engine's, the NFs' [default: the first two that this process may use]
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<u32>,
    /// Leave out comparisons with programs that are not part of netvm
    #[arg(long)]
    pub skip_peers: bool,
}

/// How `policy` is run.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct PolicyArgs {
    /// As every benchmark.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Numbers of flows
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)),
          default_value = "1,1000,10000,100000,1000000")]
    pub flows: Vec<u64>,
    /// Only these cases, such as `normal-100000,new-flows` [default: all]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Filter set in ClassBench's format, of drop rules that nothing matches [default: acl/acl1_1k.rules of the shared
    /// data beside this source tree]
    #[arg(long)]
    pub acl: Option<PathBuf>,
}

/// What of `route` is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoutePart {
    /// Look-ups alone.
    Tables,
    /// Packets through an engine's router.
    Engine,
}

/// How `route` is run.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct RouteArgs {
    /// As every benchmark.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The full table: a prefix a line, of both families; unpacked with gzip when the name ends in .gz [default:
    /// routes/prefixes.txt.gz of the shared data beside this source tree]
    #[arg(long)]
    pub routes: Option<PathBuf>,
    /// Only look-ups, or only packets through an engine [default: both]
    #[arg(long, value_enum)]
    pub only: Option<RoutePart>,
    /// Numbers of destinations of the packets
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20),
          default_value = "1,1000,100000")]
    pub destinations: Vec<u32>,
}

/// How `vm` is run.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct VmArgs {
    /// As every benchmark.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Who runs the guest's instructions: QEMU's translator, or the processor
    #[arg(long, value_parser = ["tcg", "kvm"], default_value = "tcg")]
    pub accel: String,
}

/// How `vhost` is run.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct VhostArgs {
    /// As every benchmark.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Numbers of flows
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)),
          default_value = "1,10000,100000")]
    pub flows: Vec<u64>,
    /// Lengths of frames in bytes, FCS included
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(64..=1518),
          default_value = "64,1500")]
    pub sizes: Vec<u16>,
    /// How the guests lay out their rings
    #[arg(long, value_enum, default_value = "packed")]
    pub rings: Rings,
}

/// The two cores of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The engine's.
    pub engine: u32,
    /// The NFs'.
    pub nf: u32,
}

impl BenchArgs {
    /// How long and how often.
    pub fn plan(&self) -> Plan {
        let (runs, seconds) = if self.quick { (3, 0.3) } else { (5, 2.0) };
        let window = self.seconds.unwrap_or(Duration::from_secs_f64(seconds));
        let warm_up = if self.quick { Duration::from_millis(200) } else { Duration::from_millis(500) };
        Plan { runs: self.runs.map_or(runs, usize::from), warm_up, window }
    }

    /// Which cores.
    ///
    /// # Errors
    /// [`BenchError::Cores`] when there are not two.
    pub fn cores(&self) -> Result<Cores, BenchError> {
        let allowed = allowed_cores();
        let list = if self.cores.is_empty() { &allowed } else { &self.cores };
        match list.as_slice() {
            [engine, nf, ..] if engine != nf => Ok(Cores { engine: *engine, nf: *nf }),
            _ => Err(BenchError::Cores { wanted: 2, have: list.len().min(1) }),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("from 0.05 to 3600 seconds are possible".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<BenchArgs, clap::Error> {
        let words = ["netvm-bench", "hop"].into_iter().chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Hop(args) => args,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn quick_means_fewer_and_shorter_runs() {
        let (full, quick) = (args("").unwrap().plan(), args("--quick --json").unwrap().plan());
        assert_eq!((full.runs, quick.runs), (5, 3));
        assert!(quick.window < full.window && quick.warm_up < full.warm_up);
        assert_eq!(args("--runs 9 --seconds 0.5").unwrap().plan().window, Duration::from_millis(500));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(args("--runs 0").is_err());
        assert!(args("--seconds 0").is_err() && args("--seconds soon").is_err());
        assert!(args("--cores 1,1").unwrap().cores().is_err());
        let cores = args("--cores 3,1").unwrap().cores().unwrap();
        assert_eq!((cores.engine, cores.nf), (3, 1));
    }
}
