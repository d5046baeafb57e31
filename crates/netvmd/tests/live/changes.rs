// SPDX-License-Identifier: Apache-2.0
//! Look-ups before a change, the history of changes, and how netvmd goes back.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::hosts::Host;
use crate::common::{Daemon, ENGINE, Folder, forwarding_chain, is_root, program};
use netvm_api::{
    ApplyReply, ChainInfo, Diagnostic, Done, Drift, Revision, RevisionInfo, Severity, Status, path,
};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

fn config(names: &[&str]) -> String {
    let chains: String = names.iter().map(|name| forwarding_chain(name, &program("forward"))).collect();
    format!("{ENGINE}{chains}")
}

/// One item for each kind of thing that this machine lacks, with its keys and the words of its findings.
const LACKING: &[(&str, &[(&str, &str)])] = &[
    ("[engine]\ncores = [1023]\n", &[("cores", "core 1023: netvmd may use only")]),
    (
        "[[port]]\nname = \"x\"\nkind = \"af_xdp\"\ninterface = \"none0\"\n",
        &[("interface", "no interface none0")],
    ),
    (
        "[[port]]\nname = \"p\"\nkind = \"af_packet\"\ninterface = \"none1\"\n",
        &[("interface", "`ip link` lists")],
    ),
    (
        "[[port]]\nname = \"t\"\nkind = \"tap\"\ninterface = \"lo\"\n",
        &[("interface", "exists and is not a TAP")],
    ),
    (
        "[[port]]\nname = \"o\"\nkind = \"container\"\nnamespace = \"/proc/self/ns/net\"\n",
        &[("namespace", "netvm's own network namespace")],
    ),
    (
        "[[port]]\nname = \"n\"\nkind = \"pci\"\naddress = \"ffff:1f:1f.7\"\n",
        &[("address", "`lspci -D` lists")],
    ),
    (
        "[[port]]\nname = \"v\"\nkind = \"vhost-user\"\npath = \"/dev/null/v.sock\"\n",
        &[("path", "/dev/null is not a folder")],
    ),
    (
        "[[port]]\nname = \"c\"\nkind = \"pcap\"\ninput = \"/none/c.pcap\"\n",
        &[("input", "cannot read the capture")],
    ),
    (
        "[[port]]\nname = \"w\"\nkind = \"pcap\"\noutput = \"/none/c.pcap\"\n",
        &[("output", "create it (mkdir -p)")],
    ),
    ("[[nf]]\nrole = \"a\"\ncommand = [\"netvm-none\"]\n", &[("command", "no program `netvm-none`")]),
    ("[[nf]]\nrole = \"b\"\ncommand = [\"/bin/true\"]\ncores = [1023]\n", &[("cores", "core 1023")]),
    (
        "[[nf]]\nrole = \"w\"\ncommand = [\"/bin/true\"]\nwritable = [\"/none/w\"]\n",
        &[("writable", "no folder /none/w")],
    ),
    (
        "[[vm]]\nname = \"g\"\nports = [\"v\"]\nqemu = \"qemu-none\"\nimage = \"/none.img\"\nmemory = 1048576\n",
        &[
            ("image", "/none.img: No such file"),
            ("memory", "lower its `memory`"),
            ("qemu", "install qemu-system-x86"),
        ],
    ),
];

#[test]
fn check_names_every_line_that_this_machine_cannot_serve() {
    let folder = Folder::new();
    let text: String = LACKING.iter().map(|(item, ..)| format!("{item}\n")).collect();
    std::fs::write(folder.config(), &text).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_netvmd")).arg("check").arg(folder.config()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let mut found: Vec<Diagnostic> = serde_json::from_slice(&run.stdout).unwrap();
    // What ports lack is a warning, as they wait for it.
    found.retain(|finding| {
        matches!(
            (&*finding.code, finding.severity),
            ("config::missing", Severity::Error) | ("config::absent", Severity::Warning)
        )
    });
    let mut expected = Vec::new();
    let mut first_line = 1;
    for (item, keys) in LACKING {
        for (key, says) in *keys {
            let line = item.lines().position(|line| line.starts_with(&format!("{key} ="))).unwrap();
            expected.push((line + first_line, *says));
        }
        first_line += item.lines().count() + 1;
    }
    found.sort_by_key(|finding| finding.line);
    expected.sort_by_key(|(line, _)| *line);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for ((line, says), finding) in expected.iter().zip(&found) {
        assert_eq!(finding.line as usize, *line, "{finding:#?}");
        assert!(finding.message.contains(says), "{finding:#?}");
    }
}

