// SPDX-License-Identifier: Apache-2.0
//! Starting the EAL. It starts once per process, so a test that needs a fresh one starts a child: this binary with the
//! name of an ignored test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{env, fs};

use common::{eal, null, options, pool, root_or_skip};
use dpdk::{Batch, Device, Eal, EalError, EalOptions, HugePages, PortBuilder, PortError, ThreadError};

/// The user and group id of nobody on Linux.
const NOBODY: u32 = 65_534;

fn child(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

fn passes(command: &mut Command) -> Output {
    passed(command.output().unwrap())
}

fn passed(output: Output) -> Output {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "{}", text(&output.stdout));
    output
}

fn affinity() -> Vec<usize> {
    // SAFETY: a bit mask, for which all zeroes is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size is that of `set`.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }, 0);
    // SAFETY: the index is within the set.
    (0..1024).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

#[test]
fn a_second_start_gives_the_first() {
    let first = eal();
    assert!(!first.huge_pages() && !first.pci());
    assert!(Eal::init(&options()).is_ok() && Eal::get().is_some());
    let other = EalOptions { memory_mib: 99, ..options() };
    assert_eq!(Eal::init(&other).unwrap_err(), EalError::OtherOptions);
    assert!(dpdk::version().starts_with("DPDK 2"), "{}", dpdk::version());
}

#[test]
fn a_start_leaves_the_caller_and_the_file_system_alone() {
    passes(&mut child("child_starts"));
}

#[test]
#[ignore = "a child of another test"]
fn child_starts() {
    let (before, start) = (affinity(), Instant::now());
    assert!(Eal::get().is_none());
    eal();
    println!("started in {} ms", start.elapsed().as_millis());
    assert_eq!(affinity(), before);
    let prefix = format!("netvm-{}", std::process::id());
    for directory in ["/run/dpdk", "/tmp/dpdk"] {
        assert!(!Path::new(directory).join(&prefix).exists());
    }
    // The thread that starts it is not the one that uses it.
    let moved = std::thread::spawn(|| Eal::get().map(|eal| eal.register_thread().is_ok())).join().unwrap();
    assert_eq!(moved, Some(true));
}

#[test]
fn a_refusal_says_why_and_stays() {
    passes(&mut child("child_is_refused"));
}

#[test]
#[ignore = "a child of another test"]
fn child_is_refused() {
    let wrong = EalOptions { arguments: vec!["--vfio-intr=nonsense".into()], ..options() };
    let error = Eal::init(&wrong).unwrap_err();
    assert!(
        matches!(&error, EalError::Refused { errno: libc::EINVAL, log } if log.contains("vfio")),
        "{error}"
    );
    assert!(error.to_string().contains("check the arguments given to DPDK"), "{error}");
    assert_eq!(Eal::init(&wrong).unwrap_err(), error);
    assert_eq!(Eal::init(&options()).unwrap_err(), error);
    assert!(Eal::get().is_none());
}

#[test]
fn an_unknown_argument_is_named_even_if_dpdk_ends_the_process() {
    let output = child("child_gives_unknown").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && log.contains("no-such-option"), "{log}");
}

#[test]
#[ignore = "a child of another test"]
fn child_gives_unknown() {
    Eal::init(&EalOptions { arguments: vec!["--no-such-option".into()], ..options() }).unwrap();
}

#[test]
fn too_much_memory_is_refused_with_what_dpdk_says() {
    passes(&mut child("child_wants_too_much"));
}

#[test]
#[ignore = "a child of another test"]
fn child_wants_too_much() {
    let error = Eal::init(&EalOptions { memory_mib: 600 << 20, ..options() }).unwrap_err();
    let EalError::Refused { log, .. } = &error else { panic!("{error}") };
    assert!(!log.is_empty() && error.to_string().contains(log.lines().last().unwrap()), "{error}");
}

#[test]
fn a_nul_in_an_argument_is_no_start() {
    passes(&mut child("child_gives_nul"));
}

#[test]
#[ignore = "a child of another test"]
fn child_gives_nul() {
    let nul = EalOptions { arguments: vec!["a\0b".into()], ..options() };
    assert_eq!(Eal::init(&nul).unwrap_err(), EalError::Nul("a\0b".into()));
    // Nothing was started, so it can be.
    eal();
}

#[test]
fn huge_pages_are_used_when_free() {
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if free.is_ok_and(|pages| pages.trim().parse::<u64>().is_ok_and(|pages| pages >= 32)) {
        passes(&mut child("child_uses_huge_pages"));
    } else {
        println!("SKIP: huge pages: fewer than 32 of 2 MiB are free");
    }
}

