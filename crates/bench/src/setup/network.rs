// SPDX-License-Identifier: Apache-2.0
//! The receiving side's network namespace, and the core on which the kernel processes its packets.

use std::ffi::CStr;
use std::fs;

use rustix::mount::{MountFlags, mount};

use crate::error::BenchError;
use crate::measure::probe::ip;
use crate::setup::sandbox;

/// Moves this process into new namespaces, which end with it.
///
/// # Errors
/// This process may not create namespaces.
pub fn enter() -> Result<(), BenchError> {
    sandbox::enter()?;
    // Shows the interfaces of the new namespace.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", "/sys", "sysfs", flags, None::<&CStr>).map_err(BenchError::system("cannot mount /sys"))?;
    for scope in ["all", "default"] {
        // Turns off neighbour discovery, so that the kernel sends no packets. A kernel without IPv6 lacks the file.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
    }
    ip(&["link", "set", "lo", "up"])
}

/// Makes the new namespace route packets from any source address. Call it before there are interfaces.
///
/// # Errors
/// The kernel refuses.
pub fn allow_routing() -> Result<(), BenchError> {
    let settings = [("ip_forward", "1"), ("conf/all/rp_filter", "0"), ("conf/default/rp_filter", "0")];
    for (name, value) in settings {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).map_err(BenchError::system(path))?;
    }
    Ok(())
}

/// The number of an interface.
///
/// # Errors
/// It does not exist.
pub fn index(interface: &str) -> Result<u32, BenchError> {
    let path = format!("/sys/class/net/{interface}/ifindex");
    let text = fs::read_to_string(&path).map_err(BenchError::system(path.clone()))?;
    text.trim().parse().map_err(|error| BenchError::system(path)(std::io::Error::other(error)))
}

/// A name for an interface that is unique on this machine, because kernel threads are named after it.
pub fn interface(number: u32) -> String {
    format!("w{number}x{}", std::process::id())
}

/// Brings an interface up, and sets receive packet steering (RPS), so that the kernel processes its packets on `cores`
/// instead of the sender's core: each queue on one of them in turn, or on all by flow if there are fewer queues.
///
/// # Errors
/// A command failed.
pub fn bring_up(interface: &str, cores: &[u32]) -> Result<(), BenchError> {
    ip(&["link", "set", interface, "up"])?;
    let queues: Vec<String> =
        (0..).map(|n| queue(interface, n)).take_while(|path| fs::exists(path).unwrap_or(false)).collect();
    for (n, path) in queues.iter().enumerate() {
        let chosen = if queues.len() < cores.len() { cores } else { &cores[n % cores.len()..][..1] };
        fs::write(path, mask(chosen)).map_err(BenchError::system(path.clone()))?;
    }
    Ok(())
}

/// The file with the cores of a receive queue.
fn queue(interface: &str, number: u32) -> String {
    format!("/sys/class/net/{interface}/queues/rx-{number}/rps_cpus")
}

/// A mask of cores in the kernel's form: words of 32 bits, the highest first.
fn mask(cores: &[u32]) -> String {
    let words = cores.iter().max().map_or(1, |most| most / 32 + 1);
    let word = |word: u32| {
        let bits =
            cores.iter().filter(|core| *core / 32 == word).fold(0u32, |bits, core| bits | 1 << (core % 32));
        format!("{bits:08x}")
    };
    (0..words).rev().map(word).collect::<Vec<_>>().join(",")
}

/// Makes the kernel poll an interface whose driver runs an XDP program in threads (threaded NAPI), and pins them to
/// cores in turn.
pub fn pin_threads(interface: &str, cores: &[u32]) {
    // A veth without such a program has no NAPI: the kernel refuses, and RPS applies.
    let _ = fs::write(format!("/sys/class/net/{interface}/threaded"), "1");
    let prefix = format!("napi/{interface}");
    // The kernel truncates thread names.
    let prefix = &prefix[..prefix.len().min(15)];
    let mut found: Vec<i32> = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if name.starts_with(prefix) {
            found.extend(process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
    }
    // In the order of their queues.
    found.sort_unstable();
    for (pid, core) in found.into_iter().zip(cores.iter().cycle()) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(*core as usize);
        // The thread may have ended.
        let _ = rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(pid), &set);
    }
}

/// A counter of an interface.
pub fn counter(interface: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/statistics/{name}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Packets that a core dropped because its backlog was full (`netdev_max_backlog`), for the whole machine.
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

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn masks_are_words_of_32_bits() {
        assert_eq!(mask(&[1]), "00000002");
        assert_eq!(mask(&[0, 3]), "00000009");
        assert_eq!(mask(&[33, 1]), "00000002,00000002");
    }
}
