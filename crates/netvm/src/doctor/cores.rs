// SPDX-License-Identifier: Apache-2.0
//! Checks of cores: number, NUMA nodes, isolation, frequency governor, time stamp counter.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};

use super::root::Root;
use super::{Check, Level};
use crate::format::plural;

const CPU: &str = "sys/devices/system/cpu";

pub(super) fn check(root: &Root) -> Vec<Check> {
    let allowed = allowed();
    let mut checks =
        vec![count(root, &allowed), instructions(), nodes(root), isolation(root, &allowed), governor(root)];
    checks.extend(clock(root));
    checks
}

/// This process's CPU affinity.
fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).ok();
    set.map_or_else(Vec::new, |set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Parses a kernel CPU list such as `0-3,8`.
fn parse_list(text: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Formats sorted CPU numbers as a kernel CPU list.
fn write_list(cores: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for core in cores {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => parts.push((*core, *core)),
        }
    }
    let part = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

fn count(root: &Root, allowed: &[usize]) -> Check {
    let online = root.read(&format!("{CPU}/online")).map_or(allowed.len(), |list| parse_list(&list).len());
    let found = if allowed.len() < online {
        format!("{} of {online} usable: {}", allowed.len(), write_list(allowed))
    } else {
        format!("{}: {}", plural(allowed.len(), "core"), write_list(allowed))
    };
    let check = match allowed.len() {
        0 | 1 => Check::warn("cores", found, "the worker and the NFs share one core: it works, slowly"),
        2 | 3 => Check::note(
            "cores",
            found,
            "NFs share cores with each other or with the worker; a worker and each NF run best on a core each",
        ),
        _ => Check::ok("cores", found, "enough for a worker and some NFs on a core each"),
    };
    if allowed.len() < online { check.command("taskset -pc 0-$(($(nproc --all) - 1)) $$") } else { check }
}

/// The vector instructions in use.
fn instructions() -> Check {
    use netvm_cpu::{Level, VARIABLE};
    let (used, has) = (Level::current(), Level::of_processor());
    if used < has {
        let found = format!("{used} by {VARIABLE}; the processor has {has}");
        return Check::note(
            "instructions",
            found,
            "rules and routes are looked up more slowly than possible",
        );
    }
    let meaning = match used {
        Level::Baseline => "rules and routes are looked up one by one",
        Level::Avx2 => "rules and routes are looked up eight at a time",
        Level::Avx512 => "rules and routes are looked up sixteen at a time",
    };
    Check::ok("instructions", used.name(), meaning)
}

fn nodes(root: &Root) -> Check {
    let folder = "sys/devices/system/node";
    let nodes: Vec<String> = root
        .list(folder)
        .into_iter()
        .filter_map(|name| {
            let number = name.strip_prefix("node").filter(|number| number.parse::<u32>().is_ok())?;
            let cores = root.read(&format!("{folder}/{name}/cpulist"))?;
            Some(format!("node {number}: cores {}", if cores.is_empty() { "none" } else { &cores }))
        })
        .collect();
    match nodes.len() {
        0 => Check::ok("NUMA", "the kernel lists no nodes", "all memory is local"),
        1 => Check::ok("NUMA", "1 node", "all memory is local"),
        _ => Check::ok(
            "NUMA",
            nodes.join("; "),
            "each trust group has memory on every node with a worker; put workers on their NIC's node",
        ),
    }
}

fn isolation(root: &Root, allowed: &[usize]) -> Check {
    let isolated = root.read(&format!("{CPU}/isolated")).unwrap_or_default();
    if !isolated.is_empty() {
        return Check::ok(
            "isolation",
            format!("cores {isolated}"),
            "the scheduler does not use them: give them to workers and NFs",
        );
    }
    let check = Check::note(
        "isolation",
        "no core is isolated",
        "programs and timers interrupt workers: expect latencies of a millisecond and more",
    );
    let spare: Vec<usize> = allowed.iter().skip(1).copied().collect();
    if spare.is_empty() {
        return check;
    }
    let list = write_list(&spare);
    let arguments = format!("isolcpus=managed_irq,domain,{list} nohz_full={list} rcu_nocbs={list}");
    check.command(root.kernel_arguments(&arguments))
}

fn governor(root: &Root) -> Check {
    let governors: BTreeSet<String> = root
        .list(CPU)
        .iter()
        .filter_map(|name| root.read(&format!("{CPU}/{name}/cpufreq/scaling_governor")))
        .collect();
    let list = governors.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if governors.is_empty() {
        Check::ok(
            "frequency",
            "not controlled by this kernel",
            "firmware or the hypervisor sets the core frequency",
        )
    } else if list == "performance" {
        Check::ok("frequency", list, "cores run at full speed")
    } else {
        Check::note("frequency", list, "idle cores slow down: the first packets of a burst wait longer")
            .command("echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
    }
}

/// Costs are measured in cycles of the time stamp counter.
fn clock(root: &Root) -> Option<Check> {
    let info = root.read("proc/cpuinfo")?;
    let flags: BTreeSet<&str> =
        info.lines().find(|line| line.starts_with("flags"))?.split_whitespace().collect();
    let steady = flags.contains("constant_tsc");
    let found =
        if steady { "time stamp counter, constant rate" } else { "time stamp counter, its rate may change" };
    let meaning = if steady {
        "cycles per packet are comparable"
    } else {
        "cycles per packet are approximate: compare packets per second"
    };
    Some(Check::new("clock", if steady { Level::Ok } else { Level::Note }, found, meaning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::tests::Tree;

    #[test]
    fn cpu_lists_are_parsed_and_formatted() {
        assert_eq!(parse_list("0-3,8"), BTreeSet::from([0, 1, 2, 3, 8]));
        assert_eq!(parse_list(""), BTreeSet::new());
        assert_eq!(write_list(&[0, 1, 2, 4, 6, 7]), "0-2,4,6-7");
        assert!(!allowed().is_empty());
    }

    #[test]
    fn few_cores_lower_the_level() {
        let tree = Tree::new(&[("sys/devices/system/cpu/online", "0-7")]);
        let level = |allowed: &[usize]| count(&tree.root(), allowed).level;
        assert_eq!(
            [level(&[0]), level(&[0, 1]), level(&[0, 1, 2, 3])],
            [Level::Warn, Level::Note, Level::Ok]
        );
        let part = count(&tree.root(), &[2, 3]);
        assert_eq!(part.found, "2 of 8 usable: 2-3");
        assert!(part.command.unwrap().starts_with("taskset"));
    }

    #[test]
    fn isolation_and_governor_have_commands() {
        let tree = Tree::new(&[
            ("sys/devices/system/cpu/isolated", ""),
            ("etc/default/grub", "GRUB_CMDLINE_LINUX=\"\""),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance"),
        ]);
        let check = isolation(&tree.root(), &[0, 1, 2]);
        let command = check.command.unwrap();
        assert!(
            check.level == Level::Note
                && command.contains("nohz_full=1-2 ")
                && command.contains("update-grub")
        );
        let command = isolation(&Tree::new(&[]).root(), &[0, 1]).command.unwrap();
        assert!(
            command.starts_with("# add to the kernel's command line") && command.contains("nohz_full=1 ")
        );
        assert!(isolation(&tree.root(), &[0]).command.is_none());
        let check = governor(&tree.root());
        assert_eq!((check.level, check.found.as_str()), (Level::Note, "performance, powersave"));
        let tree = Tree::new(&[("sys/devices/system/cpu/isolated", "2-3\n")]);
        assert_eq!(isolation(&tree.root(), &[0]).found, "cores 2-3");
        assert_eq!(governor(&tree.root()).level, Level::Ok);
    }

    #[test]
    fn nodes_are_listed() {
        let tree = Tree::new(&[
            ("sys/devices/system/node/node0/cpulist", "0-1"),
            ("sys/devices/system/node/node1/cpulist", "2-3"),
            ("sys/devices/system/node/has_cpu", "0-1"),
        ]);
        assert_eq!(nodes(&tree.root()).found, "node 0: cores 0-1; node 1: cores 2-3");
    }
}
