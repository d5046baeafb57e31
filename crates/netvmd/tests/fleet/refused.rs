// SPDX-License-Identifier: Apache-2.0
//! What a host refuses or undoes: it says where and why, and keeps what it ran.

use std::process::Command;
use std::sync::Arc;

use netvm_fleet::{HostKey, HostState, HostStatus};

use crate::common::{Daemon, Folder, forwarding_chain, program};
use crate::site::{Etcd, Host, config, config_with, drop_rule, key, launch_host};

#[test]
fn errors_name_the_file_or_the_fragment_and_the_line() {
    let Some(etcd) = Etcd::start() else { return };
    let first = etcd.configure("a", &config(20));
    let host = Host::start("a", &etcd.url());
    etcd.until_runs("a", first);
    let refused = |revision: i64| {
        let is_it = |status: &HostStatus| status.state == HostState::Refused && status.wanted == revision;
        let status = etcd.until("a", "refused", is_it);
        assert_eq!((status.running, host.rules()), (first, vec!["a".to_owned()]));
        let error = status.error.unwrap();
        (error.file.unwrap_or_default(), error.line.unwrap_or_default(), error.message)
    };
    let own = key("a", HostKey::Config);

    let (file, line, message) = refused(etcd.configure("a", &format!("{}[[rule]]\nfrom = \"\n", config(20))));
    assert_eq!(file, own);
    assert!(line > 20 && message.starts_with("not TOML"), "{line}: {message}");

    let (file, line, message) =
        refused(etcd.configure("a", &format!("fragments = [\"base\"]\n{}", config(20))));
    assert_eq!((file.as_str(), line), (own.as_str(), 1));
    assert!(message.contains("no fragment `base`") && message.contains("/netvm/fragments/base"), "{message}");

    // A fragment contradicts the file; each of them is right.
    let base = "/netvm/fragments/base";
    let (file, _, message) = refused(etcd.put(base, "# Ours.\n[engine]\nhuge_pages = true\n"));
    assert_eq!(file, own);
    assert!(message.contains("two values for `huge_pages` of [engine]"), "{message}");
    assert!(message.contains(&format!("{base}:3")) && message.contains("keep one"), "{message}");

    // A name twice, and an error in the fragment itself.
    let (file, _, message) = refused(etcd.put(base, &drop_rule("a")));
    assert!(file == own && message.contains(&format!("{base}:2")), "{file}: {message}");
    let (file, line, message) = refused(etcd.put(base, "\n\n[engine]\nidel = \"poll\"\n"));
    assert_eq!((file.as_str(), line), (base, 4));
    assert!(message.contains("`idel`") && message.contains("did you mean `idle`?"), "{message}");

    // Something that this machine lacks, in the fragment and in the file.
    let missing = forwarding_chain("b", "command = [\"/nonexistent/nf\"]\n");
    let place = missing.lines().position(|line| line.contains("/nonexistent/nf")).unwrap();
    let (file, line, message) = refused(etcd.put(base, &format!("# Ours.\n{missing}")));
    assert_eq!((file.as_str(), line), (base, u32::try_from(place + 2).unwrap()), "{message}");
    assert!(message.starts_with("no program `/nonexistent/nf`"), "{message}");
    let (file, line, message) = refused(etcd.configure("a", &format!("{}{missing}", config(20))));
    assert!(file == own && line > 0 && message.starts_with("no program `/nonexistent/nf`"), "{message}");

    etcd.until_runs("a", etcd.configure("a", &config_with("mended", 20)));
}

#[test]
fn a_change_that_is_not_healthy_is_undone_and_remembered() {
    let Some(etcd) = Etcd::start() else { return };
    let first = etcd.configure("a", &config(20));
    let mut host = Host::start("a", &etcd.url());
    etcd.until_runs("a", first);
    host.daemon.until_flowing("a");
    // Nobody has this address (RFC 5737).
    let silent =
        config_with("two", 2).replace("[health]\n", "[health]\nping = [\"127.0.0.1\", \"192.0.2.77\"]\n");
    let second = etcd.configure("a", &silent);
    let undone = |etcd: &Etcd| etcd.until("a", "undone", |status| status.state == HostState::RolledBack);
    let status = undone(&etcd);
    assert_eq!((status.wanted, status.running), (second, first));
    let message = status.error.unwrap().message;
    assert!(
        message.contains("no answer to pings of 192.0.2.77") && !message.contains("127.0.0.1"),
        "{message}"
    );
    assert_eq!(host.rules(), ["a"]);
    // It is not tried again, also not after a restart.
    let (kept, before) = (std::fs::read_to_string(host.kept()).unwrap(), history(&host.daemon));
    assert!(!kept.contains("192.0.2.77"), "{kept}");
    host.restart(&etcd.url());
    undone(&etcd);
    assert_eq!(host.rules(), ["a"]);
    assert!(history(&host.daemon).len() <= before.len() + 1);
    // A port without link; then one that is right.
    let socket = host.daemon.folder.0.join("guest.sock");
    let port = config_with("three", 1).replace("[health]\n", "[health]\nports = [\"away\"]\n")
        + &format!("[[port]]\nname = \"away\"\nkind = \"vhost-user\"\npath = {socket:?}\n");
    let third = etcd.configure("a", &port);
    let status = etcd.until("a", "undone", |status| status.wanted == third && status.state.has_failed());
    let message = status.error.unwrap().message;
    assert!(status.state == HostState::RolledBack && message.contains("port away: has no link"), "{message}");
    etcd.until_runs("a", etcd.configure("a", &config_with("four", 20)));
    assert_eq!(host.rules(), ["a", "four"]);
    host.daemon.until_flowing("a");
}

