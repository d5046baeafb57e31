// SPDX-License-Identifier: Apache-2.0
//! Kinds of traffic between two namespaces: `iperf3`, with the CPU time that it takes on the whole machine, and
//! [`frames`].

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::frames::{self, MANAGER_INTERVAL, SETUP_TIMEOUT, Trial, busy};
use super::hosts::Hosts;
use crate::error::BenchError;
use crate::measure::harness::{Figure, Measured, Plan, Subject};
use crate::measure::report::Unit;

const PROGRAM: &str = "iperf3";

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// TCP from the client.
    Tcp,
    /// TCP from the server.
    Reverse,
    /// TCP, eight connections.
    Eight,
    /// UDP, frames of 64 bytes with FCS.
    Small,
    /// UDP, frames of 1,518 bytes with FCS.
    Large,
    /// Frames of one flow from a packet socket.
    Frames,
    /// Frames of many flows in random order.
    Flows,
    /// Round trips of datagrams.
    Trips,
}

impl Flow {
    /// All kinds.
    pub const ALL: &[Self] = &[
        Self::Tcp,
        Self::Reverse,
        Self::Eight,
        Self::Small,
        Self::Large,
        Self::Frames,
        Self::Flows,
        Self::Trips,
    ];
    /// One of a sort, for a first impression.
    pub const QUICK: &[Self] = &[Self::Tcp, Self::Small, Self::Frames, Self::Flows, Self::Trips];

    /// The name of a subject's case.
    pub fn case(self, subject: &str) -> String {
        let suffix = match self {
            Self::Tcp => "",
            Self::Reverse => "-reverse",
            Self::Eight => "-8",
            Self::Small => "-udp-64B",
            Self::Large => "-udp-1500B",
            Self::Frames => "-frames",
            Self::Flows => "-flows",
            Self::Trips => "-rtt",
        };
        format!("{subject}{suffix}")
    }

    /// The name of the case of its CPU time.
    pub fn case_of_cost(self, subject: &str) -> String {
        format!("{}-cpu", self.case(subject))
    }

    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Tcp | Self::Frames | Self::Flows | Self::Trips => &[],
            Self::Reverse => &["-R"],
            Self::Eight => &["-P", "8"],
            Self::Small => &["-u", "-b", "0", "-l", "18"],
            Self::Large => &["-u", "-b", "0", "-l", "1472"],
        }
    }

    const fn is_udp(self) -> bool {
        matches!(self, Self::Small | Self::Large)
    }
}

/// A subject, and the kinds of traffic that are to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case<'a> {
    pub name: &'static str,
    pub flows: Vec<Flow>,
    /// TCP's congestion control.
    pub congestion: &'a str,
    /// The kernel's flow table learns flows first.
    pub learns: bool,
}

/// Measures a case.
pub type Measure<'a> = Box<dyn Fn(&Case<'_>, &Plan) -> Measured + 'a>;

/// What is to be measured.
#[derive(Clone, Copy)]
pub struct Chosen<'a> {
    /// Of each subject.
    pub flows: &'a [Flow],
    /// Only these cases; empty: all.
    pub only: &'a [String],
    /// TCP's congestion control.
    pub congestion: &'a str,
}

impl<'a> Chosen<'a> {
    /// Whether a case is to be measured.
    pub fn has(self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == case)
    }

    /// The subjects that have a case.
    pub fn subjects(self, measures: Vec<(&'static str, Measure<'a>)>) -> Vec<Subject<'a>> {
        let of = |(name, measure): (&'static str, Measure<'a>)| {
            let flows: Vec<Flow> =
                self.flows.iter().copied().filter(|flow| self.has(&flow.case(name))).collect();
            let case = Case { name, flows, congestion: self.congestion, learns: false };
            (!case.flows.is_empty()).then(|| Subject::new(name, move |plan| measure(&case, plan)))
        };
        measures.into_iter().filter_map(of).collect()
    }
}

/// Checks that iperf3 is installed.
///
/// # Errors
/// [`BenchError::MissingPeer`] names the package.
pub fn find() -> Result<(), BenchError> {
    match Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(_) => Err(BenchError::MissingPeer { program: PROGRAM, package: PROGRAM }),
    }
}

