// SPDX-License-Identifier: Apache-2.0
//! Many interfaces: what they cost to start, to keep and to start again.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::{RouterInfo, path};
use rustix::process::Signal;

use super::common::hosts::{Host, are_possible};
use super::common::{Daemon, Folder};
use super::site::{ENGINE, until_forwarded};

const ROUTERS: u32 = 32;
/// Of each router, all on one port by VLAN. Together more than the 62 descriptors that once were the most a worker's
/// sleep waited for.
const INTERFACES: u32 = 4;
/// Both take 0.6 to 0.8 s on a quiet machine, and up to 2.2 s at load 6. Without expedited grace periods they took 1.5
/// s and 3.6 s on a quiet machine.
const MAX_START: Duration = Duration::from_secs(4);
const MAX_GAP: Duration = Duration::from_millis(3200);
/// Kernel memory of the interfaces: 13 MB each when their sockets held the packet memory of the whole engine.
const MAX_KERNEL_KIB: u64 = 300 << 10;
/// Of a core. It was above 10 % when the worker had to poll.
const MAX_IDLE_PERCENT: u128 = 5;
/// Generous: other tests run beside this one.
const TIMEOUT: Duration = Duration::from_secs(60);

fn config(host: &Host) -> String {
    let mut text = ENGINE.to_owned();
    write!(text, "\n[[port]]\nname = \"wire\"\nkind = \"af_xdp\"\ninterface = \"{}\"\n", host.port())
        .unwrap();
    for router in 0..ROUTERS {
        write!(text, "\n[[router]]\nname = \"m{router}-{}\"\n", std::process::id()).unwrap();
        for n in 0..INTERFACES {
            let vlan = 100 + router * INTERFACES + n;
            write!(
                text,
                "\n[[router.interface]]\nname = \"if{n}\"\nport = \"wire\"\nvlan = {vlan}\n\
                 addresses = [\"10.{router}.{n}.1/24\"]\n"
            )
            .unwrap();
        }
        let first = 100 + router * INTERFACES;
        write!(
            text,
            "\n[[rule]]\nfrom = \"wire\"\nmatch = {{ vlan = \"{first}-{}\" }}\nrouter = \"m{router}-{}\"\n",
            first + INTERFACES - 1,
            std::process::id()
        )
        .unwrap();
    }
    text
}