#[test]
#[ignore = "a child of another test"]
fn child_uses_huge_pages() {
    let options = EalOptions { huge_pages: HugePages::Auto, memory_mib: 64, ..EalOptions::default() };
    let eal = Eal::init(&options).unwrap();
    assert!(eal.huge_pages());
    forward(eal, 1000);
}

#[test]
fn pci_devices_are_looked_for_when_a_port_asks() {
    if Path::new("/sys/bus/pci/devices").exists() {
        passes(&mut child("child_looks_for_a_nic"));
    } else {
        println!("SKIP: PCI: this machine has no such bus");
    }
}

#[test]
#[ignore = "a child of another test"]
fn child_looks_for_a_nic() {
    let eal = Eal::init(&EalOptions { pci: true, ..options() }).unwrap();
    assert!(eal.pci());
    let nowhere = Device::Pci { address: "ffff:00:1f.7".parse().unwrap(), arguments: String::new() };
    let error = PortBuilder::new(nowhere).start(eal, &pool(64)).unwrap_err();
    assert!(matches!(error, PortError::Attach { .. }), "{error}");
    assert!(error.to_string().contains("PCI device ffff:00:1f.7: cannot be attached"), "{error}");
    // No device was touched, and others work.
    let pool = pool(256);
    assert_eq!(null(&pool).port.number().0, 0);
}

#[test]
fn threads_register_once_and_as_many_as_there_are_ids() {
    let eal = eal();
    let guard = eal.register_thread().unwrap();
    assert_eq!(eal.register_thread().unwrap_err(), ThreadError::Registered);
    drop(guard);
    drop(eal.register_thread().unwrap());

    let count = 130;
    let all = Barrier::new(count);
    let refused = std::thread::scope(|scope| {
        let register = || {
            let outcome = eal.register_thread();
            all.wait();
            outcome.map(drop)
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(register)).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect::<Vec<_>>()
    });
    // 128 ids, of which the EAL's own thread has one.
    assert!(refused.len() >= 3 && refused.iter().all(|error| *error == ThreadError::Refused(libc::ENOMEM)));
    assert!(refused[0].to_string().contains("cannot register another thread"), "{}", refused[0]);
    // All have been given back.
    drop(eal.register_thread().unwrap());
}

#[test]
fn the_counter_has_the_frequency_that_is_said() {
    let hz = dpdk::tsc_hz(eal()) as f64;
    let (cycles, start) = (dpdk::cycles(), Instant::now());
    std::thread::sleep(Duration::from_millis(50));
    let (cycles, seconds) = (dpdk::cycles() - cycles, start.elapsed().as_secs_f64());
    let ratio = cycles as f64 / seconds / hz;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

/// Moves packets between two null ports.
fn forward(eal: Eal, bursts: usize) {
    let _registered = eal.register_thread().unwrap();
    let pool = pool(1024);
    let (mut from, mut to) = (null(&pool), null(&pool));
    let mut batch = Batch::new();
    for _ in 0..bursts {
        assert_eq!((from.rx[0].burst_of(&mut batch, 32), to.tx[0].burst(&mut batch)), (32, 32));
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn everything_but_kernel_interfaces_works_without_privileges() {
    if !root_or_skip("an unprivileged child") {
        return;
    }
    // A place that user nobody can read, whatever the permissions of the build directory are.
    let copy: PathBuf = env::temp_dir().join(format!("netvm-dpdk-eal-{}", std::process::id()));
    fs::copy(env::current_exe().unwrap(), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["--exact", "child_is_nobody", "--ignored", "--nocapture"]);
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env_clear();
    // The folder of a DPDK that is not the distribution's.
    command.envs(env::vars_os().filter(|(name, _)| name == "LD_LIBRARY_PATH"));
    let output = command.output();
    fs::remove_file(&copy).unwrap();
    let output = passed(output.unwrap());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "a child of another test"]
fn child_is_nobody() {
    // SAFETY: no arguments, cannot fail.
    assert_ne!(unsafe { libc::geteuid() }, 0);
    let eal = eal();
    forward(eal, 1000);
    let tap = Device::Vdev { driver: "net_tap".into(), arguments: "iface=nobodytap".into() };
    let tap = PortBuilder::new(tap).start(eal, &pool(64)).unwrap_err();
    let PortError::Attach { log, .. } = &tap else { panic!("{tap}") };
    assert!(log.contains("Operation not permitted") || log.contains("Permission denied"), "{tap}");
}
