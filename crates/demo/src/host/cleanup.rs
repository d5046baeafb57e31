// SPDX-License-Identifier: Apache-2.0
//! Removes what earlier runs left that could not clean up (`kill -9`, out of memory).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::host::names::{Names, Side};
use crate::host::namespaces::{self, interface, named};

/// Limit for netvmd to end on SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Removes the remains of dead runs; returns those runs.
pub fn dead_runs() -> Vec<Names> {
    let dead: Vec<Names> = all_runs().into_iter().filter(|names| !names.is_alive()).collect();
    for names in &dead {
        remove(*names);
    }
    dead
}

/// Descriptions of a run's remains.
pub fn found(names: Names) -> Vec<String> {
    let mut found: Vec<String> =
        processes(&names.folder()).iter().map(|pid| format!("process {pid}")).collect();
    let namespaces = names.namespaces().into_iter().filter(|namespace| named(namespace).exists());
    found.extend(namespaces.map(|namespace| format!("namespace {namespace}")));
    for near in Side::BOTH.map(|side| names.interface(side)) {
        found.extend(interface(&near).exists().then(|| format!("interface {near}")));
    }
    found.extend(names.folder().exists().then(|| format!("folder {}", names.folder().display())));
    found
}

/// Every run with a namespace, an interface or a folder.
fn all_runs() -> BTreeSet<Names> {
    let temp = std::env::temp_dir();
    let folders = [Path::new("/run/netns"), Path::new("/sys/class/net"), &temp];
    let entries = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    entries.filter_map(|entry| Names::of(&entry.ok()?.file_name().to_string_lossy())).collect()
}

fn remove(names: Names) {
    let folder = names.folder();
    let own = fs::symlink_metadata(&folder)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw());
    if own {
        end(&processes(&folder));
    }
    namespaces::remove(names);
    if own {
        // `found` reports what remains.
        let _ = fs::remove_dir_all(&folder);
    }
}

/// Processes with the folder or a path below it among their arguments.
fn processes(folder: &Path) -> Vec<Pid> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| mentions(&line, folder)))
        .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .collect()
}

/// Whether a NUL-terminated argument is the folder or a path below it.
fn mentions(command_line: &[u8], folder: &Path) -> bool {
    let arguments = command_line.split(|byte| *byte == 0);
    arguments
        .filter_map(|argument| std::str::from_utf8(argument).ok())
        .any(|argument| Path::new(argument).starts_with(folder))
}

/// Terminates processes, then kills them.
fn end(pids: &[Pid]) {
    // Fails if a process has ended.
    for pid in pids {
        let _ = kill_process(*pid, Signal::TERM);
    }
    let limit = Instant::now() + STOP_LIMIT;
    while pids.iter().any(|pid| test_kill_process(*pid).is_ok()) {
        if Instant::now() >= limit {
            for pid in pids {
                let _ = kill_process(*pid, Signal::KILL);
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::namespaces::Hosts;
    use crate::host::process::{Start, check_tools, run};

    #[test]
    fn arguments_below_the_folder_are_recognised() {
        let folder = Path::new("/tmp/netvm-demo-12");
        assert!(mentions(b"netvmd\0--run-dir\0/tmp/netvm-demo-12/run\0", folder));
        assert!(mentions(b"httpd\0-h\0/tmp/netvm-demo-12\0", folder));
        assert!(!mentions(b"httpd\0-h\0/tmp/netvm-demo-123\0", folder));
        assert!(!mentions(b"", folder));
    }

    #[test]
    fn the_remains_of_a_dead_run_are_removed() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: not root, so no network namespaces");
            return;
        }
        if let Err(missing) = check_tools() {
            println!("SKIP: {missing}");
            return;
        }
        // Above the largest process id, and unique to this test process.
        let names = Names(4_194_304 + std::process::id());
        let hosts = match Hosts::make(names) {
            Ok(hosts) => hosts,
            Err(refused) => {
                println!("SKIP: no network namespaces or veth here: {refused}");
                return;
            }
        };
        std::mem::forget(hosts);
        fs::create_dir(names.folder()).unwrap();
        let namespace = names.namespace(Side::Client);
        let file = names.folder().join("file");
        fs::write(&file, "").unwrap();
        let words = ["tail", "-f", file.to_str().unwrap()];
        let mut inside =
            Start::new("tail", "KILL", ["ip", "netns", "exec", &namespace].into_iter().chain(words))
                .spawn()
                .unwrap();
        // The same process executes setpriv, ip and tail in turn.
        netvm_testing::until("it runs inside", || {
            let inside = inside.pid().to_string();
            processes(&names.folder()).len() == 1
                && run(&format!("ip netns pids {namespace}")).unwrap().contains(&inside)
        });
        assert_eq!(found(names).len(), 6, "{:?}", found(names));
        assert!(all_runs().contains(&names) && !names.is_alive());
        // Not `dead_runs`, which would remove what a concurrent test uses.
        std::thread::scope(|scope| {
            scope.spawn(|| remove(names));
            netvm_testing::until("it has ended", || inside.ended().unwrap().is_some());
        });
        assert_eq!(found(names), Vec::<String>::new());
    }

    #[test]
    fn a_run_that_failed_half_way_is_removed() {
        if !rustix::process::geteuid().is_root() || check_tools().is_err() {
            println!("SKIP: not root, or a tool is missing: no network namespaces");
            return;
        }
        let names = Names(8_388_608 + std::process::id());
        let taken = names.interface(Side::Server);
        if let Err(refused) = run(&format!("ip link add {taken} type veth peer name {taken}x")) {
            println!("SKIP: no veth here: {refused}");
            return;
        }
        let error = Hosts::make(names).unwrap_err().to_string();
        assert!(error.contains(&taken), "{error}");
        assert_eq!(
            found(names),
            Vec::<String>::new(),
            "the conflicting interface has our name, so it is removed"
        );
    }
}
