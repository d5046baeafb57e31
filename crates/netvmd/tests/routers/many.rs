//! Many interfaces: what they cost to start, to keep and to start again.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::{Done, path};
use rustix::process::Signal;

use super::common::hosts::{Host, are_possible};
use super::common::{Daemon, Folder};
use super::site::ENGINE;

const ROUTERS: u32 = 8;
/// Of each router, all on one port by VLAN. Together more than the 62 descriptors that once were the most a worker's sleep
/// waited for.
const INTERFACES: u32 = 8;
/// Kernel memory of the interfaces: 13 MB each when their sockets held the packet memory of the whole engine.
const MOST_KERNEL_KIB: u64 = 300 << 10;
/// Of a core. It was above 10 % when the worker had to poll.
const MOST_IDLE_PERCENT: u128 = 5;
/// Generous: other tests run beside this one.
const PATIENCE: Duration = Duration::from_secs(60);

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

#[test]
fn many_interfaces_cost_little() {
    if !are_possible() {
        return;
    }
    let host = Host::new("many", &["10.200.0.2/24"], &[]);
    let (folder, config) = (Arc::new(Folder::new()), config(&host));
    let kernel_before = kib("/proc/meminfo", "VmallocUsed:");
    let begin = Instant::now();
    let mut daemon = Daemon::start_in(Arc::clone(&folder), &config);
    let started = begin.elapsed();
    std::thread::sleep(Duration::from_secs(2));
    let kernel = kib("/proc/meminfo", "VmallocUsed:").saturating_sub(kernel_before);
    let (used, from) = (worker_time(&daemon), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let percent = (worker_time(&daemon) - used).as_nanos() * 100 / from.elapsed().as_nanos();
    let begin = Instant::now();
    daemon.signal(Signal::KILL);
    daemon.wait();
    let mut daemon = Daemon::start_in(folder, &config);
    let gap = begin.elapsed();
    println!(
        "{} interfaces: started in {started:?}; {} MiB of kernel memory; idle worker {percent} % of a core; \
         {gap:?} from kill -9 to the next netvmd",
        ROUTERS * INTERFACES,
        kernel >> 10
    );
    assert!(started < PATIENCE && gap < PATIENCE, "{started:?} {gap:?}");
    assert!(kernel < MOST_KERNEL_KIB, "{kernel} KiB");
    assert!(percent <= MOST_IDLE_PERCENT, "{percent} %");
    let _: Done = daemon.post(path::STOP, "{\"purge\": true}");
    assert!(daemon.wait().success(), "{}", daemon.log());
}
