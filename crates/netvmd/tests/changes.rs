//! What netvmd looks up before a change, what it remembers of changes, and how it goes back.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::process::Command;

use common::hosts::Host;
use common::{Daemon, ENGINE, Folder, Forward, PROGRAM, is_root, lane, program};
use netlib::Options;
use netvm_api::{ApplyReply, Diagnostic, Severity, path};

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    if std::env::var(PROGRAM).is_ok() {
        netlib::run(&Options::new("forward"), |_| Forward).unwrap();
    }
}

fn config(names: &[&str]) -> String {
    let lanes: String = names.iter().map(|name| lane(name, &program("forward"))).collect();
    format!("{ENGINE}{lanes}")
}

/// One item for each kind of thing that this machine lacks, and what the finding says.
const LACKING: &[(&str, &str, &str)] = &[
    ("[engine]\ncores = [1023]\n", "cores", "core 1023: netvmd may use only"),
    ("[[port]]\nname = \"x\"\nkind = \"af_xdp\"\ninterface = \"none0\"\n", "interface", "no interface none0"),
    ("[[port]]\nname = \"p\"\nkind = \"af_packet\"\ninterface = \"none1\"\n", "interface", "`ip link` lists"),
    ("[[port]]\nname = \"t\"\nkind = \"tap\"\ninterface = \"lo\"\n", "interface", "exists and is no TAP"),
    ("[[port]]\nname = \"n\"\nkind = \"pci\"\naddress = \"ffff:1f:1f.7\"\n", "address", "`lspci -D` lists"),
    (
        "[[port]]\nname = \"v\"\nkind = \"vhost-user\"\npath = \"/none/v.sock\"\n",
        "path",
        "folder /none: No such",
    ),
    (
        "[[port]]\nname = \"c\"\nkind = \"pcap\"\ninput = \"/none/c.pcap\"\n",
        "input",
        "cannot read the capture",
    ),
    (
        "[[port]]\nname = \"w\"\nkind = \"pcap\"\noutput = \"/none/c.pcap\"\n",
        "output",
        "create it (mkdir -p)",
    ),
    ("[[nf]]\nrole = \"a\"\ncommand = [\"netvm-none\"]\n", "command", "no program `netvm-none`"),
    ("[[nf]]\nrole = \"b\"\ncommand = [\"/bin/true\"]\ncores = [1023]\n", "cores", "core 1023"),
    (
        "[[vm]]\nname = \"g\"\nports = [\"v\"]\nqemu = \"qemu-none\"\nimage = \"/none.img\"\n",
        "qemu",
        "qemu-none",
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
    found.retain(|finding| finding.code == "config::missing");
    assert_eq!(found.len(), LACKING.len(), "{found:#?}");
    let mut first_line = 1;
    for ((item, key, says), finding) in LACKING.iter().zip(&found) {
        let line = item.lines().position(|line| line.starts_with(&format!("{key} ="))).unwrap() + first_line;
        assert_eq!(finding.line as usize, line, "{finding:#?}");
        assert!(finding.message.contains(says), "{finding:#?}");
        first_line += item.lines().count() + 1;
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
fn plan_and_apply_look_everything_up_before_they_change_anything() {
    let daemon = Daemon::start(&config(&["a"]));
    let before = daemon.until_running("a-nf");
    // A new NF comes first, so that an apply would start it before it opens the port.
    let bad = config(&["a", "b"]) + "\n[[port]]\nname = \"c\"\nkind = \"af_packet\"\ninterface = \"none0\"\n";
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
    let folder = std::sync::Arc::new(Folder::new());
    let link = folder.0.join("nf");
    let own = std::env::current_exe().unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let through_link = program("forward").replace(&own.display().to_string(), &link.display().to_string());
    let lost = format!("{ENGINE}{}", lane("a", &through_link));
    let daemon = Daemon::start_in(folder, &lost);
    let before = daemon.until_running("a-nf");
    std::fs::remove_file(&link).unwrap();
    let _: ApplyReply = daemon.post(path::APPLY, &(lost.clone() + &lane("b", &program("forward"))));
    daemon.until_flowing("b");
    assert_eq!(daemon.nf("a-nf").pid, before.pid);
    // A change of that NF itself is refused.
    let changed = lost.replace("environment = {", "threads = 2\nenvironment = {");
    let (status, error) = daemon.post_failing(path::APPLY, &changed);
    assert_eq!(status, 422, "{error:?}");
}
