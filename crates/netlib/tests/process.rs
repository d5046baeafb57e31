// SPDX-License-Identifier: Apache-2.0
//! NFs in separate processes. The programs are this test binary itself; an environment variable selects the NF.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::process::Command;
use std::time::{Duration, Instant};

use netlib::sim::{Process, ProcessError};
use netlib::{
    MAX_COUNTERS, NetworkFunction, Options, Packet, PortId, RoleId, ThreadContext, Verdict, Waiting,
};

const PROGRAM: &str = "NETLIB_TEST_PROGRAM";

fn program(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "be_the_program", "--nocapture", "--test-threads=1"]);
    command.env(PROGRAM, name).stdout(std::process::Stdio::null());
    command
}

fn spawn(name: &str) -> Process {
    Process::spawn(program(name), &["lan", "wan"], &["audit"]).unwrap()
}

/// Not a test: runs the NF that the environment variable names.
#[test]
fn be_the_program() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    let options = Options { threads: 3, ..Options::new(&program).with_counters(&["seen", "thread"]) };
    match program.as_str() {
        "steer" => netlib::run(&options, Steer::new).unwrap(),
        "steer-poll" => {
            netlib::run(&Options { waiting: Waiting::Poll, ..options }, Steer::new).unwrap();
        }
        "crash" => netlib::run(&options, |_| Crash).unwrap(),
        "self-stop" => {
            let stop = options.stop.clone();
            netlib::run(&options, |_| SelfStop(stop.clone())).unwrap();
        }
        "timeout" => wait_in_slices(&options),
        "configured" => netlib::run(&Options::new("configured"), Steer::new).unwrap(),
        "silent" => {}
        other => panic!("no program {other}"),
    }
}

struct Steer {
    wan: PortId,
    audit: RoleId,
    thread: u16,
    seen: u64,
}

impl Steer {
    fn new(context: &ThreadContext<'_>) -> Self {
        let (wan, audit) = (context.port("wan").unwrap(), context.role("audit").unwrap());
        Self { wan, audit, thread: context.thread(), seen: 0 }
    }
}

impl NetworkFunction for Steer {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        self.seen += 1;
        packet.set_hash(self.thread as u8);
        if let Some(bytes) = packet.prepend(1) {
            bytes[0] = 0xaa;
        }
        match packet.data().get(1) {
            Some(0) => Verdict::Next,
            Some(1) => Verdict::Drop,
            Some(2) => Verdict::Port(self.wan),
            _ => Verdict::Role(self.audit),
        }
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        counters[0] = self.seen;
        counters[1] = u64::from(self.thread);
    }
}

struct Crash;

impl NetworkFunction for Crash {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        std::process::exit(3);
    }
}

struct SelfStop(netlib::Stop);

impl NetworkFunction for SelfStop {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        self.0.request();
        Verdict::Drop
    }
}

/// Counts the waits that timed out.
fn wait_in_slices(options: &Options) {
    let mut endpoints = netlib::attach(options).unwrap().into_endpoints();
    let mut endpoint = endpoints.remove(0);
    let mut slices = 0;
    while !endpoint.ended() {
        let start = Instant::now();
        if let Some(mut burst) = endpoint.receive_for(Duration::from_millis(5)) {
            burst.set_all(Verdict::Drop);
        } else if !endpoint.ended() {
            assert!(start.elapsed() >= Duration::from_millis(5), "{:?}", start.elapsed());
            slices += 1;
            endpoint.report(&[slices]);
        }
    }
}

fn wait_for(condition: impl FnMut() -> bool) {
    assert!(netvm_testing::within(netvm_testing::LIMIT, condition), "it does not come");
}

fn steers(name: &str) {
    let mut nf = spawn(name);
    assert_eq!((nf.hello().name.as_str(), nf.hello().threads), (name, 3));
    let frames: Vec<[u8; 2]> = (0..100u8).map(|n| [n % 4, n]).collect();
    let list: Vec<_> = frames.iter().map(|frame| (PortId(0), &frame[..])).collect();
    let outcomes = nf.inject_all(&list).unwrap();
    let verdicts = [Verdict::Next, Verdict::Drop, Verdict::Port(PortId(1)), Verdict::Role(RoleId(0))]
        .into_iter()
        .cycle();
    assert!(outcomes.iter().zip(verdicts).all(|(outcome, verdict)| outcome.verdict == verdict));
    let expected = frames.iter().map(|frame| [0xaa, frame[0], frame[1]]);
    assert!(outcomes.iter().zip(expected).all(|(outcome, bytes)| outcome.bytes == bytes));
    let mut threads: Vec<u8> = outcomes.iter().map(|outcome| outcome.hash).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads, [0, 1, 2], "every thread had packets");
    // An idle NF publishes its counters, not only one that ends.
    wait_for(|| nf.counter("seen") == Some(100));
    assert_eq!((nf.counter("thread"), nf.counter("other")), (Some(3), None));
    assert!(nf.stop().unwrap().success());
}

#[test]
fn an_adaptive_nf_returns_every_verdict_from_every_thread() {
    steers("steer");
}

#[test]
fn a_polling_nf_returns_every_verdict_from_every_thread() {
    steers("steer-poll");
}

#[test]
fn the_environment_sets_the_number_of_threads() {
    for (variable, threads) in [(Some("2"), 2), (Some("17"), 1), (None, 1)] {
        let mut command = program("configured");
        match variable {
            Some(number) => command.env(netlib::THREADS_VARIABLE, number),
            None => command.env_remove(netlib::THREADS_VARIABLE),
        };
        let mut nf = Process::spawn(command, &["lan", "wan"], &["audit"]).unwrap();
        assert_eq!(nf.hello().threads, threads, "{variable:?}");
        assert!(nf.stop().unwrap().success());
    }
}

#[test]
fn an_nf_that_ends_is_not_reported_as_slow() {
    let mut nf = spawn("crash");
    let error = nf.inject_all(&[(PortId(0), &[0; 60]), (PortId(0), &[0; 60])]).unwrap_err();
    assert!(
        matches!(&error, ProcessError::Ended { status, missing: 2 } if status.code() == Some(3)),
        "{error}"
    );
}

#[test]
fn an_nf_can_stop_itself() {
    let mut nf = spawn("self-stop");
    nf.inject(PortId(0), &[0; 60]).unwrap();
    wait_for(|| nf.has_ended());
    assert!(nf.stop().unwrap().success());
}

#[test]
fn a_wait_with_a_timeout_ends_by_time_packet_or_stop() {
    let mut nf = spawn("timeout");
    wait_for(|| nf.counter("seen").is_some_and(|slices| slices >= 3));
    assert_eq!(nf.inject(PortId(0), &[0; 60]).unwrap().verdict, Verdict::Drop);
    assert!(nf.stop().unwrap().success());
}

#[test]
fn a_program_that_does_not_attach_is_named() {
    let error = Process::spawn(program("silent"), &[], &[]).unwrap_err();
    assert!(matches!(error, ProcessError::NotAttached { .. }), "{error}");
    let error = Process::spawn(Command::new("/nonexistent/nf"), &[], &[]).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/nf: "), "{error}");
}