/// Measures a case; `pause` lets its engine run.
pub fn figures(
    case: &Case<'_>,
    hosts: &Hosts,
    plan: &Plan,
    mut pause: impl FnMut(Duration) -> Result<(), BenchError>,
) -> Measured {
    let mut figures = Vec::new();
    let is_of_frames = |flow: &Flow| matches!(flow, Flow::Frames | Flow::Flows | Flow::Trips);
    for flow in case.flows.iter().filter(|flow| is_of_frames(flow)) {
        let (many, learns) = (*flow == Flow::Flows, case.learns);
        let trial = Trial { hosts, case: flow.case(case.name), many, learns };
        figures.extend(match flow {
            Flow::Trips => frames::round_trips(&trial, plan, &mut pause)?,
            _ => frames::frames(&trial, plan, &mut pause)?,
        });
    }
    let server = Server::start(&hosts.all()[1].namespace)?;
    for flow in case.flows.iter().copied().filter(|flow| !is_of_frames(flow)) {
        let began = Instant::now();
        let result = loop {
            let before = busy()?;
            match client(hosts, flow, plan, &mut pause)? {
                Ok(result) => {
                    figures.extend(cost(flow, case.name, &result, busy()?.saturating_sub(before)));
                    break result;
                }
                // The interfaces are not up yet, or the server is still finishing its last test.
                Err(_) if began.elapsed() < SETUP_TIMEOUT => pause(MANAGER_INTERVAL)?,
                Err(problem) => return Err(BenchError::Peer { peer: PROGRAM, problem }),
            }
        };
        figures.push(figure(flow, case.name, &result)?);
    }
    drop(server);
    Ok(figures)
}

/// Runs a client and returns its result, or its error message.
fn client(
    hosts: &Hosts,
    flow: Flow,
    plan: &Plan,
    pause: &mut impl FnMut(Duration) -> Result<(), BenchError>,
) -> Result<Result<Value, String>, BenchError> {
    let [from, to] = hosts.all();
    let seconds = plan.window.as_secs_f64().ceil().max(1.0).to_string();
    let address = to.address.address.to_string();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &from.namespace, PROGRAM, "-J", "--connect-timeout", "1000"]);
    command.args(["-t", &seconds, "-O", "0", "-c", &address]).args(flow.arguments());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(BenchError::system("cannot start iperf3"))?;
    // A thread reads the output, because it does not fit into a pipe.
    let mut output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.as_mut().map_or(Ok(0), |output| output.read_to_string(&mut text)).map(|_| text)
    });
    while child.try_wait().map_err(BenchError::system("cannot wait for iperf3"))?.is_none() {
        pause(MANAGER_INTERVAL)?;
    }
    let text = reader.join().map_err(|_| std::io::Error::other("a thread panicked")).flatten();
    let text = text.map_err(BenchError::system("cannot read iperf3's output"))?;
    let result: Value = serde_json::from_str(&text)
        .map_err(std::io::Error::other)
        .map_err(BenchError::system("iperf3's output"))?;
    let problem = result["error"].as_str().map(str::to_owned);
    Ok(problem.map_or(Ok(result), Err))
}

/// The CPU time of the machine: of UDP for each packet that arrived, of TCP for each megabyte.
fn cost(flow: Flow, subject: &str, result: &Value, spent: Duration) -> Option<Figure> {
    let megabytes = || Some(result["end"]["sum_received"]["bytes"].as_f64()? / 1e6);
    let (received, unit) = match flow.is_udp() {
        true => (received(result)?, Unit::NanosPerPacket),
        false => (megabytes()?, Unit::Micros),
    };
    let spent = if flow.is_udp() { spent.as_nanos() } else { spent.as_micros() };
    let case = flow.case_of_cost(subject);
    (received > 0.0).then(|| Figure::new(case, unit, spent as f64 / received))
}

/// UDP packets that arrived.
fn received(result: &Value) -> Option<f64> {
    let sum = &result["end"]["sum"];
    Some(sum["packets"].as_f64()? - sum["lost_packets"].as_f64()?)
}

fn figure(flow: Flow, subject: &str, result: &Value) -> Result<Figure, BenchError> {
    let end = &result["end"];
    let missing = || BenchError::Peer { peer: PROGRAM, problem: format!("no result of {flow:?}") };
    if flow.is_udp() {
        let seconds = end["sum"]["seconds"].as_f64().ok_or_else(missing)?;
        let rate = received(result).ok_or_else(missing)? / seconds / 1e6;
        return Ok(Figure::new(flow.case(subject), Unit::Mpps, rate));
    }
    let rate = end["sum_received"]["bits_per_second"].as_f64().ok_or_else(missing)?;
    Ok(Figure::new(flow.case(subject), Unit::GigabitsPerSecond, rate / 1e9))
}

/// A server, which ends when dropped.
struct Server(Child);

impl Server {
    fn start(namespace: &str) -> Result<Self, BenchError> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, PROGRAM, "-s"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        command.spawn().map(Self).map_err(BenchError::system("cannot start iperf3"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
