// SPDX-License-Identifier: Apache-2.0
//! Programs that fail: the policy of the chain acts at once, and the program starts again.

mod hostile;
mod load;
mod slow;
mod standby;

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::NfState;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::common::hosts::within;
use crate::common::{Daemon, Folder};
use crate::site::{BRIDGE, Site};

/// The limit from the end of a process to the first packet that goes another way, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Signals the program with its children.
fn signal(daemon: &Daemon, site: &Site, signal: Signal) {
    let pid = site.nf(daemon).pid.unwrap();
    kill_process_group(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_killed_program_is_bypassed_and_started_again() {
    let Some(site) = Site::new("k") else { return };
    let daemon = site.start(&Site::script("veth", BRIDGE), "on_failure = \"bypass\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    signal(&daemon, &site, Signal::KILL);
    assert!(within(AT_ONCE, || site.pings_once()), "{}", daemon.log());
    daemon.until("it runs again", |daemon| {
        site.nf(daemon).restarts == 1 && site.nf(daemon).state == NfState::Running
    });
    let before = site.nf(&daemon).counters["left_in"];
    assert!(site.pings());
    assert!(site.nf(&daemon).counters["left_in"] > before, "packets pass it again: {}", daemon.log());
}

#[test]
fn a_killed_program_closes_a_chain_that_is_to_fail_closed() {
    let Some(site) = Site::new("c") else { return };
    let script = format!("test ! -e /tmp/{0} || exec sleep infinity; {BRIDGE}", site.role);
    let daemon = site.start(&Site::script("tap", &script), "on_failure = \"drop\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    // It comes back, but does not forward any more: probes find that out.
    let marker = format!("/tmp/{}", site.role);
    std::fs::write(&marker, "").unwrap();
    // What the first one has made stays in the namespace.
    crate::common::hosts::run(&format!("ip -n nf-{}.0 link delete br0", site.role));
    signal(&daemon, &site, Signal::KILL);
    daemon.until("it is started again", |daemon| site.nf(daemon).restarts == 1);
    site.until(&daemon, NfState::Starting);
    assert!(!site.pings_once(), "{}", daemon.log());
    let dropped = daemon.stats().chains.iter().map(|chain| chain.dropped_at_entry).sum::<u64>();
    assert!(dropped > 0, "{}", daemon.log());
    std::fs::remove_file(&marker).unwrap();
}

#[test]
fn a_program_that_does_not_forward_is_found_by_probes_and_recovers() {
    let Some(site) = Site::new("h") else { return };
    let daemon = site.start(&Site::script("veth", BRIDGE), "on_failure = \"bypass\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    let namespace = format!("nf-{}.0", site.role);
    let begin = Instant::now();
    crate::common::hosts::run(&format!("ip -n {namespace} link set right nomaster"));
    site.until(&daemon, NfState::Hung);
    let noticed = begin.elapsed();
    assert!(noticed < AT_ONCE, "{noticed:?}: {}", daemon.log());
    assert!(site.pings_once(), "{}", daemon.log());
    crate::common::hosts::run(&format!("ip -n {namespace} link set right master br0"));
    site.until(&daemon, NfState::Running);
    assert_eq!(site.nf(&daemon).restarts, 0, "{}", daemon.log());
}

/// A bridge that takes two seconds to start.
fn slow() -> String {
    format!("sleep 2; {BRIDGE}")
}

#[test]
fn a_slow_start_is_passed_by_or_closes_the_chain_as_configured() {
    let Some(site) = Site::new("sl") else { return };
    let program = |policy: &str| format!("{}while_starting = \"{policy}\"\n", Site::script("veth", &slow()));
    let folder = Arc::new(Folder::new());
    let start = |text: &str| Daemon::start_in(Arc::clone(&folder), text);
    let daemon = start(&site.config(&program("bypass"), "on_failure = \"drop\""));
    assert!(site.pings_once() || site.pings_once(), "{}", daemon.log());
    assert_eq!(site.nf(&daemon).state, NfState::Starting, "{}", daemon.log());
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    // This netvmd is killed, and the next one makes the namespace again.
    drop(daemon);
    let daemon = start(&site.config(&program("drop"), "on_failure = \"bypass\""));
    assert!(!site.pings_once(), "{}", daemon.log());
    assert_eq!(site.nf(&daemon).state, NfState::Starting, "{}", daemon.log());
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
}

#[test]
fn packets_wait_for_a_program_that_starts_slowly() {
    let Some(site) = Site::new("ho") else { return };
    let program = format!("{}while_starting = \"hold\"\n", Site::script("veth", &slow()));
    let daemon = site.start(&program, "on_failure = \"drop\"");
    // The request for the server's address waits, and is answered when the program is ready.
    assert_eq!(site.nf(&daemon).state, NfState::Starting, "{}", daemon.log());
    let answered = site.client.output("busybox ping -c 1 -W 20 10.77.0.2");
    assert!(answered.status.success(), "{}", daemon.log());
    assert!(site.nf(&daemon).counters["left_out"] > 0, "it has passed the program: {}", daemon.log());
    let dropped: u64 = daemon.stats().chains.iter().map(|chain| chain.dropped_at_entry).sum();
    assert_eq!(dropped, 0);
}

#[test]
fn a_program_without_probes_that_returns_nothing_is_killed_and_started_again() {
    let Some(site) = Site::new("np") else { return };
    // It takes packets, as nothing forwards them.
    let program = format!("{}probe = false\nhang_timeout = 1\n", Site::script("tap", "exec sleep infinity"));
    let daemon = site.start(&program, "on_failure = \"bypass\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "it is passed by when it hangs: {}", daemon.log());
    daemon.until("it is killed", |daemon| {
        site.pings_once();
        site.nf(daemon).last_exit.is_some_and(|how| how.contains("forwarded nothing for 1 s"))
    });
}

#[test]
fn a_program_that_ends_at_once_is_reported_with_its_own_words() {
    let Some(site) = Site::new("e") else { return };
    let script = "echo no licence found >&2; exit 3";
    let daemon = site.start(&Site::script("veth", script), "on_failure = \"bypass\"");
    site.until(&daemon, NfState::Backoff);
    assert!(site.pings(), "{}", daemon.log());
    let how = site.nf(&daemon).last_exit.unwrap();
    assert!(how.contains("exit status 3") && how.contains("no licence found"), "{how}");
    let status: netvm_api::Status = daemon.get(netvm_api::path::STATUS);
    daemon.until("the status says it", |_| {
        status.problems.iter().any(|problem| problem.contains("keeps failing"))
    });
}

#[test]
fn a_namespace_of_somebody_else_is_left_alone_and_named() {
    let Some(site) = Site::new("f") else { return };
    let namespace = format!("nf-{}.0", site.role);
    crate::common::hosts::run(&format!("ip netns add {namespace}"));
    let daemon = site.start(&Site::script("veth", BRIDGE), "on_failure = \"bypass\"");
    let nf = site.nf(&daemon);
    let why = nf.last_exit.unwrap();
    assert!(nf.state == NfState::Backoff && why.contains("ip netns delete"), "{why}");
    assert!(site.pings(), "{}", daemon.log());
    let inside = crate::common::hosts::run(&format!("ip -n {namespace} -o link"));
    assert_eq!(inside.lines().count(), 1, "only loopback: {inside}");
    drop(daemon);
    crate::common::hosts::run(&format!("ip netns delete {namespace}"));
}