#[test]
fn an_unknown_user_is_found_too() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let text = "[[nf]]\nrole = \"a\"\ncommand = [\"/bin/true\"]\nuser = \"nobody-here\"\n\
                [[nf]]\nrole = \"b\"\nattach_users = [\"root\", \"none-either\"]\n";
    std::fs::write(folder.config(), text).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_netvmd")).arg("check").arg(folder.config()).output().unwrap();
    let found: Vec<Diagnostic> = serde_json::from_slice(&run.stdout).unwrap();
    let lines: Vec<(u32, bool)> = found
        .iter()
        .filter(|finding| finding.code == "config::missing")
        .map(|finding| (finding.line, finding.message.contains("useradd --system")))
        .collect();
    assert_eq!(lines, [(4, true), (7, true)], "{found:#?}");
}

#[test]
fn more_queues_than_the_interface_has_are_found_too() {
    if !is_root() {
        return;
    }
    let host = Host::new("queues", &[], &[]);
    let daemon = Daemon::start(&ENGINE);
    let port = format!(
        "{ENGINE}\n[[port]]\nname = \"x\"\nkind = \"af_xdp\"\nqueues = 7\ninterface = \"{}\"\n",
        host.port()
    );
    let (status, error) = daemon.post_failing(path::APPLY, &port);
    let line = port.lines().position(|line| line == "queues = 7").unwrap() as u32 + 1;
    let is_named = |finding: &Diagnostic| finding.line == line && finding.message.contains("ethtool -L");
    assert!(status == 422 && error.diagnostics.iter().any(is_named), "{error:?}");
}

/// The user database is a pipe without a writer: a look-up waits until a writer opens it.
#[test]
fn a_slow_user_database_delays_only_the_change_that_asks_it() {
    if !is_root() {
        return;
    }
    let folder = Arc::new(Folder::new());
    let pipe = folder.0.join("passwd");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o644.into()).unwrap();
    let script = format!("mount --bind {} /etc/passwd && exec \"$0\" \"$@\"", pipe.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_netvmd")]);
    let text = config(&["a"]).replace("[[nf]]", "[[nf]]\nuser = \"65534\"");
    let quiet = format!("{ENGINE}[[port]]\nname = \"s\"\nkind = \"source\"\n");
    let mut daemon = Daemon::launch_as(command, folder, &quiet);
    daemon.await_log("serves its API on");
    std::thread::scope(|scope| {
        let apply = scope.spawn(|| daemon.post::<ApplyReply>(path::APPLY, &text));
        for _ in 0..20 {
            // They are answered, though the look-up waits.
            let _: Status = daemon.get(path::STATUS);
            let _: Vec<ChainInfo> = daemon.get(path::CHAINS);
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!apply.is_finished(), "nothing was looked up");
        // The look-ups find nothing in an empty file, and the number is used as it is. Without a reader there is
        // nothing to open.
        while !apply.is_finished() {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK;
            drop(rustix::fs::open(&pipe, flags, Mode::empty()));
            std::thread::sleep(Duration::from_millis(10));
        }
        apply.join().unwrap();
    });
    daemon.until_running("a-nf");
}

#[test]
fn plan_and_apply_look_everything_up_before_they_change_anything() {
    let daemon = Daemon::start(&config(&["a"]));
    let before = daemon.until_running("a-nf");
    // A new NF comes first, so that an apply would start it before it opens the port.
    let bad = config(&["a", "b"]) + "\n[[nf]]\nrole = \"c\"\ncommand = [\"netvm-none\"]\n";
    let line = bad.lines().count() as u32;
    for path in [path::PLAN, path::APPLY] {
        let (status, error) = daemon.post_failing(path, &bad);
        assert_eq!(status, 422, "{error:?}");
        let errors = error.diagnostics.iter().filter(|finding| finding.severity == Severity::Error);
        let [finding] = errors.collect::<Vec<_>>()[..] else { panic!("{error:?}") };
        assert_eq!((finding.line, &*finding.code), (line, "config::missing"));
    }
    assert!(!daemon.log().contains("b-nf"), "{}", daemon.log());
    assert_eq!(daemon.nf("a-nf").pid, before.pid);
}

