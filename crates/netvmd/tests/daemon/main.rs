// SPDX-License-Identifier: Apache-2.0
//! netvmd as a process, with NFs that run this test binary.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod apply;
#[path = "../common/mod.rs"]
mod common;
mod flows;
mod interfaces;
mod nfs;
mod openapi;
mod process;
mod remote;
mod sockets;
mod traces;
mod watch;

use std::time::Duration;

use common::{ENGINE, Forward, PROGRAM, forwarding_chain, program};
use netlib::Options;
use rustix::process::Signal;

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    match program.as_str() {
        "forward" => netlib::run(&Options::new("forward"), |_| Forward).unwrap(),
        "counting" => {
            let options = Options::new("counting").with_counters(&[watch::HOSTILE]);
            netlib::run(&options, |_| CountingNf).unwrap();
        }
        "connect" => sockets::connect(),
        "silent" => do_nothing(),
        "crash" => {
            eprintln!("an error for people");
            std::process::exit(3);
        }
        "impostor" => {
            let options = Options { role: "somebody-else".to_owned(), ..Options::new("impostor") };
            eprintln!("answer: {}", netlib::attach(&options).unwrap_err());
        }
        "turncoat" => {
            drop(netlib::attach(&Options::new("turncoat")).unwrap());
            do_nothing();
        }
        "probe" => {
            eprintln!("socket: {:?}", std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err().raw_os_error());
            eprintln!(
                "process: {:?}",
                std::process::Command::new("/bin/true").status().unwrap_err().raw_os_error()
            );
            eprintln!("variables: {:?}", std::env::vars().map(|(name, _)| name).collect::<Vec<_>>());
            let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
            let targets = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            eprintln!("descriptors: {:?}", targets.collect::<Vec<_>>());
            eprintln!("folder: {:?}", std::env::current_dir().unwrap());
            netlib::run(&Options::new("probe"), |_| Forward).unwrap();
        }
        "hog" => {
            let mut tasks = Vec::new();
            while let Ok(task) = std::thread::Builder::new().stack_size(64 << 10).spawn(do_nothing) {
                tasks.push(task);
            }
            eprintln!("tasks: {}", tasks.len());
            for file in std::env::var("FILES").unwrap().split(':') {
                eprintln!("{file}: {}", std::fs::write(file, "x").is_ok());
            }
            eprintln!("now memory");
            let memory = vec![1u8; 512 << 20];
            eprintln!("memory: {}", std::hint::black_box(&memory).len());
        }
        other => panic!("no program {other}"),
    }
}

/// Until the process is killed.
fn do_nothing() {
    std::thread::sleep(Duration::from_secs(600));
}

/// An NF with a counter.
struct CountingNf;

impl netlib::NetworkFunction for CountingNf {
    fn packet(&mut self, _: &mut netlib::Packet<'_>) -> netlib::Verdict {
        netlib::Verdict::Next
    }

    fn report(&self, counters: &mut [u64; netlib::MAX_COUNTERS]) {
        counters[0] = 7;
    }
}

fn config(names: &[&str]) -> String {
    let chains: String = names.iter().map(|name| forwarding_chain(name, &program("forward"))).collect();
    format!("{ENGINE}{chains}")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}
