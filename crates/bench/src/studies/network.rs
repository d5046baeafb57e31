//! The receiving side's network namespace, and where the kernel works for it.

use std::ffi::CStr;
use std::fs;

use rustix::mount::{MountFlags, mount};

use crate::error::BenchError;
use crate::measure::probe::ip;
use crate::setup::sandbox;

/// Moves this process into namespaces of its own, which end with it.
///
/// # Errors
/// This process lacks the privilege.
pub fn enter() -> Result<(), BenchError> {
    sandbox::enter()?;
    // Shows the interfaces of the new namespace.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", "/sys", "sysfs", flags, None::<&CStr>).map_err(BenchError::system("cannot mount /sys"))?;
    for scope in ["all", "default"] {
        // Without neighbour discovery the kernel sends nothing of its own. A kernel without IPv6 lacks the file.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
    }
    ip(&["link", "set", "lo", "up"])
}

/// A name for an interface that no other process of this machine uses, as threads of the kernel carry it.
pub fn interface(number: u32) -> String {
    format!("w{number}x{}", std::process::id())
}

/// Brings an interface up, and has the kernel receive its packets on `core` instead of the sender's core
/// (receive packet steering).
///
/// # Errors
/// A command failed.
pub fn bring_up(interface: &str, core: u32) -> Result<(), BenchError> {
    ip(&["link", "set", interface, "up"])?;
    let queue = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
    // Words of 32 bits, the highest first.
    let mask = format!("{:x}{}", 1u32 << (core % 32), ",00000000".repeat(core as usize / 32));
    fs::write(&queue, mask).map_err(BenchError::system(queue))
}

/// Has the kernel poll an interface with an XDP program in its driver in threads, on a core.
pub fn pin_threads(interface: &str, core: u32) {
    // Without such a program a veth is not polled, the kernel refuses, and the steering above applies.
    let _ = fs::write(format!("/sys/class/net/{interface}/threaded"), "1");
    let prefix = format!("napi/{interface}");
    // The kernel cuts names off.
    let prefix = &prefix[..prefix.len().min(15)];
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
            && name.starts_with(prefix)
        {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core as usize);
            // It may have ended.
            let _ = rustix::thread::sched_setaffinity(Some(pid), &set);
        }
    }
}

/// A counter of an interface.
pub fn counter(interface: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/statistics/{name}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Packets that a core dropped because its backlog was full (`netdev_max_backlog`); of the whole machine.
pub fn backlog_drops(core: u32) -> u64 {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let of = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        // The core's number is the thirteenth word since Linux 5.10.
        (hex(words.get(12)?)? == u64::from(core)).then(|| hex(words.get(1)?)).flatten()
    };
    text.lines().find_map(of).unwrap_or(0)
}