/// Why each configuration of the history came into force.
fn history(daemon: &Daemon) -> Vec<String> {
    let revisions: Vec<netvm_api::RevisionInfo> = daemon.get(netvm_api::path::HISTORY);
    revisions.into_iter().map(|revision| revision.how).collect()
}

#[test]
fn a_name_belongs_to_one_machine() {
    let Some(etcd) = Etcd::start() else { return };
    let first = etcd.configure("a", &config(20));
    let host = Host::start("a", &etcd.url());
    etcd.until_runs("a", first);
    let machine = etcd.get(&key("a", HostKey::Machine)).unwrap();
    // Another machine, with an /etc/machine-id of its own.
    let folder = Arc::new(Folder::new());
    let id = folder.0.join("id");
    std::fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
    if !std::path::Path::new("/etc/machine-id").exists() {
        println!("SKIP: this machine has no /etc/machine-id");
        return;
    }
    let other = |folder: &Arc<Folder>, config: &str| {
        let mut command = Command::new("unshare");
        let script = format!("mount --bind {} /etc/machine-id && exec \"$0\" \"$@\"", id.display());
        command.args(["-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_netvmd"), "--host", "a"]);
        command.args(["--etcd", &etcd.url()]);
        Daemon::launch_as(command, Arc::clone(folder), config)
    };
    // With a configuration of its own it runs that, and says so.
    let mut second = other(&folder, &config_with("own", 20));
    second.await_log("host name a belongs to machine");
    second.await_log("serves its API on");
    let status: netvm_api::Status = second.get(netvm_api::path::STATUS);
    let says = |problem: &String| problem.contains("give it another --host");
    assert!(status.problems.iter().any(says), "{:?}", status.problems);
    drop(second);
    // Without one, it does not start.
    std::fs::remove_file(folder.config()).unwrap();
    let mut command = Command::new("unshare");
    let script = format!(
        "rm -f {}; mount --bind {} /etc/machine-id && exec \"$0\" \"$@\"",
        folder.config().display(),
        id.display()
    );
    command.args([
        "-m",
        "sh",
        "-c",
        &script,
        env!("CARGO_BIN_EXE_netvmd"),
        "--host",
        "a",
        "--etcd",
        &etcd.url(),
    ]);
    let mut third = Daemon::launch_as(command, Arc::clone(&folder), "");
    assert!(!third.wait().success());
    assert!(third.log().contains("netvm fleet release a"), "{}", third.log());
    assert_eq!(etcd.get(&key("a", HostKey::Machine)).unwrap(), machine);
    etcd.until_runs("a", first);
    assert_eq!(host.rules(), ["a"]);
}

#[test]
fn a_copied_machine_is_told_of_the_other_one() {
    let Some(etcd) = Etcd::start() else { return };
    if !std::path::Path::new("/etc/machine-id").exists() {
        println!("SKIP: this machine has no /etc/machine-id");
        return;
    }
    let first = etcd.configure("a", &config(20));
    let host = Host::start("a", &etcd.url());
    etcd.until_runs("a", first);
    // The same number, and another host name; and a copy that has the host name, too.
    let rename = "echo copied >/proc/sys/kernel/hostname";
    let boot_id = "echo 01234567-89ab-cdef-0123-456789abcdef >$NETVM_BOOT && \
                   mount --bind $NETVM_BOOT /proc/sys/kernel/random/boot_id";
    for copy in [rename, boot_id] {
        let folder = Arc::new(Folder::new());
        let mut command = Command::new("unshare");
        let script = format!("{copy} && exec \"$0\" \"$@\"");
        let netvmd = env!("CARGO_BIN_EXE_netvmd");
        command.args(["--uts", "--mount", "sh", "-c", &script, netvmd, "--host", "a", "--etcd", &etcd.url()]);
        command.env("NETVM_BOOT", folder.0.join("boot"));
        let mut second = Daemon::launch_as(command, folder, &config_with("own", 20));
        second.await_log("whose /etc/machine-id is the same");
        second.await_log("serves its API on");
        let status: netvm_api::Status = second.get(netvm_api::path::STATUS);
        let says = |problem: &String| problem.contains("systemd-machine-id-setup");
        assert!(status.problems.iter().any(says), "{:?}", status.problems);
        let rules: netvm_api::PolicyInfo = second.get(netvm_api::path::POLICY);
        assert!(rules.rules.iter().any(|rule| rule.name == "own"));
    }
    // The one that was there goes on.
    etcd.until_runs("a", etcd.configure("a", &config_with("two", 20)));
    assert_eq!(host.rules(), ["a", "two"]);
}

#[test]
fn a_first_start_without_a_configuration_says_what_is_missing() {
    if Etcd::start().is_none() {
        return;
    }
    let folder = Arc::new(Folder::new());
    let mut daemon = launch_host(&folder, "a", &["--etcd", "http://127.0.0.1:1"]);
    daemon.await_log("has no configuration to start with: cannot reach etcd at 127.0.0.1:1");
    assert!(daemon.log().contains("netvm fleet apply"), "{}", daemon.log());
    let mut wrong = launch_host(&folder, "a", &["--etcd", "etcd.example:2379"]);
    assert!(!wrong.wait().success());
    assert!(wrong.log().contains("is no address of etcd: give http://NAME:PORT"), "{}", wrong.log());
    let mut wrong = launch_host(&folder, "a", &["--etcd", "https://127.0.0.1:1"]);
    assert!(!wrong.wait().success());
    assert!(wrong.log().contains("give the certificate of its authority with --etcd-ca"), "{}", wrong.log());
    let _ = program("forward");
}
