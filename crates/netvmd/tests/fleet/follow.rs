// SPDX-License-Identifier: Apache-2.0
//! A host runs what etcd says.

use netvm_fleet::{HostKey, HostState};

use crate::site::{Etcd, Host, config, config_with, drop_rule, json_lines, key};

#[test]
fn a_host_runs_what_etcd_has_for_it_and_what_comes_later() {
    let Some(etcd) = Etcd::start() else { return };
    let first = etcd.configure("a", &config(20));
    let mut host = Host::start("a", &etcd.url());
    etcd.until_runs("a", first);
    host.daemon.until_running("a-nf");
    host.daemon.until_flowing("a");
    let lost = host.lost();

    // A change, with the audit log that it brings.
    let log = host.daemon.folder.0.join("audit.jsonl");
    let audit = format!("[api]\naudit = {log:?}\n");
    let second = etcd.configure("a", &format!("{}{audit}", config_with("two", 20)));
    let status = etcd.until_runs("a", second);
    assert_eq!((status.wanted, &status.error), (second, &None));
    assert!(status.problems.is_empty() && status.clock_problem().is_none(), "{status:?}");
    assert_eq!(host.rules(), ["a", "two"]);
    host.daemon.until("it is audited", |_| {
        let is_it = |line: &serde_json::Value| {
            let plan = line["plan"].to_string();
            line["from"] == "/netvm/hosts/a/config"
                && line["result"] == format!("applied revision {second} of etcd")
                && plan.contains("rule two")
        };
        json_lines(&log).iter().any(is_it)
    });

    // Fragments, and one of them changes.
    let base = "/netvm/fragments/base";
    etcd.put(base, &drop_rule("shared"));
    let named = format!("fragments = [\"base\"]\n{}", config(20));
    let third = etcd.configure("a", &named);
    etcd.until_runs("a", third);
    assert_eq!(host.rules(), ["shared", "a"], "those of fragments come first");
    let fourth = etcd.put(base, &drop_rule("changed"));
    etcd.until_runs("a", fourth);
    assert_eq!(host.rules(), ["changed", "a"]);
    // One that the host does not name changes nothing.
    etcd.put("/netvm/fragments/other", "nonsense");
    let kept = std::fs::read_to_string(host.kept()).unwrap();
    assert!(kept.starts_with("# /netvm/hosts/a/config with /netvm/fragments/base\n"), "{kept}");

    // Held back, and released.
    etcd.put(&key("a", HostKey::Hold), "a wave has not come to it");
    let fifth = etcd.configure("a", &config_with("five", 20));
    let held = etcd.until("a", "held", |status| status.state == HostState::Held && status.wanted == fifth);
    assert!(held.error.unwrap().message.contains("a wave has not come to it"));
    assert_eq!((held.running, host.rules()), (fourth, vec!["changed".to_owned(), "a".to_owned()]));
    etcd.ctl(&["del", &key("a", HostKey::Hold)]);
    etcd.until_runs("a", fifth);
    host.daemon.until_flowing("a");
    assert_eq!(host.lost(), lost);

    // Without a configuration it keeps what it runs.
    etcd.ctl(&["del", &key("a", HostKey::Config)]);
    etcd.until("a", "unconfigured", |status| status.state == HostState::Unconfigured);
    assert_eq!(host.rules(), ["a", "five"]);
    // So it does after a restart, with no etcd at all.
    drop(etcd);
    host.restart("http://127.0.0.1:1");
    assert_eq!(host.rules(), ["a", "five"]);
    host.daemon.until_running("a-nf");
    host.daemon.until_flowing("a");
    host.daemon.until("the problem is listed", |daemon| {
        let status: netvm_api::Status = daemon.get(netvm_api::path::STATUS);
        let says = |problem: &String| problem.contains("cannot reach etcd at 127.0.0.1:1");
        status.problems.iter().any(says)
    });
}

#[test]
fn a_change_that_takes_a_restart_is_tried_by_the_next_start() {
    let Some(etcd) = Etcd::start() else { return };
    let first = etcd.configure("a", &config(20));
    let mut host = Host::start("a", &etcd.url());
    etcd.until_runs("a", first);
    let more = config(20).replace("buffers = 2048", "buffers = 4096");
    let second = etcd.configure("a", &more);
    let waits = etcd.until("a", "it waits", |status| status.state == HostState::RestartNeeded);
    let message = waits.error.unwrap().message;
    assert!(message.contains("buffers") && message.contains("next start"), "{message}");
    assert_eq!((waits.wanted, waits.running), (second, first));
    host.restart(&etcd.url());
    etcd.until_runs("a", second);
    // It stays so, and is no longer tried by a start.
    host.restart(&etcd.url());
    etcd.until_runs("a", second);
    let running: netvm_api::ConfigReply = host.daemon.get(netvm_api::path::CONFIG);
    assert!(running.toml.contains("buffers = 4096"), "{}", running.toml);
    assert!(std::fs::read_to_string(host.kept()).unwrap().contains("buffers = 4096"));
}

#[test]
fn a_start_that_fails_with_a_new_configuration_goes_back_and_says_so() {
    let Some(etcd) = Etcd::start() else { return };
    let first = etcd.configure("a", &config(20));
    let mut host = Host::start("a", &etcd.url());
    etcd.until_runs("a", first);
    let second = etcd.configure("a", &config(20).replace("buffers = 2048", "buffers = 4096"));
    etcd.until("a", "it waits", |status| status.state == HostState::RestartNeeded);
    // What is on the disk cannot be started with: the machine has lost a core meanwhile.
    let remembered = host.daemon.folder.run_dir().join("state/etcd.json");
    let text = std::fs::read_to_string(&remembered).unwrap();
    let mut memory: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(memory["next"].as_str().unwrap().contains("buffers = 4096"), "{memory}");
    memory["next"] = "[engine]\ncores = [4095]\n".into();
    std::fs::write(&remembered, memory.to_string()).unwrap();
    host.restart(&etcd.url());
    host.daemon.until("it says so", |daemon| daemon.log().contains("running the last good configuration"));
    let status = etcd.until("a", "refused", |status| status.state == HostState::Refused);
    assert_eq!((status.wanted, status.running), (second, first));
    assert!(status.error.unwrap().message.contains("netvmd could not start with it"));
    host.daemon.until_flowing("a");
    // Not again by the next start, and another one is taken.
    host.restart(&etcd.url());
    etcd.until("a", "refused", |status| status.state == HostState::Refused && status.running == first);
    etcd.until_runs("a", etcd.configure("a", &config_with("two", 20)));
}