/// A number of KiB in a file such as `/proc/meminfo`.
fn kib(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Time that the worker has used.
fn worker_time(daemon: &Daemon) -> Duration {
    let tasks = format!("/proc/{}/task", daemon.child.id());
    let is_worker = |folder: &std::path::PathBuf| {
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.starts_with("netvm-worker"))
    };
    let folders = std::fs::read_dir(tasks).unwrap().map(|entry| entry.unwrap().path());
    let worker = folders.into_iter().find(is_worker).unwrap();
    // Nanoseconds on a processor.
    let text = std::fs::read_to_string(worker.join("schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// What interfaces cost.
#[derive(Debug)]
struct Cost {
    start: Duration,
    /// Of kernel memory.
    kib: u64,
    /// Of a core, while nothing happens.
    percent: u128,
    descriptors: usize,
    /// From `kill -9` to the next netvmd.
    gap: Duration,
}

/// Whether this netvmd's process `expedite-exit` runs.
fn expedites_exit(daemon: &Daemon) -> bool {
    let lock = daemon.folder.run_dir().join("netvmd.lock");
    let all = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("cmdline"));
    let mut lines = all.filter_map(|file| std::fs::read_to_string(file).ok());
    lines.any(|line| line.contains(&format!("expedite-exit\0{}", lock.display())))
}

/// Starts netvmd, has `work` look at it, kills it and starts another.
fn measure(config: &str, work: impl FnOnce(&Daemon)) -> Cost {
    let folder = Arc::new(Folder::new());
    let kernel_before = kib("/proc/meminfo", "VmallocUsed:");
    let launch = || {
        let mut daemon = Daemon::launch(Arc::clone(&folder), config);
        daemon.await_log_within(TIMEOUT, "serves its API on");
        daemon
    };
    let begin = Instant::now();
    let mut daemon = launch();
    let start = begin.elapsed();
    // Until all is quiet; then the time of an idle worker is measured.
    std::thread::sleep(Duration::from_secs(2));
    let kib = kib("/proc/meminfo", "VmallocUsed:").saturating_sub(kernel_before);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count();
    let (used, from) = (worker_time(&daemon), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let percent = (worker_time(&daemon) - used).as_nanos() * 100 / from.elapsed().as_nanos();
    work(&daemon);
    let begin = Instant::now();
    daemon.signal(Signal::KILL);
    daemon.wait_within(TIMEOUT);
    let mut daemon = launch();
    let gap = begin.elapsed();
    daemon.purge_within(TIMEOUT);
    daemon.until("its helper ends", |daemon| !expedites_exit(daemon));
    Cost { start, kib, percent, descriptors, gap }
}

#[test]
fn many_interfaces_cost_little() {
    if !are_possible() {
        return;
    }
    let host = Host::new("many", &["10.200.0.2/24"], &[]);
    let mut is_expedited = false;
    let cost = measure(&config(&host), |daemon| is_expedited = expedites_exit(daemon));
    println!("{} interfaces: {cost:?}", ROUTERS * INTERFACES);
    if is_expedited {
        assert!(cost.start < MAX_START && cost.gap < MAX_GAP, "{cost:?}");
    }
    assert!(cost.kib < MAX_KERNEL_KIB, "{cost:?}");
    assert!(cost.percent <= MAX_IDLE_PERCENT, "{cost:?}");
}

/// Of one router.
const MAX_INTERFACES: u32 = 512;
/// Kernel memory of those: 1.6 GB for 128 once.
const MAX_KERNEL_KIB_OF_512: u64 = 400 << 10;
/// Descriptors of an interface: its socket and the one by which netvmd sees that it is closed, the drop counter's,
/// those of its XDP program, the map and the link.
const DESCRIPTORS: usize = 9;

#[test]
fn a_router_has_512_interfaces() {
    if !are_possible() {
        return;
    }
    let address = |n: u32| format!("10.{}.{}", 64 + n / 256, n % 256);
    // The first and the last have a host each, the others are on one port by VLAN.
    let last = MAX_INTERFACES - 1;
    let host =
        |name: &str, n| Host::new(name, &[&format!("{}.2/24", address(n))], &[&format!("{}.1", address(n))]);
    let (first, second, wire) = (host("wa", 0), host("wb", last), Host::new("ww", &[], &[]));
    let router = format!("w{}", std::process::id());
    let mut config = ENGINE.to_owned();
    for (name, host) in [("first", &first), ("second", &second), ("wire", &wire)] {
        write!(
            config,
            "\n[[port]]\nname = \"{name}\"\nkind = \"af_xdp\"\ninterface = \"{}\"\n\
             forward = {{ router = \"{router}\" }}\n",
            host.port()
        )
        .unwrap();
    }
    write!(config, "\n[[router]]\nname = \"{router}\"\n").unwrap();
    for n in 0..MAX_INTERFACES {
        let at = match n {
            0 => "port = \"first\"".to_owned(),
            n if n == last => "port = \"second\"".to_owned(),
            n => format!("port = \"wire\"\nvlan = {n}"),
        };
        write!(
            config,
            "\n[[router.interface]]\nname = \"if{n}\"\n{at}\naddresses = [\"{}.1/24\"]\n",
            address(n)
        )
        .unwrap();
    }
    let cost = measure(&config, |daemon| {
        assert!(first.pings(&format!("{}.1", address(0))), "the router answers\n{}", daemon.log());
        assert!(first.pings(&format!("{}.2", address(last))), "it forwards\n{}", daemon.log());
        assert!(second.pings(&format!("{}.1", address(300))), "it has all addresses\n{}", daemon.log());
        let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
        let own = routers.iter().find(|own| own.name == router).unwrap();
        assert_eq!(own.interfaces.len(), MAX_INTERFACES as usize);
        let passed = |n: usize| own.interfaces[n].rx_packets.min(own.interfaces[n].tx_packets);
        assert!(passed(0) > 0 && passed(last as usize) > 0 && passed(300) == 0, "{own:?}");
        until_forwarded(daemon, &first, &format!("{}.2", address(last)));
    });
    println!("{MAX_INTERFACES} interfaces of a router: {cost:?}");
    assert!(cost.start < TIMEOUT && cost.gap < 2 * TIMEOUT, "{cost:?}");
    assert!(cost.kib < MAX_KERNEL_KIB_OF_512, "{cost:?}");
    assert!(cost.percent <= 2 * MAX_IDLE_PERCENT, "{cost:?}");
    assert!(cost.descriptors < DESCRIPTORS * MAX_INTERFACES as usize, "{cost:?}");
}