#[test]
fn a_lost_interface_does_not_prevent_other_changes() {
    if !is_root() {
        return;
    }
    let host = Host::new("look", &[], &[]);
    let port = format!("\n[[port]]\nname = \"c\"\nkind = \"af_packet\"\ninterface = \"{}\"\n", host.port());
    let daemon = Daemon::start(&(config(&["a"]) + &port));
    drop(host);
    let _: ApplyReply = daemon.post(path::APPLY, &(config(&["a", "b"]) + &port));
    daemon.until_flowing("b");
}

#[test]
fn a_lost_program_does_not_prevent_other_changes() {
    let folder = Arc::new(Folder::new());
    let link = folder.0.join("nf");
    let own = std::env::current_exe().unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let through_link = program("forward").replace(&own.display().to_string(), &link.display().to_string());
    let lost = format!("{ENGINE}{}", forwarding_chain("a", &through_link));
    let daemon = Daemon::start_in(folder, &lost);
    let before = daemon.until_running("a-nf");
    std::fs::remove_file(&link).unwrap();
    let _: ApplyReply =
        daemon.post(path::APPLY, &(lost.clone() + &forwarding_chain("b", &program("forward"))));
    daemon.until_flowing("b");
    assert_eq!(daemon.nf("a-nf").pid, before.pid);
    // A change of that NF itself is refused.
    let changed = lost.replace("environment = {", "threads = 2\nenvironment = {");
    let (status, error) = daemon.post_failing(path::APPLY, &changed);
    assert_eq!(status, 422, "{error:?}");
}

fn status(daemon: &Daemon) -> Status {
    daemon.get(path::STATUS)
}

fn apply_with(daemon: &Daemon, query: &str, text: &str) -> ApplyReply {
    daemon.post(&format!("{}?{query}", path::APPLY), text)
}

fn chains(daemon: &Daemon) -> Vec<String> {
    daemon.get::<Vec<ChainInfo>>(path::CHAINS).into_iter().map(|chain| chain.name).collect()
}

#[test]
fn what_was_applied_is_remembered_and_can_be_saved() {
    let folder = Arc::new(Folder::new());
    let (first, second) = (config(&["a"]), config(&["a", "b"]));
    let mut daemon = Daemon::start_in(Arc::clone(&folder), &first);
    assert_eq!(status(&daemon).drift, Drift::None);
    apply_with(&daemon, "save=false", &second);
    assert!(matches!(status(&daemon).drift, Drift::Changes { changes: 5.. }), "{:?}", status(&daemon).drift);
    let history: Vec<RevisionInfo> = daemon.get(path::HISTORY);
    let found: Vec<_> = history.iter().map(|revision| (revision.number, revision.how.as_str())).collect();
    assert_eq!(found, [(2, "apply"), (1, "start")]);
    assert_eq!(status(&daemon).revision, Some(history[0].clone()));
    let before: Revision = daemon.get(&path::REVISION.replace("{number}", "1"));
    assert_eq!(before.toml, first);
    assert_eq!(daemon.request("GET", &path::REVISION.replace("{number}", "9"), "").0, 404);
    // Saved, a restart has it.
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(folder.config(), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        apply_with(&daemon, "save=true", &second).saved,
        Some(folder.config().canonicalize().unwrap())
    );
    assert_eq!(
        (std::fs::read_to_string(folder.config()).unwrap(), mode(&folder.config())),
        (second.clone(), 0o640)
    );
    assert_eq!(status(&daemon).drift, Drift::None);
    // netvmd reports a file that is wrong or missing.
    std::fs::write(folder.config(), "[[port]").unwrap();
    assert!(matches!(status(&daemon).drift, Drift::Unreadable { .. }));
    std::fs::write(folder.config(), &second).unwrap();
    daemon.signal(Signal::TERM);
    daemon.wait();
    let daemon = Daemon::start_in(folder, &second);
    assert_eq!(chains(&daemon), ["a", "b"]);
    let history: Vec<RevisionInfo> = daemon.get(path::HISTORY);
    assert_eq!(history.iter().map(|revision| revision.number).collect::<Vec<_>>(), [3, 2, 1], "{history:?}");
}

