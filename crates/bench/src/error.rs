// SPDX-License-Identifier: Apache-2.0
//! Errors of benchmarks.

use std::io;
use std::path::PathBuf;

use netvm_engine::{AdmitError, ApplyError, StartError, UnknownRouter};
use netvm_policy_import::classbench::ClassBenchError;
use netvm_wire::NetError;

/// A benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Too few cores.
    #[error(
        "this benchmark needs {required} cores, but this process may use {available}: widen its CPU affinity (taskset), or give --cores"
    )]
    Cores {
        /// Needed.
        required: usize,
        /// Allowed.
        available: usize,
    },
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The engine refused the configuration.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The engine refused an NF.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// An NF did not attach.
    #[error("NF {role} did not attach: {source}")]
    Attach {
        /// Its role.
        role: String,
        /// The error.
        source: netvm_attach::AttachError,
    },
    /// An NF ended.
    #[error("NF {role} ended during the benchmark ({status}); see its message above")]
    NfEnded {
        /// Its role.
        role: String,
        /// Its exit status.
        status: String,
    },
    /// A guest failed.
    #[error("guest: {problem}")]
    Guest {
        /// The problem.
        problem: String,
    },
    /// No two figures were taken under similar conditions.
    #[error(
        "{case}: the distance between the two cores changed during every run, because the host moves virtual processors: \
        use more --runs with fewer --seconds, or pin the virtual processors on the host"
    )]
    Unsteady {
        /// The comparison.
        case: String,
    },
    /// No packet passed.
    #[error("{what}: no packet passed in {seconds:.1} s")]
    Nothing {
        /// What was measured.
        what: String,
        /// The duration.
        seconds: f64,
    },
    /// A violation by an honest NF, or drops that it cannot cause.
    #[error("{what}: {count} x {kind}, which no NF of a benchmark causes: this is a bug in netvm")]
    Unsound {
        /// What was measured.
        what: String,
        /// What was counted.
        kind: String,
        /// How often.
        count: u64,
    },
    /// A peer is not installed.
    #[error("{program} is not installed: apt install {package}, or skip the comparison with --skip-peers")]
    MissingPeer {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// grout is not installed.
    #[error(
        "grout is not in {folder}: install it there with tools/setup/peer.sh grout, or skip the comparison with --skip-peers"
    )]
    NoGrout {
        /// Where it should be.
        folder: PathBuf,
    },
    /// A peer failed.
    #[error("{peer}: {problem}")]
    Peer {
        /// Its name.
        peer: &'static str,
        /// The problem.
        problem: String,
    },
    /// The programs of `bindings` are missing.
    #[error(
        "NETVM_BINDINGS does not name a folder with the NF in each language: run ./dev bench bindings, which builds them"
    )]
    NoBindings,
    /// The filter set cannot be used.
    #[error("{path}: {source}")]
    Rules {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: RulesError,
    },
    /// The routing table cannot be used.
    #[error("{path}: {source}")]
    Routes {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: RoutesError,
    },
    /// The engine refused the routes.
    #[error(transparent)]
    Router(#[from] UnknownRouter),
    /// The workers did not adopt the routes in time.
    #[error(
        "the workers did not adopt {routes} routes within {seconds} s: does another process use the engine's core?"
    )]
    NoRoutes {
        /// Their number.
        routes: usize,
        /// The limit.
        seconds: f64,
    },
    /// Connections did not begin, or had no answer, in time.
    #[error(
        "{connections} of {count} connections were there within {seconds} s: does another process use the engine's core?"
    )]
    NoConnections {
        /// Those that were there.
        connections: u64,
        /// Their number in the traffic.
        count: u64,
        /// The limit.
        seconds: f64,
    },
    /// The router punted or dropped packets that had a route.
    #[error(
        "{what}: {punted} packets were punted and {dropped} dropped, although all had a route: this is a bug in netvm"
    )]
    Astray {
        /// What was measured.
        what: String,
        /// Punted to the kernel.
        punted: u64,
        /// Dropped.
        dropped: u64,
    },
    /// The benchmark of the other build printed no report.
    #[error("{program}: {problem}")]
    Build {
        /// The build's program.
        program: PathBuf,
        /// The problem.
        problem: String,
    },
    /// This build is slower than another one.
    #[error("{case}: {ratio:.3} of the other build; the limit is {least}")]
    Slower {
        /// The worst case.
        case: String,
        /// This build divided by the other.
        ratio: f64,
        /// The limit.
        least: f64,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A filter set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// It cannot be read.
    #[error("{0}; give the path of a ClassBench filter set with --acl")]
    Read(#[from] io::Error),
    /// It is malformed.
    #[error(transparent)]
    Syntax(#[from] ClassBenchError),
    /// It cannot be expressed as OpenFlow flows.
    #[error(transparent)]
    NoFlow(#[from] NoFlow),
}

/// A routing table cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// It cannot be read.
    #[error("{0}; give the path of a list of prefixes with --routes")]
    Read(#[from] std::io::Error),
    /// It cannot be decompressed.
    #[error("gzip cannot decompress it")]
    Unpack,
    /// A line is not a prefix.
    #[error("line {line}: {source}")]
    Prefix {
        /// The line, from 1.
        line: usize,
        /// The error.
        source: NetError,
    },
}

/// A rule that cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rule {rule} matches more than IPv4 addresses, protocol and ports, which this comparison does not support"
)]
pub struct NoFlow {
    /// Its index, from 0.
    pub rule: usize,
}

impl BenchError {
    /// For `map_err`: adds the failed step.
    pub fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: source.into() }
    }
}
