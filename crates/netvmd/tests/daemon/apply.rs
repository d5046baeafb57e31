// SPDX-License-Identifier: Apache-2.0
//! Configurations applied to a running netvmd.

use netvm_api::{ApplyReply, Done, NfInfo, NfState, PlanReply, path};
use rustix::process::Signal;

use super::common::{Daemon, ENGINE, forwarding_chain, processes_below, program};
use super::config;

#[test]
fn an_apply_adds_a_chain_without_loss_in_another() {
    let daemon = Daemon::start(&config(&["a"]));
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let plan: PlanReply = daemon.post(path::PLAN, &config(&["a", "b"]));
    assert!(plan.plan.changes.iter().all(|change| change.name.starts_with('b')), "{plan:?}");
    let dropped = |daemon: &Daemon| {
        let chains = daemon.stats().chains;
        let chain = chains.iter().find(|chain| chain.name == "a").unwrap();
        chain.dropped_at_entry + chain.dropped_inside
    };
    let before = dropped(&daemon);
    let pid = daemon.nf("a-nf").pid;
    let applied: ApplyReply = daemon.post(path::APPLY, &config(&["a", "b"]));
    assert_eq!(applied.plan, plan.plan);
    // An apply returns once its NFs run.
    assert_eq!(daemon.nf("b-nf").state, NfState::Running);
    daemon.until_flowing("b");
    daemon.until_flowing("a");
    let _: ApplyReply = daemon.post(path::APPLY, &config(&["a"]));
    daemon.until("b's process has gone", |daemon| processes_below(daemon.child.id()).len() == 1);
    daemon.until_flowing("a");
    assert_eq!((dropped(&daemon), daemon.nf("a-nf").pid), (before, pid));
}

#[test]
fn replicas_are_replaced_one_by_one_and_stay_if_the_new_fail() {
    let two = |program_name: &str, more: &str| {
        format!("{ENGINE}{}", forwarding_chain("a", &(program(program_name) + "replicas = 2\n" + more)))
    };
    let daemon = Daemon::start(&two("forward", ""));
    let pids = |daemon: &Daemon| {
        let nfs: Vec<NfInfo> = daemon.get(path::NFS);
        nfs.iter().filter(|nf| nf.state == NfState::Running).filter_map(|nf| nf.pid).collect::<Vec<_>>()
    };
    daemon.until("both run", |daemon| pids(daemon).len() == 2);
    daemon.until_flowing("a");
    let down = |daemon: &Daemon| {
        let drops = daemon.stats().drops;
        drops.chains.get("a").and_then(|reasons| reasons.get("nf-down")).copied().unwrap_or_default()
    };
    let (before, dropped) = (pids(&daemon), down(&daemon));
    let _: ApplyReply = daemon.post(path::APPLY, &two("probe", ""));
    let after = pids(&daemon);
    assert!(after.len() == 2 && after.iter().all(|pid| !before.contains(pid)), "{before:?} {after:?}");
    assert_eq!(down(&daemon), dropped, "one replica was always active");

    let (status, error) = daemon.post_failing(path::APPLY, two("crash", ""));
    assert!(
        status == 500
            && error.message.contains(
                "nf a-nf did not start: ended before it attached: exit status 3: an error for people"
            ),
        "{error}"
    );
    assert_eq!(pids(&daemon), after, "both kept running");
    daemon.until("the new processes have ended", |daemon| processes_below(daemon.child.id()).len() == 2);
    assert_eq!(down(&daemon), dropped);
    daemon.until_flowing("a");
}

