// SPDX-License-Identifier: Apache-2.0
//! Trust groups are added and removed under traffic.

use crate::common::{Daemon, ENGINE, forwarding_chain, program};
use netvm_api::{ApplyReply, GroupInfo, NfState, Status, path};

fn groups(daemon: &Daemon) -> Vec<GroupInfo> {
    daemon.get(path::GROUPS)
}

/// Number of open descriptors of a process, and its mapped shared memory in KiB.
fn held(pid: u32) -> (usize, u64) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let size = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
    };
    let shared = maps.lines().filter(|line| line.contains("memfd:")).filter_map(size).sum::<u64>();
    (descriptors, shared >> 10)
}

#[test]
fn groups_are_added_and_removed_while_others_forward() {
    // Its source waits for an NF that has to wait for a core.
    let first =
        forwarding_chain("a", &program("forward")).replace("rate = 5000", "rate = 5000\nlossless = true");
    let with_one = format!("{ENGINE}{first}");
    let second = forwarding_chain("b", &program("forward")).replace("group = \"edge\"", "group = \"guest\"");
    // Bound to the group: the port receives into its memory.
    let second = second.replace("name = \"b-in\"\n", "name = \"b-in\"\ngroup = \"guest\"\n");
    let with_two =
        format!("{with_one}\n[[group]]\nname = \"guest\"\nbuffers = 1024\nlarge_buffers = 8\n{second}");
    let daemon = Daemon::start(&with_one);
    let before = daemon.until_running("a-nf");
    daemon.until_flowing("a");
    // Drops before its NF had attached.
    let lost = daemon.stats().drops.chains.remove("a");
    let (descriptors, shared) = held(daemon.child.id());
    for _ in 0..5 {
        let _: ApplyReply = daemon.post(path::APPLY, &with_two);
        daemon.until_flowing("b");
        daemon.until_flowing("a");
        let all = groups(&daemon);
        assert_eq!(
            all.iter().map(|group| (group.name.as_str(), group.instances)).collect::<Vec<_>>(),
            [("edge", 1), ("guest", 1)]
        );
        let region = &all[1].regions[0];
        assert_eq!(region.buffers, 1024 + 8, "as many buffers as configured, and no more");
        let copies: u64 = daemon.get::<Status>(path::STATUS).workers.iter().map(|worker| worker.copies).sum();
        assert_eq!(copies, 0, "no packet was copied into the group");

        let _: ApplyReply = daemon.post(path::APPLY, &with_one);
        daemon.until("the group is removed", |daemon| groups(daemon).len() == 1);
        daemon.until_flowing("a");
        daemon.until("its descriptors and memory are released", |daemon| {
            let now = held(daemon.child.id());
            // An open request has a descriptor, too.
            now.0 <= descriptors + 2 && now.1 <= shared
        });
    }
    let after = daemon.nf("a-nf");
    assert_eq!((after.pid, after.restarts, after.state), (before.pid, 0, NfState::Running));
    assert_eq!(daemon.stats().drops.chains.remove("a"), lost, "no packet was lost");
}

#[test]
fn a_group_without_enough_memory_is_refused() {
    let with_one = format!("{ENGINE}{}", forwarding_chain("a", &program("forward")));
    let daemon = Daemon::start(&with_one);
    daemon.until_running("a-nf");
    // Half a terabyte.
    let large = format!("{with_one}\n[[group]]\nname = \"guest\"\nbuffers = 8388608\nbuffer_size = 65472\n");
    let (status, error) = daemon.post_failing(path::APPLY, &large);
    assert!(status == 500 && error.message.contains("guest"), "{status} {error}");
    assert_eq!(groups(&daemon).len(), 1);
    daemon.until_flowing("a");
}

#[test]
fn an_nf_changes_its_trust_group() {
    let config = format!("{ENGINE}{}", forwarding_chain("a", &program("forward")));
    let daemon = Daemon::start(&config);
    let before = daemon.until_running("a-nf").pid;
    let other = "\n[[group]]\nname = \"other\"\nbuffers = 2048\n";
    let text = config.replace("group = \"edge\"", "group = \"other\"") + other;
    let _: ApplyReply = daemon.post(path::APPLY, &text);
    let nf = daemon.nf("a-nf");
    assert!(nf.pid != before && nf.state == NfState::Running && nf.group == "other", "{nf:?}");
    assert_eq!(nf.last_exit, None, "its end was requested");
    daemon.until_flowing("a");
}
