//! Why a benchmark has no result.

use std::io;
use std::path::PathBuf;

use netvm_engine::{AdmitError, ApplyError, StartError, UnknownRouter};
use netvm_policy_import::classbench::ClassBenchError;

use crate::peers::ovs::NoFlow;
use crate::routes::RoutesError;

/// Why a benchmark ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Fewer cores than the benchmark needs.
    #[error(
        "this benchmark needs {wanted} cores, this process may use {have}: widen its CPU affinity (taskset), or give --cores"
    )]
    Cores {
        /// Needed.
        wanted: usize,
        /// Allowed.
        have: usize,
    },
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The engine did not take the configuration.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// An NF was not let in.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// An NF and the engine did not come together.
    #[error("NF {role} did not attach: {source}")]
    Attach {
        /// Its role.
        role: String,
        /// What went wrong.
        source: netvm_attach::AttachError,
    },
    /// An NF ended by itself.
    #[error("NF {role} ended in the middle of the benchmark ({status}); its message is above")]
    NfEnded {
        /// Its role.
        role: String,
        /// How.
        status: String,
    },
    /// A VM did not become an NF.
    #[error("the guest: {problem}")]
    Guest {
        /// What it, or who makes it, said.
        problem: String,
    },
    /// The machine did not stay as it was for long enough to compare two cases.
    #[error(
        "{case}: the distance between the two cores was another one in each run that could be compared: the host moves \
         virtual processors; ask for more --runs of fewer --seconds, or have them pinned"
    )]
    Unsteady {
        /// The comparison.
        case: String,
    },
    /// Nothing came through.
    #[error("{what}: no packet came through in {seconds:.1} s; a benchmark of nothing has no result")]
    Nothing {
        /// What was measured.
        what: String,
        /// For how long.
        seconds: f64,
    },
    /// An honest NF was caught at what none does, or the engine dropped packets for what an NF said.
    #[error("{what}: {count} x {kind}, which no NF of a benchmark does: netvm has a defect")]
    Unsound {
        /// What was measured.
        what: String,
        /// What was counted.
        kind: String,
        /// How often.
        count: u64,
    },
    /// What it is to be compared with is not installed.
    #[error(
        "{program} is not installed: apt install {package}, or leave the comparison out with --skip-peers"
    )]
    MissingPeer {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// What it is to be compared with did not do its work.
    #[error("{peer}: {problem}")]
    Peer {
        /// Its name.
        peer: &'static str,
        /// What it said.
        problem: String,
    },
    /// The filter set cannot be used.
    #[error("{path}: {source}")]
    Rules {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: RulesError,
    },
    /// The routing table cannot be used.
    #[error("{path}: {source}")]
    Routes {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: RoutesError,
    },
    /// The engine did not take the routes.
    #[error(transparent)]
    Router(#[from] UnknownRouter),
    /// The engine is slow with the routes.
    #[error("the workers have not got {routes} routes after {seconds} s: is something else on their core?")]
    NoRoutes {
        /// How many there are.
        routes: usize,
        /// How long was waited.
        seconds: f64,
    },
    /// Packets did not go by the routes.
    #[error(
        "{what}: {punted} packets went to the kernel and {dropped} nowhere, and all had a route: netvm has a defect"
    )]
    Astray {
        /// What was measured.
        what: String,
        /// Given to the kernel.
        punted: u64,
        /// Dropped.
        dropped: u64,
    },
    /// Another build's benchmark gave no report.
    #[error("{program}: {problem}")]
    Build {
        /// The build's program.
        program: PathBuf,
        /// What happened.
        problem: String,
    },
    /// This build is slower than another one.
    #[error("{case}: {ratio:.3} of the other build, and at least {least} is asked for")]
    Slower {
        /// The worst case.
        case: String,
        /// This build divided by the other.
        ratio: f64,
        /// What is asked for.
        least: f64,
    },
    /// The system did not give something.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What is wrong with a filter set.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// It cannot be read.
    #[error("{0}; give the path of a ClassBench filter set with --acl")]
    Read(#[from] io::Error),
    /// It is not in the format.
    #[error(transparent)]
    Syntax(#[from] ClassBenchError),
    /// Open vSwitch has no flows for it.
    #[error(transparent)]
    NoFlow(#[from] NoFlow),
}

impl BenchError {
    /// Names what the system did not give.
    pub fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: source.into() }
    }
}
