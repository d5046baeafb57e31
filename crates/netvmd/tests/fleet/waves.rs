// SPDX-License-Identifier: Apache-2.0
//! `netvm fleet`: three hosts, in waves.

use std::path::Path;
use std::sync::Arc;

use netvm_fleet::HostState;

use crate::common::Folder;
use crate::site::{Etcd, Host, Way, config, drop_rule, has_netvm, shell};

/// The files of a fleet.
struct Files(Arc<Folder>);

impl Files {
    fn write(&self, path: &str, text: &str) {
        let path = self.0.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn host(&self, name: &str, more: &str) {
        self.write(&format!("hosts/{name}.toml"), &format!("fragments = [\"base\"]\n{}{more}", config(3)));
    }

    fn path(&self) -> &Path {
        &self.0.0
    }
}

#[test]
fn a_wave_with_a_bad_host_stops_the_rest_and_disturbs_no_packets() {
    if !has_netvm() {
        return;
    }
    let Some(etcd) = Etcd::start() else { return };
    let files = Files(Arc::new(Folder::new()));
    let fleet = |words: &str| shell(&etcd, files.path(), &format!("netvm fleet {words}"));
    let good = |words: &str| {
        let (is_good, output) = fleet(words);
        assert!(is_good, "{words}: {output}");
        output
    };
    assert!(good("status").contains("no hosts"));
    let (is_good, output) = fleet("plan .");
    assert!(!is_good && output.contains("has no hosts/NAME.toml"), "{output}");

    let names = ["a", "b", "c"];
    files.write("fragments/base.toml", &drop_rule("shared"));
    names.iter().for_each(|name| files.host(name, ""));
    let plan = good("plan .");
    assert!(plan.contains("host b:\n") && plan.contains("+ rule shared"), "{plan}");
    assert_eq!(good("status"), "no hosts: `netvm fleet apply` writes their configurations to etcd\n");
    let applied = good("apply .");
    assert!(applied.contains("c: written; it does not report"), "{applied}");
    let ways: Vec<Way> = names.iter().map(|_| Way::to(&etcd)).collect();
    let hosts: Vec<Host> = names.iter().zip(&ways).map(|(name, way)| Host::start(name, &way.url())).collect();
    for (host, name) in hosts.iter().zip(names) {
        etcd.until(name, "it runs", |status| status.state == HostState::Running);
        host.daemon.until_flowing("a");
        assert_eq!(host.rules(), ["shared", "a"]);
    }
    let lost: Vec<u64> = hosts.iter().map(Host::lost).collect();
    assert_eq!(good("plan ."), "nothing changes on any host\n");

    // An error in one file: nothing is written, not even for the others.
    let before = etcd.get("/netvm/hosts/a/config");
    names.iter().for_each(|name| files.host(name, &drop_rule("two")));
    files.host("c", "[engine]\nidel = 1\n");
    let (is_good, output) = fleet("apply .");
    assert!(!is_good && output.contains("hosts/c.toml:"), "{output}");
    files.host("c", &drop_rule("two"));
    files.write("fragments/base.toml", &format!("{}[switch]\naging = 7\n", drop_rule("shared2")));
    files.host("b", &format!("{}[switch]\naging = 8\n", drop_rule("two")));
    let (is_good, output) = fleet("apply .");
    assert!(!is_good && output.contains("two values for `aging` of [switch]"), "{output}");
    assert!(output.contains("fragments/base.toml:"), "{output}");
    assert_eq!(etcd.get("/netvm/hosts/a/config"), before);

    // b is not healthy: a, the canary, has it, c keeps what it runs, although the shared fragment has changed.
    let bad = config(1).replace("[health]\n", "[health]\nping = [\"192.0.2.77\"]\n");
    files.write("hosts/b.toml", &format!("fragments = [\"base\"]\n{bad}"));
    files.write("fragments/base.toml", &drop_rule("shared2"));
    let (is_good, output) = fleet("apply --canary 1 --wave 1 .");
    assert!(!is_good, "{output}");
    assert!(output.contains("wave 1 of 3: a\n  a: healthy with revision"), "{output}");
    assert!(
        output.contains("stopped at host b: rolled back: not healthy within 1 s: no answer to pings"),
        "{output}"
    );
    assert!(output.contains("until the next `netvm fleet apply`: c"), "{output}");
    let rules: Vec<Vec<String>> = hosts.iter().map(Host::rules).collect();
    assert_eq!(rules, [vec!["shared2", "a", "two"], vec!["shared", "a"], vec!["shared", "a"]]);
    let status = good("status");
    let line = |host: &str| status.lines().find(|line| line.starts_with(host)).unwrap().to_owned();
    assert!(line("a ").contains("running") && line("b ").contains("rolled back"), "{status}");
    assert!(line("c ").contains("held") && line("c ").contains("wave 3 of 3"), "{status}");
    let json: serde_json::Value = serde_json::from_str(&good("status --json")).unwrap();
    assert_eq!(
        (&json[1]["host"], &json[1]["status"]["state"]),
        (&"b".into(), &"rolled_back".into()),
        "{json}"
    );

    // c is cut off while the mended files go out: it is left out, and follows when it is back.
    ways[2].cut();
    etcd.until_gone("c");
    files.host("b", &drop_rule("two"));
    let applied = good("apply .");
    assert!(
        applied.contains("b: healthy") && applied.contains("c: written; it does not report"),
        "{applied}"
    );
    assert!(!applied.contains("host a:"), "it does not change again: {applied}");
    assert!(good("status").lines().any(|line| line.starts_with("c ") && line.contains("absent")));
    ways[2].mend();
    etcd.until("c", "it follows", |status| {
        status.state == HostState::Running && status.wanted == status.running
    });
    for ((host, name), before) in hosts.iter().zip(names).zip(lost) {
        assert_eq!(host.rules(), ["shared2", "a", "two"], "{name}");
        host.daemon.until_flowing("a");
        assert_eq!(host.lost(), before, "{name}");
    }

    // A name is given up only when its machine is gone.
    let (is_good, output) = fleet("release a");
    assert!(!is_good && output.contains("host a reports, from machine"), "{output}");
    let (is_good, output) = fleet("release z");
    assert!(!is_good && output.contains("no machine has the name z"), "{output}");
}