#[test]
fn a_new_version_of_an_nf_takes_over_without_loss() {
    let daemon = Daemon::start(&config(&["a"]));
    let old = daemon.until_running("a-nf").pid;
    daemon.until_flowing("a");
    let lost = |daemon: &Daemon| {
        let drops = daemon.stats().drops;
        drops.chains.get("a").map_or(0, |reasons| reasons.values().sum::<u64>())
    };
    let before = lost(&daemon);
    let text = format!("{ENGINE}{}", forwarding_chain("a", &program("probe")));
    let _: ApplyReply = daemon.post(path::APPLY, &text);
    let nf = daemon.nf("a-nf");
    assert!(nf.pid != old && nf.state == NfState::Running, "{nf:?}");
    daemon.until("the old one has gone", |daemon| processes_below(daemon.child.id()).len() == 1);
    daemon.until_flowing("a");
    assert_eq!(lost(&daemon), before);
}

#[test]
fn a_bad_configuration_changes_nothing() {
    let daemon = Daemon::start(&config(&["a"]));
    let before = daemon.until_running("a-nf");
    let running = daemon.request("GET", path::CONFIG, "").1;

    let (status, error) = daemon.post_failing(path::APPLY, config(&["a"]).replace("rate", "rat"));
    assert_eq!((status, error.diagnostics.len()), (422, 1), "{error:?}");
    assert!(error.diagnostics[0].line > 0 && error.diagnostics[0].rendered.contains("rat"), "{error:?}");

    let missing = config(&["a"]) + &forwarding_chain("b", "command = [\"/nonexistent/nf\"]\n");
    let (status, error) = daemon.post_failing(path::APPLY, &missing);
    assert_eq!(status, 422);
    assert!(error.diagnostics[0].message.starts_with("no program `/nonexistent/nf`"), "{error:?}");

    let crashing = config(&["a"]) + &forwarding_chain("b", &program("crash"));
    let (status, error) = daemon.post_failing(path::APPLY, &crashing);
    assert_eq!(status, 500);
    assert!(
        error
            .message
            .contains("nf b-nf did not start: ended before it attached: exit status 3: an error for people"),
        "{error}"
    );

    let (status, error) =
        daemon.post_failing(path::APPLY, config(&["a"]).replace("buffers = 2048", "buffers = 4096"));
    assert!(status == 409 && error.message.contains("buffers"), "{status} {error}");

    assert_eq!(daemon.request("GET", path::CONFIG, "").1, running);
    let after = daemon.nf("a-nf");
    assert_eq!((after.pid, after.restarts, after.state), (before.pid, 0, NfState::Running));
    daemon.until("b's process has ended", |daemon| processes_below(daemon.child.id()).len() == 1);
    daemon.until_flowing("a");
}

#[test]
fn sighup_reloads_the_file_and_the_api_restarts_nfs() {
    let mut daemon = Daemon::start(&config(&["a"]));
    let first = daemon.until_running("a-nf");
    std::fs::write(daemon.folder.config(), "[engine]\nwrong = 1\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.await_log("wrong");
    std::fs::write(daemon.folder.config(), config(&["a", "b"])).unwrap();
    daemon.signal(Signal::HUP);
    daemon.await_log("reloaded");
    daemon.until_running("b-nf");

    let done: Done = daemon.post("/v1/nfs/a-nf/restart", "");
    assert_eq!(done.message, "nf a-nf: restarted");
    daemon.until("a-nf is another process", |daemon| {
        let nf = daemon.nf("a-nf");
        nf.state == NfState::Running && nf.pid != first.pid && nf.restarts == 1
    });
    let (status, error) = daemon.post_failing("/v1/nfs/nobody/restart", "");
    assert!(status == 404 && error.message.contains("no role `nobody`"), "{status} {error}");
    assert_eq!(daemon.post_failing("/v1/nonsense", "").0, 404);
    assert_eq!(daemon.post_failing("/v1/nfs/%ff/restart", "").0, 404);
    assert_eq!(daemon.post_failing(path::STATUS, "").0, 404);
    let (status, error) = daemon.post_failing(path::PLAN, b"\xff");
    assert!(status == 400 && error.message.contains("UTF-8"), "{status} {error}");

    let _: Done = daemon.post(path::STOP, "");
    assert_eq!(daemon.wait().code(), Some(0));
}