#[test]
fn a_change_that_is_not_confirmed_is_undone() {
    let folder = Arc::new(Folder::new());
    let (first, second) = (config(&["a"]), config(&["a", "b"]));
    let mut daemon = Daemon::start_in(Arc::clone(&folder), &first);
    let pid = daemon.until_running("a-nf").pid;
    // In time: it stays, and is saved then.
    let reply = apply_with(&daemon, "save=true&confirm=60", &second);
    assert_eq!((reply.confirm_within_s, reply.saved), (Some(60), None));
    assert!(status(&daemon).confirm_within_s.is_some_and(|left| left >= 55));
    assert_eq!(std::fs::read_to_string(folder.config()).unwrap(), first);
    let (code, error) = daemon.post_failing(path::APPLY, &first);
    assert!(code == 409 && error.message.contains("waits for its confirmation"), "{error}");
    let _: Done = daemon.post(path::CONFIRM, "");
    assert_eq!(std::fs::read_to_string(folder.config()).unwrap(), second);
    assert_eq!(daemon.post_failing(path::CONFIRM, "").0, 409);
    // On request, and by itself, it goes back.
    let third = config(&["a", "c"]);
    apply_with(&daemon, "confirm=60", &third);
    assert_eq!(chains(&daemon), ["a", "c"]);
    let _: Done = daemon.post(path::REVERT, "");
    assert_eq!(chains(&daemon), ["a", "b"]);
    apply_with(&daemon, "confirm=1", &third);
    assert_eq!(chains(&daemon), ["a", "c"]);
    daemon.until("it went back", |daemon| chains(daemon) == ["a", "b"]);
    daemon.until_flowing("b");
    assert_eq!(daemon.nf("a-nf").pid, pid, "what did not change was not touched");
    assert_eq!(status(&daemon).confirm_within_s, None);
    // The way back may not be over yet, and another change is refused as long.
    let never = format!("{}?confirm=0", path::APPLY);
    daemon.until("the limit is refused", |daemon| daemon.request("POST", &never, &third).0 == 422);
    // The file was edited in place and a kill comes before the confirmation: the next netvmd runs what was before.
    std::fs::write(folder.config(), &third).unwrap();
    apply_with(&daemon, "confirm=60", &third);
    daemon.signal(Signal::KILL);
    daemon.wait();
    let mut daemon = Daemon::start_in(Arc::clone(&folder), &third);
    assert_eq!(chains(&daemon), ["a", "b"], "{}", daemon.log());
    assert!(
        status(&daemon).problems.iter().any(|problem| problem.contains("not confirmed")),
        "{:?}",
        status(&daemon)
    );
    // Applied as it is, it is accepted.
    apply_with(&daemon, "", &third);
    daemon.signal(Signal::KILL);
    daemon.wait();
    let daemon = Daemon::start_in(folder, &third);
    assert_eq!(chains(&daemon), ["a", "c"], "{}", daemon.log());
}

#[test]
fn packets_for_an_interface_that_is_gone_are_dropped_and_counted() {
    if !is_root() {
        return;
    }
    let host = Host::new("gone", &[], &[]);
    let daemon = Daemon::start(&format!(
        "{ENGINE}\n[[port]]\nname = \"x\"\nkind = \"af_xdp\"\ninterface = \"{}\"\n\
         [[port]]\nname = \"in\"\nkind = \"source\"\nrate = 1000\nforward = {{ out = \"x\" }}\n",
        host.port()
    ));
    let sent =
        |daemon: &Daemon| daemon.stats().ports.iter().find(|port| port.name == "x").unwrap().tx_packets;
    let dropped = |daemon: &Daemon| {
        daemon.stats().drops.ports.get("x").and_then(|drops| drops.get("port-down")).copied().unwrap_or(0)
    };
    daemon.until("it sends", |daemon| sent(daemon) > 10);
    host.unplug();
    daemon.until("the drops are counted", |daemon| dropped(daemon) > 10);
    let (before, lost) = (sent(&daemon), dropped(&daemon));
    daemon.until("time passes", |daemon| dropped(daemon) > lost + 500);
    assert_eq!(sent(&daemon), before);
    host.plug();
    daemon.until("it sends again", |daemon| sent(daemon) > before + 10);
}
